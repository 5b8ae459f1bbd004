"""PostgreSQL as the service sees it: a pool of connections, and sessions and LISTEN on connections of their own.

Invariants:
- A connection is used by one task at a time and goes back to the pool only open, answered and outside a transaction;
  any other is closed and its place taken by a new one. No session state is reset between users: never `SET` on the
  pool.
- Every wait has a bound: for a free connection, for connecting, for a statement.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import trio

from svc_actors.store.driver import Connection, Connector
from svc_actors.store.failures import DRIVER_ERRORS, cannot_connect, pool_exhausted, translated
from svc_actors.store.listening import Notification, listening
from svc_actors.store.nurseries import background_nursery
from svc_actors.store.transactions import Isolation, Session, Statements, Transaction, bounded, transaction_on

T = TypeVar("T")

ACQUIRE_TIMEOUT = 5.0
_TRUSTED_IDLE = 0.05
_RECONNECT_PAUSE = 0.05
_WATCH_PERIOD = 1.0


@dataclass(frozen=True)
class DatabaseStatistics:
    """The pool at this moment, and what happened to it since it was opened."""

    size: int
    idle: int
    in_use: int
    waiting: int
    opened: int
    broken: int
    interrupted: int
    exhausted: int


class Database(Statements):
    """The pool. Each plain statement is a transaction of its own; `transaction()` groups several."""

    def __init__(self, connector: Connector, nursery: trio.Nursery, size: int) -> None:
        self._connector = connector
        self._nursery = nursery
        self._size = size
        self._places = trio.Semaphore(size)
        self._idle: list[Connection] = []
        self._unreachable_since: float | None = None
        self._watched: set[Connection] = set()
        self._closed = False
        self._opened = self._broken = self._interrupted = self._exhausted = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, size: int = 8, application_name: str = "svc") -> AsyncIterator[Database]:
        """A pool of at most `size` connections to the server of `url`, a libpq URL (unix socket, TCP, TLS).

        Connects once before it yields, and raises `unavailable` when that fails.
        """
        connector = await trio.to_thread.run_sync(lambda: Connector(url, application_name=application_name))
        async with background_nursery() as nursery:
            database = cls(connector, nursery, size)
            nursery.start_soon(database._watch)
            try:
                database._release(await database._acquire())
                yield database
            finally:
                database._close()

    def statistics(self) -> DatabaseStatistics:
        return DatabaseStatistics(
            size=self._size,
            idle=len(self._idle),
            in_use=self._size - self._places.value,
            waiting=self._places.statistics().tasks_waiting,
            opened=self._opened,
            broken=self._broken,
            interrupted=self._interrupted,
            exhausted=self._exhausted,
        )

    @asynccontextmanager
    async def transaction(self, *, isolation: Isolation = Isolation.READ_COMMITTED) -> AsyncIterator[Transaction]:
        """A transaction on one connection: committed when the block ends, rolled back when it raises.

        Raises `unavailable` with details `{"outcome": "unknown"}` when the connection was lost in COMMIT, and
        `InFailedSQLTransactionError` when the block swallowed the error of a statement, so that nothing was committed.
        """
        connection = await self._acquire()
        try:
            async with transaction_on(connection, isolation) as transaction:
                yield transaction
        finally:
            self._release(connection)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A connection of one's own, outside the pool and its bound, closed at the end of the block."""
        connection = await self._connect()
        self._watched.add(connection)
        try:
            yield Session(connection)
        finally:
            self._watched.discard(connection)
            self._discard(connection)

    @asynccontextmanager
    async def listen(self, *channels: str) -> AsyncIterator[trio.MemoryReceiveChannel[Notification]]:
        """The notifications of `channels`, on a connection of its own that reconnects by itself.

        Listening has begun when the block is entered. After a gap a `RECONNECTED` notification comes first: what was
        sent in between is lost, so the reader looks for itself.
        """
        async with listening(self._connect, self._discard, channels) as receive:
            yield receive

    async def _perform(self, call: Callable[[Connection], Awaitable[T]], timeout: float) -> T:
        connection = await self._acquire()
        try:
            return await bounded(connection, call, timeout)
        finally:
            self._release(connection)

    async def _acquire(self) -> Connection:
        try:
            self._places.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(ACQUIRE_TIMEOUT) as scope:
                await self._places.acquire()
            if scope.cancelled_caught:
                self._exhausted += 1
                raise pool_exhausted(self._size, ACQUIRE_TIMEOUT) from None
        try:
            connection = self._take_idle() or await self._connect()
        except BaseException:
            self._places.release()
            raise
        self._watched.add(connection)
        return connection

    def _take_idle(self) -> Connection | None:
        now = trio.current_time()
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < _TRUSTED_IDLE or connection.is_quiet():
                return connection
            self._discard(connection)
        return None

    async def _watch(self) -> None:
        """Give up statements that are past their deadline, to the second."""
        while True:
            await trio.sleep(_WATCH_PERIOD)
            now = trio.current_time()
            for connection in self._watched:
                if connection.deadline <= now:
                    connection.link.give_up()

    def _release(self, connection: Connection) -> None:
        self._watched.discard(connection)
        if connection.reusable() and not self._closed:
            connection.idle_since = trio.current_time()
            self._idle.append(connection)
        else:
            self._discard(connection)
        self._places.release()

    async def _connect(self) -> Connection:
        """Connect, trying again while the server has been away for less than the time a caller is made to wait."""
        patience = (self._unreachable_since or trio.current_time()) + ACQUIRE_TIMEOUT
        failure: BaseException | None = None
        while True:
            with trio.move_on_after(ACQUIRE_TIMEOUT):
                try:
                    connection = await self._connector.connect()
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
