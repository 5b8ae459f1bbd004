"""The toys, in process and over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from svc_actors.sealing import Sealer
from svc_actors.store import Database, EventLog
from tests.support.example_service import ExampleServices, Served, example_app, served


@pytest.fixture
async def toys(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the toys in this process."""
    app = example_app(ExampleServices(database, Sealer(bytes(32)), EventLog(database)))
    transport = httpx.ASGITransport(app=cast(Any, app), client=("192.0.2.9", 1234), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="https://toys.test/api/v1") as client:
        yield client


@pytest.fixture
async def server(database: Database, tmp_path: Path) -> AsyncIterator[Served]:
    """The toys over HTTPS."""
    async with served(database, tmp_path) as running:
        yield running
