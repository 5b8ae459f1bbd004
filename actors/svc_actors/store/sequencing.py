"""How events get their positions: an inbox, and one sequencer that numbers what was committed.

A transaction's events are written to `event_inbox` as its last words, right before COMMIT, when it holds every lock it
needed. Their ids are therefore consistent with every order that anyone can observe: a transaction that saw another's
work, or waited for it, drew its ids later. One sequencer moves committed rows to `event`, numbering them without gaps.
A row that is not committed yet is not seen, and is numbered when it is; nothing waits for a transaction that is held
open.

Invariant: only the holder of a session-level advisory lock numbers, over the very session that holds it. When the
session is lost, so is the right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import trio

from svc_actors.errors import ServiceError
from svc_actors.store.database import Database
from svc_actors.store.listening import Notification
from svc_actors.store.transactions import Queryable, Session, Transaction

EVENT_CHANNEL = "svc_event"
SWEEP_PERIOD = 5.0
RETRY_PAUSE = 0.2
_INBOX_CHANNEL = "svc_event_inbox"
_SEQUENCER_LOCK = 0x5356_4302
_PAGE = 500
_TAKEOVER_PERIOD, _PRUNE_PERIOD = 1.0, 60.0
_PRUNE_BATCH = 10_000


@dataclass(frozen=True)
class Retention:
    """How much of the log is kept: events younger than `age`, and of those no more than `rows`."""

    age: timedelta = timedelta(days=7)
    rows: int = 1_000_000


class Sequencer:
    """Numbers events whenever no other process does. `active` says whether that is now."""

    def __init__(self, database: Database, retention: Retention) -> None:
        self.active = False
        self._database = database
        self._retention = retention

    async def run(self) -> None:
        """Run until cancelled; outages of the database are waited out."""
        while True:
            try:
                async with self._database.session() as session:
                    # Asked again and again: a query that waited for the lock would hold back vacuum meanwhile.
                    while not await session.fetchval("SELECT pg_try_advisory_lock($1)", _SEQUENCER_LOCK):  # noqa: ASYNC110
                        await trio.sleep(_TAKEOVER_PERIOD)
                    self.active = True
                    await self._sequence(session)
            except ServiceError:
                await trio.sleep(RETRY_PAUSE)
            finally:
                self.active = False

    async def _sequence(self, session: Session) -> None:
        sweep_at, prune_at, start = -math.inf, trio.current_time(), 0
        async with self._database.listen(_INBOX_CHANNEL) as notifications:
            while True:
                now = trio.current_time()
                if now >= sweep_at:
                    # From time to time the whole inbox; otherwise from the lowest id that was announced, since moved
                    # rows stay in the index while somebody holds a transaction open.
                    sweep_at, start = now + SWEEP_PERIOD, 0
                while await _move(session, start) == _PAGE:
                    pass
                if now >= prune_at:
                    prune_at = now + _PRUNE_PERIOD
                    await prune(session, self._retention)
                announced = await next_notifications(notifications, SWEEP_PERIOD)
                start = min((int(it.payload) if it.payload else 0 for it in announced), default=0)


async def prune(database: Queryable, retention: Retention) -> int:
    """Remove the oldest events past `retention`, and return how many; the newest always stays, to count on from."""
    keep_from = await database.fetchval(
        """
        SELECT least(
            (SELECT max(position) FROM event),
            greatest(
                (SELECT max(position) FROM event) - $1::bigint + 1,
                coalesce(
                    (SELECT position FROM event WHERE at >= now() - $2::interval ORDER BY position LIMIT 1),
                    (SELECT max(position) FROM event)
                )
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


async def write_to_inbox(transaction: Transaction, items: Sequence[tuple[object, ...]]) -> None:
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
        EVENT_CHANNEL,
        start,
        _PAGE,
    )
    return moved


async def next_notifications(
    notifications: trio.MemoryReceiveChannel[Notification], patience: float
) -> list[Notification]:
    """All notifications that are there, after waiting up to `patience` seconds for the first."""
    arrived: list[Notification] = []
    with trio.move_on_after(patience):
        arrived.append(await notifications.receive())
    while True:
        try:
            arrived.append(notifications.receive_nowait())
        except trio.WouldBlock:
            return arrived
