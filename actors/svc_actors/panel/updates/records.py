"""Package updates as the database keeps them: the mode, the last look, and the results of each job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum

from svc_actors.store import Queryable, Record, Transaction
from svc_webhost.packages import PackageUpdate


class UpdateMode(StrEnum):
    OFF = "off"
    """Updates are neither looked for nor installed, not even on order."""
    MANUAL = "manual"
    """Updates are looked for each day, and installed when an administrator orders it."""
    AUTOMATIC = "automatic"
    """As `manual`, and security updates are installed when they are found."""


class Wanted(StrEnum):
    SECURITY = "security"
    ALL = "all"


@dataclass(frozen=True)
class UpdateCheck:
    """`looked_at`: when the lists were fetched last. `error`: why the last attempt, at `tried_at`, did not fetch them.
    `failing_since`: all attempts since then have failed."""

    looked_at: datetime | None
    tried_at: datetime
    error: str | None
    failing_since: datetime | None


@dataclass(frozen=True)
class UpdateRun:
    """`silent`: domains that answered before the installation and not afterwards."""

    job_id: int
    planned: tuple[PackageUpdate, ...]
    installed: tuple[PackageUpdate, ...]
    before: Mapping[str, int]
    silent: tuple[str, ...]


async def read_mode(queryable: Queryable) -> UpdateMode:
    return UpdateMode(await queryable.fetchval("SELECT mode FROM update_settings") or UpdateMode.MANUAL)


async def write_mode(tx: Transaction, mode: UpdateMode) -> None:
    await tx.execute(
        "INSERT INTO update_settings (mode) VALUES ($1) ON CONFLICT (one) DO UPDATE SET mode = EXCLUDED.mode", mode
    )


async def read_look(queryable: Queryable) -> UpdateCheck | None:
    row = await queryable.fetchrow("SELECT looked_at, tried_at, error, failing_since FROM update_looks")
    return UpdateCheck(**dict(row)) if row is not None else None


async def write_look(tx: Transaction, *, error: str | None = None) -> UpdateCheck:
    row = await tx.fetchone(
        """INSERT INTO update_looks (looked_at, error, failing_since)
           VALUES (CASE WHEN $1::text IS NULL THEN now() END, $1, CASE WHEN $1::text IS NOT NULL THEN now() END)
           ON CONFLICT (one) DO UPDATE SET tried_at = now(), error = EXCLUDED.error,
               looked_at = coalesce(EXCLUDED.looked_at, update_looks.looked_at),
               failing_since = CASE WHEN $1::text IS NOT NULL
                   THEN coalesce(update_looks.failing_since, EXCLUDED.failing_since) END
           RETURNING looked_at, tried_at, error, failing_since""",
        error,
    )
    return UpdateCheck(**dict(row))


async def write_plan(tx: Transaction, *, job_id: int, planned: Sequence[PackageUpdate]) -> None:
    await tx.execute(
        """INSERT INTO update_runs (job_id, planned) VALUES ($1, $2)
           ON CONFLICT (job_id) DO UPDATE SET planned = EXCLUDED.planned""",
        job_id,
        [asdict(each) for each in planned],
    )


async def write_before(tx: Transaction, *, job_id: int, before: Mapping[str, int]) -> None:
    await tx.execute("UPDATE update_runs SET before = $2 WHERE job_id = $1", job_id, dict(before))


async def write_installed(tx: Transaction, *, job_id: int, installed: Sequence[PackageUpdate]) -> None:
    done = [asdict(each) for each in installed]
    await tx.execute("UPDATE update_runs SET installed = $2 WHERE job_id = $1", job_id, done)


async def write_silent(tx: Transaction, *, job_id: int, silent: Sequence[str]) -> None:
    await tx.execute("UPDATE update_runs SET silent = $2 WHERE job_id = $1", job_id, list(silent))


async def read_run(queryable: Queryable, job_id: int) -> UpdateRun | None:
    row = await queryable.fetchrow("SELECT * FROM update_runs WHERE job_id = $1", job_id)
    return _as_run(row) if row is not None else None


async def last_run(queryable: Queryable) -> UpdateRun | None:
    """The newest run that has installed something."""
    row = await queryable.fetchrow("SELECT * FROM update_runs WHERE installed <> '[]' ORDER BY job_id DESC LIMIT 1")
    return _as_run(row) if row is not None else None


def _as_run(row: Record) -> UpdateRun:
    planned, installed = (tuple(PackageUpdate(**each) for each in row[column]) for column in ("planned", "installed"))
    return UpdateRun(row["job_id"], planned, installed, row["before"], tuple(row["silent"]))
