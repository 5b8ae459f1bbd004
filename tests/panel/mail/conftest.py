from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from svc_actors.store import Database
from tests.panel.mail.world import SiteMailWorld, site_mail_world


@pytest.fixture
async def world(panel_database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SiteMailWorld]:
    async with site_mail_world(panel_database, monkeypatch) as made:
        yield made
