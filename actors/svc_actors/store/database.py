"""The service's access to PostgreSQL: a pool of connections, and sessions and LISTEN on dedicated connections.

Invariants:
- A connection is used by one task at a time and returns to the pool only open, without a pending reply and outside a
  transaction; otherwise it is closed and replaced by a new one. No session state is reset between users: never `SET` on
  the pool.
- Every wait has a bound: for a free connection, for connecting, for a statement.
- Requests that read, orders and background work have connections of their own (`svc_actors.store.lanes`).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import trio

from svc_actors.store.announcements import Announcement, Announcements
from svc_actors.store.driver import Connection, Connector
from svc_actors.store.failures import DRIVER_ERRORS, Collision, cannot_connect, translated
from svc_actors.store.lanes import LANE, Lane, Places
from svc_actors.store.listening import Notification, listening
from svc_actors.store.marks import CommitMarks
from svc_actors.store.nurseries import background_nursery
from svc_actors.store.transactions import Session, Statements, Transaction, bounded, transaction_on
from svc_actors.tracing import Kind, current_span, in_span

T = TypeVar("T")

ACQUIRE_TIMEOUT = 8.0
"""How long a caller may wait for a connection of its lane, in seconds; the number of waiting callers is bounded."""
CONNECT_TIMEOUT = 5.0
"""How long the server may be away before callers get `unavailable`, in seconds."""
_ATTEMPTS, _FIRST_BACK_OFF = 8, 0.004
_TRUSTED_IDLE = 0.05
_RECONNECT_PAUSE = 0.05
_WATCH_PERIOD = 1.0
_MOST_TRACED_SQL = 500


@dataclass(frozen=True)
class DatabaseStatistics:
    """The pool at this moment, and its counters since it was opened. `collided` counts transactions that the server
    rolled back because of another one (a deadlock, a serialization failure)."""

    size: int
    idle: int
    in_use: int
    waiting: int
    opened: int
    broken: int
    interrupted: int
    exhausted: int
    collided: int


class Database(Statements):
    """The pool. Each plain statement is a transaction of its own; `transact()` and `transaction()` group several."""

    def __init__(
        self,
        connector: Connector,
        nursery: trio.Nursery,
        lanes: Mapping[Lane, Places],
        idle: Iterable[Connection] = (),
    ) -> None:
        self.announcements = Announcements(self._notify)
        self.disk_full = False
        """Set while the disk guard reports the database's disk as full. New changes by callers are then refused;
        changes under way and background work continue."""
        self.marks: CommitMarks | None = None
        """The commits of this service that are known to have succeeded. Each new connection is checked against them
        before use."""
        self._connector = connector
        self._nursery = nursery
        self._lanes = lanes
        self._idle = list(idle)
        self._unreachable_since: float | None = None
        self._watched: set[Connection] = set()
        self._closed = False
        self._opened = self._broken = self._interrupted = self._collided = 0

    @classmethod
    @asynccontextmanager
    async def open(
        cls, url: str, *, size: int = 8, lanes: Mapping[Lane, int] | None = None, application_name: str = "svc"
    ) -> AsyncIterator[Database]:
        """A pool of at most `size` connections to the server of `url`, a libpq URL (unix socket, TCP, TLS).

        With `lanes` each lane has as many connections of its own instead, and must be named.

        Connects once before it yields, and raises `unavailable` when that fails.
        """
        connector = await trio.to_thread.run_sync(lambda: Connector(url, application_name=application_name))
        async with cls.over(connector, size=size, lanes=lanes) as database:
            yield database

    @classmethod
    @asynccontextmanager
    async def over(
        cls,
        connector: Connector,
        *,
        size: int = 8,
        lanes: Mapping[Lane, int] | None = None,
        idle: Iterable[Connection] = (),
    ) -> AsyncIterator[Database]:
        """As `open`, but starts with the connections `idle`, which `connector` opened and nobody uses."""
        async with background_nursery() as nursery:
            shared = Places(size)
            places = {lane: shared if lanes is None else Places(lanes[lane]) for lane in Lane}
            database = cls(connector, nursery, places, idle)
            nursery.start_soon(database._watch)
            nursery.start_soon(database.announcements.run)
            try:
                database._release(*await database._acquire())
                yield database
            finally:
                database._close()

    def statistics(self) -> DatabaseStatistics:
        lanes = set(self._lanes.values())
        return DatabaseStatistics(
            size=sum(lane.size for lane in lanes),
            idle=len(self._idle),
            in_use=sum(lane.in_use for lane in lanes),
            waiting=sum(lane.waiting for lane in lanes),
            opened=self._opened,
            broken=self._broken,
            interrupted=self._interrupted,
            exhausted=sum(lane.exhausted for lane in lanes),
            collided=self._collided,
        )

    def take_idle(self) -> list[Connection]:
        """Hand over the idle connections to the caller, who uses or terminates them."""
        idle, self._idle = self._idle, []
        return idle

    async def transact(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `work` in a transaction and return its result; repeat it after a collision with another transaction.

        `work` may run several times, so it must do nothing that a rollback does not undo. What follows a commit (an
        order to an actor, a file) belongs after the call. Raises what `transaction()` raises, and `Collision` when
        every attempt collided.
        """
        return await self._again(lambda: self._attempt(work))

    async def _attempt(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        async with self.transaction() as transaction:
            return await work(transaction)

    async def _again(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """`attempt()`, repeated after a collision; the back-off is jittered, so that the two do not collide again."""
        for number in range(_ATTEMPTS - 1):
            try:
                return await attempt()
            except Collision:
                self._collided += 1
                await trio.sleep(_FIRST_BACK_OFF * 2**number * random.uniform(0.5, 1.5))  # noqa: S311
        return await attempt()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction on one connection: committed when the block ends, rolled back when it raises.

        Raises `unavailable` with details `{"outcome": "unknown"}` when the connection was lost in COMMIT, and
        `InFailedSQLTransactionError` when the block swallowed the error of a statement, so that nothing was committed.
        Raises `Collision` when the server rolled it back because of another one; `transact` repeats it then.
        """
        with in_span("transaction", Kind.CLIENT, {"db.system.name": "postgresql"}):
            places, connection = await self._acquire()
            try:
                async with transaction_on(connection, self.announcements.publish, self.marks) as transaction:
                    yield transaction
            finally:
                self._release(places, connection)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A dedicated connection, outside the pool and its limit, closed at the end of the block."""
        connection = await self._connect()
        self._watched.add(connection)
        try:
            yield Session(connection)
        finally:
            self._watched.discard(connection)
            self._discard(connection)

    @asynccontextmanager
    async def listen(self, *channels: str) -> AsyncIterator[trio.MemoryReceiveChannel[Notification]]:
        """The notifications of `channels`, on a dedicated connection that reconnects by itself.

        Listening is active when the block is entered. After a gap a `RECONNECTED` notification comes first: what was
        sent in between is lost, so the reader reads the tables.
        """
        async with listening(self._connect, self._discard, channels) as receive:
            yield receive

    async def _notify(self, announcements: Sequence[Announcement]) -> None:
        await self.execute(
            "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS pending (channel, payload)",
            [channel for channel, _ in announcements],
            [payload for _, payload in announcements],
        )

    async def _perform(self, sql: str, call: Callable[[Connection], Awaitable[T]], timeout: float) -> T:
        try:
            return await self._perform_once(sql, call, timeout)
        except Collision:
            return await self._again(lambda: self._perform_once(sql, call, timeout))

    async def _perform_once(self, sql: str, call: Callable[[Connection], Awaitable[T]], timeout: float) -> T:
        if current_span() is None:
            return await self._perform_alone(sql, call, timeout)
        text = " ".join(sql.split())
        operation = text.partition(" ")[0].upper()
        told = {
            "db.system.name": "postgresql",
            "db.operation.name": operation,
            "db.query.text": text[:_MOST_TRACED_SQL],
        }
        with in_span(operation, Kind.CLIENT, told):
            return await self._perform_alone(sql, call, timeout)

    async def _perform_alone(self, sql: str, call: Callable[[Connection], Awaitable[T]], timeout: float) -> T:
        places, connection = await self._acquire()
        try:
            return await bounded(connection, call, timeout, alone=sql)
        finally:
            self._release(places, connection)

    async def _acquire(self) -> tuple[Places, Connection]:
        places = self._lanes[LANE.get()]
        await places.acquire(ACQUIRE_TIMEOUT)
        try:
            connection = self._take_idle() or await self._connect()
        except BaseException:
            places.release()
            raise
        self._watched.add(connection)
        return places, connection

    def _take_idle(self) -> Connection | None:
        now = trio.current_time()
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < _TRUSTED_IDLE or connection.is_quiet():
                return connection
            self._discard(connection)
        return None

    async def _watch(self) -> None:
        """Give up statements that are past their deadline, with a precision of a second."""
        while True:
            await trio.sleep(_WATCH_PERIOD)
            now = trio.current_time()
            for connection in self._watched:
                if connection.deadline <= now:
                    connection.link.give_up()

    def _release(self, places: Places, connection: Connection) -> None:
        self._watched.discard(connection)
        if connection.reusable() and not self._closed:
            connection.idle_since = trio.current_time()
            self._idle.append(connection)
        else:
            self._discard(connection)
        places.release()

    async def _connect(self) -> Connection:
        """Connect; retry until the server has been away for `CONNECT_TIMEOUT`."""
        patience = (self._unreachable_since or trio.current_time()) + CONNECT_TIMEOUT
        failure: BaseException | None = None
        while True:
            with trio.move_on_after(CONNECT_TIMEOUT):
                try:
                    connection = await self._connect_once()
                except DRIVER_ERRORS as error:
                    failure = error
                else:
                    self._unreachable_since = None
                    self._opened += 1
                    return connection
            if self._unreachable_since is None:
                self._unreachable_since = trio.current_time()
            refused = failure is not None and translated(failure, connection_closed=True) is None
            if refused or trio.current_time() >= patience:
                raise cannot_connect(failure) from failure
            await trio.sleep(_RECONNECT_PAUSE)

    async def _connect_once(self) -> Connection:
        connection = await self._connector.connect()
        if self.marks is not None:
            try:
                await self.marks.examine(connection)
            except BaseException:
                connection.terminate()
                raise
        return connection

    def _discard(self, connection: Connection) -> None:
        if connection.is_closed():
            self._broken += 1
        if connection.interrupted and not self._closed:
            self._interrupted += 1
            self._nursery.start_soon(self._connector.cancellation_of(connection))
        connection.terminate()

    def _close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().terminate()
