from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from svc_actors.panel.releases.own import OwnRelease
from svc_actors.store import Database
from tests.panel.releases.world import World, opened
from tests.support.own_releases import installed_release


@pytest.fixture
def own(tmp_path: Path) -> OwnRelease:
    (tmp_path / "offers").mkdir()
    return installed_release(tmp_path)


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path, own: OwnRelease) -> AsyncIterator[World]:
    async with opened(panel_database, tmp_path, own) as world:
        yield world
