from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from svc_actors.store import Database
from tests.panel.sites.world import World, world_of


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(panel_database, tmp_path) as made:
        yield made
