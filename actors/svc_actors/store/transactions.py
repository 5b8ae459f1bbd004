"""Statements on one connection: transactions, savepoints, sessions.

Invariants:
- Every statement has a deadline. One that is given up closes its connection, so its reply never answers another.
- A commit that was not acknowledged is never reported as done, nor as undone unless that is known.

Rejected: other isolation levels than READ COMMITTED, and transactions within sessions; nothing used them. What must be
true between transactions is a lock of a row or a constraint.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

import asyncpg
import trio

from svc_actors.store.announcements import Announcement
from svc_actors.store.driver import Connection, Record
from svc_actors.store.failures import (
    DRIVER_ERRORS,
    answer_lost,
    lost_before_commit,
    may_write,
    outcome_unknown,
    timed_out,
    translated,
)
from svc_actors.store.marks import WRITE_MARK, CommitMarks, Mark
from svc_common.errors import ServiceError

T = TypeVar("T")

Publish = Callable[[Sequence[Announcement]], None]

# Seconds. An actor's handler has 75 (`runtime.cell.HANDLER_DEADLINE`), more than connecting, a statement and a rollback
# can take together.
STATEMENT_TIMEOUT = 30.0
_COMMIT_TIMEOUT = 30.0
_ROLLBACK_TIMEOUT = 5.0
_MANY_BYTES = 65536  # See `_batches`.


class Queryable(Protocol):
    """Runs statements: the pool, a transaction, a session. `timeout` is in seconds."""

    async def fetch(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> list[Record]: ...
    async def fetchrow(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> Record | None: ...
    async def fetchval(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> Any: ...
    async def fetchone(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> Record: ...
    async def execute(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> str: ...
    async def change(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> int: ...


class Statements(ABC):
    """The ways to run one statement, whichever class supplies the connection."""

    @abstractmethod
    async def _perform(self, sql: str, call: Callable[[Connection], Awaitable[T]], timeout: float) -> T: ...

    async def fetch(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> list[Record]:
        """All rows."""
        return await self._perform(sql, lambda connection: connection.rows(sql, args, 0), timeout)

    async def fetchrow(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> Record | None:
        """The first row, or None."""
        rows = await self._perform(sql, lambda connection: connection.rows(sql, args, 1), timeout)
        return rows[0] if rows else None

    async def fetchone(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> Record:
        """The row of a statement that always returns one: `INSERT ... RETURNING`, an aggregate. Else `LookupError`."""
        rows = await self._perform(sql, lambda connection: connection.rows(sql, args, 1), timeout)
        if not rows:
            raise LookupError("a statement that always gives a row gave none")
        return rows[0]

    async def fetchval(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> Any:
        """The first column of the first row, or None."""
        rows = await self._perform(sql, lambda connection: connection.rows(sql, args, 1), timeout)
        return rows[0][0] if rows else None

    async def execute(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> str:
        """Run it; returns the server's command tag, such as `UPDATE 1`."""
        return await self._perform(sql, lambda connection: connection.command(sql, args), timeout)

    async def change(self, sql: str, *args: object, timeout: float = STATEMENT_TIMEOUT) -> int:
        """Run an INSERT, UPDATE or DELETE; returns the number of rows that it wrote or removed."""
        tag = await self.execute(sql, *args, timeout=timeout)
        return int(tag.rpartition(" ")[2])


