"""A rig for every test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from svc_actors.store import Database
from tests.support.gateway import HEARTBEAT_SECONDS, GatewayHarness, open_rig
from tests.support.node_api import NodeApiHarness, open_site


@pytest.fixture
def heartbeat_seconds() -> float:
    """Those of `rig`; less where tests wait for a silent link to be given up."""
    return HEARTBEAT_SECONDS


@pytest.fixture
async def rig(database: Database, tmp_path: Path, heartbeat_seconds: float) -> AsyncIterator[GatewayHarness]:
    async with open_rig(database, tmp_path, heartbeat_seconds=heartbeat_seconds) as opened:
        yield opened


@pytest.fixture
async def site(database: Database, tmp_path: Path) -> AsyncIterator[NodeApiHarness]:
    async with open_site(database, tmp_path) as opened:
        yield opened
