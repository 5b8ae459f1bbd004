"""Translates failures of the database into the errors that the sender of the statement gets.

A lost connection, a server that is starting, stopping, full or read-only, a statement that the server cancelled: no
domain can answer these, so each becomes a `ServiceError` with code `unavailable`, of that caller and nobody else. A
transaction that the server undid because of another one's (a deadlock, a serialization failure) becomes a `Collision`,
which `Database.transact` tries again. Every other error (a constraint, a bad cast) remains an asyncpg exception, for
the caller to catch.
"""

from __future__ import annotations

import asyncpg

from svc_common.errors import ErrorCode, ServiceError, unavailable

DRIVER_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""Every failure of a statement or a connection attempt, apart from cancellation."""

_HINT = "Try again; the service reconnects by itself."
_FULL = (asyncpg.DiskFullError,)
"""SQLSTATE 53100: PostgreSQL's error for ENOSPC and EDQUOT, for data, log and temporary files alike."""
_SERVER_CANNOT = (
    OSError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,
    # Caused by pg_cancel_backend, statement_timeout or lock_timeout: an operator or the role's settings use these, but
    # never this service.
    asyncpg.QueryCanceledError,
    asyncpg.LockNotAvailableError,
)
_COLLISIONS = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    # The schema has changed since this connection prepared the statement; the next time it is prepared again.
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
)
_READS = ("SELECT", "TABLE", "VALUES", "SHOW", "EXPLAIN")
_RETRY_AFTER, _FULL_RETRY_AFTER = 1, 5
DISK_FULL = "disk_full"
"""`details.reason` of a refusal because the database's disk is full."""


class Collision(ServiceError):  # noqa: N818
    """The server rolled this transaction back because of another one. Nothing was changed; it may be run again."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            ErrorCode.UNAVAILABLE,
            f"The change met another one and was undone: {reason}. Nothing was changed.",
            hint="Try again in a moment.",
            details={"retry_after": _RETRY_AFTER},
        )


def translated(error: BaseException, *, connection_closed: bool) -> ServiceError | None:
    """The `unavailable` (or `Collision`) to raise for `error`, or None if it is the caller's own error."""
    if isinstance(error, _COLLISIONS):
        return Collision(_reason(error))
    if isinstance(error, _FULL):
        return disk_full()
    if isinstance(error, _SERVER_CANNOT):
        return unavailable(f"The database is not available: {_reason(error)}.", hint=_HINT)
    if connection_closed and isinstance(error, asyncpg.InterfaceError):
        return unavailable("The connection to the database was lost.", hint=_HINT)
    return None


def answer_lost(error: BaseException) -> bool:
    """Whether the server may have executed the statement although `error` came instead of its answer.

    An error that the server reports is its answer: the statement was undone. Errors of the connection are the driver's
    own; and a crash of another server process is reported at any moment, even right after a commit.
    """
    reported = isinstance(error, asyncpg.PostgresError)
    return not reported or isinstance(error, asyncpg.PostgresConnectionError | asyncpg.CrashShutdownError)


def may_write(sql: str) -> bool:
    """Whether a statement may change something, by its first word; misses a SELECT of a function that writes."""
    return not sql.lstrip(" \n(").upper().startswith(_READS)


def disk_full() -> ServiceError:
    """A change, or a sort that needs a temporary file, ran out of space. The server undid the statement."""
    return unavailable(
        "The disk of the service's database is full, so nothing can be changed now. Nothing was changed.",
        hint="An operator has to free space on it; the service goes on by itself then.",
        details={"reason": DISK_FULL, "retry_after": _FULL_RETRY_AFTER},
    )


def cannot_connect(error: BaseException | None) -> ServiceError:
    if isinstance(error, _FULL):
        return disk_full()
    reason = _reason(error) if error is not None else "it did not answer in time"
    return unavailable(
        f"Cannot connect to the database: {reason}. Nothing was changed.",
        hint=_HINT,
        details={"retry_after": _RETRY_AFTER},
    )


def pool_exhausted(size: int, seconds: float) -> ServiceError:
    return unavailable(
        f"All {size} database connections were busy for {seconds:g} s. Nothing was changed.",
        hint="Try again in a moment; if it persists, raise the size of the connection pool.",
        details={"retry_after": _RETRY_AFTER},
    )


def queue_full(waiting: int) -> ServiceError:
    return unavailable(
        f"{waiting} others wait for a database connection already. Nothing was changed.",
        hint="Try again in a moment.",
        details={"retry_after": _RETRY_AFTER},
    )


def timed_out(seconds: float) -> ServiceError:
    return unavailable(f"The database did not answer within {seconds:g} s; the statement was given up.", hint=_HINT)


def lost_before_commit() -> ServiceError:
    return unavailable("The connection to the database was lost; nothing was changed.", hint=_HINT)


def outcome_unknown() -> ServiceError:
    return unavailable(
        "The connection to the database was lost while a change was being committed: its outcome is unknown.",
        hint="Check whether the change is there before repeating it.",
        details={"outcome": "unknown"},
    )


def _reason(error: BaseException) -> str:
    text = str(error).strip().rstrip(".")
    return text or type(error).__name__
