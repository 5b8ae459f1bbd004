"""Types of the requests and answers about backups."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import Field, SecretStr

from svc.panel.access import SiteChange
from svc.panel.file_models import SitePath
from svc.registry.operation import Model, Request
from svc.registry.paging import PageRequest
from svc.registry.shapes import NAME, Shape
from svc_actors.panel.backups.records import BACKUP_SOURCE, BackupPart, BackupStatus, Cause
from svc_actors.panel.backups.retention import DEFAULT_KEEP
from svc_actors.panel.backups.targets import LocalSettings, S3Settings, SftpSettings, TargetKind, TargetRow
from svc_actors.panel.backups.timing import Frequency
from svc_actors.store import Record

_HOST: Final = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9a-f:]*:[0-9a-f:.]*"
_FOLDER: Final = r"(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]+)+"
_PREFIX: Final = r"(?:(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]+(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._-]+)*)?"

TargetName = Annotated[str, Field(min_length=1, max_length=64), NAME]
Folder = Annotated[
    str,
    Field(max_length=255),
    Shape(_FOLDER, "an absolute path of letters, digits, dots, dashes and underscores, without . and .. in it"),
]
Hour = Annotated[int, Field(ge=0, le=23)]
Weekday = Annotated[int, Field(ge=0, le=6, description="0 is Monday.")]
Keep = Annotated[int, Field(ge=0, le=500)]


class BackupCopy(Model):
    """How the copy to a target went; `error` null: it is there."""

    target_id: UUID
    target: str
    error: str | None
    at: datetime


class Backup(Model):
    """`site_id` is null where the site was deleted; what is left of it is kept until `kept_until`. `added_bytes` is by
    how much the repository has grown."""

    id: UUID
    site_id: UUID | None
    domain: str
    cause: Cause
    status: BackupStatus
    job_id: int
    files: int | None
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
       backups.cause, backups.status, backups.job_id, backups.files, backups.bytes, backups.added_bytes,
       backups.databases, backups.error, backups.created_at, backups.completed_at, backup_repositories.kept_until,
       (SELECT coalesce(jsonb_agg(jsonb_build_object('target_id', target_id, 'target', name, 'error', error, 'at', at)
                                  ORDER BY name), '[]')
        FROM backup_copies JOIN backup_targets ON backup_targets.id = target_id
        WHERE backup_id = backups.id) AS copies
FROM {BACKUP_SOURCE}"""
"""{OWNER} is whose they are."""


def backup_model(row: Record) -> Backup:
    """What `SELECT_BACKUPS` gives."""
    return Backup.model_validate(dict(row))


class BackupList(PageRequest):
    status: BackupStatus | None = None
    site: UUID | None = None


class BackupRequest(Request):
    id: UUID


class BackupCreateRequest(SiteChange):
    """Of which site."""


class BackupRestoreRequest(BackupRequest):
    """`parts`, by default files and databases, unless `path` names one file or folder, or `database` one database.
    `backup.configuration` says what the configuration would change. `site`: another one of the same customer that is
    written; by default the backup's own. A database is loaded into the one that is called so there."""

    site: UUID | None = None
    path: SitePath | None = None
    database: Annotated[str, Field(max_length=64), Shape("[a-z0-9_]+", "the name of a database")] | None = None
    parts: Annotated[list[BackupPart], Field(min_length=1, max_length=3)] | None = None


class ScheduleRequest(SiteChange):
    """Of which site."""


class ScheduleUpdateRequest(SiteChange):
    """When a site is backed up, in UTC: `hour` of a daily or weekly one, `weekday` of a weekly one. Kept are the last
    ones, and the last of each of so many days, weeks and months that have one. `enabled` false: none by itself; what
    there is stays."""

    enabled: bool = True
    frequency: Frequency = Frequency.DAILY
    hour: Hour = 3
    weekday: Weekday = 6
    keep_last: Annotated[int, Field(ge=1, le=500)] = DEFAULT_KEEP.last
    keep_daily: Keep = DEFAULT_KEEP.daily
    keep_weekly: Keep = DEFAULT_KEEP.weekly
    keep_monthly: Keep = DEFAULT_KEEP.monthly


class Schedule(Model):
    """`overdue`: no backup was completed for twice as long as the schedule has between two."""

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
    """Of the repository of a site, or of one that was deleted. The key itself is exported alone."""

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


class BackupTarget(Model):
    """`location` says where it is, without secrets. `public_key`: of a target by SFTP, for its authorized_keys.
    `last_error`: of the copy that was made last, null where it is there."""

    id: UUID
    name: str
    kind: TargetKind
    location: str
    public_key: str | None
    created_at: datetime
    last_copy_at: datetime | None
    last_error: str | None


class TargetRequest(Request):
    id: UUID


class LocalTargetRequest(Request):
    """A folder that is there, say of another disk."""

    name: TargetName
    path: Folder


class SftpTargetRequest(Request):
    """`host_key` as ssh-keyscan gives it, without the host. The answer has the public key that is let in there."""

    name: TargetName
    host: Annotated[str, Field(max_length=253), Shape(_HOST, "a host name or an address")]
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    user: Annotated[str, Field(max_length=32), Shape(r"[a-z_][a-z0-9_.-]*", "the name of an account")]
    path: Folder
    host_key: Annotated[
        str,
        Field(max_length=2000),
        Shape(
            r"(?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/]+={0,2}",
            "a host key such as ssh-ed25519 AAAA...",
        ),
    ]


class S3TargetRequest(Request):
    """A bucket that is there."""

    name: TargetName
    endpoint: Annotated[
        str,
        Field(max_length=300),
        Shape(rf"https?://(?:{_HOST.partition('|')[0]}|\[[0-9a-f:.]+\])(?::[0-9]{{1,5}})?", "an URL without path"),
    ]
    bucket: Annotated[str, Field(max_length=63), Shape(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "the name of a bucket")]
    prefix: Annotated[str, Field(max_length=200), Shape(_PREFIX, "a path without / at its ends")] = ""
    region: Annotated[str, Field(max_length=32), Shape(r"[a-z0-9-]+", "a region such as us-east-1")] = "us-east-1"
    access_key: Annotated[str, Field(max_length=128), Shape(r"[A-Za-z0-9._/+=-]+", "an access key id")]
    secret_key: Annotated[SecretStr, Field(min_length=1, max_length=256, repr=False)]


def target_model(row: Record, target: TargetRow) -> BackupTarget:
    match target.settings:
        case LocalSettings(path=path):
            location, public_key = path, None
        case SftpSettings() as sftp:
            location, public_key = f"sftp://{sftp.user}@{sftp.host}:{sftp.port}{sftp.path}", sftp.public_key
        case S3Settings() as s3:
            location, public_key = "/".join(part for part in (s3.endpoint, s3.bucket, s3.prefix) if part), None
    shown: dict[str, Any] = {name: row[name] for name in ("created_at", "last_copy_at", "last_error")}
    return BackupTarget(
        id=target.id, name=target.name, kind=target.settings.kind, location=location, public_key=public_key, **shown
    )
