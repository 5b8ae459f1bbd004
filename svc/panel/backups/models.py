"""Types of the requests and answers about backups."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.identity.backup_targets import BackupTargetModel, Folder, TargetName
from svc.panel.files.models import SitePath
from svc.panel.sites.access import SiteChange
from svc.registry.operation import Model, Request
from svc.registry.paging import PageRequest
from svc.registry.shapes import Shape
from svc_actors.panel.backups.records import BACKUP_SOURCE, BackupPart, BackupStatus, Cause
from svc_actors.panel.backups.schedules import DEFAULT_KEEP, Frequency
from svc_actors.panel.backups.targets import TargetRow
from svc_actors.store import Record

Hour = Annotated[int, Field(ge=0, le=23)]
Weekday = Annotated[int, Field(ge=0, le=6, description="0 is Monday.")]
Keep = Annotated[int, Field(ge=0, le=500)]


class BackupCopy(Model):
    """The copy of a backup at a target. `error`: why it could not be made; null if it is there."""

    target_id: UUID
    target: str
    error: str | None
    at: datetime


class Backup(Model):
    """`site_id` is null if the site was deleted; its backups are kept until `kept_until`. `added_bytes`: by how much
    the repository grew. `files_before`: the number of files in the previous backup, if this one has less than a tenth
    of them; such a backup is ignored by the retention of the others. `job_id` is null for an `adopted` backup, which
    was found in the repository without a record."""

    id: UUID
    site_id: UUID | None
    domain: str
    cause: Cause
    status: BackupStatus
    job_id: int | None
    files: int | None
    files_before: int | None
    bytes: int | None
    added_bytes: int | None
    databases: list[str]
    error: str | None
    copies: list[BackupCopy]
    created_at: datetime
    completed_at: datetime | None
    kept_until: datetime | None


SELECT_BACKUPS: Final = f"""
SELECT backups.id, backup_repositories.site_id, coalesce(sites.domain, backup_repositories.domain) AS domain,
       backups.cause, backups.status, backups.job_id, backups.files, backups.files_before, backups.bytes,
       backups.added_bytes, backups.databases, backups.error, backups.created_at, backups.completed_at,
       backup_repositories.kept_until,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('target_id', target_id, 'target', name, 'error', error, 'at', at)
                                  ORDER BY name), '[]')
        FROM backup_copies JOIN backup_targets ON backup_targets.id = target_id
        WHERE backup_id = backups.id) AS copies
FROM {BACKUP_SOURCE}"""
"""{OWNER} is the owner of the backups."""


def backup_model(row: Record) -> Backup:
    """The backup of a row of `SELECT_BACKUPS`."""
    return Backup.model_validate(dict(row))


class BackupList(PageRequest):
    status: BackupStatus | None = None
    site: UUID | None = None


class BackupRequest(Request):
    id: UUID


class BackupCreateRequest(SiteChange):
    """Names the site."""


class BackupRestoreRequest(BackupRequest):
    """Restores `parts` (by default files and databases), or the file or folder `path`, or one `database`.
    `backup.configuration` shows what the configuration would change. `site`: another site of the same customer to
    restore into; by default the backup's own. A database is loaded into the site's database of the same name."""

    site: UUID | None = None
    path: SitePath | None = None
    database: Annotated[str, Field(max_length=64), Shape("[a-z0-9_]+", "the name of a database")] | None = None
    parts: Annotated[list[BackupPart], Field(min_length=1, max_length=3)] | None = None


class ScheduleRequest(SiteChange):
    """Names the site."""


class BackupScheduleUpdateRequest(SiteChange):
    """`hour` (UTC) of daily and weekly backups, `weekday` of weekly ones. Kept are the newest `keep_last` backups, and
    the newest of each of the last days, weeks and months that have one. With `enabled` false no backups are scheduled;
    existing ones stay."""

    enabled: bool = True
    frequency: Frequency = Frequency.DAILY
    hour: Hour = 3
    weekday: Weekday = 6
    keep_last: Annotated[int, Field(ge=1, le=500)] = DEFAULT_KEEP.last
    keep_daily: Keep = DEFAULT_KEEP.daily
    keep_weekly: Keep = DEFAULT_KEEP.weekly
    keep_monthly: Keep = DEFAULT_KEEP.monthly


class Schedule(Model):
    """`overdue`: no backup was completed for twice the schedule's interval."""

    enabled: bool
    frequency: Frequency
    hour: int
    weekday: int
    keep_last: int
    keep_daily: int
    keep_weekly: int
    keep_monthly: int
    next_run_at: datetime | None
    last_completed_at: datetime | None
    overdue: bool


class BackupKey(Model):
    """The key of the backup repository of a site, which may be deleted. The key itself is shown only by its export."""

    id: UUID
    site_id: UUID | None
    domain: str
    backups: int
    created_at: datetime
    kept_until: datetime | None


class BackupKeyRequest(Request):
    id: UUID


class BackupKeySecret(Model):
    """`key` is the password of the restic repository at `repository` on this server, and of its copies."""

    id: UUID
    domain: str
    repository: str
    key: str


class BackupTarget(BackupTargetModel):
    """`location` says where it is, without secrets. `public_key`: of a target by SFTP, for its authorized_keys.
    `last_error`: why the latest copy to the target failed; null if it succeeded."""

    created_at: datetime
    last_copy_at: datetime | None
    last_error: str | None


class TargetRequest(Request):
    id: UUID


class LocalTargetRequest(Request):
    """A folder that exists already, for example on another disk."""

    name: TargetName
    path: Folder


def target_model(row: Record) -> BackupTarget:
    times = {name: row[name] for name in ("created_at", "last_copy_at", "last_error")}
    return BackupTarget(**TargetRow.of(row).shown, **times)
