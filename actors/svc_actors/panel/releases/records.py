"""The panel's own releases as the database keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from svc_actors.store import Queryable, Record, Transaction


class RunState(StrEnum):
    PREPARING = "preparing"
    REFUSED = "refused"
    """The run's job ended before the trial: the release was not switched."""
    TRIAL = "trial"
    KEPT = "kept"
    RETURNED = "returned"
    """The release was tried, and the previous release runs again."""


@dataclass(frozen=True)
class ReleaseCheck:
    """`line` is the newest manifest, None if there was none; the other fields are as in
    `updates.records.UpdateCheck`."""

    looked_at: datetime | None
    tried_at: datetime
    error: str | None
    line: str | None


@dataclass(frozen=True)
class ReleaseRun:
    job_id: int
    version: str
    release: str
    before: str
    state: RunState
    reason: str | None
    silent: tuple[str, ...]
    ended_at: datetime | None


async def read_look(queryable: Queryable) -> ReleaseCheck | None:
    row = await queryable.fetchrow("SELECT looked_at, tried_at, error, line FROM release_looks")
    return ReleaseCheck(**dict(row)) if row is not None else None


async def write_look(tx: Transaction, *, line: str | None = None, error: str | None = None) -> None:
    """A failed look keeps the earlier result."""
    await tx.execute(
        """INSERT INTO release_looks (looked_at, error, line) VALUES (CASE WHEN $1::text IS NULL THEN now() END, $1, $2)
           ON CONFLICT (one) DO UPDATE SET tried_at = now(), error = EXCLUDED.error,
               looked_at = coalesce(EXCLUDED.looked_at, release_looks.looked_at),
               line = CASE WHEN $1::text IS NULL THEN EXCLUDED.line ELSE release_looks.line END""",
        error,
        line,
    )


async def write_run(tx: Transaction, *, job_id: int, version: str, release: str, before: str) -> None:
    await tx.execute(
        """INSERT INTO release_runs (job_id, version, release, before, state) VALUES ($1, $2, $3, $4, 'preparing')
           ON CONFLICT (job_id) DO NOTHING""",
        job_id,
        version,
        release,
        before,
    )


async def write_trial(tx: Transaction, *, job_id: int) -> None:
    await tx.execute("UPDATE release_runs SET state = 'trial' WHERE job_id = $1", job_id)


async def write_withdrawn(tx: Transaction, *, job_id: int) -> None:
    """The order was withdrawn before the switching program took it."""
    await tx.execute("UPDATE release_runs SET state = 'preparing' WHERE job_id = $1", job_id)


async def write_refused(tx: Transaction, *, job_id: int, reason: str | None) -> None:
    """Record that the release was refused. Does nothing if it was tried."""
    await tx.execute(
        """UPDATE release_runs SET state = 'refused', reason = $2, ended_at = now()
           WHERE job_id = $1 AND state = 'preparing'""",
        job_id,
        reason,
    )


async def write_outcome(
    tx: Transaction, *, job_id: int, retained: bool, reason: str | None, silent: tuple[str, ...]
) -> ReleaseRun | None:
    """Record the outcome of a trial. Returns the run that it ends; None if that had ended before, or does not exist."""
    row = await tx.fetchrow(
        """UPDATE release_runs SET state = $2, reason = $3, silent = $4, ended_at = now()
           WHERE job_id = $1 AND state IN ('preparing', 'trial') RETURNING *""",
        job_id,
        RunState.KEPT if retained else RunState.RETURNED,
        reason,
        list(silent),
    )
    return _as_run(row) if row is not None else None


async def last_run(queryable: Queryable) -> ReleaseRun | None:
    row = await queryable.fetchrow("SELECT * FROM release_runs ORDER BY job_id DESC LIMIT 1")
    return _as_run(row) if row is not None else None


def _as_run(row: Record) -> ReleaseRun:
    return ReleaseRun(**{**dict(row), "state": RunState(row["state"]), "silent": tuple(row["silent"])})
