"""A queue of mail, and a relay that takes it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import trio

from svc_actors.mail import Delivery, MailKind, MailSettings, NewMail, Outbox
from svc_actors.mail.alert import DeliveryAlert
from svc_actors.mail.queue import QueuedMails
from svc_actors.sealing import Sealer
from svc_actors.store import Database, keep_running
from tests.support.smtp import WAIT, MailServer, mail_server

URL = "https://controller.example:8443"


@dataclass
class Queue:
    """A service's end of mail. What is written waits until `delivering`."""

    database: Database
    settings: MailSettings
    outbox: Outbox

    async def write(self, subject: str = "Hello", recipient: str = "ada@example.net", **more: Any) -> UUID:
        given: dict[str, Any] = {"kind": MailKind.TEST, "text": "A text.\n", "lasts": timedelta(hours=1)} | more
        async with self.database.transaction() as tx:
            return await self.outbox.write(tx, NewMail(recipient=recipient, subject=subject, **given))

    @asynccontextmanager
    async def delivering(self) -> AsyncIterator[None]:
        """As a service does from its start until it is killed."""
        async with trio.open_nursery() as nursery:
            alert = DeliveryAlert.of_own_mail(self.database)
            delivery = Delivery(self.database, QueuedMails(self.database, self.outbox), self.settings, alert)
            nursery.start_soon(keep_running, "mail", delivery.run)
            yield
            nursery.cancel_scope.cancel()

    async def row(self, mail_id: UUID) -> dict[str, Any]:
        return dict(await self.database.fetchone("SELECT * FROM mails WHERE id = $1", mail_id))

    async def until(self, mail_id: UUID, condition: str) -> dict[str, Any]:
        """The row, once the condition (SQL of it) holds."""
        with trio.fail_after(WAIT):
            while not await self.database.fetchval(f"SELECT {condition} FROM mails WHERE id = $1", mail_id):
                await trio.sleep(0.01)
        return await self.row(mail_id)

    async def now(self, mail_id: UUID) -> None:
        """Let the pause before the next attempt pass."""
        await self.database.execute("UPDATE mails SET attempt_at = now() WHERE id = $1", mail_id)
        async with self.database.transaction() as tx:
            await tx.fetchval("SELECT 1")
            tx.announce("mail", "now")


def queue_for(database: Database, settings: MailSettings) -> Queue:
    return Queue(database, settings, Outbox(Sealer(bytes(32)), settings, URL))


@pytest.fixture
async def relay() -> AsyncIterator[MailServer]:
    async with mail_server() as server:
        yield server


@pytest.fixture
def queue(database: Database, relay: MailServer) -> Queue:
    return queue_for(database, relay.settings())
