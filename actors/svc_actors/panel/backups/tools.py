"""What every work on backups needs: the repository of a site, what it holds of a backup, and room on the disk."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import trio

from svc_actors.errors import capacity, not_found
from svc_actors.host.restic import Repository, Restic, Snapshot
from svc_actors.host.restic.driver import CONTENT, LISTED
from svc_actors.host.tree_switch import switched
from svc_actors.panel.backups.databases import LIST, DatabaseBackups, Dumped
from svc_actors.panel.backups.places import SPARE_BYTES, Places
from svc_actors.panel.backups.records import completed, tag_of
from svc_actors.panel.backups.repositories import RepositoryRow
from svc_actors.panel.jobs import JobRun
from svc_actors.panel.sites.records import SiteRow
from svc_actors.sealing import Sealer
from svc_actors.store import Database

COMPLETE: Final = "complete"
MANIFEST: Final = "manifest"
DUMPED: Final = f"{CONTENT}/{LIST}"
_KEPT: Final = "kept.json"


@dataclass(frozen=True)
class Kept:
    """What a repository holds of a backup: `tree` is the snapshot of the site, with the manifest as it was scanned;
    `manifest` that of a manifest of its own, where the site was changed meanwhile."""

    tree: str
    manifest: str | None

    @property
    def ids(self) -> list[str]:
        return [self.tree] if self.manifest is None else [self.tree, self.manifest]


def kept_of(found: Sequence[Snapshot], backup_id: UUID) -> Kept | None:
    """None unless there is one that is complete."""
    ours = [snapshot for snapshot in found if {tag_of(backup_id), COMPLETE} <= set(snapshot.tags)]
    trees = [snapshot.id for snapshot in ours if MANIFEST not in snapshot.tags]
    manifests = [snapshot.id for snapshot in ours if MANIFEST in snapshot.tags]
    return Kept(trees[-1], manifests[-1] if manifests else None) if trees else None


def ids_of(found: Sequence[Snapshot], backup_id: UUID) -> list[str]:
    """The snapshots of a backup; none unless it is complete."""
    kept = kept_of(found, backup_id)
    return kept.ids if kept is not None else []


@dataclass(frozen=True)
class Tools:
    """What every work on backups needs."""

    database: Database
    sealer: Sealer
    restic: Restic
    places: Places
    databases: DatabaseBackups

    async def begin(self, run: JobRun, repository: RepositoryRow) -> list[Snapshot]:
        """Make the job's folder, and open the site's repository on this server: made where there is none, without the
        locks of processes that have ended, and without snapshots that are no backups. Which it holds then."""
        local = await self.local(run, repository, made=True)
        if not (Path(local.location) / "config").exists():
            await self.restic.init(run.program, local)
            return []
        await self.restic.unlock(run.program, local)
        held, unknown = await self.drop_unknown(run, repository.id, local)
        if unknown:  # Whatever else is unfinished there, the next check finds.
            await trio.to_thread.run_sync(self.places.write_unchecked, repository.id)
        return held

    async def local(self, run: JobRun, repository: RepositoryRow, *, made: bool = False) -> Repository:
        if made:
            key = repository.key(self.sealer)
            await trio.to_thread.run_sync(self.places.make_work, run.id, key)
        return Repository(str(self.places.repository(repository.id)), self.places.work(run.id) / "password")

    async def drop_unknown(
        self, run: JobRun, repository_id: UUID, repository: Repository, found: Sequence[Snapshot] | None = None
    ) -> tuple[list[Snapshot], list[Snapshot]]:
        """Remove the snapshots of backups that are not completed: of jobs that were ended, and of what was deleted.
        Those that stay, and those that have gone. `found`: what it holds, where the job has just asked it."""
        known = {tag_of(backup_id) for backup_id, _ in await completed(self.database, repository_id)}
        if found is None:
            found = await self.restic.snapshots(run.program, repository)
        unknown = [snapshot for snapshot in found if not known.intersection(snapshot.tags)]
        if unknown:
            await self.restic.forget(run.program, repository, [snapshot.id for snapshot in unknown])
        return [snapshot for snapshot in found if snapshot not in unknown], unknown

    async def begin_with(self, run: JobRun, repository: RepositoryRow, backup_id: UUID) -> None:
        """`begin`, for the steps of a restoration of this backup, which find by `kept` what the repository holds of it.
        Raises not_found unless there is one that is complete."""
        kept = kept_of(await self.begin(run, repository), backup_id)
        if kept is None:
            raise not_found("The backup is not in its repository any more.", hint="Restore another one.")
        (self.places.work(run.id) / _KEPT).write_text(json.dumps(asdict(kept)))

    def kept(self, run: JobRun) -> Kept:
        return Kept(**json.loads((self.places.work(run.id) / _KEPT).read_text()))

    async def fetch(self, run: JobRun, local: Repository, snapshot: str, target: Path, *paths: str) -> None:
        """Put what a snapshot holds, or these paths of it, into a folder that is made for it."""
        await trio.to_thread.run_sync(partial(target.mkdir, mode=0o700, parents=True))
        await self.restic.restore(run.program, local, snapshot, target, *paths)

    async def fetch_said(self, run: JobRun, local: Repository, *paths: str) -> None:
        """What a backup says of itself: LISTED, for `listed`; DUMPED, for `dumped`; other files of its CONTENT."""
        kept, said = self.kept(run), self.places.said(run.id)
        inside = [path for path in paths if path != LISTED or kept.manifest is None]
        if inside:
            await self.fetch(run, local, kept.tree, said, *inside)
        if kept.manifest is not None and LISTED in paths:
            await self.fetch(run, local, kept.manifest, said / MANIFEST)

    def listed(self, run: JobRun) -> Path:
        """The manifest of the backup: one of its own, or the one of the snapshot."""
        own = self.places.said(run.id) / MANIFEST / MANIFEST
        return own if own.exists() else self.places.said(run.id) / LISTED

    async def dumped(self, run: JobRun) -> list[Dumped]:
        """The dumps that the backup holds."""
        return await self.databases.held(self.places.said(run.id) / CONTENT)

    async def require_room(self, needed: int, *, what: str, left: str, hint: str) -> None:
        """Raises `capacity` where the disk has no room for so many bytes beside `SPARE_BYTES`. `what` needs them;
        `left`: how things were left."""
        free = await trio.to_thread.run_sync(self.places.free_bytes)
        if needed + SPARE_BYTES > free:
            raise capacity(f"{what} may need {needed + SPARE_BYTES:,} bytes, and {free:,} are free; {left}.", hint=hint)

    async def put_back(self, run: JobRun, site: SiteRow) -> None:
        """Have the databases of a site hold again what they held before a restoration that was interrupted."""
        kept = await trio.to_thread.run_sync(self.places.kept_aside)
        for row in await self.database.fetch("SELECT id FROM jobs WHERE id = ANY($1) AND site_id = $2", kept, site.id):
            await self.databases.put_back(run, site, self.places.put_back(row["id"]))

    async def clean(self, job_id: int) -> None:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self.places.remove_work, job_id)

    @asynccontextmanager
    async def cleaned_on_failure(self, run: JobRun) -> AsyncIterator[None]:
        """Of a restoration only what could not be put back is kept. Databases stay with files that were exchanged."""
        try:
            yield
        except BaseException:
            with trio.CancelScope(shield=True):
                if not await trio.to_thread.run_sync(switched, self.places.staging(run.id)):
                    await trio.to_thread.run_sync(self.places.keep_aside, run.id)
            await self.clean(run.id)
            raise
