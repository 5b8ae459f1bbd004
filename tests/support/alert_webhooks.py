"""A whole controller whose alerts go to receivers of webhooks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import trio

from svc.controller.config import ControllerConfig
from svc.controller.services import ControllerLoop
from svc.service.controller.services import open_services
from svc_actors.alerts import Severity, close_alert, raise_alert
from svc_actors.controller.alert_webhooks import tell_receivers
from svc_actors.store import Database
from svc_actors.webhooks.settings import WebhookSettings
from tests.support.harness import CheapPasswords, Client
from tests.support.identity import IdentityHarness, open_identity
from tests.support.webhooks import Received, Receiver, Receiving

ROOT = "root@example.org"


@dataclass
class World:
    """A whole controller, an administrator, and receivers that it reaches."""

    house: IdentityHarness
    root: Client
    receiving: Receiving

    @property
    def database(self) -> Database:
        return self.house.database

    async def receiver(self, *answers: int) -> Receiver:
        return await self.receiving.receiver(*answers)

    async def webhook(self, receiver: Receiver, least: str = "warning") -> dict[str, Any]:
        url = f"https://localhost:{receiver.port}/hook?key=1"
        answer = await self.root.post("/alerts/webhooks", {"url": url, "least": least})
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    async def opens(self, key: str, severity: Severity = Severity.CRITICAL) -> None:
        """It is opened, and receivers are told."""
        await self.database.transact(partial(raise_alert, key=key, message=f"{key} is wrong", severity=severity))
        await self.tell()

    async def closes(self, key: str) -> None:
        await self.database.transact(partial(close_alert, key=key))
        await self.tell()

    async def tell(self) -> None:
        """Receivers are told what there is to tell, and what came of it is recorded."""
        await tell_receivers(self.database)
        await self.house.services.loops.step("webhooks")

    async def tested(self, webhook: dict[str, Any]) -> int:
        """The status of the answer to an order of a test, which was sent."""
        answer = await self.root.post(f"/alerts/webhooks/{webhook['id']}/test")
        await self.tell()
        return answer.status_code

    async def newest(self, webhook: dict[str, Any]) -> dict[str, Any]:
        """Its newest delivery, of which an attempt has been made."""
        newest: dict[str, Any]
        newest, *_ = (await self.root.get(f"/alerts/webhooks/{webhook['id']}/deliveries")).json()["items"]
        assert newest["attempts"] >= 1
        return newest

    async def alert(self, webhook: dict[str, Any]) -> Any:
        key = f"webhook:{webhook['id']}"
        return await self.database.fetchrow("SELECT * FROM alerts WHERE key = $1 AND closed_at IS NULL", key)


async def told(receiver: Receiver) -> Received:
    with trio.fail_after(30):
        return await receiver.next()


@asynccontextmanager
async def running(
    database: Database, folder: Path, receiving: Receiving, loops: Collection[ControllerLoop] = ()
) -> AsyncIterator[World]:
    async with open_controller(database, folder, receiving.authorities, loops) as house:
        await house.person(ROOT, "administrator")
        yield World(house, await house.signed_in(ROOT), receiving)


@asynccontextmanager
async def open_controller(
    database: Database, folder: Path, authorities: Path, loops: Collection[ControllerLoop] = ()
) -> AsyncIterator[IdentityHarness]:
    networks = (ip_network("127.0.0.1/32"), ip_network("::1/128"))
    config = ControllerConfig(
        data_dir=folder,
        public_host="localhost",
        bind_host="127.0.0.1",
        gateway_port=0,
        webhooks=WebhookSettings(networks=networks, ca_file=authorities),
    )
    async with (
        open_services(config, database, passwords=CheapPasswords(), enabled_loops=loops) as services,
        open_identity(database, services=services) as house,
    ):
        yield house
