"""A round of one webhook endpoint: it makes the attempts that are due, a few at a time.

Invariants:
- at most `PARALLEL` attempts of an endpoint, and one of a delivery, are under way at once; so the order of deliveries
  is not preserved;
- the timestamp, signature and secret are those of the time of the attempt; the body and the delivery's id are the same
  in all attempts;
- an attempt is made before it is recorded: after a crash between the two it is repeated (at least once).

A round ends when nothing is due, and at the latest `ROUND_SECONDS` plus an attempt's deadline after its start, so that
alerts about a busy endpoint are written. `svc_actors.webhooks.dispatch` then starts the next round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.sealing import CannotUnseal, Sealer
from svc_actors.store import Database, Transaction, background_nursery
from svc_actors.webhooks import deliveries, endpoints
from svc_actors.webhooks.delivery_states import Answered, DeliveryStatus, Outcome, Unanswered
from svc_actors.webhooks.outbox import CHANNEL
from svc_actors.webhooks.payload import signature_header
from svc_actors.webhooks.receivers import Receivers, Sender

PARALLEL: Final = 4
ROUND_SECONDS: Final = 20.0
_READ_AHEAD: Final = 32
"""Deliveries read at once; a statement for each would be a tenth of the cost of a delivery."""

Clock = Callable[[], datetime]
AfterRound = Callable[[Transaction, UUID, Collection[DeliveryStatus]], Awaitable[None]]

log = structlog.get_logger(__name__)


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class DeliveryServices:
    """Dependencies of the rounds of all endpoints. `after_round` is called in one transaction with the statuses that
    the deliveries of a round ended in. Tests that move time pass their own `clock`."""

    database: Database
    sealer: Sealer
    receivers: Receivers
    after_round: AfterRound
    clock: Clock = utc_now


class Round:
    """`draining` is asked before each attempt: if so, those under way end, and no others start."""

    def __init__(self, services: DeliveryServices, endpoint_id: UUID, draining: Callable[[], bool]) -> None:
        self._services = services
        self._endpoint_id = endpoint_id
        self._draining = draining
        self._woken = trio.Event()
        # These are, in this order: deliveries that were read ahead; how often these became outdated; attempts under
        # way; outcomes to be recorded.
        self._ahead: list[deliveries.DueDelivery] = []
        self._changes = 0
        self._under_way: set[UUID] = set()
        self._made: list[deliveries.Attempt] = []
        self._ended: set[DeliveryStatus] = set()

    async def deliver(self) -> None:
        """Make the attempts that are due."""
        database = self._services.database
        last = trio.current_time() + ROUND_SECONDS
        with database.announcements.listener(CHANNEL, self._announced):
            async with self._services.receivers.open(PARALLEL) as sender, background_nursery() as nursery:
                while True:
                    self._woken = trio.Event()
                    await self._record()
                    if trio.current_time() < last and not self._draining():
                        await self._begin_attempts(sender, nursery)
                    if not self._under_way:
                        break
                    await self._woken.wait()
        if self._ended:
            await database.transact(lambda tx: self._services.after_round(tx, self._endpoint_id, self._ended))

    def _announced(self, payload: str) -> None:
        if payload == str(self._endpoint_id):
            self._changes += 1
            self._ahead.clear()
        self._woken.set()

    async def _begin_attempts(self, sender: Sender, nursery: trio.Nursery) -> None:
        while len(self._under_way) < PARALLEL:
            if not self._ahead:
                await self._read_ahead()
            if not self._ahead:
                return
            delivery = self._ahead.pop(0)
            self._under_way.add(delivery.id)
            nursery.start_soon(self._attempt, sender, delivery)

    async def _read_ahead(self) -> None:
        """Read the next due deliveries. The endpoint's URL and secret are read with them and must be current: if they
        change during the read, it is repeated."""
        services = self._services
        while True:
            changes = self._changes
            found = await deliveries.due(
                services.database, self._endpoint_id, services.clock(), most=_READ_AHEAD, under_way=self._under_way
            )
            if changes == self._changes:
                self._ahead = found
                return

    async def _attempt(self, sender: Sender, delivery: deliveries.DueDelivery) -> None:
        clock = self._services.clock
        began = clock()
        outcome = await self._sent(sender, delivery, began)
        self._made.append(deliveries.Attempt(delivery, outcome, began, clock()))
        self._woken.set()

    async def _record(self) -> None:
        if not self._made:
            return
        made, self._made = self._made, []
        for attempt in await deliveries.record(self._services.database, made):
            status = attempt.verdict.status
            self._ended.add(status)
            if status is not DeliveryStatus.DELIVERED:
                outcome = attempt.outcome
                log.warning(
                    "webhook.attempt_failed",
                    endpoint=str(self._endpoint_id),
                    delivery=str(attempt.delivery.id),
                    attempt=attempt.delivery.attempts + 1,
                    status=status.value,
                    outcome=outcome.status if isinstance(outcome, Answered) else outcome.reason,
                )
        # Removed only after the outcomes are recorded: deliveries under way are skipped when due ones are read.
        self._under_way.difference_update(attempt.delivery.id for attempt in made)

    async def _sent(self, sender: Sender, delivery: deliveries.DueDelivery, at: datetime) -> Outcome:
        try:
            secret = endpoints.secret_of(self._services.sealer, self._endpoint_id, delivery.sealed_secret)
        except CannotUnseal:
            return Unanswered("the endpoint's secret cannot be opened with this server's key; rotate the secret")
        headers = {
            "User-Agent": "Service-Webhook/1",
            "Content-Type": "application/json",
            "X-Service-Event": delivery.event,
            "X-Service-Delivery": str(delivery.id),
            "X-Service-Signature": signature_header(secret, int(at.timestamp()), delivery.body),
        }
        return await sender.post(delivery.url, headers, delivery.body)
