"""Functions shared by all work on backups: the repository of a site, the parts of a backup in it, and room on the
disk."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import trio

from svc_actors.panel.backups.configuration import FILE, without_secrets
from svc_actors.panel.backups.databases import LIST, DatabaseBackups, DatabaseDump
from svc_actors.panel.backups.places import SPARE_BYTES, Places
from svc_actors.panel.backups.records import adopt_backup, tag_of
from svc_actors.panel.backups.repositories import RepositoryRow
from svc_actors.panel.backups.unrecorded import COMPLETE, MANIFEST, SnapshotVerdict, judge, recorded, tell_of_adopted
from svc_actors.panel.jobs import JobRun
from svc_actors.panel.sites.records import SiteRow
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_common.errors import ServiceError, capacity, not_found
from svc_webhost.restic import Repository, Restic, Snapshot
from svc_webhost.restic.driver import CONTENT, MANIFEST_PATH
from svc_webhost.restic.manifest import files_and_bytes
from svc_webhost.tree_switch import switched

DUMPED: Final = f"{CONTENT}/{LIST}"
_KEPT: Final = "kept.json"
_ADOPTED: Final = "adopted"


@dataclass(frozen=True)
class SnapshotIds:
    """The snapshots of a backup in a repository. `tree` is the snapshot of the site, including the manifest as it was
    scanned; `manifest` is a separate snapshot of a later manifest, if the site was changed meanwhile."""

    tree: str
    manifest: str | None

    @property
    def ids(self) -> list[str]:
        return [self.tree] if self.manifest is None else [self.tree, self.manifest]


def complete_snapshot_ids(snapshots: Sequence[Snapshot], backup_id: UUID) -> SnapshotIds | None:
    """The snapshots of a backup; None unless the repository holds the backup complete."""
    ours = [snapshot for snapshot in snapshots if {tag_of(backup_id), COMPLETE} <= set(snapshot.tags)]
    trees = [snapshot.id for snapshot in ours if MANIFEST not in snapshot.tags]
    manifests = [snapshot.id for snapshot in ours if MANIFEST in snapshot.tags]
    return SnapshotIds(trees[-1], manifests[-1] if manifests else None) if trees else None


def ids_of(snapshots: Sequence[Snapshot], backup_id: UUID) -> list[str]:
    """The snapshots of a backup; none unless it is complete."""
    complete = complete_snapshot_ids(snapshots, backup_id)
    return complete.ids if complete is not None else []


@dataclass(frozen=True)
class Tools:
    """Shared by all work on backups."""

    database: Database
    sealer: Sealer
    restic: Restic
    places: Places
    databases: DatabaseBackups

    async def open_repository(self, run: JobRun, repository: RepositoryRow) -> list[Snapshot]:
        """Make the job's folder and open the site's repository on this server, creating the repository if needed.
        Removes locks of processes that have ended and leftovers of interrupted jobs, and adopts complete backups
        without a record (`unrecorded`). Returns the snapshots that the repository then holds."""
        local = await self.local(run, repository, create=True)
        if not (Path(local.location) / "config").exists():
            await self.restic.init(run.program, local)
            return []
        await self.restic.unlock(run.program, local)
        held, judged = await self.drop_superfluous(run, repository.id, local)
        if judged.superfluous:  # The next check of the repository finds other data that is unfinished.
            await trio.to_thread.run_sync(self.places.write_unchecked, repository.id)
        adopted = [
            backup_id
            for backup_id, made_at in judged.complete.items()
            if await self._adopt(run, repository, local, held, backup_id, made_at)
        ]
        await run.transact(lambda tx: tell_of_adopted(tx, repository, adopted))
        if adopted:
            await run.log(f"{len(adopted)} complete backups had no record here; they are listed again.")
            await trio.to_thread.run_sync((self.places.work(run.id) / _ADOPTED).touch)
        return held

    def has_adopted(self, run: JobRun) -> bool:
        """Whether this job has adopted backups without a record."""
        return (self.places.work(run.id) / _ADOPTED).exists()

    async def local(self, run: JobRun, repository: RepositoryRow, *, create: bool = False) -> Repository:
        if create:
            key = repository.key(self.sealer)
            await trio.to_thread.run_sync(self.places.make_work, run.id, key)
        return Repository(str(self.places.repository(repository.id)), self.places.work(run.id) / "password")

    async def drop_superfluous(
        self,
        run: JobRun,
        repository_id: UUID,
        repository: Repository,
        snapshots: Sequence[Snapshot] | None = None,
        known_until: datetime | None = None,
    ) -> tuple[list[Snapshot], SnapshotVerdict]:
        """Remove only the snapshots of deleted backups and those that jobs left incomplete: backups without a record
        may be newer than the records. Returns the remaining snapshots and the verdict. `snapshots`: the repository's
        snapshots, if the job has just listed them. `known_until`: as in `judge`; given only for a target, and only if
        this server has a complete backup."""
        if snapshots is None:
            snapshots = await self.restic.snapshots(run.program, repository)
        judged = judge(snapshots, await recorded(self.database, repository_id), known_until)
        if judged.superfluous:
            await self.restic.forget(run.program, repository, [snapshot.id for snapshot in judged.superfluous])
        return [snapshot for snapshot in snapshots if snapshot not in judged.superfluous], judged

    async def _adopt(
        self,
        run: JobRun,
        repository: RepositoryRow,
        local: Repository,
        held: Sequence[Snapshot],
        backup_id: UUID,
        made_at: datetime | None,
    ) -> bool:
        """Record a backup without a record from the description in its own snapshot. If the description cannot be read
        now, the backup stays and the next job tries again."""
        kept = complete_snapshot_ids(held, backup_id)
        assert kept is not None
        said = self.places.work(run.id) / f"adopted-{backup_id}"
        try:
            await self.fetch(run, local, kept.tree, said / "tree", MANIFEST_PATH, DUMPED, f"{CONTENT}/{FILE}")
            if kept.manifest is not None:
                await self.fetch(run, local, kept.manifest, said / MANIFEST)
            listed = said / MANIFEST / MANIFEST if kept.manifest is not None else said / "tree" / MANIFEST_PATH
            files, size = await trio.to_thread.run_sync(files_and_bytes, str(listed))
            dumped = await self.databases.held(said / "tree" / CONTENT)
            described = json.loads(await trio.to_thread.run_sync((said / "tree" / CONTENT / FILE).read_text))
        except (ServiceError, OSError, ValueError, KeyError, TypeError) as error:
            await run.log(
                f"The backup {backup_id} is complete, has no record and cannot be read: {error}. It was kept."
            )
            return False
        await run.transact(
            lambda tx: adopt_backup(
                tx,
                repository.id,
                backup_id,
                made_at,
                files=files,
                size=size,
                databases=[dump.name for dump in dumped],
                configuration=without_secrets(described),
            )
        )
        return True

    async def open_for_restore(self, run: JobRun, repository: RepositoryRow, backup_id: UUID) -> None:
        """Find this backup for the steps of its restoration, which get its snapshots from `snapshot_ids`. Only reads:
        a lock of a restic on another host stops whatever writes to the repository. Raises not_found unless the
        repository holds the backup complete."""
        local = await self.local(run, repository, create=True)
        exists = await trio.to_thread.run_sync((Path(local.location) / "config").exists)
        snapshots = await self.restic.snapshots(run.program, local) if exists else []
        ids = complete_snapshot_ids(snapshots, backup_id)
        if ids is None:
            raise not_found("The backup is no longer in its repository.", hint="Restore another backup.")
        (self.places.work(run.id) / _KEPT).write_text(json.dumps(asdict(ids)))

    def snapshot_ids(self, run: JobRun) -> SnapshotIds:
        return SnapshotIds(**json.loads((self.places.work(run.id) / _KEPT).read_text()))

    async def fetch(self, run: JobRun, local: Repository, snapshot: str, target: Path, *paths: str) -> None:
        """Restore a snapshot, or these paths of it, into a new folder."""
        await trio.to_thread.run_sync(partial(target.mkdir, mode=0o700, parents=True))
        await self.restic.restore(run.program, local, snapshot, target, *paths)

    async def fetch_said(self, run: JobRun, local: Repository, *paths: str) -> None:
        """Fetch the description of a backup: MANIFEST_PATH for `listed`, DUMPED for `dumped`, or other files of the
        folder CONTENT."""
        kept, said = self.snapshot_ids(run), self.places.said(run.id)
        inside = [path for path in paths if path != MANIFEST_PATH or kept.manifest is None]
        if inside:
            await self.fetch(run, local, kept.tree, said, *inside)
        if kept.manifest is not None and MANIFEST_PATH in paths:
            await self.fetch(run, local, kept.manifest, said / MANIFEST)

    def listed(self, run: JobRun) -> Path:
        """The manifest of the backup: the separate one if there is one, else the one in the snapshot of the site."""
        own = self.places.said(run.id) / MANIFEST / MANIFEST
        return own if own.exists() else self.places.said(run.id) / MANIFEST_PATH

    async def dumped(self, run: JobRun) -> list[DatabaseDump]:
        """The dumps that the backup holds."""
        return await self.databases.held(self.places.said(run.id) / CONTENT)

    async def require_room(self, needed: int, *, what: str, left: str, hint: str) -> None:
        """Raises `capacity` if the disk does not have room for so many bytes plus `SPARE_BYTES`. `what` needs them;
        `left`: the state in which things were left."""
        free = await trio.to_thread.run_sync(self.places.free_bytes)
        if needed + SPARE_BYTES > free:
            raise capacity(f"{what} may need {needed + SPARE_BYTES:,} bytes, and {free:,} are free; {left}.", hint=hint)

    async def put_back(self, run: JobRun, site: SiteRow) -> None:
        """Put the former content of a site's databases back after an interrupted restoration."""
        for job_id in await trio.to_thread.run_sync(self.places.kept_aside):
            if await trio.to_thread.run_sync(self.places.number_kept_aside, job_id) == site.account.number:
                await self.databases.put_back(run, site, self.places.put_back(job_id))

    async def clean(self, job_id: int) -> None:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self.places.remove_work, job_id)

    @asynccontextmanager
    async def cleaned_on_failure(self, run: JobRun) -> AsyncIterator[None]:
        """Clean up after a failed restoration: only content that could not be put back is kept. Once files were
        exchanged, the databases keep their restored content as well."""
        try:
            yield
        except BaseException:
            with trio.CancelScope(shield=True):
                if not await trio.to_thread.run_sync(switched, self.places.staging(run.id)):
                    await trio.to_thread.run_sync(self.places.keep_aside, run.id)
            await self.clean(run.id)
            raise
