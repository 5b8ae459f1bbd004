"""The process that delivers is killed while a receiver has deliveries in hand: nothing is lost, and repeats say so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from svc_actors.store import Database
from tests.support.webhooks import HANG, open_receiving
from tests.webhooks.world import KINDS, open_service


@asynccontextmanager
async def process_of(kind: str, url: str, folder: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    """Killed at the end, if it was not before."""
    program = f"from tests.webhooks.world import deliver; deliver({kind!r}, {url!r}, {str(folder)!r})"
    process = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    try:
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(process.wait)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_sent_and_not_recorded_is_sent_again_under_the_same_id(
    kind: str, database_url: str, panel_database_url: str, tmp_path: Path
) -> None:
    url = panel_database_url if kind == "panel" else database_url
    async with open_receiving(tmp_path) as receiving, Database.open(url) as database:
        async with open_service(KINDS[kind], database, tmp_path, receiving) as service:
            _, receiver = await service.endpoint(HANG, HANG, HANG, 200)
            for _ in range(3):
                await service.kind.happen(database)
        with trio.fail_after(60):
            async with process_of(kind, url, tmp_path) as process:
                first = {request.delivery: request.body for request in [await receiver.next() for _ in range(3)]}
                process.kill()  # All are sent, and nothing is recorded.
            before = await database.fetch("SELECT status, attempts FROM webhook_deliveries")

            async with process_of(kind, url, tmp_path):
                second = {request.delivery: request.body for request in [await receiver.next() for _ in range(3)]}
                while await database.fetchval("SELECT count(*) FROM webhook_deliveries WHERE status <> 'delivered'"):
                    await trio.sleep(0.02)
        receiving.nursery.cancel_scope.cancel()

    assert [tuple(row) for row in before] == [("pending", 0)] * 3
    assert len(first) == 3
    assert second == first
    assert len(receiver.received) == 6