class Transaction(Statements):
    """An open transaction. An error of a statement leaves it failed until it is rolled back: the exception has to leave
    the transaction's block, or that of a `savepoint`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._savepoints = 0
        self.last_rows: list[tuple[str, Sequence[object]]] = []
        self.announcements: list[Announcement] = []
        self.marked = False
        """Whether the transaction leaves a mark (`svc_actors.store.marks`), because it wrote something outside of
        `unmarked` blocks."""
        self._unmarked = False

    async def _perform(self, sql: str, call: Callable[[Connection], Awaitable[T]], timeout: float) -> T:
        result = await bounded(self._connection, call, timeout)
        # Judged by the statement's first word and the server's command tag. If a statement is wrongly taken for a
        # write, one mark too many is written; if a write were overlooked, its loss would not be detected.
        if not (self.marked or self._unmarked):
            self.marked = may_write(sql) and not _changed_nothing(sql, result)
        return result

    @contextmanager
    def unmarked(self) -> Iterator[None]:
        """A block of statements and events whose loss does no harm: figures, samples, log lines. A transaction of
        nothing else leaves no mark: dealing with a loss ends sessions and orders, which a lost sample is not worth."""
        before, self._unmarked = self._unmarked, True
        try:
            yield
        finally:
            self._unmarked = before

    async def executemany(
        self, sql: str, rows: Iterable[Sequence[object]], *, timeout: float = STATEMENT_TIMEOUT
    ) -> None:
        """Run one statement for each row of arguments, many to a round trip."""
        for batch in _batches(rows):
            await self._perform(
                sql,
                lambda connection, batch=batch: connection.executemany(sql, batch),  # type: ignore[misc]
                timeout,
            )

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """A block that is undone by itself if an exception leaves it."""
        self._savepoints += 1
        name = f"savepoint_{self._savepoints}"
        registered, announced = len(self.last_rows), len(self.announcements)
        await self.execute(f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            # Everything that was registered within the block is undone with it: rows for the end of the transaction,
            # and announcements.
            del self.last_rows[registered:]
            del self.announcements[announced:]
            if not self._connection.is_closed():
                with trio.CancelScope(shield=True):
                    await self.execute(f"ROLLBACK TO SAVEPOINT {name}", timeout=_ROLLBACK_TIMEOUT)
            raise
        await self.execute(f"RELEASE SAVEPOINT {name}")

    def before_commit(self, sql: str, row: Sequence[object]) -> None:
        """Run `sql` with all rows given for it, one array a column, just before COMMIT and in one round trip with it:
        every lock that the transaction needed is held then. A row is dropped if its savepoint is rolled back."""
        self.marked = self.marked or not self._unmarked
        self.last_rows.append((sql, row))

    def announce(self, channel: str, payload: str = "") -> None:
        """Notify the listeners of `channel` once this is committed (`svc_actors.store.announcements`)."""
        self.announcements.append((channel, payload))


class Session(Statements):
    """A connection for one user alone, for what lives as long as a session: advisory locks, above all.

    Once it is lost every later call raises `unavailable`, and its locks are no longer held.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def _perform(self, sql: str, call: Callable[[Connection], Awaitable[T]], timeout: float) -> T:
        return await bounded(self._connection, call, timeout, alone=sql)


