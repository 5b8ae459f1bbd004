"""The event log: what changed, in the order in which it was committed, resumable from any position.

Positions are contiguous and never change (`svc_actors.store.sequencing` gives them). One reader a process reads each
event once and hands it to the subscribers, each with a bounded buffer of its own.

Invariants: a subscriber gets every event after its position, once and in order, or an exception that says where it
stopped. A subscriber that does not read affects no other. NOTIFY only says when to look: events whose notification was
lost are read from the table.

Why: docs/decisions/0007-event-streams-and-alerts.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any
from uuid import UUID

import trio

from svc_actors.store.database import Database
from svc_actors.store.driver import Record, encode_json
from svc_actors.store.listening import Notification
from svc_actors.store.loops import LoopAlert, keep_running
from svc_actors.store.sequencing import (
    EVENT_CHANNEL,
    SWEEP_PERIOD,
    Retention,
    Sequencer,
    next_notifications,
    write_to_inbox,
)
from svc_actors.store.transactions import Queryable, Transaction

_PAGE = 500


class EventKind(StrEnum):
    """Kinds of event that every service has; each adds its own (`svc_actors.controller.event_kinds`)."""

    ALERT = "alert"
    ACTIVITY = "activity"
    SYSTEM = "system"


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """A change made by the transaction it is appended to; project and node determine who may see it."""

    kind: str
    subject: str | None = None
    project_id: UUID | None = None
    node_id: UUID | None = None
    administrators_only: bool = False
    payload: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Event(NewEvent):
    """An event with its position in the log."""

    position: int
    at: datetime


@dataclass(frozen=True)
class EventLogStatistics:
    """`position` is the last one read by this process; `sequencing`, whether this process numbers the events."""

    position: int
    sequencing: bool
    subscribers: int
    delivered: int
    dropped: int


class SlowReader(Exception):  # noqa: N818
    """The subscriber fell behind and was cut off; it may subscribe again after its last position."""


class PositionLost(Exception):  # noqa: N818
    """The log does not reach back (or on) to this position: read the state again, then subscribe from the present."""

    def __init__(self, position: int) -> None:
        super().__init__(f"The event log does not reach position {position}; read the current state instead.")
        self.position = position


async def append(transaction: Transaction, event: NewEvent) -> None:
    """Append `event` to the log if and when `transaction` commits."""
    row = (
        str(event.kind),
        event.subject,
        event.project_id,
        event.node_id,
        event.administrators_only,
        # Encoded here, so that a value that JSON cannot express fails here and not at the commit.
        encode_json(event.payload),
    )
    write_to_inbox(transaction, row)


class Subscription:
    """The events after a position, in order: `async for event in subscription`. One task reads it.

    The iteration ends when the log stops. It raises `SlowReader` or `PositionLost`, and `unavailable` while it
    cannot read.
    """

    def __init__(self, log: EventLog, database: Queryable, position: int, capacity: int) -> None:
        self.position = position
        self._log = log
        self._database = database
        self._capacity = capacity
        self._buffer: deque[Event] = deque()
        self._live = False
        self._failure: SlowReader | PositionLost | None = None
        self._woken = trio.Event()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._buffer:
            if self._failure is not None:
                raise self._failure
            if self._log.stopped:
                raise StopAsyncIteration
            if self._live:
                self._woken = trio.Event()
                await self._woken.wait()
            else:
                await self._read_history()
        event = self._buffer.popleft()
        self.position = event.position
        return event

    def ready(self, limit: int) -> list[Event]:
        """The next events that are already buffered, at most `limit`; empty rather than waiting."""
        taken = [self._buffer.popleft() for _ in range(min(limit, len(self._buffer)))]
        if taken:
            self.position = taken[-1].position
        return taken

    async def _read_history(self) -> None:
        page = await _read_after(self._database, self.position, _PAGE)
        if page and page[0].position != self.position + 1:
            raise PositionLost(self.position)
        self._buffer.extend(page)
        # There is no checkpoint between this comparison and the change to live, so no event is missed in between.
        self._live = not page and self.position >= self._log.position

    def _offer(self, events: Sequence[Event]) -> bool:
        """Take live events; False once this reader has fallen too far behind, which affects no other."""
        if not self._live:
            return True
        last = self._buffer[-1].position if self._buffer else self.position
        if events[0].position == last + 1 and len(self._buffer) + len(events) <= self._capacity:
            # The usual case: positions have no gap, so the page's events need not be compared one by one.
            self._buffer.extend(events)
            self._wake()
            return True
        for event in events:
            if event.position <= last:
                continue
            if event.position != last + 1:
                self._failure = PositionLost(last)
            elif len(self._buffer) >= self._capacity:
                self._failure = SlowReader(f"The reader fell {self._capacity} events behind, after position {last}.")
            if self._failure is not None:
                break
            self._buffer.append(event)
            last = event.position
        self._wake()
        return self._failure is None

    def _wake(self) -> None:
        self._woken.set()


class EventLog:
    """The log in this process: numbers events when it is its turn, reads them once, hands them to subscribers."""

    def __init__(
        self,
        database: Database,
        *,
        retention: Retention | None = None,
        buffer: int = 1024,
        alert: LoopAlert | None = None,
    ) -> None:
        self.position = 0
        self.stopped = False
        self._database = database
        self._sequencer = Sequencer(database, retention or Retention(), alert)
        self._alert = alert
        self._capacity = buffer
        self._subscriptions: set[Subscription] = set()
        self._started = trio.Event()
        self._delivered = self._dropped = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Outages of the database are waited out; subscriptions end when this does."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._read)
                nursery.start_soon(self._sequencer.run)
                task_status.started()
        finally:
            self.stopped = True
            for subscription in self._subscriptions:
                subscription._wake()

    @asynccontextmanager
    async def subscribe(self, after: int | None) -> AsyncIterator[Subscription]:
        """The events after position `after`; with None, those that are committed from now on.

        Raises `PositionLost` when the log does not reach `after`. Waits until the log runs.
        """
        await self._started.wait()
        if after is not None:
            first, last = await bounds(self._database)
            if after > last or after + 1 < first:
                raise PositionLost(after)
        subscription = Subscription(self, self._database, self.position if after is None else after, self._capacity)
        subscription._live = after is None
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def retain(self, retention: Retention) -> None:
        """Set how much of the log is retained from now on."""
        self._sequencer.retention = retention

    def statistics(self) -> EventLogStatistics:
        return EventLogStatistics(
            self.position, self._sequencer.active, len(self._subscriptions), self._delivered, self._dropped
        )

    async def _read(self, task_status: trio.TaskStatus[None]) -> None:
        """Read every event once for all subscribers of this process."""
        async with self._database.listen(EVENT_CHANNEL) as notifications:
            _, self.position = await bounds(self._database)
            self._started.set()
            task_status.started()
            await keep_running("event reader", partial(self._read_on, notifications), self._alert)

    async def _read_on(self, notifications: trio.MemoryReceiveChannel[Notification]) -> None:
        while True:
            while page := await _read_after(self._database, self.position, _PAGE):
                self._deliver(page)
            await next_notifications(notifications, SWEEP_PERIOD)

    def _deliver(self, page: Sequence[Event]) -> None:
        self.position = page[-1].position
        self._delivered += len(page)
        slow = [subscription for subscription in self._subscriptions if not subscription._offer(page)]
        self._subscriptions.difference_update(slow)
        self._dropped += len(slow)


async def bounds(database: Queryable) -> tuple[int, int]:
    """The first and the last position of the log; (1, 0) while it is empty."""
    row = await database.fetchrow(
        "SELECT coalesce(min(position), 1) AS first, coalesce(max(position), 0) AS last FROM event"
    )
    return (row["first"], row["last"]) if row is not None else (1, 0)


async def _read_after(database: Queryable, position: int, limit: int) -> list[Event]:
    rows = await database.fetch(
        """
        SELECT position, at, kind, subject, project_id, node_id, administrators_only, payload
        FROM event WHERE position > $1 ORDER BY position LIMIT $2
        """,
        position,
        limit,
    )
    return [_event(row) for row in rows]


def _event(row: Record) -> Event:
    return Event(
        position=row["position"],
        at=row["at"],
        kind=row["kind"],
        subject=row["subject"],
        project_id=row["project_id"],
        node_id=row["node_id"],
        administrators_only=row["administrators_only"],
        payload=row["payload"],
    )
