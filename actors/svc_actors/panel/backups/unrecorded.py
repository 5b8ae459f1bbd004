"""What a repository holds, against what the records say of it: which snapshots are removed, and which stay.

A repository is what is left when records are lost: a database that was put back to an earlier day (a recovery from an
older manifest, a dump that was restored, a file system that was rolled back) does not know the newest backups. So
records never decide by their silence. What is removed was deleted by a record of its own, or is incomplete by its own
tag and of no job that still runs. Of the rest:

- a complete backup in the site's repository on this server is adopted: it is listed, restored and expires like others;
- one that only a target holds stays there, and an alert says so. It goes where it is older than the first day on which
  deletions had records (`RepositoryRow.known_until`): it had expired, and the target had not heard of it yet;
- a snapshot without a tag of ours is somebody's own, and stays too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alert, close_alerts, raise_alert, set_alert, was_acknowledged
from svc_actors.host.restic import Snapshot
from svc_actors.panel.backups.reduced import reduced_alert
from svc_actors.panel.backups.repositories import RepositoryRow
from svc_actors.panel.backups.targets import TargetRow
from svc_actors.store import Queryable, Transaction

COMPLETE: Final = "complete"
MANIFEST: Final = "manifest"
TAG: Final = "backup-"


@dataclass(frozen=True)
class Recorded:
    """By the records of a repository: what is kept (completed, or made or deleted by a job that is open), and what was
    deleted."""

    kept: frozenset[UUID]
    deleted: frozenset[UUID]


@dataclass(frozen=True)
class Judged:
    """`superfluous` are removed. `complete` are the backups that no record keeps, the oldest first, each with when it
    was made. `foreign` snapshots have no tag of ours."""

    superfluous: tuple[Snapshot, ...]
    complete: Mapping[UUID, datetime | None]
    foreign: tuple[Snapshot, ...]


async def recorded(queryable: Queryable, repository_id: UUID) -> Recorded:
    kept = await queryable.fetch(
        """SELECT id FROM site_backups WHERE repository_id = $1
           AND (status IN ('completed', 'deleting')
                OR EXISTS (SELECT FROM jobs WHERE id = site_backups.job_id AND jobs.status IN ('queued', 'running'))
                   AND status = 'pending')""",
        repository_id,
    )
    deleted = await queryable.fetch("SELECT backup_id FROM backup_deletions WHERE repository_id = $1", repository_id)
    return Recorded(frozenset(row["id"] for row in kept), frozenset(row["backup_id"] for row in deleted))


def judge(found: Sequence[Snapshot], known: Recorded, known_until: datetime | None = None) -> Judged:
    """A backup is complete when its tree is marked so, which comes last (`BackupWork.check`). What no record keeps and
    was made before `known_until` was deleted."""
    of = {snapshot.id: backup_of(snapshot) for snapshot in found}
    trees = {
        backup_id: snapshot.time
        for snapshot in found
        if (backup_id := of[snapshot.id]) is not None and COMPLETE in snapshot.tags and MANIFEST not in snapshot.tags
    }
    old = {each for each, at in trees.items() if known_until is not None and at is not None and at < known_until}
    deleted = known.deleted | old - known.kept
    superfluous, foreign = [], []
    for snapshot in found:
        backup_id = of[snapshot.id]
        if backup_id is None:
            foreign.append(snapshot)
        elif backup_id in known.kept:
            continue
        elif backup_id in deleted or backup_id not in trees:
            superfluous.append(snapshot)
    unknown = {each: at for each, at in trees.items() if each not in known.kept and each not in deleted}
    return Judged(tuple(superfluous), unknown, tuple(foreign))


def backup_of(snapshot: Snapshot) -> UUID | None:
    """Whose snapshot it is, by its tag."""
    for tag in snapshot.tags:
        if tag.startswith(TAG):
            try:
                return UUID(tag.removeprefix(TAG))
            except ValueError:
                continue
    return None


async def tell_of_adopted(tx: Transaction, repository: RepositoryRow, adopted: Collection[UUID]) -> None:
    """The alert stays until the first backup after somebody has acknowledged it."""
    key = f"backups-adopted:{repository.id}"
    if adopted:
        message = (
            f"The repository of {repository.domain} held {len(adopted)} complete backups that the panel's records did "
            "not know; they are in the list of backups again, and none was removed. The panel's database may have gone "
            "back to an earlier state: compare what it says of sites, databases and zones with what is there."
        )
        await raise_alert(tx, key, message, resource_kind="site", resource_id=repository.site_id)
    elif await was_acknowledged(tx, key):
        await close_alert(tx, key)


async def tell_of_unknown(tx: Transaction, repository: RepositoryRow, target: TargetRow, judged: Judged) -> None:
    """Of what stays at a target although no record knows it."""
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
    for key in (f"backups-adopted:{repository_id}", f"backups-unknown:{repository_id}:", reduced_alert(repository_id)):
        await close_alerts(tx, key)
