from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from tests.panel.sites.world import World, world_of
from tests.panel.staging.shops import Shop
from tests.panel.staging.shops import shop as made_shop


@pytest.fixture(autouse=True)
def own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cannot make accounts has the sites' files as themselves."""
    if os.geteuid() != 0:
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(panel_database, tmp_path, loops=["pushes to undo", "schedules"]) as made:
        yield made


@pytest.fixture
async def shop(world: World) -> Shop:
    return await made_shop(world)
