"""Backups and their copies as the database keeps them.

Invariants:
- a backup is `completed` only once its snapshot was checked; until then it is pending, or has failed and says why;
- a site has at most one pending backup;
- webhooks and events of a status are written in the transaction of the status.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from svc_actors.panel.backups.repositories import ensure_repository
from svc_actors.panel.jobs import Job, JobClass, NewJob, enqueue
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.webhooks import Subject, WebhookEvent, emit
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable, Record, Target, Transaction
from svc_common.errors import conflict

CREATE: Final = "backup.create"
RESTORE: Final = "backup.restore"
DELETE: Final = "backup.delete"
CREATE_STEPS: Final = (
    *("plan", "manifest", "reserve_disk", "dump_databases", "verify_dumps"),
    *("snapshot", "check", "copy", "retention"),
)
DELETIONS_KEPT_DAYS: Final = 400
RESTORE_STEPS: Final = ("plan", "reserve_disk", "fetch", "verify", "load_databases", "switch", "configure")


class Cause(StrEnum):
    MANUAL = "manual"
    SCHEDULED = "scheduled"
    FINAL = "final"
    """The backup made before the site was deleted."""
    ADOPTED = "adopted"
    """A complete backup in the site's repository that the panel found without having a record of it."""


class BackupPart(StrEnum):
    """The parts of a backup that can be restored."""

    FILES = "files"
    DATABASES = "databases"
    CONFIGURATION = "configuration"


USUAL_PARTS: Final = (BackupPart.FILES, BackupPart.DATABASES)


class BackupStatus(StrEnum):
    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"
    DELETING = "deleting"


@dataclass(frozen=True)
class BackupRow:
    """`owner_id`: the site's owner, or its last one. `job_id` is None if the backup was adopted. `files_before`: the
    number of files in the previous backup, if this backup has lost most of them."""

    id: UUID
    repository_id: UUID
    site_id: UUID | None
    domain: str
    owner_id: UUID
    cause: Cause
    status: BackupStatus
    job_id: int | None
    files: int | None
    bytes: int | None
    databases: tuple[str, ...]
    created_at: datetime
    files_before: int | None

    @property
    def target(self) -> Target:
        return Target("backup", self.id, f"{self.domain} {self.created_at:%Y-%m-%d %H:%M}", self.owner_id)

    @property
    def tag(self) -> str:
        return tag_of(self.id)


def tag_of(backup_id: UUID) -> str:
    """The tag of the backup's snapshots in every repository."""
    return f"backup-{backup_id}"


BACKUP_COLUMNS: Final = """backups.id, backups.repository_id, backup_repositories.site_id,
    coalesce(sites.domain, backup_repositories.domain) AS domain,
    coalesce(sites.owner_id, backup_repositories.owner_id) AS owner_id,
    backups.cause, backups.status, backups.job_id, backups.files, backups.bytes, backups.databases,
    backups.created_at, backups.files_before"""
BACKUP_SOURCE: Final = """site_backups AS backups
    JOIN backup_repositories ON backup_repositories.id = backups.repository_id
    LEFT JOIN sites ON sites.id = backup_repositories.site_id"""
OWNER: Final = "coalesce(sites.owner_id, backup_repositories.owner_id)"


def as_backup(row: Record) -> BackupRow:
    """Converts a row of `BACKUP_COLUMNS`."""
    return BackupRow(
        id=row["id"],
        repository_id=row["repository_id"],
        site_id=row["site_id"],
        domain=row["domain"],
        owner_id=row["owner_id"],
        cause=Cause(row["cause"]),
        status=BackupStatus(row["status"]),
        job_id=row["job_id"],
        files=row["files"],
        bytes=row["bytes"],
        databases=tuple(row["databases"]),
        created_at=row["created_at"],
        files_before=row["files_before"],
    )


async def read_backup(queryable: Queryable, backup_id: UUID) -> BackupRow | None:
    row = await queryable.fetchrow(f"SELECT {BACKUP_COLUMNS} FROM {BACKUP_SOURCE} WHERE backups.id = $1", backup_id)
    return None if row is None else as_backup(row)


