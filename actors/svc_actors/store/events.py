"""The event log: what changed, in the order in which it was committed, resumable from any position.

How the order comes about. A transaction's events are written to `event_inbox` as its last words, right before COMMIT,
when it holds every lock it needed. Their ids are therefore consistent with every order that anyone can observe: a
transaction that saw another's work, or waited for it, drew its ids later. One sequencer (a session-level advisory lock;
any process may hold it) moves committed rows to `event`, numbering them without gaps. A row that is not committed yet
is not seen, and is numbered when it is; nothing waits for a transaction that is held open.

Invariants: positions are contiguous; a position never changes; a subscriber gets each one once and in order, or an
exception.
NOTIFY only says where to look; what was missed is found in the tables.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

import trio

from svc_actors.errors import ServiceError
from svc_actors.store.database import Database, Queryable, Session, Transaction
from svc_actors.store.driver import Record, encode_json
from svc_actors.store.listening import Notification

_INBOX_CHANNEL, _EVENT_CHANNEL = "svc_event_inbox", "svc_event"
_SEQUENCER_LOCK = 0x5356_4302
_PAGE = 500
_TAKEOVER_PERIOD, _SWEEP_PERIOD, _PRUNE_PERIOD = 1.0, 5.0, 60.0
_PRUNE_BATCH = 10_000
_RETRY_PAUSE = 0.2


class EventKind(StrEnum):
    """The kinds of the event stream (specification, section Events)."""

    NODE = "node"
    VM = "vm"
    TASK = "task"
    TASK_LOG = "task_log"
    IMAGE = "image"
    ALERT = "alert"
    ACTIVITY = "activity"
    SYSTEM = "system"


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """Something that changes with the transaction it is appended to; project and node say who may see it."""

    kind: EventKind
    subject: str | None = None
    project_id: UUID | None = None
    node_id: UUID | None = None
    administrators_only: bool = False
    payload: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Event(NewEvent):
    """An event in its place in the log."""

    position: int
    at: datetime


@dataclass(frozen=True)
class Retention:
    """How much of the log is kept: events younger than `age`, and of those no more than `rows`."""

    age: timedelta = timedelta(days=7)
    rows: int = 1_000_000


@dataclass(frozen=True)
class EventLogStatistics:
    """`position` is the last one read by this process; `sequencing` whether it is the one that numbers events."""

    position: int
    sequencing: bool
    subscribers: int
    delivered: int
    dropped: int


class SlowReader(Exception):  # noqa: N818
    """This subscriber did not keep up and was cut off; it may subscribe again after the last position it has."""


class Gone(Exception):  # noqa: N818
    """The log does not go back (or on) to this position: read the state anew, then subscribe from the present."""

    def __init__(self, position: int) -> None:
        super().__init__(f"The event log does not reach position {position}; read the current state instead.")
        self.position = position


async def append(transaction: Transaction, event: NewEvent) -> None:
    """Append `event` to the log if and when `transaction` commits."""
    row = (
        event.kind.value,
        event.subject,
        event.project_id,
        event.node_id,
        event.administrators_only,
        # Encoded now, so that what JSON cannot say is the appender's error and not the commit's.
        encode_json(event.payload),
    )
    transaction.before_commit(_write_to_inbox, row)


class Subscription:
    """The events after a position, in order: `async for event in subscription`. One task reads it.

    The iteration ends when the log stops. It raises `SlowReader` or `Gone`, and `unavailable` while it cannot read.
    """

    def __init__(self, log: EventLog, database: Queryable, position: int, capacity: int) -> None:
        self.position = position
        self._log = log
        self._database = database
        self._capacity = capacity
        self._buffer: deque[Event] = deque()
        self._live = False
        self._overflowed = False
        self._woken = trio.Event()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._buffer:
            if self._overflowed:
                raise SlowReader(
                    f"The reader was more than {self._capacity} events behind, after position {self.position}"
                )
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

    async def _read_history(self) -> None:
        page = await _read_after(self._database, self.position, _PAGE)
        if page and page[0].position != self.position + 1:
            raise Gone(self.position)
        self._buffer.extend(page)
        last = page[-1].position if page else self.position
        # Nothing is awaited between this comparison and going live, so no event falls in between.
        if last >= self._log.position:
            self._live = True

    def _offer(self, events: Sequence[Event]) -> bool:
        """Take live events; False once this reader has fallen too far behind, which only it will notice."""
        if not self._live:
            return True
        last = self._buffer[-1].position if self._buffer else self.position
        for event in events:
            if event.position > last:
                if len(self._buffer) >= self._capacity:
                    self._overflowed = True
                    break
                self._buffer.append(event)
        self._wake()
        return not self._overflowed

    def _wake(self) -> None:
        self._woken.set()


class EventLog:
    """This process's end of the log: numbers events when it is its turn, reads them once, hands them to subscribers."""

    def __init__(self, database: Database, *, retention: Retention | None = None, buffer: int = 1024) -> None:
        self.position = 0
        self.stopped = False
        self._database = database
        self._retention = retention or Retention()
        self._capacity = buffer
        self._subscriptions: set[Subscription] = set()
        self._started = trio.Event()
        self._sequencing = False
        self._delivered = self._dropped = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Outages of the database are waited out; subscriptions end when this does."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._read)
                nursery.start_soon(self._sequence)
                task_status.started()
        finally:
            self.stopped = True
            for subscription in self._subscriptions:
                subscription._wake()

    @asynccontextmanager
    async def subscribe(self, after: int | None) -> AsyncIterator[Subscription]:
        """The events after position `after`; with None, those that are committed from now on.

        Raises `Gone` when the log does not reach `after`. Waits until the log runs.
        """
        await self._started.wait()
        if after is not None:
            first, last = await bounds(self._database)
            if after > last or after + 1 < first:
                raise Gone(after)
        subscription = Subscription(self, self._database, self.position if after is None else after, self._capacity)
        subscription._live = after is None
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def statistics(self) -> EventLogStatistics:
        return EventLogStatistics(
            self.position, self._sequencing, len(self._subscriptions), self._delivered, self._dropped
        )

    async def _read(self, task_status: trio.TaskStatus[None]) -> None:
        """Read every event once for all subscribers of this process."""
        async with self._database.listen(_EVENT_CHANNEL) as notifications:
            _, self.position = await bounds(self._database)
            self._started.set()
            task_status.started()
            while True:
                try:
                    while page := await _read_after(self._database, self.position, _PAGE):
                        self._deliver(page)
                except ServiceError:
                    await trio.sleep(_RETRY_PAUSE)
                    continue
                await _next(notifications, _SWEEP_PERIOD)

    def _deliver(self, page: Sequence[Event]) -> None:
        self.position = page[-1].position
        self._delivered += len(page)
        slow = [subscription for subscription in self._subscriptions if not subscription._offer(page)]
        self._subscriptions.difference_update(slow)
        self._dropped += len(slow)

    async def _sequence(self) -> None:
        """Number events whenever no other process does."""
        while True:
            try:
                async with self._database.session() as session:
                    # Asked again and again: a query that waited for the lock would hold back vacuum meanwhile.
                    while not await session.fetchval("SELECT pg_try_advisory_lock($1)", _SEQUENCER_LOCK):  # noqa: ASYNC110
                        await trio.sleep(_TAKEOVER_PERIOD)
                    self._sequencing = True
                    await self._sequence_with(session)
            except ServiceError:
                await trio.sleep(_RETRY_PAUSE)
            finally:
                self._sequencing = False

    async def _sequence_with(self, session: Session) -> None:
        # Everything goes through the session that holds the lock: when it is lost, so is the right to number events.
        prune_at = trio.current_time()
        async with self._database.listen(_INBOX_CHANNEL) as notifications:
            sweep_at, start = -math.inf, 0
            while True:
                now = trio.current_time()
                if now >= sweep_at:
                    # From time to time the whole inbox; otherwise from the lowest id that was announced, since moved
                    # rows stay in the index while somebody holds a transaction open.
                    sweep_at, start = now + _SWEEP_PERIOD, 0
                while await _move(session, start) == _PAGE:
                    pass
                if now >= prune_at:
                    prune_at = now + _PRUNE_PERIOD
                    await prune(session, self._retention)
                announced = await _next(notifications, _SWEEP_PERIOD)
                start = min((int(it.payload) if it.payload else 0 for it in announced), default=0)


