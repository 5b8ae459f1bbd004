"""Schedules and their runs as the database keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from svc_actors.panel.schedules.cron import Cron, next_time, zone_of
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Queryable, Record, Target, Transaction, UniqueViolationError
from svc_common.errors import conflict, not_found

CHANNEL: Final = "schedules"
"""Announced when the scheduler should look at a changed schedule or run."""
MOST_OF_A_SITE: Final = 50
KEPT_RUNS: Final = 50
"""How many ended runs are kept of each schedule."""


class ScheduleKind(StrEnum):
    PHP = "php"
    PYTHON = "python"
    NODE = "node"
    URL = "url"


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    STOPPED = "stopped"
    """The site was suspended or deleted during the run."""
    SKIPPED = "skipped"
    """Not started, because the previous run had not ended."""
    MISSED = "missed"
    """Not started, because the core was down when the run was due."""
    INTERRUPTED = "interrupted"
    """The core ended during the run."""


@dataclass(frozen=True)
class Schedule:
    id: UUID
    site_id: UUID
    name: str
    kind: ScheduleKind
    path: str
    args: tuple[str, ...]
    cron: str
    time_zone: str
    time_limit_seconds: int
    enabled: bool
    next_run_at: datetime | None
    created_at: datetime

    def next_after(self, moment: datetime) -> datetime | None:
        return next_time(Cron.parse(self.cron), zone_of(self.time_zone), moment)

    def target(self, site: SiteRow) -> Target:
        return Target("schedule", self.id, self.name, site.owner_id)


@dataclass(frozen=True)
class Run:
    id: int
    schedule_id: UUID
    status: RunStatus
    due_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    exit_status: int | None
    output: str


SCHEDULE_COLUMNS: Final = """schedules.id, schedules.site_id, schedules.name, schedules.kind, schedules.path,
    schedules.args, schedules.cron, schedules.time_zone, schedules.time_limit_seconds, schedules.enabled,
    schedules.next_run_at, schedules.created_at"""


def as_schedule(row: Record) -> Schedule:
    """Converts a row of `SCHEDULE_COLUMNS`."""
    members: dict[str, Any] = {name: row[name] for name in Schedule.__dataclass_fields__}
    return Schedule(**members | {"kind": ScheduleKind(row["kind"]), "args": tuple(row["args"])})


def as_run(row: Record) -> Run:
    members: dict[str, Any] = {name: row[name] for name in Run.__dataclass_fields__}
    return Run(**members | {"status": RunStatus(row["status"])})


async def insert_schedule(tx: Transaction, site: SiteRow, values: Mapping[str, Any]) -> Schedule:
    """`values` are the columns that a caller sets. The site's row is locked. Raises `conflict`."""
    if await tx.fetchval("SELECT count(*) FROM schedules WHERE site_id = $1", site.id) >= MOST_OF_A_SITE:
        raise conflict(f"A site has at most {MOST_OF_A_SITE} scheduled tasks; nothing was created.")
    names = ["site_id", *values]
    places = ", ".join(f"${number}" for number, _ in enumerate(names, 1))
    try:
        row = await tx.fetchone(
            f"INSERT INTO schedules ({', '.join(names)}) VALUES ({places}) RETURNING {SCHEDULE_COLUMNS}",
            site.id,
            *values.values(),
        )
    except UniqueViolationError:
        raise _same_name(site, values["name"]) from None
    tx.announce(CHANNEL, "")
    return as_schedule(row)


async def update_schedule(tx: Transaction, site: SiteRow, schedule: Schedule, values: Mapping[str, Any]) -> Schedule:
    """Raises `conflict`."""
    assert values.keys() <= Schedule.__dataclass_fields__.keys()
    changes = ", ".join(f"{name} = ${number}" for number, name in enumerate(values, 2))
    try:
        row = await tx.fetchone(
            f"UPDATE schedules SET {changes} WHERE id = $1 RETURNING {SCHEDULE_COLUMNS}", schedule.id, *values.values()
        )
    except UniqueViolationError:
        raise _same_name(site, values["name"]) from None
    tx.announce(CHANNEL, "")
    return as_schedule(row)


async def lock_schedule(tx: Transaction, schedule_id: UUID) -> Schedule:
    """Raises not_found."""
    row = await tx.fetchrow(f"SELECT {SCHEDULE_COLUMNS} FROM schedules WHERE id = $1 FOR NO KEY UPDATE", schedule_id)
    if row is None:
        raise not_found("There is no such scheduled task.")
    return as_schedule(row)


