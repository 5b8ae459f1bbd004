"""Jobs as they are stored: a row for each, its steps, and the lines of its log.

Invariants:
- a job is written with all of its steps, in the transaction of the change that it is for;
- queued -> running -> succeeded, failed or cancelled; queued may be cancelled; an ended job never changes again;
- a running job has exactly one running step; earlier steps have succeeded, or have failed if the work continues without
  them, and later ones are queued;
- when a job fails, its running step fails with the same error, and every later one is recorded as cancelled;
- the lines of a log are numbered 1, 2, 3, ... without a gap, in the order of commits, under the lock of the job's row:
  a client that polls with `after` never misses a line and never reads one twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from svc_actors.panel.event_kinds import PanelEvent
from svc_actors.store import NewEvent, Queryable, Record, Transaction, events
from svc_common.errors import ErrorCode, ServiceError

CHANNEL: Final = "panel_jobs"
"""Announces the class of a job that was queued, or that may start now."""
LONGEST_LINE: Final = 4000
_STEP: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


class JobStatus(StrEnum):
    """Status of a job or of a step (specification, Job)."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def open(self) -> bool:
        return self in (JobStatus.QUEUED, JobStatus.RUNNING)


class JobClass(StrEnum):
    """Jobs of one class share its slots."""

    BACKUPS = "backups"
    MIGRATIONS = "migrations"
    SYSTEM = "system"
    SITES = "sites"

    @property
    def slots(self) -> int:
        """How many run at a time (specification, Limits)."""
        return 3 if self is JobClass.SITES else 1


@dataclass(frozen=True)
class JobError:
    code: ErrorCode
    message: str
    hint: str | None = None

    @classmethod
    def of(cls, error: ServiceError) -> JobError:
        return cls(error.code, error.message, error.hint)


INTERRUPTED: Final = JobError(
    ErrorCode.UNAVAILABLE, "interrupted: core restarted", "The log shows what was done. Start the job again."
)


@dataclass(frozen=True)
class NewJob:
    """`steps`: names of methods of its work, in order, for example `remove_databases`. `parameters`: JSON input of the
    work, without secrets. `site_id` is required for the class `sites`; `owner_id` is the person that it belongs to."""

    kind: str
    title: str
    job_class: JobClass
    steps: tuple[str, ...]
    site_id: UUID | None = None
    owner_id: UUID | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.steps or not all(_STEP.fullmatch(step) for step in self.steps):
            raise ValueError(f"{self.kind}: steps are one or more names of methods, not {self.steps}")
        if self.job_class is JobClass.SITES and self.site_id is None:
            raise ValueError(f"{self.kind}: a job of the class sites is of a site")


@dataclass(frozen=True)
class Job:
    id: int
    kind: str
    title: str
    job_class: JobClass
    status: JobStatus
    progress: int
    site_id: UUID | None
    owner_id: UUID | None
    parameters: Mapping[str, Any]
    error: JobError | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True)
class StartedJob:
    """A running job, with the names of its steps in order."""

    job: Job
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """Positions are 1, 2, 3, ...; the name is that of the method that runs the step."""

    job_id: int
    position: int
    name: str
    status: JobStatus
    error: JobError | None
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").capitalize()


@dataclass(frozen=True)
class Line:
    """`step` is the position of the step that wrote it; None for lines from outside of steps."""

    seq: int
    at: datetime
    step: int | None
    message: str


async def enqueue(tx: Transaction, new: NewJob) -> Job:
    """Write a queued job with its steps and its event. It starts after the commit, once there is a slot for it."""
    row = await tx.fetchone(
        """WITH job AS (
               INSERT INTO jobs (kind, title, class, site_id, owner_id, parameters)
               VALUES ($1, $2, $3, $4, $5, $6) RETURNING *
           ), steps AS (
               INSERT INTO job_steps (job_id, position, name)
               SELECT job.id, step.position, step.name
               FROM job, unnest($7::text[]) WITH ORDINALITY AS step (name, position)
           )
           SELECT * FROM job""",
        new.kind,
        new.title,
        new.job_class.value,
        new.site_id,
        new.owner_id,
        dict(new.parameters),
        list(new.steps),
    )
    job = as_job(row)
    await announce(tx, job)
    tx.announce(CHANNEL, job.job_class.value)
    return job


def wake_queues(tx: Transaction) -> None:
    """Make every queue look again, because jobs of a site may be able to start again."""
    for job_class in JobClass:
        tx.announce(CHANNEL, job_class.value)


