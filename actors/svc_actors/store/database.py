"""PostgreSQL as the service sees it: a pool of connections, transactions, sessions of one's own, and LISTEN.

Invariants:
- A connection is used by one task at a time and goes back to the pool only open, answered and outside a transaction;
  any other is closed and its place taken by a new one. No session state is reset between users: never `SET` on the
  pool.
- Every wait has a bound: for a free connection, for connecting, for a statement.
- A commit that was not acknowledged is never reported as done, nor as undone when that is not known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import asyncpg
import trio

from svc_actors.store.driver import Connection, Connector, Record
from svc_actors.store.failures import cannot_connect, outcome_unknown, pool_exhausted, timed_out, translated
from svc_actors.store.listening import Notification, listening
from svc_actors.store.nurseries import background_nursery

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

ACQUIRE_TIMEOUT = 5.0
STATEMENT_TIMEOUT = 30.0
_COMMIT_TIMEOUT = 30.0
_ROLLBACK_TIMEOUT = 5.0
_TRUSTED_IDLE = 0.05
_RECONNECT_PAUSE = 0.05
_MANY_BYTES = 65536


class Isolation(StrEnum):
    """Isolation levels, in SQL's words."""

    READ_COMMITTED = "READ COMMITTED"
    REPEATABLE_READ = "REPEATABLE READ"
    SERIALIZABLE = "SERIALIZABLE"


