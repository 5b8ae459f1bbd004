"""The work of a backup: step by step, into the repository of its site, then to every target.

The steps share the job's folder (`Places`), which is removed when they end, for whatever reason. A snapshot counts only
once `check` has tagged it as complete: the next job that opens the repository removes snapshots that are neither tagged
nor of a running job (`unrecorded`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from svc_actors.panel.backups.configuration import FILE, site_configuration, without_secrets
from svc_actors.panel.backups.copies import Copying
from svc_actors.panel.backups.local_target import require_mounted
from svc_actors.panel.backups.places import write_secret
from svc_actors.panel.backups.records import (
    BackupRow,
    backup_of_job,
    cancel_deletion,
    complete_backup,
    completed,
    completed_by_size,
    delete_backups,
    fail_backup,
    fail_copy,
)
from svc_actors.panel.backups.reduced import reduced_from, tell_of_reduced
from svc_actors.panel.backups.repositories import RepositoryRow, read_repository, remove_repository_row
from svc_actors.panel.backups.schedules import expired, keep_of
from svc_actors.panel.backups.targets import all_targets
from svc_actors.panel.backups.tools import Tools, complete_snapshot_ids
from svc_actors.panel.backups.unrecorded import COMPLETE, MANIFEST, close_alerts_of
from svc_actors.panel.jobs import Job, JobRun, JobStatus
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.store import Transaction
from svc_common.errors import ServiceError, not_found
from svc_webhost.restic import NoRepositoryError, Scanned, Snapshot
from svc_webhost.restic.driver import CONTENT


class BackupWork:
    """The work of `backup.create`."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._database = tools.database
        self._places = tools.places

    async def plan(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            site, _, repository = await self._of(run)
            await self._tools.put_back(run, site)
            held = await self._tools.open_repository(run, repository)
            self._note(run, "plan", {"parent": await self._parent(repository, held)})

    async def manifest(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            site, _, repository = await self._of(run)
            described = await site_configuration(self._database, self._tools.sealer, site)
            told = json.dumps(described, indent=1, default=str)
            await trio.to_thread.run_sync(write_secret, self._content(run) / FILE, told)
            before = self._places.manifest(repository.id)
            scanned = await self._tools.restic.scan(
                run.program,
                self._home(site),
                self._places.work(run.id),
                site.account.uid,
                before if before.exists() else None,
            )
            self._note(run, "manifest", scanned.model_dump())
            await run.log(f"{scanned.files:,} files with {scanned.bytes:,} bytes; {scanned.new_bytes:,} are new.")
            if scanned.left_out:
                named = ", ".join(scanned.named[:10])
                await run.log(f"{scanned.left_out:,} entries do not belong to the site and are left out: {named}")

    async def reserve_disk(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            site, _, _ = await self._of(run)
            needed = Scanned.model_validate(self._noted(run, "manifest")).new_bytes
            # Twice, because for a while both a dump and its copy in the repository exist.
            needed += 2 * await self._tools.databases.size(site)
            await self._tools.require_room(
                needed,
                what="The backup",
                left="nothing was written",
                hint="Free some space, or delete older backups.",
            )

    async def dump_databases(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            site, _, _ = await self._of(run)
            if not await self._tools.databases.dump(run, site, self._content(run)):
                await run.log("The site has no databases.")

    async def verify_dumps(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            dumped = await self._tools.databases.verify(self._content(run))
            self._note(run, "databases", {"names": [dump.name for dump in dumped]})

    async def snapshot(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            site, backup, repository = await self._of(run)
            local = await self._tools.local(run, repository)
            ended = await self._tools.restic.backup(
                run.program,
                local,
                self._home(site),
                self._places.work(run.id),
                [backup.tag],
                self._noted(run, "plan")["parent"],
                run.progress,
            )
            self._note(run, "snapshot", ended.model_dump())

    async def check(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            site, backup, repository = await self._of(run)
            local = await self._tools.local(run, repository)
            work, restic, noted = self._places.work(run.id), self._tools.restic, self._noted(run, "snapshot")
            made = [noted["snapshot_id"]]
            settled = await restic.settle(run.program, local, made[0], self._home(site), work, site.account.uid)
            if settled.changed:
                await run.log(
                    f"{settled.changed:,} entries changed during the backup, and are stored as they were at its end."
                )
            if not settled.exact:
                made.append(await restic.keep_file(run.program, local, work / "manifest", [backup.tag, MANIFEST]))
            if await trio.to_thread.run_sync(self._places.is_checked, repository.id):
                await run.log("The whole repository was checked less than a day ago.")
            else:
                await restic.check(run.program, local)
                await trio.to_thread.run_sync(self._places.write_checked, repository.id)
            # The files' snapshot is tagged last: its tag marks the backup as complete.
            for each in reversed(made):
                await restic.tag(run.program, local, [each], COMPLETE)
            await trio.to_thread.run_sync((work / "manifest").replace, self._places.manifest(repository.id))
            described = json.loads(await trio.to_thread.run_sync((self._content(run) / FILE).read_text))

            async def complete(tx: Transaction) -> None:
                before = await reduced_from(tx, repository, settled.files)
                await complete_backup(
                    tx,
                    backup,
                    configuration=without_secrets(described),
                    files=settled.files,
                    size=settled.bytes,
                    added=noted["data_added"],
                    databases=self._noted(run, "databases")["names"],
                    files_before=before,
                )
                await tell_of_reduced(tx, repository, settled.files, before)

            await run.transact(complete)
            await run.log(
                f"{settled.files:,} files are kept; the repository has grown by {noted['data_added']:,} bytes."
            )

    async def copy(self, run: JobRun) -> None:
        """If this step fails, the backup on this server is still complete; the next backup copies to the target what it
        lacks."""
        async with self._tools.cleaned_on_failure(run):
            _, backup, repository = await self._of(run)
            local = await self._tools.local(run, repository)
            for target in await all_targets(self._database):
                try:
                    await Copying(self._tools, run, target, repository, local).bring(backup)
                    await run.log(f"{target.name}: has a copy.")
                except ServiceError as failure:
                    await run.transact(
                        partial(
                            fail_copy,
                            backup=backup,
                            target_id=target.id,
                            target=target.name,
                            error=failure.message,
                        )
                    )
                    await run.log(f"{target.name}: {failure.message}")

    async def retention(self, run: JobRun) -> None:
        """If it has just turned out that the records are older than the repository, nothing is removed this time."""
        async with self._tools.cleaned_on_failure(run):
            _, _, repository = await self._of(run)
            local = await self._tools.local(run, repository)
            keep = await keep_of(self._database, repository)
            whole, reduced = await completed_by_size(self._database, repository.id)
            gone = [] if self._tools.has_adopted(run) else [*expired(whole, keep), *expired(reduced, keep)]
            if gone:
                await run.transact(lambda tx: delete_backups(tx, repository.id, gone))
                await self._tools.drop_superfluous(run, repository.id, local)
                await run.log(f"{len(gone)} older backups were removed.")
        await self._tools.clean(run.id)

    async def ended(self, tx: Transaction, job: Job) -> None:
        backup = await backup_of_job(tx, job.id)
        if job.status is not JobStatus.SUCCEEDED and backup is not None:
            await fail_backup(tx, backup, job.error.message if job.error is not None else "It was cancelled.")

    def _content(self, run: JobRun) -> Path:
        return self._places.work(run.id) / CONTENT

    def _home(self, site: SiteRow) -> Path:
        """The home of the site, also of a site that is being deleted, as long as none of its files are deleted."""
        return self._places.folders.sites / site.account.name

    async def _parent(self, repository: RepositoryRow, held: Sequence[Snapshot]) -> str | None:
        """The snapshot with which restic compares; without one, as in a new repository, restic reads every file."""
        found = await completed(self._database, repository.id)
        kept = complete_snapshot_ids(held, max(found, key=lambda backup: backup[1])[0]) if found else None
        return kept.tree if kept is not None else None

    async def _of(self, run: JobRun) -> tuple[SiteRow, BackupRow, RepositoryRow]:
        backup = await backup_of_job(self._database, run.id)
        site = await read_site(self._database, run.site_id)
        if backup is None or site is None:
            raise not_found("The site no longer exists.")
        return site, backup, await read_repository(self._database, backup.repository_id)

    def _note(self, run: JobRun, name: str, told: dict[str, Any]) -> None:
        """Remembered for later steps."""
        (self._places.work(run.id) / f"{name}.json").write_text(json.dumps(told))

    def _noted(self, run: JobRun, name: str) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self._places.work(run.id) / f"{name}.json").read_text())
        return told


class DeletionWork:
    """The work of `backup.delete`: a record of the deletion first, then the snapshots, here and at every target."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def remove(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            tools = self._tools
            backup_id = UUID(run.parameters["backup"])
            repository = await read_repository(tools.database, UUID(run.parameters["repository"]))
            await run.transact(lambda tx: delete_backups(tx, repository.id, [backup_id]))
            await tools.open_repository(run, repository)
            for target in await all_targets(tools.database):
                try:
                    await require_mounted(tools.database, target)
                    remote = target.repository(repository.id, tools.places.work(run.id), tools.sealer)
                    await tools.restic.unlock(run.program, remote)
                    await tools.drop_superfluous(run, repository.id, remote)
                except NoRepositoryError:
                    continue
                except ServiceError as error:
                    await run.log(f"{target.name} keeps its copy until the next backup: {error.message}")
        await self._tools.clean(run.id)

    async def ended(self, tx: Transaction, job: Job) -> None:
        if job.status is not JobStatus.SUCCEEDED:
            await cancel_deletion(tx, UUID(job.parameters["backup"]))


async def remove_repository(tools: Tools, repository_id: UUID) -> None:
    """Delete a repository on this server, and everything that is known of it. Copies at targets stay, but nobody can
    open them any longer, because their key is deleted."""
    await trio.to_thread.run_sync(tools.places.remove_repository, repository_id)

    async def remove(tx: Transaction) -> None:
        await close_alerts_of(tx, repository_id)
        await remove_repository_row(tx, repository_id)

    await tools.database.transact(remove)
