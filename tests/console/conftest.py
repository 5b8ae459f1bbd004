from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from svc_actors.store import Database
from tests.support.console import ConsoleHarness, open_consoles


@pytest.fixture
async def house(database: Database) -> AsyncIterator[ConsoleHarness]:
    async with open_consoles(database) as opened:
        yield opened
