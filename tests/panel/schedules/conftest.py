from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from trio.testing import MockClock

from svc_actors.store import Database
from tests.panel.schedules.world import ScheduleWorld, open_schedules


@pytest.fixture
def clock() -> MockClock:
    """Goes on by itself, and is put forward by tests: a statement that is under way must not be given up as slow."""
    return MockClock(rate=1)


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[ScheduleWorld]:
    async with open_schedules(panel_database, tmp_path) as made:
        yield made
