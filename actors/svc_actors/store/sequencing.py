"""How events get their positions: an inbox, and one sequencer that numbers what was committed.

A transaction's events are written to `event_inbox` together with its COMMIT, when it holds every lock it needed. Their
ids are therefore consistent with every order that anyone can observe: a transaction that saw another's work, or waited
for it, drew its ids later. One sequencer moves committed rows to `event`, numbering them without gaps. A row that is
not committed yet is not seen, and is numbered when it is; nothing waits for a transaction that is held open.

Why transactions do not draw the positions themselves: a reader that has seen number 7 would miss 6, whose transaction
commits later; and a lock that made them commit in order would let one writer in at a time.

The sequencer is woken by announcements (`svc_actors.store.announcements`), in its own process without a round trip, and
looks through the whole inbox every few seconds for events whose announcement was lost. Announcements come in any order,
so they say only that there is something: `svc_actors.store.frontier` says where to look.

Invariant: only the holder of a session-level advisory lock numbers, over the very session that holds it. When the
session is lost, so is the right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import trio

from svc_actors.store.database import Database
from svc_actors.store.frontier import Frontier
from svc_actors.store.listening import Notification
from svc_actors.store.loops import LoopAlert, keep_running
from svc_actors.store.transactions import Queryable, Session, Transaction

EVENT_CHANNEL = "svc_event"
SWEEP_PERIOD = 5.0
_INBOX_CHANNEL = "svc_event_inbox"
_SEQUENCER_LOCK = 0x5356_4302  # "SVC" and a number: this database's locks are numbered by their use.
_PAGE = 500
_TAKEOVER_PERIOD, _PRUNE_PERIOD = 1.0, 60.0
_SHORTEST_PERIOD = 0.01
"""Seconds between two moves of events. A single event is moved at once; in a stream of commits each move takes what
came meanwhile. A move for every few commits, with its NOTIFY and the readers' queries, took more processor time than
the commits."""
_PRUNE_BATCH = 10_000


@dataclass(frozen=True)
class Retention:
    """How much of the log is kept: events younger than `age`, and of those no more than `rows`."""

    age: timedelta = timedelta(days=7)
    rows: int = 1_000_000


class Sequencer:
    """Numbers events while no other process does. `active`: this process does."""

    def __init__(self, database: Database, retention: Retention, alert: LoopAlert | None = None) -> None:
        self.active = False
        self._database = database
        self.retention = retention
        self._alert = alert
        self._woken = trio.Event()

    async def run(self) -> None:
        """Run until cancelled; failures of the database are waited out."""
        await keep_running("event sequencer", self._hold, self._alert)

    async def _hold(self) -> None:
        """Number events for as long as the session with the lock lasts."""
        try:
            async with self._database.session() as session:
                # Polled, because a query that waits for the lock would keep its snapshot meanwhile, which prevents
                # vacuum.
                while not await session.fetchval("SELECT pg_try_advisory_lock($1)", _SEQUENCER_LOCK):  # noqa: ASYNC110
                    await trio.sleep(_TAKEOVER_PERIOD)
                self.active = True
                with self._database.announcements.listener(_INBOX_CHANNEL, self._hear):
                    # Both tasks end when the session does: then the sequencer's next statement fails, and it may no
                    # longer number events.
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._hear_others)
                        nursery.start_soon(self._sequence, session)
        finally:
            self.active = False

    async def _hear_others(self) -> None:
        async with self._database.listen(_INBOX_CHANNEL) as notifications:
            async for notification in notifications:
                self._hear(notification.payload)

    def _hear(self, _: str) -> None:
        self._woken.set()

    async def _sequence(self, session: Session) -> None:
        frontier = Frontier(await session.fetchval("SELECT last_value FROM event_inbox_id_seq"))
        sweep_at, prune_at = -math.inf, trio.current_time() + _PRUNE_PERIOD
        while True:
            now = trio.current_time()
            # The new event is created before the look, so that an announcement during the look causes another one.
            self._woken = trio.Event()
            if now >= sweep_at:
                # The whole inbox is read from time to time, so that an event that was overlooked is only late and not
                # lost.
                sweep_at = now + SWEEP_PERIOD
                # Read before the rows, so that all rows of transactions that have ended by this time are read below
                # (`Frontier.check`).
                oldest_running, next_transaction = await session.fetchone(_RUNNING)
                await _move_all(session, frontier, after=0)
                frontier.check(oldest_running, next_transaction)
            else:
                await _move_all(session, frontier, after=frontier.scan_after)
            if now >= prune_at:
                prune_at = now + _PRUNE_PERIOD
                await prune(session, self.retention)
            # Even if it is woken earlier, the next move comes `_SHORTEST_PERIOD` after this one at the earliest.
            with trio.move_on_at(sweep_at):
                await self._woken.wait()
            await trio.sleep_until(now + _SHORTEST_PERIOD)


_RUNNING = """
    SELECT pg_snapshot_xmin(now_running)::text::bigint, pg_snapshot_xmax(now_running)::text::bigint
    FROM pg_current_snapshot() AS now_running