async def bounds(database: Queryable) -> tuple[int, int]:
    """The first and the last position of the log; (1, 0) while it is empty."""
    row = await database.fetchrow(
        "SELECT coalesce(min(position), 1) AS first, coalesce(max(position), 0) AS last FROM event"
    )
    return (row["first"], row["last"]) if row is not None else (1, 0)


async def prune(database: Queryable, retention: Retention) -> int:
    """Remove the oldest events past `retention`, and return how many; the newest always stays, to count on from."""
    keep_from = await database.fetchval(
        """
        SELECT least(
            (SELECT max(position) FROM event),
            greatest(
                (SELECT max(position) FROM event) - $1::bigint + 1,
                (SELECT position FROM event WHERE at >= now() - $2::interval ORDER BY position LIMIT 1)
            )
        )
        """,
        retention.rows,
        retention.age,
    )
    removed = 0
    while keep_from is not None:
        tag = await database.execute(
            """
            DELETE FROM event WHERE position < (
                SELECT least($1::bigint, min(position) + $2::bigint) FROM event
            )
            """,
            keep_from,
            _PRUNE_BATCH,
        )
        count = int(tag.split()[-1])
        removed += count
        if count < _PRUNE_BATCH:
            break
    return removed


async def _write_to_inbox(transaction: Transaction, items: Sequence[tuple[object, ...]]) -> None:
    await transaction.execute(
        """
        WITH written AS (
            INSERT INTO event_inbox (at, kind, subject, project_id, node_id, administrators_only, payload)
            SELECT clock_timestamp(), kind, subject, project_id, node_id, administrators_only, payload::jsonb
            FROM unnest($2::text[], $3::text[], $4::uuid[], $5::uuid[], $6::boolean[], $7::text[])
                WITH ORDINALITY AS new (kind, subject, project_id, node_id, administrators_only, payload, place)
            ORDER BY place
            RETURNING id
        )
        SELECT pg_notify($1, (SELECT min(id) FROM written)::text)
        """,
        _INBOX_CHANNEL,
        *([item[column] for item in items] for column in range(6)),
    )


