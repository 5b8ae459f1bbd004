"""Restore drills as the database keeps them, and when the next scheduled one is due: the only writer of `backup_drills`
and `backup_drill_plan`.

Invariant: at most one drill is pending (an index); its outcome and the alert are written in the transaction that ends
its job.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.panel.jobs import INTERRUPTED, Job, JobClass, JobStatus, NewJob, enqueue
from svc_actors.store import Queryable, Record, Transaction
from svc_common.errors import conflict, not_found

DRILL: Final = "backup.drill"
DRILL_STEPS: Final = ("plan", "reserve_disk", "fetch", "verify", "try_databases", "remove")


class DrillCause(StrEnum):
    MANUAL = "manual"
    SCHEDULED = "scheduled"


class DrillStatus(StrEnum):
    PENDING = "pending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class DrillFrequency(StrEnum):
    OFF = "off"
    WEEKLY = "weekly"


@dataclass(frozen=True)
class DrillPlan:
    frequency: DrillFrequency
    next_run_at: datetime


async def start_drill(tx: Transaction, cause: DrillCause, site_id: UUID | None = None) -> Job:
    """Order a drill of the newest backup of a site, by default of any site. Raises `conflict` while a drill is pending,
    and not_found if there is no backup."""
    await tx.execute("SELECT 1 FROM backup_drill_plan FOR UPDATE")
    if await tx.fetchval("SELECT true FROM backup_drills WHERE status = 'pending'"):
        raise conflict("A drill is already running; none was started.", hint="Follow its job.")
    chosen = await _choose(tx, site_id)
    if chosen is None:
        raise not_found("There is no completed backup to try.", hint="Back up a site first.")
    return await _start(tx, cause, chosen)


async def _choose(tx: Transaction, site_id: UUID | None = None) -> Record | None:
    """A backup to try: its `id`, and `site_id` and `domain` of its site, which still exists. None if there is none."""
    return await tx.fetchrow(
        """SELECT newest.id, sites.id AS site_id, sites.domain
           FROM sites JOIN backup_repositories ON backup_repositories.site_id = sites.id
           JOIN LATERAL (SELECT id FROM site_backups
                         WHERE repository_id = backup_repositories.id AND status = 'completed'
                         ORDER BY created_at DESC LIMIT 1) AS newest ON true
           WHERE sites.status IN ('active', 'suspended') AND ($1::uuid IS NULL OR sites.id = $1)
           ORDER BY random() LIMIT 1""",
        site_id,
    )


async def _start(tx: Transaction, cause: DrillCause, chosen: Record) -> Job:
    job = await enqueue(
        tx,
        NewJob(
            kind=DRILL,
            title=f"Try the backup of {chosen['domain']}"[:200],
            job_class=JobClass.BACKUPS,
            steps=DRILL_STEPS,
            # The drill is a job of the site, so no other job works on the site's repository meanwhile.
            site_id=chosen["site_id"],
            parameters={"backup": str(chosen["id"])},
        ),
    )
    await tx.execute(
        "INSERT INTO backup_drills (backup_id, domain, cause, job_id) VALUES ($1, $2, $3, $4)",
        chosen["id"],
        chosen["domain"],
        cause.value,
        job.id,
    )
    return job


def drill_alert(site_id: UUID) -> str:
    """Key of the alert that a site's backup could not be restored."""
    return f"backup-drill:{site_id}"


async def end_drill(tx: Transaction, job: Job) -> None:
    """Record the end of a drill. A failed drill opens an alert about its site, and a successful one of the same site
    closes the alert. A scheduled drill that a restart cut short is due again at once, a cancelled one the next day."""
    row = await tx.fetchrow(
        """UPDATE backup_drills SET status = $2, error = $3, ended_at = now()
           WHERE job_id = $1 AND status = 'pending' RETURNING domain, cause""",
        job.id,
        (DrillStatus.SUCCEEDED if job.status is JobStatus.SUCCEEDED else DrillStatus.FAILED).value,
        None if job.status is JobStatus.SUCCEEDED else job.error.message if job.error else "It was cancelled.",
    )
    if row is None:
        return
    if job.status is not JobStatus.SUCCEEDED and (job.error is None or job.error.message == INTERRUPTED.message):
        if row["cause"] == DrillCause.SCHEDULED:
            wait = timedelta(days=1) if job.error is None else timedelta()
            await tx.execute("UPDATE backup_drill_plan SET next_run_at = least(next_run_at, now() + $1)", wait)
    elif job.site_id is None:
        return  # The site was deleted meanwhile, and its alert was closed.
    elif job.error is None:
        await close_alert(tx, drill_alert(job.site_id))
    else:
        message = f"The backup of {row['domain']} failed its restore drill: {job.error.message}"
        await raise_alert(tx, drill_alert(job.site_id), message, resource_kind="site", resource_id=job.site_id)


async def start_due_drill(tx: Transaction) -> None:
    """Start the scheduled drill if it is due. A missed drill runs once. If there is no backup to try, or a drill is
    pending, the next is due in a week."""
    due = await tx.fetchval(
        """UPDATE backup_drill_plan SET next_run_at = now() + interval '7 days'
           WHERE frequency = 'weekly' AND next_run_at <= now() RETURNING true"""
    )
    if not due or await tx.fetchval("SELECT true FROM backup_drills WHERE status = 'pending'"):
        return
    chosen = await _choose(tx)
    if chosen is not None:
        await _start(tx, DrillCause.SCHEDULED, chosen)


async def write_compared(
    tx: Transaction, job_id: int, *, entries: int | None = None, databases: int | None = None
) -> None:
    """Record how much of the backup was compared: entries of the tree, or databases."""
    await tx.execute(
        """UPDATE backup_drills SET entries = coalesce($2, entries), databases = coalesce($3, databases)
           WHERE job_id = $1""",
        job_id,
        entries,
        databases,
    )


async def write_scratch(tx: Transaction, job_id: int, names: list[str]) -> None:
    """Names of the databases of a drill: written before they are created, and cleared once they are dropped."""
    await tx.execute("UPDATE backup_drills SET scratch = $2 WHERE job_id = $1", job_id, names)


async def leftover_scratch(queryable: Queryable) -> list[Record]:
    """The scratch databases of drills that have ended: `job_id` and `scratch`."""
    return await queryable.fetch(
        "SELECT job_id, scratch FROM backup_drills WHERE status <> 'pending' AND scratch <> '{}'"
    )


async def read_drill_plan(queryable: Queryable) -> DrillPlan:
    row = await queryable.fetchone("SELECT frequency, next_run_at FROM backup_drill_plan")
    return DrillPlan(DrillFrequency(row["frequency"]), row["next_run_at"])


async def write_drill_plan(tx: Transaction, frequency: DrillFrequency) -> None:
    await tx.execute("UPDATE backup_drill_plan SET frequency = $1", frequency.value)
