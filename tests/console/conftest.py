from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from svc_actors.store import Database
from tests.support.console import House, open_house


@pytest.fixture
async def house(database: Database) -> AsyncIterator[House]:
    async with open_house(database) as opened:
        yield opened