async def _move(session: Session, start: int) -> int:
    """Number one page of committed events from inbox id `start` on; returns how many there were. Atomic."""
    moved: int = await session.fetchval(
        """
        WITH taken AS (
            DELETE FROM event_inbox
            WHERE id IN (SELECT id FROM event_inbox WHERE id >= $2 ORDER BY id LIMIT $3)
            RETURNING *
        ), placed AS (
            INSERT INTO event (position, at, kind, subject, project_id, node_id, administrators_only, payload)
            SELECT (SELECT coalesce(max(position), 0) FROM event) + row_number() OVER (ORDER BY id),
                   at, kind, subject, project_id, node_id, administrators_only, payload
            FROM taken
            RETURNING position
        ), counted AS (
            SELECT count(*) AS count, max(position) AS last FROM placed
        )
        SELECT count FROM counted
        CROSS JOIN LATERAL (SELECT CASE WHEN count > 0 THEN pg_notify($1, last::text) END) AS announced
        """,
        _EVENT_CHANNEL,
        start,
        _PAGE,
    )
    return moved


async def _next(notifications: trio.MemoryReceiveChannel[Notification], patience: float) -> list[Notification]:
    """All notifications that are there, after waiting up to `patience` seconds for the first."""
    arrived: list[Notification] = []
    with trio.move_on_after(patience):
        arrived.append(await notifications.receive())
    while True:
        try:
            arrived.append(notifications.receive_nowait())
        except trio.WouldBlock:
            return arrived


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
        kind=EventKind(row["kind"]),
        subject=row["subject"],
        project_id=row["project_id"],
        node_id=row["node_id"],
        administrators_only=row["administrators_only"],
        payload=row["payload"],
    )