async def backup_of_job(queryable: Queryable, job_id: int) -> BackupRow | None:
    """The backup that a job makes; a job makes at most one."""
    row = await queryable.fetchrow(f"SELECT {BACKUP_COLUMNS} FROM {BACKUP_SOURCE} WHERE backups.job_id = $1", job_id)
    return None if row is None else as_backup(row)


async def has_final(queryable: Queryable, site_id: UUID, since: datetime) -> bool:
    """Whether there is a final backup by the deletion that was ordered at that time."""
    found: bool = await queryable.fetchval(
        """SELECT EXISTS (SELECT FROM site_backups JOIN backup_repositories ON backup_repositories.id = repository_id
                          WHERE site_id = $1 AND cause = 'final' AND status = 'completed'
                            AND site_backups.created_at >= $2)""",
        site_id,
        since,
    )
    return found


async def completed(queryable: Queryable, repository_id: UUID) -> list[tuple[UUID, datetime]]:
    """The newest first."""
    whole, reduced = await completed_by_size(queryable, repository_id)
    return sorted([*whole, *reduced], key=lambda backup: backup[1], reverse=True)


async def completed_by_size(
    queryable: Queryable, repository_id: UUID
) -> tuple[list[tuple[UUID, datetime]], list[tuple[UUID, datetime]]]:
    """The newest first, in two lists: backups of the usual size, and those that have lost most of the files of the
    previous backup."""
    rows = await queryable.fetch(
        """SELECT id, created_at, files_before IS NULL AS whole FROM site_backups
           WHERE repository_id = $1 AND status = 'completed' ORDER BY created_at DESC, id""",
        repository_id,
    )
    whole = [(row["id"], row["created_at"]) for row in rows if row["whole"]]
    return whole, [(row["id"], row["created_at"]) for row in rows if not row["whole"]]


async def pending_job(queryable: Queryable, site_id: UUID) -> int | None:
    """The job of a site's pending backup."""
    job: int | None = await queryable.fetchval(
        """SELECT job_id FROM site_backups JOIN backup_repositories ON backup_repositories.id = repository_id
           WHERE site_id = $1 AND status = 'pending' LIMIT 1""",
        site_id,
    )
    return job


async def awaits_recovery(queryable: Queryable, site_id: UUID) -> bool:
    """Whether the site is of a lost server and its files are not recovered yet: a backup of it would be empty."""
    found: bool = await queryable.fetchval(
        "SELECT EXISTS (SELECT FROM recovery_sites WHERE site_id = $1 AND status <> 'recovered')", site_id
    )
    return found


async def create_backup(tx: Transaction, sealer: Sealer, site: SiteRow, cause: Cause) -> tuple[UUID, Job]:
    """Order a backup of a site, whose row is locked. Raises `conflict` while one is pending, and while the site waits
    for its recovery from a lost server."""
    if await awaits_recovery(tx, site.id):
        raise conflict(
            f"{site.domain} is not restored yet, so there is nothing to back up.",
            hint="See `svc recover status`; `svc recover run` tries again what has failed.",
        )
    repository_id = await ensure_repository(tx, sealer, site)
    if (pending := await pending_job(tx, site.id)) is not None:
        raise conflict(
            f"A backup of {site.domain} is already running; no other was started.", hint=f"Follow its job, {pending}."
        )
    job = await enqueue(
        tx,
        NewJob(
            kind=CREATE,
            title=f"Back up {site.domain}",
            job_class=JobClass.BACKUPS,
            steps=CREATE_STEPS,
            site_id=site.id,
            owner_id=site.owner_id,
        ),
    )
    return await add_backup(tx, repository_id, cause, job.id), job


async def add_backup(tx: Transaction, repository_id: UUID, cause: Cause, job_id: int) -> UUID:
    backup_id: UUID = await tx.fetchval(
        "INSERT INTO site_backups (repository_id, cause, job_id) VALUES ($1, $2, $3) RETURNING id",
        repository_id,
        cause.value,
        job_id,
    )
    return backup_id


