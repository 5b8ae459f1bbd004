"""Both services that have webhooks, with endpoints at receivers that they reach."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import trio

from svc.controller.services import ControllerLoop
from svc_actors.alerts import Severity, raise_alert
from svc_actors.controller.alert_webhooks import tell_receivers
from svc_actors.panel.webhooks import WebhookEvent, emit
from svc_actors.store import Database
from svc_actors.webhooks.settings import WebhookSettings
from tests.support.alert_webhooks import open_controller
from tests.support.harness import Client, Harness
from tests.support.panel import open_panel, recorded_host
from tests.support.webhooks import NAME, Receiver, Receiving, leads_here


class Open(Protocol):
    def __call__(
        self, database: Database, folder: Path, authorities: Path, *, deliver: bool = False
    ) -> AbstractAsyncContextManager[Harness[Any]]: ...


@dataclass(frozen=True)
class Kind:
    """What differs. `body`: besides the URL, of the request for an endpoint. `operations`: those that create, test,
    replay, rotate, update and delete. `scope`: of a token that may do nothing with webhooks. `open` delivers by its
    own loops if it is told to."""

    path: str
    body: Mapping[str, Any]
    operations: list[str]
    host: str
    test_event: str
    scope: str
    open: Open
    happen: Callable[[Database], Awaitable[None]]
    """Something that endpoints get an event about."""


@dataclass
class Service:
    """A service, an administrator of it, and receivers that it reaches. What is due is sent when the test says so."""

    kind: Kind
    harness: Harness[Any]
    root: Client
    receiving: Receiving

    @property
    def database(self) -> Database:
        return self.harness.database

    async def endpoint(self, *answers: int) -> tuple[dict[str, Any], Receiver]:
        """An endpoint made by the API, with its secret."""
        receiver = await self.receiving.receiver(*answers)
        url = f"https://{self.kind.host}:{receiver.port}/hook?key=1"
        answer = await self.root.post(self.kind.path, {"url": url, **self.kind.body})
        assert answer.status_code == 201, answer.text
        endpoint: dict[str, Any] = answer.json()
        return endpoint, receiver

    async def send(self) -> None:
        """Make the attempts that are due."""
        await self.harness.services.loops.step("webhooks")


@asynccontextmanager
async def open_service(kind: Kind, database: Database, folder: Path, receiving: Receiving) -> AsyncIterator[Service]:
    async with kind.open(database, folder, receiving.authorities) as harness:
        root = await harness.person("root@example.org", "administrator")
        yield Service(kind, harness, harness.program(await harness.token(root)), receiving)


def deliver(name: str, url: str, folder: str) -> None:
    """The work of a process of its own: it delivers until it is killed."""

    async def main() -> None:
        authorities = Path(folder, "certificate.pem")
        async with Database.open(url) as database, KINDS[name].open(database, Path(folder), authorities, deliver=True):
            await trio.sleep_forever()

    trio.run(main)


def _open_controller(
    database: Database, folder: Path, authorities: Path, *, deliver: bool = False
) -> AbstractAsyncContextManager[Harness[Any]]:
    loops: list[ControllerLoop] = ["alert webhooks", "webhooks"] if deliver else []
    return open_controller(database, folder, authorities, loops)


def _open_panel(
    database: Database, folder: Path, authorities: Path, *, deliver: bool = False
) -> AbstractAsyncContextManager[Harness[Any]]:
    settings = WebhookSettings(networks=(ip_network("127.0.0.1/32"),), ca_file=authorities)
    host = replace(recorded_host(), resolve=leads_here)
    return open_panel(database, folder, host, webhooks=settings, loops=["webhooks"] if deliver else [])


async def _open_alert(database: Database) -> None:
    key = f"node-{uuid4()}"
    await database.transact(partial(raise_alert, key=key, message="It is down.", severity=Severity.CRITICAL))
    await tell_receivers(database)


async def _fail_backup(database: Database) -> None:
    async with database.transaction() as tx:
        await emit(tx, WebhookEvent.BACKUP_FAILED)


_CONTROLLER = Kind(
    path="/alerts/webhooks",
    body={"least": "critical"},
    operations=[
        f"alert.{name}"
        for name in ("create_webhook", "test_webhook", "replay", "rotate_webhook", "update_webhook", "delete_webhook")
    ],
    host="localhost",
    test_event="alert.test",
    scope="provision",
    open=_open_controller,
    happen=_open_alert,
)
_PANEL = Kind(
    path="/webhooks",
    body={"events": ["*"]},
    operations=[f"webhook.{name}" for name in ("create", "test", "replay", "rotate", "update", "delete")],
    host=NAME,
    test_event="update.installed",
    scope="sites",
    open=_open_panel,
    happen=_fail_backup,
)
KINDS = {"controller": _CONTROLLER, "panel": _PANEL}
