"""Compares the snapshots in a repository with its records, and decides which snapshots are removed and which stay.

The repository still exists when records are lost: a database from an earlier day (a recovery from an older manifest, a
restored dump, a rolled-back file system) does not know the newest backups. So a missing record is never a reason to
remove a snapshot. A snapshot is removed if a record says that it was deleted, or if its own tag says that it is
incomplete and its job does not run. The other snapshots stay:

- a complete backup in the site's repository on this server is adopted: it is listed, restored and expires like others;
- a backup that only a target holds stays there, and an alert says so. It is removed if it is older than the first day
  on which deletions had records (`RepositoryRow.known_until`): it had expired, and was not yet removed from the target;
- a snapshot without a tag of ours belongs to somebody else, and stays too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alert, close_alerts, raise_alert, set_alert, was_acknowledged
from svc_actors.panel.backups.data_check_records import data_alerts
from svc_actors.panel.backups.reduced import reduced_alert
from svc_actors.panel.backups.repositories import RepositoryRow
from svc_actors.panel.backups.targets import TargetRow
from svc_actors.store import Queryable, Transaction
from svc_webhost.restic import Snapshot

COMPLETE: Final = "complete"
MANIFEST: Final = "manifest"
TAG: Final = "backup-"


@dataclass(frozen=True)
class RecordedBackups:
    """Records of a repository: which backups are kept (completed, or made or deleted by an open job), and which were
    deleted."""

    kept: frozenset[UUID]
    deleted: frozenset[UUID]


@dataclass(frozen=True)
class SnapshotVerdict:
    """`superfluous` snapshots are removed. `complete` are backups without a record, the oldest first, each with the
    time when it was made. `foreign` snapshots have no tag of ours."""

    superfluous: tuple[Snapshot, ...]
    complete: Mapping[UUID, datetime | None]
    foreign: tuple[Snapshot, ...]


async def recorded(queryable: Queryable, repository_id: UUID) -> RecordedBackups:
    kept = await queryable.fetch(
        """SELECT id FROM site_backups WHERE repository_id = $1
           AND (status IN ('completed', 'deleting')
                OR EXISTS (SELECT FROM jobs WHERE id = site_backups.job_id AND jobs.status IN ('queued', 'running'))
                   AND status = 'pending')""",
        repository_id,
    )
    deleted = await queryable.fetch("SELECT backup_id FROM backup_deletions WHERE repository_id = $1", repository_id)
    return RecordedBackups(frozenset(row["id"] for row in kept), frozenset(row["backup_id"] for row in deleted))


def judge(
    snapshots: Sequence[Snapshot], known: RecordedBackups, known_until: datetime | None = None
) -> SnapshotVerdict:
    """A backup is complete once the snapshot of its tree is tagged as complete, which is the last step
    (`BackupWork.check`). A backup without a record that was made before `known_until` counts as deleted."""
    of = {snapshot.id: backup_of(snapshot) for snapshot in snapshots}
    trees = {
        backup_id: snapshot.time
        for snapshot in snapshots
        if (backup_id := of[snapshot.id]) is not None and COMPLETE in snapshot.tags and MANIFEST not in snapshot.tags
    }
    old = {each for each, at in trees.items() if known_until is not None and at is not None and at < known_until}
    deleted = known.deleted | old - known.kept
    superfluous, foreign = [], []
    for snapshot in snapshots:
        backup_id = of[snapshot.id]
        if backup_id is None:
            foreign.append(snapshot)
        elif backup_id in known.kept:
            continue
        elif backup_id in deleted or backup_id not in trees:
            superfluous.append(snapshot)
    unknown = {each: at for each, at in trees.items() if each not in known.kept and each not in deleted}
    return SnapshotVerdict(tuple(superfluous), unknown, tuple(foreign))


def backup_of(snapshot: Snapshot) -> UUID | None:
    """The backup to which a snapshot belongs, by the snapshot's tag."""
    for tag in snapshot.tags:
        if tag.startswith(TAG):
            try:
                return UUID(tag.removeprefix(TAG))
            except ValueError:
                continue
    return None


async def tell_of_adopted(tx: Transaction, repository: RepositoryRow, adopted: Collection[UUID]) -> None:
    """Alert about adopted backups. After somebody has acknowledged the alert, it stays until the next backup."""
    key = f"backups-adopted:{repository.id}"
    if adopted:
        message = (
            f"The repository of {repository.domain} held {len(adopted)} complete backups that the panel's records did "
            "not know; they are in the list of backups again, and none was removed. The panel's database may have gone "
            "back to an earlier state: compare its sites, databases and zones with those of the server."
        )
        await raise_alert(tx, key, message, resource_kind="site", resource_id=repository.site_id)
    elif await was_acknowledged(tx, key):
        await close_alert(tx, key)


async def tell_of_unknown(
    tx: Transaction, repository: RepositoryRow, target: TargetRow, judged: SnapshotVerdict
) -> None:
    """Alert about snapshots that stay at a target although they have no record."""
    times = [f"{at:%Y-%m-%d %H:%M} UTC" for at in judged.complete.values() if at is not None]
    message = None
    if judged.complete:
        named = f" (the newest of {times[-1]})" if times else ""
        message = (
            f"{target.name} holds {len(judged.complete)} complete backups of {repository.domain}{named} that neither "
            "the panel's records nor the repository on this server know. They were left there. The key of the "
            "repository (`svc backup keys`) opens them with restic; remove there what is not needed."
        )
    await set_alert(tx, f"backups-unknown:{repository.id}:{target.id}", message)


async def close_alerts_of(tx: Transaction, repository_id: UUID) -> None:
    for key in (
        *(f"backups-adopted:{repository_id}", f"backups-unknown:{repository_id}:"),
        *(reduced_alert(repository_id), data_alerts(repository_id)),
    ):
        await close_alerts(tx, key)