class Queryable(Protocol):
    """What can run a statement: the pool, a transaction, a session. `timeout` is in seconds."""

    async def fetch(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> list[Record]: ...
    async def fetchrow(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> Record | None: ...
    async def fetchval(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> Any: ...
    async def execute(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> str: ...


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


class _Statements(ABC):
    """The four ways to run one statement, over whatever supplies the connection."""

    @abstractmethod
    async def _perform(self, call: Callable[[Connection], Awaitable[T]], timeout: float) -> T: ...

    async def fetch(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> list[Record]:
        """All rows."""
        return await self._perform(lambda connection: connection.fetch(sql, *args), timeout)

    async def fetchrow(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> Record | None:
        """The first row, or None."""
        return await self._perform(lambda connection: connection.fetchrow(sql, *args), timeout)

    async def fetchval(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> Any:
        """The first column of the first row, or None."""
        return await self._perform(lambda connection: connection.fetchval(sql, *args), timeout)

    async def execute(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> str:
        """Run it; the answer is the server's command tag, such as `UPDATE 1`."""
        return await self._perform(lambda connection: connection.execute(sql, *args), timeout)


class LastWords(Protocol[T_contra]):
    """What writes `items` as the last thing that a transaction does before its COMMIT."""

    async def __call__(self, transaction: Transaction, items: Sequence[T_contra]) -> None: ...


class Transaction(_Statements):
    """An open transaction. Errors of a statement leave it failed: only rolling back (leaving the block by the
    exception, or the block of a `savepoint`) goes on from there."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._savepoints = 0
        self._last_words: list[tuple[LastWords[Any], object]] = []

    async def _perform(self, call: Callable[[Connection], Awaitable[T]], timeout: float) -> T:
        return await _bounded(self._connection, call, timeout)

    async def executemany(
        self, sql: str, rows: Iterable[Sequence[object]], *, timeout: float = STATEMENT_TIMEOUT
    ) -> None:
        """Run one statement for each row of arguments, many to a round trip."""
        for batch in _batches(rows):
            await self._perform(lambda connection, batch=batch: connection.executemany(sql, batch), timeout)  # type: ignore[misc]

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """A block that is undone alone when it is left by an exception."""
        self._savepoints += 1
        name = f"savepoint_{self._savepoints}"
        registered = len(self._last_words)
        await self.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            del self._last_words[registered:]
            if not self._connection.is_closed():
                with trio.CancelScope(shield=True):
                    await self.execute(f"ROLLBACK TO SAVEPOINT {name}", timeout=_ROLLBACK_TIMEOUT)
            raise
        await self.execute(f"RELEASE SAVEPOINT {name}")

    def before_commit(self, last_words: LastWords[T], item: T) -> None:
        """Have `last_words` called with all its items just before COMMIT, when every lock that the transaction needed
        is already held. An item is forgotten when the savepoint that it was registered in is rolled back."""
        self._last_words.append((last_words, item))

    async def _say_last_words(self) -> None:
        items: dict[LastWords[Any], list[Any]] = {}
        for last_words, item in self._last_words:
            items.setdefault(last_words, []).append(item)
        for last_words, its_items in items.items():
            await last_words(self, its_items)


class Session(_Statements):
    """A connection of one's own, for what lives as long as a session: advisory locks, above all.

    When it is lost every later call raises `unavailable`, and what it held is no longer held.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def _perform(self, call: Callable[[Connection], Awaitable[T]], timeout: float) -> T:
        return await _bounded(self._connection, call, timeout)

    @asynccontextmanager
    async def transaction(self, *, isolation: Isolation = Isolation.READ_COMMITTED) -> AsyncIterator[Transaction]:
        async with _transaction(self._connection, isolation) as transaction:
            yield transaction


class Database(_Statements):
    """The pool. Each plain statement is a transaction of its own; `transaction()` groups several."""

    def __init__(self, connector: Connector, nursery: trio.Nursery, size: int) -> None:
        self._connector = connector
        self._nursery = nursery
        self._size = size
        self._places = trio.Semaphore(size)
        self._idle: list[Connection] = []
        self._unreachable_since: float | None = None
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
            async with _transaction(connection, isolation) as transaction:
                yield transaction
        finally:
            self._release(connection)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A connection of one's own, outside the pool and its bound, closed at the end of the block."""
        connection = await self._connect()
        try:
            yield Session(connection)
        finally:
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
            return await _bounded(connection, call, timeout)
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
            now = trio.current_time()
            while self._idle:
                connection = self._idle.pop()
                if now - connection.idle_since < _TRUSTED_IDLE or connection.poll():
                    return connection
                self._discard(connection)
            return await self._connect()
        except BaseException:
            self._places.release()
            raise

    def _release(self, connection: Connection) -> None:
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
                except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
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


async def retry_serialization(work: Callable[[], Awaitable[T]], *, attempts: int = 5) -> T:
    """Run `work`, a whole transaction, again when PostgreSQL could not serialise it or broke a deadlock with it."""
    for _ in range(attempts - 1):
        try:
            return await work()
        except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError):
            await trio.lowlevel.checkpoint()
    return await work()


async def _bounded(connection: Connection, call: Callable[[Connection], Awaitable[T]], timeout: float) -> T:
    with trio.CancelScope(relative_deadline=timeout):
        try:
            return await call(connection)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            unavailable = translated(error, connection_closed=connection.is_closed())
            if unavailable is None:
                raise
            raise unavailable from error
    raise timed_out(timeout)


@asynccontextmanager
async def _transaction(connection: Connection, isolation: Isolation) -> AsyncIterator[Transaction]:
    await _bounded(connection, lambda it: it.execute(f"BEGIN ISOLATION LEVEL {isolation.value}"), STATEMENT_TIMEOUT)
    transaction = Transaction(connection)
    try:
        yield transaction
        await transaction._say_last_words()
    except BaseException:
        await _roll_back(connection)
        raise
    await _commit(connection)


async def _commit(connection: Connection) -> None:
    if connection.is_closed():
        raise translated(ConnectionResetError("the connection was lost before the commit"), connection_closed=True) or (
            outcome_unknown()
        )
    with trio.CancelScope(shield=True, relative_deadline=_COMMIT_TIMEOUT):
        try:
            tag = await connection.execute("COMMIT")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            if connection.is_closed():
                raise outcome_unknown() from error
            unavailable = translated(error, connection_closed=False)
            if unavailable is None:
                raise
            raise unavailable from error
        if tag != "COMMIT":
            raise asyncpg.InFailedSQLTransactionError(
                "the transaction was rolled back, since the error of one of its statements was swallowed"
            )
        return
    raise outcome_unknown()


async def _roll_back(connection: Connection) -> None:
    """Undo; a connection that cannot even do that is closed, which undoes it as well."""
    if connection.is_closed():
        return
    with trio.CancelScope(shield=True, relative_deadline=_ROLLBACK_TIMEOUT):
        try:
            await connection.execute("ROLLBACK")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            connection.terminate()


def _batches(rows: Iterable[Sequence[object]]) -> Iterable[list[Sequence[object]]]:
    """Batches that asyncpg sends in one go (three rows, or a little data): past that it would wait on asyncio."""
    batch: list[Sequence[object]] = []
    weight = 0
    for row in rows:
        row_weight = 64 + sum(_weight(value) for value in row)
        if len(batch) >= 3 and weight + row_weight > _MANY_BYTES:
            yield batch
            batch, weight = [], 0
        batch.append(row)
        weight += row_weight
    if batch:
        yield batch


def _weight(value: object) -> int:
    """An upper bound of the bytes that an argument takes, or "too many" where that is not known."""
    if value is None or isinstance(value, bool | int | float):
        return 32
    if isinstance(value, str | bytes):
        return 4 * len(value) + 8
    return _MANY_BYTES
