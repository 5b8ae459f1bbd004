"""The process that delivers is killed while a receiver has a delivery in hand: nothing is lost, and repeats say so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import trio

from svc_actors.panel.webhooks import WebhookEvent, emit
from svc_actors.store import Database
from svc_actors.store.sequencing import EVENT_CHANNEL
from tests.support.webhooks import HANG, Receiver, Receiving, open_receiving, open_webhooks

CORE = """
import sys
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import trio

from svc.service.panel.compose import open_services
from svc.panel.config import PanelConfig
from svc_actors.webhooks.settings import WebhookSettings
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from tests.support.panel import recorded_host
from tests.support.webhooks import leads_here

url, folder = sys.argv[1], Path(sys.argv[2])
settings = WebhookSettings(networks=(ip_network("127.0.0.1"),), ca_file=folder / "certificate.pem")
config = PanelConfig(folder, "panel.test", folder / "core.sock", webhooks=settings)


async def main() -> None:
    async with Database.open(url) as database:
        host = replace(recorded_host(), resolve=leads_here)
        async with open_services(config, database, host, sealer=Sealer(bytes(32))):
            await trio.sleep_forever()


trio.run(main)
"""


@asynccontextmanager
async def core(url: str, folder: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A process that delivers; killed at the end, if it was not before."""
    process = subprocess.Popen([sys.executable, "-c", CORE, url, str(folder)], cwd=Path(__file__).parents[3])
    try:
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(process.wait)


async def test_a_core_that_is_killed_between_sending_and_recording_sends_again(
    panel_database: Database, panel_database_url: str, tmp_path: Path
) -> None:
    async with open_receiving(tmp_path) as receiving:
        receiver = await receiving.receiver(HANG, HANG, HANG, 200)
        endpoint = await endpoint_with_deliveries(panel_database, tmp_path, receiving, receiver, 3)
        async with core(panel_database_url, tmp_path) as process:
            first = {(await receiver.next()).delivery for _ in range(3)}  # Sent, and nothing recorded.
            process.kill()
        before = await panel_database.fetch("SELECT status, attempts FROM webhook_deliveries")

        async with core(panel_database_url, tmp_path):
            second = {(await receiver.next()).delivery for _ in range(3)}
            await delivered(panel_database, endpoint)

    assert len(first) == 3
    assert second == first
    assert [tuple(row) for row in before] == [("pending", 0)] * 3
    assert len(receiver.received) == 6


async def endpoint_with_deliveries(
    database: Database, folder: Path, receiving: Receiving, receiver: Receiver, number: int
) -> UUID:
    """An endpoint of which deliveries were written while it was not enabled, as if no core had run."""
    async with open_webhooks(database, folder, receiving=receiving) as world:
        made = await world.endpoint(receiver)
        async with database.transaction() as tx:
            for _ in range(number):
                await emit(tx, WebhookEvent.BACKUP_FAILED)
            await tx.execute("UPDATE webhook_endpoints SET enabled = false")
    await database.execute("UPDATE webhook_endpoints SET enabled = true")
    return UUID(made["id"])


async def delivered(database: Database, endpoint_id: UUID) -> None:
    """Wait until nothing waits; another process records it."""
    waiting = "SELECT count(*) FROM webhook_deliveries WHERE endpoint_id = $1 AND next_attempt_at IS NOT NULL"
    async with database.listen(EVENT_CHANNEL) as changes:
        while await database.fetchval(waiting, endpoint_id):
            await changes.receive()