"""


async def prune(database: Queryable, retention: Retention) -> int:
    """Remove the oldest events past `retention`, and return how many; the newest always stays, to count on from.

    Both limits give a first position to keep. For "no more than `rows`" it is computed, since positions are contiguous.
    For "younger than `age`" it is found by walking the primary key from the oldest event, which costs as much as the
    removal itself. The greater one applies, but never one past the newest event. Events are removed in batches, each a
    short transaction.
    """
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
        count = await database.change(
            """
            DELETE FROM event WHERE position < (
                SELECT least($1::bigint, min(position) + $2::bigint) FROM event
            )
            """,
            keep_from,
            _PRUNE_BATCH,
        )
        removed += count
        if count < _PRUNE_BATCH:
            break
    return removed


def write_to_inbox(transaction: Transaction, row: Sequence[object]) -> None:
    """Write an event as the last thing that the transaction does; ids are in the order of the calls."""
    transaction.before_commit(WRITE_TO_INBOX, row)
    transaction.announce(_INBOX_CHANNEL)


WRITE_TO_INBOX = """
    INSERT INTO event_inbox (at, kind, subject, project_id, node_id, administrators_only, payload)
    SELECT clock_timestamp(), kind, subject, project_id, node_id, administrators_only, payload::jsonb
    FROM unnest($1::text[], $2::text[], $3::uuid[], $4::uuid[], $5::boolean[], $6::text[])
        WITH ORDINALITY AS new (kind, subject, project_id, node_id, administrators_only, payload, place)
    ORDER BY place
"""


async def _move_all(session: Session, frontier: Frontier, *, after: int) -> None:
    # One page at a time: each page is a transaction of its own, whose NOTIFY reaches readers before the next page.
    while True:
        moved = await _move(session, after, frontier)
        frontier.moved(moved)
        if len(moved) < _PAGE:
            return


async def _move(session: Session, after: int, frontier: Frontier) -> list[int]:
    """Number one page of committed events, and return the inbox ids they had. Atomic.

    With 7 and 10 in the inbox above `after`, 5 a gap that has been filled, and the log at position 41: `found` is 5, 7,
    10, `taken` removes them from the inbox, `placed` writes them at 42, 43, 44 in the order of their ids. The last line
    notifies all readers, in this process and others, with one NOTIFY per page. No other writing transaction contains a
    NOTIFY, so this one never waits for another's commit. The cost is an index scan of the rows that are found, a
    look-up per gap, and one at the end of the log.
    """
    moved: list[int] = await session.fetchval(
        """
        WITH found AS (
            (SELECT id FROM event_inbox WHERE id > $2 ORDER BY id LIMIT $3)
            UNION
            (SELECT id FROM event_inbox WHERE id = ANY($4::bigint[]) ORDER BY id LIMIT $3)
            ORDER BY id LIMIT $3
        ), taken AS (
            DELETE FROM event_inbox WHERE id IN (SELECT id FROM found)
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
        SELECT (SELECT coalesce(array_agg(id), '{}') FROM taken) FROM counted
        CROSS JOIN LATERAL (SELECT CASE WHEN count > 0 THEN pg_notify($1, last::text) END) AS announced
        """,
        EVENT_CHANNEL,
        after,
        _PAGE,
        sorted(frontier.gaps),
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
        except (trio.WouldBlock, trio.EndOfChannel):
            return arrived