async def complete_backup(
    tx: Transaction,
    backup: BackupRow,
    *,
    files: int,
    size: int,
    added: int,
    databases: Sequence[str],
    configuration: Mapping[str, Any],
    files_before: int | None = None,
) -> None:
    """Record that the backup's snapshot was checked. May be repeated."""
    done = await tx.change(
        """UPDATE site_backups SET status = 'completed', files = $2, bytes = $3, added_bytes = $4, databases = $5,
                              configuration = $6, files_before = $7, completed_at = now()
           WHERE id = $1 AND status = 'pending'""",
        backup.id,
        files,
        size,
        added,
        list(databases),
        dict(configuration),
        files_before,
    )
    if done:
        data = {"site_id": str(backup.site_id), "cause": backup.cause.value, "files": files, "bytes": size}
        await emit(tx, WebhookEvent.BACKUP_COMPLETED, subject=_subject(backup), data=data)


async def adopt_backup(
    tx: Transaction,
    repository_id: UUID,
    backup_id: UUID,
    made_at: datetime | None,
    *,
    files: int | None = None,
    size: int | None = None,
    databases: Sequence[str] = (),
    configuration: Mapping[str, Any] | None = None,
) -> None:
    """Record a complete backup without a usable record: a restart has failed its job, or an older database does not
    know it."""
    await tx.execute(
        """INSERT INTO site_backups (id, repository_id, cause, status, files, bytes, databases, configuration,
                                     created_at, completed_at)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, coalesce($9, now()), coalesce($9, now()))
           ON CONFLICT (id) DO UPDATE SET status = excluded.status, error = NULL, files = excluded.files,
               bytes = excluded.bytes, databases = excluded.databases, configuration = excluded.configuration,
               completed_at = excluded.completed_at
           WHERE site_backups.repository_id = excluded.repository_id
             AND site_backups.status IN ('failed', 'pending')""",
        backup_id,
        repository_id,
        Cause.ADOPTED.value,
        BackupStatus.COMPLETED.value,
        files,
        size,
        list(databases),
        None if configuration is None else dict(configuration),
        made_at,
    )


async def accept_reduced_backups(tx: Transaction, repository_id: UUID) -> None:
    """Count the site's backups with far fewer files as backups of the usual size from now on."""
    await tx.execute("UPDATE site_backups SET files_before = NULL WHERE repository_id = $1", repository_id)


async def fail_backup(tx: Transaction, backup: BackupRow, why: str) -> None:
    """Record that the backup will not be completed. A completed backup stays completed: then only a later step has
    failed."""
    done = await tx.change(
        "UPDATE site_backups SET status = 'failed', error = $2 WHERE id = $1 AND status = 'pending'",
        backup.id,
        why[:1000],
    )
    if done:
        data = {"site_id": str(backup.site_id), "cause": backup.cause.value}
        await emit(tx, WebhookEvent.BACKUP_FAILED, subject=_subject(backup), data=data)


async def orphans(queryable: Queryable) -> list[BackupRow]:
    """Pending backups without a queued or running job."""
    rows = await queryable.fetch(
        f"""SELECT {BACKUP_COLUMNS} FROM {BACKUP_SOURCE}
            WHERE backups.status = 'pending'
              AND NOT EXISTS (SELECT FROM jobs WHERE id = backups.job_id AND status IN ('queued', 'running'))"""
    )
    return [as_backup(row) for row in rows]


async def open_jobs(queryable: Queryable, job_ids: Collection[int]) -> set[int]:
    """The jobs among `job_ids` that have not ended."""
    rows = await queryable.fetch(
        "SELECT id FROM jobs WHERE id = ANY($1::bigint[]) AND status IN ('queued', 'running')", list(job_ids)
    )
    return {row["id"] for row in rows}


async def added_bytes(queryable: Queryable, backup_id: UUID) -> int:
    """How many bytes the backup added to the repository, before compression."""
    added: int = await queryable.fetchval("SELECT coalesce(added_bytes, 0) FROM site_backups WHERE id = $1", backup_id)
    return added


