"""A place for every test that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from svc_actors.store import Database
from tests.support.security_groups import SecurityGroupHarness, open_place


@pytest.fixture
async def place(database: Database, tmp_path: Path) -> AsyncIterator[SecurityGroupHarness]:
    async with open_place(database, tmp_path) as opened:
        yield opened
