"""A stage for the tests of this folder."""

from __future__ import annotations

import pytest

from svc_actors.store import Database
from tests.support.traffic import TrafficHarness, make_stage


@pytest.fixture
async def stage(database: Database) -> TrafficHarness:
    return await make_stage(database)
