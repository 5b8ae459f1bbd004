"""restic, and the manifest of a site's tree that verifies a backup (docs/site-backups.md)."""

from svc_webhost.restic.driver import Restic, SystemRestic
from svc_webhost.restic.models import (
    BackupEnded,
    DamagedDataError,
    NoRepositoryError,
    Repository,
    Run,
    Scanned,
    SftpFolder,
    Snapshot,
    SnapshotIncompleteError,
    StalledError,
    Verified,
)

__all__ = [
    "BackupEnded",
    "DamagedDataError",
    "NoRepositoryError",
    "Repository",
    "Restic",
    "Run",
    "Scanned",
    "SftpFolder",
    "Snapshot",
    "SnapshotIncompleteError",
    "StalledError",
    "SystemRestic",
    "Verified",
]
