"""Which failures of the database mean "unavailable, try again", and which are the caller's own.

A lost connection, a server that is starting, stopping, full or read-only is nothing a domain can answer: it becomes a
`ServiceError` with code `unavailable`. Every other error of a statement (a constraint, a deadlock, a bad cast) stays
the asyncpg exception that it is, for the one who sent the statement to catch.
"""

from __future__ import annotations

import asyncpg

from svc_actors.errors import ServiceError, unavailable

DRIVER_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""Everything that a statement or a connection attempt can fail with, apart from being cancelled."""

_HINT = "Try again; the service reconnects by itself."
_SERVER_CANNOT = (
    OSError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    asyncpg.ReadOnlySQLTransactionError,
)


def translated(error: BaseException, *, connection_closed: bool) -> ServiceError | None:
    """The `unavailable` that `error` means to a caller, or None where it is the caller's own error."""
    if isinstance(error, _SERVER_CANNOT):
        return unavailable(f"The database is not available: {_reason(error)}.", hint=_HINT)
    if connection_closed and isinstance(error, asyncpg.InterfaceError):
        return unavailable("The connection to the database was lost.", hint=_HINT)
    return None


def cannot_connect(error: BaseException | None) -> ServiceError:
    reason = _reason(error) if error is not None else "it did not answer in time"
    return unavailable(f"Cannot connect to the database: {reason}. Nothing was changed.", hint=_HINT)


def pool_exhausted(size: int, seconds: float) -> ServiceError:
    return unavailable(
        f"All {size} database connections were busy for {seconds:g} s. Nothing was changed.",
        hint="Try again in a moment; if it persists, raise the size of the connection pool.",
    )


def timed_out(seconds: float) -> ServiceError:
    return unavailable(f"The database did not answer within {seconds:g} s; the statement was cancelled.", hint=_HINT)


def lost_before_commit() -> ServiceError:
    return unavailable("The connection to the database was lost; nothing was changed.", hint=_HINT)


def outcome_unknown() -> ServiceError:
    return unavailable(
        "The connection to the database was lost while a change was being committed: its outcome is unknown.",
        hint="Look whether the change is there before repeating it.",
        details={"outcome": "unknown"},
    )


def _reason(error: BaseException) -> str:
    text = str(error).strip().rstrip(".")
    return text or type(error).__name__