async def update_due(tx: Transaction, schedule: Schedule, following: datetime | None) -> None:
    """A schedule that is never due again is disabled."""
    await tx.execute(
        "UPDATE schedules SET next_run_at = $2::timestamptz, enabled = $2::timestamptz IS NOT NULL WHERE id = $1",
        schedule.id,
        following,
    )


async def remove_schedule(tx: Transaction, schedule: Schedule) -> None:
    """Remove a schedule with its runs. Raises `conflict` while a run is under way."""
    if await has_open_run(tx, schedule):
        raise conflict(
            f"{schedule.name} is running; nothing was deleted.", hint="Delete it when the run is over, or disable it."
        )
    await tx.execute("DELETE FROM schedules WHERE id = $1", schedule.id)


async def has_open_run(tx: Transaction, schedule: Schedule) -> bool:
    return bool(
        await tx.fetchval(
            "SELECT true FROM schedule_runs WHERE schedule_id = $1 AND ended_at IS NULL FOR NO KEY UPDATE", schedule.id
        )
    )


async def insert_run(tx: Transaction, schedule: Schedule, due_at: datetime | None) -> Run:
    """Insert a run that is about to start. Raises `conflict` while another is under way. Without `due_at`, a caller
    requested it."""
    if await has_open_run(tx, schedule):
        raise conflict(f"{schedule.name} is already running; nothing was started.", hint="Its runs say since when.")
    row = await tx.fetchone(
        "INSERT INTO schedule_runs (schedule_id, status, due_at) VALUES ($1, 'queued', $2) RETURNING *",
        schedule.id,
        due_at,
    )
    tx.announce(CHANNEL, "")
    return as_run(row)


async def insert_past_run(
    tx: Transaction, schedule: Schedule, status: RunStatus, due_at: datetime, now: datetime
) -> None:
    """A run that never started."""
    await tx.execute(
        "INSERT INTO schedule_runs (schedule_id, status, due_at, ended_at) VALUES ($1, $2, $3, $4)",
        schedule.id,
        status.value,
        due_at,
        now,
    )
    await _forget_old(tx, schedule.id)


async def write_started(tx: Transaction, run_id: int, now: datetime) -> bool:
    """False if the run is gone, with its schedule or its site."""
    began = await tx.fetchval(
        """UPDATE schedule_runs SET status = 'running', started_at = $2
           WHERE id = $1 AND status = 'queued' RETURNING true""",
        run_id,
        now,
    )
    return bool(began)


async def write_ended(
    tx: Transaction, run_id: int, status: RunStatus, now: datetime, exit_status: int | None, output: str
) -> None:
    schedule_id = await tx.fetchval(
        """UPDATE schedule_runs SET status = $2, ended_at = $3, exit_status = $4, output = $5
           WHERE id = $1 AND ended_at IS NULL RETURNING schedule_id""",
        run_id,
        status.value,
        now,
        exit_status,
        output,
    )
    if schedule_id is not None:
        await _forget_old(tx, schedule_id)


async def end_open_runs(tx: Transaction, now: datetime) -> int:
    """End runs of an earlier core, whose programs have ended."""
    rows = await tx.fetch(
        "UPDATE schedule_runs SET status = 'interrupted', ended_at = $1 WHERE ended_at IS NULL RETURNING id", now
    )
    return len(rows)


async def read_runs(queryable: Queryable, schedule_id: UUID) -> Sequence[Run]:
    """All runs that are kept, the newest first."""
    rows = await queryable.fetch("SELECT * FROM schedule_runs WHERE schedule_id = $1 ORDER BY id DESC", schedule_id)
    return [as_run(row) for row in rows]


async def read_run(queryable: Queryable, schedule_id: UUID, run_id: int) -> Run:
    """Raises not_found."""
    row = await queryable.fetchrow(
        "SELECT * FROM schedule_runs WHERE schedule_id = $1 AND id = $2", schedule_id, run_id
    )
    if row is None:
        raise not_found("There is no such run.", hint=f"The last {KEPT_RUNS} runs are kept.")
    return as_run(row)


async def _forget_old(tx: Transaction, schedule_id: UUID) -> None:
    await tx.execute(
        """DELETE FROM schedule_runs WHERE schedule_id = $1 AND ended_at IS NOT NULL AND id <= (
               SELECT id FROM schedule_runs WHERE schedule_id = $1 AND ended_at IS NOT NULL
               ORDER BY id DESC OFFSET $2 LIMIT 1
           )""",
        schedule_id,
        KEPT_RUNS,
    )


def _same_name(site: SiteRow, name: str) -> Exception:
    return conflict(f"{site.domain} has a scheduled task {name} already; nothing was changed.")