async def start_jobs(tx: Transaction, job_ids: Sequence[int]) -> list[StartedJob]:
    """Mark queued jobs and their first steps as running. Jobs that are not queued are left out."""
    rows = await tx.fetch(
        """WITH job AS (
               UPDATE jobs SET status = 'running', started_at = now(), turn = nextval('job_turns')
               WHERE id = ANY($1::bigint[]) AND status = 'queued' RETURNING *
           ), step AS (
               UPDATE job_steps SET status = 'running', started_at = now()
               FROM job WHERE job_id = job.id AND position = 1
           )
           SELECT job.*, ARRAY(SELECT name FROM job_steps WHERE job_id = job.id ORDER BY position) AS steps
           FROM job""",
        list(job_ids),
    )
    started = [StartedJob(as_job(row), tuple(row["steps"])) for row in rows]
    for each in started:
        await announce(tx, each.job)
    return started


async def next_step(
    tx: Transaction, job_id: int, position: int, progress: int, error: JobError | None = None
) -> Job | None:
    """Record that the step at `position` has succeeded, or failed with `error`, and that the next one runs. Repeating
    this changes nothing."""
    row = await tx.fetchrow(
        """WITH steps AS (
               UPDATE job_steps
               SET status = CASE WHEN position <> $2 THEN 'running' WHEN $4::jsonb IS NULL THEN 'succeeded'
                            ELSE 'failed' END,
                   error = CASE WHEN position = $2 THEN $4::jsonb END,
                   ended_at = CASE WHEN position = $2 THEN now() END,
                   started_at = CASE WHEN position = $2 THEN started_at ELSE now() END
               WHERE job_id = $1 AND (position, status) IN (($2, 'running'), ($2 + 1, 'queued'))
           )
           UPDATE jobs SET progress = greatest(progress, $3) WHERE id = $1 AND status = 'running' RETURNING *""",
        job_id,
        position,
        progress,
        _told(error),
    )
    return await _announced(tx, row)


async def set_progress(tx: Transaction, job_id: int, progress: int) -> Job | None:
    """Progress never decreases; no event is written if nothing changes."""
    row = await tx.fetchrow(
        "UPDATE jobs SET progress = $2 WHERE id = $1 AND status = 'running' AND progress < $2 RETURNING *",
        job_id,
        progress,
    )
    return await _announced(tx, row)


async def end_job(tx: Transaction, job_id: int, status: JobStatus, error: JobError | None = None) -> Job | None:
    """Write the end of an open job, of its running step and of the steps that will not run. None if the job had already
    ended: then the caller, whose transaction this is, must not change anything else because of the end."""
    if error is not None:
        last = error.message if error.hint is None else f"{error.message.rstrip('.')}. {error.hint}"
        await write_lines(tx, job_id, None, [last])
    row = await tx.fetchrow(
        """WITH job AS (
               UPDATE jobs SET status = $2, error = $3, ended_at = now(),
                               progress = CASE WHEN $2 = 'succeeded' THEN 100 ELSE progress END
               WHERE id = $1 AND status IN ('queued', 'running') RETURNING *
           ), steps AS (
               UPDATE job_steps
               SET status = CASE job_steps.status WHEN 'running' THEN $2 ELSE 'cancelled' END,
                   error = CASE job_steps.status WHEN 'running' THEN job.error END,
                   ended_at = CASE job_steps.status WHEN 'running' THEN now() END
               FROM job WHERE job_id = job.id AND job_steps.status IN ('queued', 'running')
           )
           SELECT * FROM job""",
        job_id,
        status.value,
        _told(error),
    )
    return await _announced(tx, row)


async def end_all(tx: Transaction) -> None:
    """End all queued and running jobs, on a server that was lost and is recovered."""
    for row in await tx.fetch("SELECT id FROM jobs WHERE status IN ('queued', 'running') ORDER BY id"):
        await end_job(tx, row["id"], JobStatus.FAILED, INTERRUPTED)


async def hand_over_jobs(tx: Transaction, site_id: UUID, owner_id: UUID) -> None:
    """Queued and running jobs of the site go to its new owner; ended jobs stay with the previous one."""
    rows = await tx.fetch(
        """UPDATE jobs SET owner_id = $2
           WHERE site_id = $1 AND status IN ('queued', 'running') AND owner_id <> $2 RETURNING *""",
        site_id,
        owner_id,
    )
    for row in rows:
        await announce(tx, as_job(row))


