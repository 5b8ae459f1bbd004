from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from svc_actors.store import Database
from tests.panel.health.world import World, open_health


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with open_health(panel_database, tmp_path) as made:
        yield made