async def write_copies(tx: Transaction, repository_id: UUID, target_id: UUID, held: Collection[UUID]) -> None:
    """Record that of a repository's backups, the target holds exactly these complete."""
    await tx.execute(
        """DELETE FROM backup_copies USING site_backups
           WHERE site_backups.id = backup_id AND repository_id = $1 AND target_id = $2
             AND backup_copies.error IS NULL AND backup_id <> ALL($3::uuid[])""",
        repository_id,
        target_id,
        list(held),
    )
    await tx.execute(
        """INSERT INTO backup_copies (backup_id, target_id)
           SELECT id, $2 FROM site_backups WHERE repository_id = $1 AND status = 'completed' AND id = ANY($3::uuid[])
           ON CONFLICT (backup_id, target_id) DO UPDATE SET error = NULL, at = now()
           WHERE backup_copies.error IS NOT NULL""",
        repository_id,
        target_id,
        list(held),
    )


async def write_copy_error(tx: Transaction, backup_id: UUID, target_id: UUID, error: str) -> None:
    """Record why a backup is not on a target."""
    await tx.execute(
        """INSERT INTO backup_copies (backup_id, target_id, error) VALUES ($1, $2, $3)
           ON CONFLICT (backup_id, target_id) DO UPDATE SET error = EXCLUDED.error, at = now()""",
        backup_id,
        target_id,
        error[:1000],
    )


async def fail_copy(tx: Transaction, backup: BackupRow, target_id: UUID, target: str, error: str) -> None:
    """Record that the target lacks the backup that was just made. For older backups the records keep what was listed
    last."""
    await write_copy_error(tx, backup.id, target_id, error)
    data = {"site_id": str(backup.site_id), "target_id": str(target_id), "target": target}
    await emit(tx, WebhookEvent.BACKUP_REMOTE_FAILED, subject=_subject(backup), data=data)


async def start_deletion(tx: Transaction, backup: BackupRow) -> Job:
    """Order the removal of a backup from every repository. Raises `conflict` while it is being made or removed."""
    done = await tx.change(
        "UPDATE site_backups SET status = 'deleting' WHERE id = $1 AND status = 'completed'", backup.id
    )
    if not done and backup.status is not BackupStatus.FAILED:
        raise conflict(f"This backup is {backup.status.value}; nothing was changed.")
    return await enqueue(
        tx,
        NewJob(
            kind=DELETE,
            title=f"Delete a backup of {backup.domain}",
            job_class=JobClass.BACKUPS,
            steps=("remove",),
            site_id=backup.site_id,
            owner_id=backup.owner_id,
            parameters={"backup": str(backup.id), "repository": str(backup.repository_id)},
        ),
    )


async def cancel_deletion(tx: Transaction, backup_id: UUID) -> None:
    """The deletion was not carried out: restore the backup's former status."""
    await tx.execute("UPDATE site_backups SET status = 'completed' WHERE id = $1 AND status = 'deleting'", backup_id)


async def delete_backups(tx: Transaction, repository_id: UUID, backup_ids: Sequence[UUID]) -> None:
    """Delete the records of the backups, and record the deletions, so that jobs remove the snapshots wherever they find
    them."""
    await tx.execute(
        """INSERT INTO backup_deletions (repository_id, backup_id)
           SELECT $1, * FROM unnest($2::uuid[]) ON CONFLICT DO NOTHING""",
        repository_id,
        list(backup_ids),
    )
    await write_lost(tx, backup_ids)


async def write_lost(tx: Transaction, backup_ids: Sequence[UUID]) -> None:
    """Record that these backups are in no repository. If a snapshot of one is found after all, it is not deleted."""
    await tx.execute("DELETE FROM site_backups WHERE id = ANY($1::uuid[])", list(backup_ids))


async def forget_old_deletions(queryable: Queryable) -> int:
    """Forget deletions that are older than `DELETIONS_KEPT_DAYS`. If a target was unreachable for longer than that, a
    deleted backup on it then counts as one without a record."""
    return await queryable.change(
        "DELETE FROM backup_deletions WHERE deleted_at < now() - make_interval(days => $1)", DELETIONS_KEPT_DAYS
    )


def _subject(backup: BackupRow) -> Subject:
    return Subject("backup", str(backup.id), backup.domain)