async def bounded(
    connection: Connection, call: Callable[[Connection], Awaitable[T]], timeout: float, *, alone: str | None = None
) -> T:
    """`call(connection)` within `timeout` seconds; failures of the database become `unavailable`.

    `alone`: the statement, if it is a transaction of its own. If its answer is lost and it may have written, the error
    says that the outcome is unknown. Nothing is sent for a task that is cancelled already. A cancel scope for each
    statement would be an eighth of its cost, so the usual deadline is left to the pool's watch.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    if timeout == STATEMENT_TIMEOUT:
        # Once this deadline has passed, the watch closes the connection, which ends the call with an error of the
        # driver.
        connection.deadline = trio.current_time() + timeout
        try:
            return await call(connection)
        except DRIVER_ERRORS as error:
            if trio.current_time() >= connection.deadline and connection.is_closed():
                raise _gave_up(timeout, alone) from error
            raise _told(error, connection, alone) from error
        finally:
            connection.deadline = math.inf
    with trio.CancelScope(relative_deadline=timeout):
        try:
            return await call(connection)
        except DRIVER_ERRORS as error:
            raise _told(error, connection, alone) from error
    raise _gave_up(timeout, alone)


def _told(error: BaseException, connection: Connection, alone: str | None) -> BaseException:
    """The error for the caller: `error` itself (a constraint, say), unless the database is not available."""
    closed = connection.is_closed()
    told = translated(error, connection_closed=closed)
    if told is not None and closed and alone is not None and answer_lost(error) and may_write(alone):
        return outcome_unknown()
    return told or error


def _gave_up(timeout: float, alone: str | None) -> ServiceError:
    return outcome_unknown() if alone is not None and may_write(alone) else timed_out(timeout)


@asynccontextmanager
async def transaction_on(
    connection: Connection, publish: Publish, marks: CommitMarks | None = None
) -> AsyncIterator[Transaction]:
    """A transaction on `connection` for the length of the block; see `Database.transaction`. BEGIN goes out with the
    first statement; without one there is nothing to commit."""
    connection.link.send_ahead("BEGIN ISOLATION LEVEL READ COMMITTED")
    transaction = Transaction(connection)
    try:
        yield transaction
    except BaseException:
        await _roll_back(connection)
        raise
    if marks is not None and transaction.marked:
        mark = marks.draw()
        # The mark is remembered only after the commit was acknowledged: if the outcome of a commit is unknown, it may
        # be missing without any loss. Its slot is free again in either case, because the slot's next value is greater.
        try:
            await _commit(connection, transaction.last_rows, mark)
            marks.committed(mark)
        finally:
            marks.put_back(mark)
    else:
        await _commit(connection, transaction.last_rows, None)
    publish(transaction.announcements)


async def _commit(connection: Connection, last_rows: Sequence[tuple[str, Sequence[object]]], mark: Mark | None) -> None:
    # COMMIT was not sent, so the server has rolled back or will do so: the transaction is known to be undone.
    if connection.is_closed():
        raise lost_before_commit()
    if not last_rows and connection.link.take_back():
        return
    rows: dict[str, list[Sequence[object]]] = {}
    for sql, row in last_rows:
        rows.setdefault(sql, []).append(row)
    # The mark is written first: events are written last, together with COMMIT, when the transaction holds every lock
    # that it needs.
    statements: list[tuple[str, tuple[object, ...]]] = [] if mark is None else [(WRITE_MARK, mark.row)]
    statements += [(sql, tuple(zip(*its_rows, strict=True))) for sql, its_rows in rows.items()]
    # Shielded, because a caller that is cancelled between COMMIT and its answer would not know whether the transaction
    # was committed.
    with trio.CancelScope(shield=True, relative_deadline=_COMMIT_TIMEOUT):
        try:
            for sql, columns in statements[:-1]:
                await connection.command(sql, columns)
            tag = await (connection.command_and_commit(*statements[-1]) if statements else connection.execute("COMMIT"))
        except DRIVER_ERRORS as error:
            if connection.is_closed():
                raise outcome_unknown() from error
            await _roll_back(connection)
            raise _told(error, connection, None) from error
        # The server answers COMMIT of a failed transaction with ROLLBACK, and reports no error.
        if tag != "COMMIT":
            raise asyncpg.InFailedSQLTransactionError(
                "the transaction was rolled back, since the error of one of its statements was swallowed"
            )
        return
    raise outcome_unknown()


async def _roll_back(connection: Connection) -> None:
    """Roll back; if that fails the connection is closed, which rolls back as well."""
    if connection.is_closed() or connection.link.take_back():
        return
    with trio.CancelScope(shield=True, relative_deadline=_ROLLBACK_TIMEOUT):
        try:
            await connection.execute("ROLLBACK")
        except DRIVER_ERRORS:
            connection.terminate()


def _changed_nothing(sql: str, result: object) -> bool:
    """Whether a statement changed nothing, judged by the server's tag (`UPDATE 0`) or by the rows of RETURNING; neither
    counts what a CTE has changed."""
    words = sql.lstrip().upper()
    if words.startswith("WITH"):
        return False
    return (result == [] and "RETURNING" in words) or (isinstance(result, str) and result.endswith(" 0"))


def _batches(rows: Iterable[Sequence[object]]) -> Iterable[list[Sequence[object]]]:
    """Batches that asyncpg sends at once (three rows, or a little data): beyond that it would wait on asyncio."""
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
    """An upper bound of the bytes that an argument takes, or "too many" if that is not known."""
    if value is None or isinstance(value, bool | int | float | UUID | datetime):
        return 32
    if isinstance(value, str | bytes):
        return 4 * len(value) + 8
    return _MANY_BYTES
