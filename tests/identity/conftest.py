"""A world with people in it, for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from svc_actors.store import Database
from tests.support.identity import IdentityHarness, open_identity


@pytest.fixture
async def world(database: Database) -> AsyncIterator[IdentityHarness]:
    async with open_identity(database) as opened:
        yield opened
