"""The actor of one webhook endpoint: it makes the attempts that are due, a few at a time.

Invariants:
- of one endpoint no more than `PARALLEL` attempts are under way, and of one delivery never two; so order is not kept;
- the timestamp, the signature and the secret are those of the moment of the attempt; the body and the delivery's id are
  the same in all attempts;
- an attempt is made before it is recorded: after a crash between the two it is made again (at least once).

A round ends when nothing is due, at the latest `ROUND_SECONDS` and an attempt's deadline after it began: a handler is
short. Whoever asked for it asks again (`svc_actors.panel.webhooks.dispatch`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.panel.webhooks import deliveries, endpoints
from svc_actors.panel.webhooks.delivery_states import Answered, DeliveryStatus, Outcome, Unanswered
from svc_actors.panel.webhooks.outbox import CHANNEL
from svc_actors.panel.webhooks.receivers import Receivers, Sender
from svc_actors.panel.webhooks.signature import signature_header
from svc_actors.runtime import Actor
from svc_actors.sealing import CannotUnseal, Sealer
from svc_actors.store import Database, Transaction

PARALLEL: Final = 4
ROUND_SECONDS: Final = 20.0

Clock = Callable[[], datetime]

log = structlog.get_logger(__name__)


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Delivering:
    """What the actors of all endpoints work with. `clock` is a test's own where it moves time."""

    database: Database
    sealer: Sealer
    receivers: Receivers
    clock: Clock = utc_now


class WebhookEndpoint(Actor):
    def __init__(self, services: Delivering) -> None:
        self._services = services
        self._under_way: set[UUID] = set()
        self._woken = trio.Event()
        self._ended: set[DeliveryStatus] = set()

    async def deliver(self) -> None:
        """Make the attempts that are due."""
        database = self._services.database
        last = trio.current_time() + ROUND_SECONDS
        self._under_way, self._ended = set(), set()
        with database.announcements.listener(CHANNEL, lambda _: self._woken.set()):
            async with self._services.receivers.open(PARALLEL) as sender, trio.open_nursery() as nursery:
                while True:
                    self._woken = trio.Event()
                    if trio.current_time() < last and not self.system.draining:
                        await self._begin_attempts(sender, nursery)
                    if not self._under_way:
                        break
                    await self._woken.wait()
        if self._ended:
            await database.transact(self._tell)

    async def _begin_attempts(self, sender: Sender, nursery: trio.Nursery) -> None:
        free = PARALLEL - len(self._under_way)
        if not free:
            return
        now = self._services.clock()
        found = await deliveries.due(self._services.database, UUID(self.key), now, most=free, under_way=self._under_way)
        for delivery in found:
            self._under_way.add(delivery.id)
            nursery.start_soon(self._attempt, sender, delivery)

    async def _attempt(self, sender: Sender, delivery: deliveries.Due) -> None:
        services = self._services
        try:
            began = services.clock()
            outcome = await self._sent(sender, delivery, began)
            verdict = await deliveries.record(services.database, delivery, outcome, began=began, ended=services.clock())
        finally:
            self._under_way.discard(delivery.id)
            self._woken.set()
        if verdict is None:
            return
        self._ended.add(verdict.status)
        if verdict.status is not DeliveryStatus.DELIVERED:
            log.warning(
                "webhook.attempt_failed",
                endpoint=self.key,
                delivery=str(delivery.id),
                attempt=delivery.attempts + 1,
                status=verdict.status.value,
                outcome=outcome.status if isinstance(outcome, Answered) else outcome.reason,
            )

    async def _sent(self, sender: Sender, delivery: deliveries.Due, at: datetime) -> Outcome:
        try:
            secret = endpoints.secret_of(self._services.sealer, UUID(self.key), delivery.sealed_secret)
        except CannotUnseal:
            return Unanswered("the endpoint's secret cannot be opened with this server's key; rotate it")
        headers = {
            "User-Agent": "Service-Webhook/1",
            "Content-Type": "application/json",
            "X-Service-Event": delivery.event,
            "X-Service-Delivery": str(delivery.id),
            "X-Service-Signature": signature_header(secret, int(at.timestamp()), delivery.body),
        }
        return await sender.post(delivery.url, headers, delivery.body)

    async def _tell(self, tx: Transaction) -> None:
        """For the pages, and for the operator of an endpoint that takes nothing any more."""
        endpoint_id = UUID(self.key)
        await endpoints.changed(tx, endpoint_id)
        if DeliveryStatus.FAILED in self._ended:
            await endpoints.raise_alert_of(tx, endpoint_id)
        elif DeliveryStatus.DELIVERED in self._ended:
            await endpoints.close_alert_of(tx, endpoint_id)