async def write_lines(queryable: Queryable, job_id: int, step: int | None, messages: Sequence[str]) -> int:
    """Add lines to the log of an open job; returns how many were written. A single statement writes all of them or
    none: even after a kill they are either there before the end, or missing."""
    return await queryable.change(
        """WITH job AS (
               UPDATE jobs SET last_seq = last_seq + cardinality($3::text[])
               WHERE id = $1 AND status IN ('queued', 'running') RETURNING id, last_seq
           )
           INSERT INTO job_lines (job_id, seq, step, message)
           SELECT job.id, job.last_seq - cardinality($3::text[]) + line.place, $2, line.message
           FROM job, unnest($3::text[]) WITH ORDINALITY AS line (message, place)""",
        job_id,
        step,
        [_storable(message) for message in messages],
    )


async def get_job(queryable: Queryable, job_id: int) -> Job | None:
    row = await queryable.fetchrow("SELECT * FROM jobs WHERE id = $1", job_id)
    return as_job(row) if row else None


async def lock_job(tx: Transaction, job_id: int) -> Job | None:
    row = await tx.fetchrow("SELECT * FROM jobs WHERE id = $1 FOR NO KEY UPDATE", job_id)
    return as_job(row) if row else None


async def running_jobs(queryable: Queryable) -> list[StartedJob]:
    rows = await queryable.fetch(
        """SELECT *, ARRAY(SELECT name FROM job_steps WHERE job_id = jobs.id ORDER BY position) AS steps
           FROM jobs WHERE status = 'running' ORDER BY turn"""
    )
    return [StartedJob(as_job(row), tuple(row["steps"])) for row in rows]


async def steps_of(queryable: Queryable, job_ids: Sequence[int]) -> dict[int, list[Step]]:
    """The steps of these jobs, in order."""
    rows = await queryable.fetch(
        "SELECT * FROM job_steps WHERE job_id = ANY($1::bigint[]) ORDER BY job_id, position", list(job_ids)
    )
    found: dict[int, list[Step]] = {job_id: [] for job_id in job_ids}
    for row in rows:
        found[row["job_id"]].append(_as_step(row))
    return found


async def read_lines(queryable: Queryable, job_id: int, *, after: int, limit: int) -> list[Line]:
    rows = await queryable.fetch(
        "SELECT seq, at, step, message FROM job_lines WHERE job_id = $1 AND seq > $2 ORDER BY seq LIMIT $3",
        job_id,
        after,
        limit,
    )
    return [Line(row["seq"], row["at"], row["step"], row["message"]) for row in rows]


async def announce(tx: Transaction, job: Job) -> None:
    """Write the event of a job's change, for its owner and for administrators."""
    await events.append(
        tx,
        NewEvent(
            kind=PanelEvent.JOB,
            subject=str(job.id),
            project_id=job.owner_id,
            administrators_only=job.owner_id is None,
            payload={
                "id": job.id,
                "kind": job.kind,
                "title": job.title,
                "status": job.status.value,
                "progress": job.progress,
                "site_id": str(job.site_id) if job.site_id else None,
            },
        ),
    )


def as_job(row: Record) -> Job:
    return Job(
        id=row["id"],
        kind=row["kind"],
        title=row["title"],
        job_class=JobClass(row["class"]),
        status=JobStatus(row["status"]),
        progress=row["progress"],
        site_id=row["site_id"],
        owner_id=row["owner_id"],
        parameters=row["parameters"],
        error=_as_error(row["error"]),
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


async def _announced(tx: Transaction, row: Record | None) -> Job | None:
    if row is None:
        return None
    job = as_job(row)
    await announce(tx, job)
    return job


def _as_step(row: Record) -> Step:
    return Step(
        job_id=row["job_id"],
        position=row["position"],
        name=row["name"],
        status=JobStatus(row["status"]),
        error=_as_error(row["error"]),
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )


def _told(error: JobError | None) -> dict[str, Any] | None:
    return {"code": error.code.value, "message": error.message, "hint": error.hint} if error is not None else None


def _as_error(stored: Mapping[str, Any] | None) -> JobError | None:
    return JobError(ErrorCode(stored["code"]), stored["message"], stored["hint"]) if stored is not None else None


def _storable(message: str) -> str:
    """Text that a column accepts: without NUL characters and lone surrogates, which names of files may contain."""
    return message[:LONGEST_LINE].replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
