"""A world with people in it, for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from svc_actors.store import Database
from tests.support.identity import World, open_world


@pytest.fixture
async def world(database: Database) -> AsyncIterator[World]:
    async with open_world(database) as opened:
        yield opened
