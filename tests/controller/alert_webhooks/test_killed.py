"""The controller is killed while a receiver has an alert in hand: it is told again, and the repeat says so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from svc_actors.alerts import Severity, raise_alert
from svc_actors.store import Database
from tests.controller.alert_webhooks.test_alert_webhooks import World, running
from tests.support.webhooks import HANG, open_receiving

CONTROLLER = """
import sys
from ipaddress import ip_network
from pathlib import Path

import trio

from svc.service.controller.services import open_services
from svc.controller.config import ControllerConfig
from svc_actors.store import Database
from svc_actors.webhooks.settings import WebhookSettings

url, folder, authorities = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
settings = WebhookSettings(networks=(ip_network("127.0.0.1/32"), ip_network("::1/128")), ca_file=authorities)
config = ControllerConfig(
    data_dir=folder, public_host="localhost", bind_host="127.0.0.1", gateway_port=0, webhooks=settings
)


async def main() -> None:
    async with Database.open(url) as database, open_services(
        config, database, wanted=["alert webhooks", "webhooks"]
    ):
        await trio.sleep_forever()


trio.run(main)
"""


@asynccontextmanager
async def controller(url: str, folder: Path, authorities: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A process that tells alerts; killed at the end, if it was not before."""
    command = [sys.executable, "-c", CONTROLLER, url, str(folder), str(authorities)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[3])
    try:
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(process.wait)


async def made(world: World, port: int) -> dict[str, Any]:
    url = f"https://localhost:{port}/hook"
    answer = await world.root.post("/alerts/webhooks", {"url": url, "least": "critical"})
    webhook: dict[str, Any] = answer.json()
    return webhook


async def delivered(database: Database, webhook_id: str, delivery_id: str) -> None:
    """Wait until it is recorded, by another process, that the receiver took it."""
    status = "SELECT status FROM webhook_deliveries WHERE endpoint_id = $1 AND id = $2"
    while await database.fetchval(status, UUID(webhook_id), UUID(delivery_id)) != "delivered":
        await trio.sleep(0.02)


async def test_an_alert_that_was_sent_and_not_recorded_is_sent_again_under_the_same_id(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    async with open_receiving(tmp_path) as receiving:
        receiver = await receiving.receiver(HANG, 200)
        async with running(database, tmp_path, receiving) as world:
            webhook = await made(world, receiver.port)
        async with controller(database_url, tmp_path, receiving.authorities) as process:
            await database.transact(
                partial(raise_alert, key="node-1", message="node-1 is wrong", severity=Severity.CRITICAL)
            )
            with trio.fail_after(60):
                first = await receiver.next()  # Sent, and nothing recorded.
            process.kill()
        before = await database.fetch("SELECT status, attempts FROM webhook_deliveries")

        async with controller(database_url, tmp_path, receiving.authorities):
            with trio.fail_after(60):
                second = await receiver.next()
                await delivered(database, webhook["id"], first.delivery)
        receiving.nursery.cancel_scope.cancel()

    assert [tuple(row) for row in before] == [("pending", 0)]
    assert (second.delivery, second.body) == (first.delivery, first.body)
