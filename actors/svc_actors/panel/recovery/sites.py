"""Restores the sites of a recovered server, one step for each: fetches the site's repository from a target, and
restores the newest backup.

If a site cannot be restored, only its own step fails, with the reason; ordering the recovery again tries the sites that
are missing. Every step may be repeated.

Records (names, certificates, PHP, zones, scheduled tasks) were restored with the panel's database, and are newer than
any backup of the site. Files and databases are restored from the backup and verified with its manifest.

Rejected: using an older backup if the newest seems damaged, because the target may only be unreachable for a while.
Until its step is done, a site keeps its status, shows its first page, and is not backed up: backups of an empty site
would in time replace the good ones.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.panel.backups.local_target import require_mounted
from svc_actors.panel.backups.records import BackupPart, completed, write_lost
from svc_actors.panel.backups.repositories import RepositoryRow, read_repository
from svc_actors.panel.backups.restore import RestoreWork
from svc_actors.panel.backups.targets import TargetRow, all_targets
from svc_actors.panel.backups.tools import Tools, ids_of
from svc_actors.panel.databases import SiteDatabases
from svc_actors.panel.host_work import finished
from svc_actors.panel.jobs import JobClass, JobError, JobRun, NewJob
from svc_actors.panel.recovery.records import (
    mark_reported,
    read_source,
    unfinished,
    write_not_recovered,
    write_recovered,
)
from svc_actors.panel.sites.first_page import first_page
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.panel.sites.site import Site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.panel.webhooks import WebhookEvent, emit
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database, Queryable, Transaction
from svc_common.errors import ErrorCode, ServiceError, conflict, not_found, unavailable
from svc_webhost.accounts import AccountError, Accounts
from svc_webhost.restic import Repository, Snapshot
from svc_webhost.tree_removal import remove_tree

KIND: Final = "recovery.sites"
_STEP: Final = re.compile(r"site_([0-9]+)(?:_[a-z0-9_]*)?")
# The most characters of a step's name. The number identifies the site; the domain is for readers, and is cut.
_LONGEST_STEP: Final = 60

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.recovery")


async def sites_job(queryable: Queryable, site_ids: Sequence[UUID]) -> NewJob | None:
    """A job with a step for each of these sites, and one for the report. None if there are no sites."""
    rows = await queryable.fetch(
        "SELECT number, domain FROM sites WHERE id = ANY($1::uuid[]) ORDER BY number", list(site_ids)
    )
    if not rows:
        return None
    steps = [f"site_{row['number']}_{re.sub('[^a-z0-9]+', '_', row['domain'])}"[:_LONGEST_STEP] for row in rows]
    return NewJob(KIND, f"Recover {len(rows)} sites", JobClass.SYSTEM, (*steps, "report"))


def report_job() -> NewJob:
    """The job that reports a recovery whose sites are all restored, if the core was killed before it could."""
    return NewJob(KIND, "Report the recovery", JobClass.SYSTEM, ("report",))


async def make_accounts(database: Database, accounts: Accounts) -> None:
    """Create the accounts of sites that are not restored yet. Called before the sites are served: nginx and PHP need
    the homes."""
    for site_id in await unfinished(database):
        site = await read_site(database, site_id)
        if site is None or site.status not in (SiteStatus.ACTIVE, SiteStatus.SUSPENDED):
            continue
        try:
            await accounts.make(site.account, first_page(site.domain))
        except AccountError:
            continue  # The site's own step tries again, and reports the reason.


@dataclass(frozen=True)
class SitesRecovery:
    """The work of `recovery.sites`."""

    tools: Tools
    databases: SiteDatabases
    accounts: Accounts
    restoring: RestoreWork
    actors: ActorSystem

    def step(self, name: str) -> Callable[[JobRun], Awaitable[None]] | None:
        found = _STEP.fullmatch(name)
        return None if found is None else partial(self._recover, number=int(found[1]))

    async def report(self, run: JobRun) -> None:
        """Logs the state of each site, and fails if any is not restored."""
        rows = await self.tools.database.fetch(
            """SELECT domain, recovery_sites.status, backup_at, error
               FROM recovery_sites JOIN sites ON sites.id = site_id ORDER BY number"""
        )
        source = await read_source(self.tools.database)
        await run.log(*(source.notes if source is not None else ()))
        for row in rows:
            if row["error"] is not None:
                told = f"is not restored: {row['error']}"
            elif row["backup_at"] is None:
                told = "was never backed up: its records are here, its files are lost."
            else:
                told = f"is restored to {row['backup_at']:%Y-%m-%d %H:%M} UTC; later changes are lost."
            await run.log(f"{row['domain']} {told}")
        missing = [row["domain"] for row in rows if row["status"] != "recovered"]
        if missing:
            raise conflict(
                f"{len(missing)} of {len(rows)} sites are not restored: {', '.join(missing[:5])}.",
                hint="Each step says why. Run the recovery again: it retries those.",
            )

        # Sent only once, even if the job is ordered again: the mark and the event are written in one transaction.
        async def tell(tx: Transaction) -> None:
            if await mark_reported(tx):
                await emit(tx, WebhookEvent.RECOVERY_COMPLETED, data={"sites": len(rows)})

        await run.transact(tell)

    async def _recover(self, run: JobRun, number: int) -> None:
        database = self.tools.database
        site_id = await database.fetchval("SELECT id FROM sites WHERE number = $1", number)
        site = await read_site(database, site_id) if site_id is not None else None
        # The site was deleted since, or an earlier attempt has restored it and only its end was lost.
        if site is None or site.id not in await unfinished(database):
            await run.log("There is nothing left to do.")
            return
        try:
            backup_at = await self._bring_back(run, site)
        except Exception as error:  # A defect with one site fails only that site's step.
            failure = _failure(error)
            if failure.code is ErrorCode.INTERNAL:
                log.exception("recovery.site_crashed", job_id=run.id, site_id=str(site.id))
            await self.tools.clean(run.id)
            await run.transact(partial(write_not_recovered, site_id=site.id, error=failure.message))
            await run.log(f"{site.domain} is not restored: {failure.message}")
            run.step_error = JobError.of(failure)
        else:
            await run.transact(partial(write_recovered, site_id=site.id, backup_at=backup_at))
            await run.log(f"{site.domain} is restored.")

    async def _bring_back(self, run: JobRun, site: SiteRow) -> datetime | None:
        """Restore one site. Returns the time of the backup that was restored; None if there was none."""
        if site.status in (SiteStatus.ACTIVE, SiteStatus.SUSPENDED):
            await self.accounts.make(site.account, first_page(site.domain))
        repository_id = await self.tools.database.fetchval(
            "SELECT id FROM backup_repositories WHERE site_id = $1", site.id
        )
        # Create the recorded databases and users, still empty, so that the backup can be loaded into them.
        await self.databases.agree(site.id)
        made_at: datetime | None = None
        if repository_id is not None:
            repository = await read_repository(self.tools.database, repository_id)
            if backups := await completed(self.tools.database, repository.id):
                backup_id = await self._fetch(run, repository, [each for each, _ in backups])
                made_at = next(at for each, at in backups if each == backup_id)
                await self._restore(run, site, backup_id)
        await finished(self.actors.ref(Site, str(site.id)).ask(Site.serve_again))
        return made_at

    async def _restore(self, run: JobRun, site: SiteRow, backup_id: UUID) -> None:
        parts = [BackupPart.FILES.value, BackupPart.DATABASES.value]
        part = run.about(site.id, {"backup": str(backup_id), "path": None, "parts": parts})
        work = self.restoring
        for step in (
            *(work.plan, work.reserve_disk, work.fetch, work.verify),
            *(work.load_databases, work.switch, work.configure),
        ):
            await step(part)

    async def _fetch(self, run: JobRun, repository: RepositoryRow, wanted: Sequence[UUID]) -> UUID:
        """Copy the newest backup that a target holds into the repository on this server, and older ones as far as
        possible. Returns the newest. `wanted`: the backups, the newest first. The manifest's own target is asked
        first."""
        source = await read_source(self.tools.database)
        targets = await all_targets(self.tools.database)
        targets.sort(key=lambda target: source is None or target.id != source.target_id)
        failures: list[ServiceError] = []
        for target in targets:
            try:
                return await self._fetch_from(run, target, repository, wanted)
            except ServiceError as error:
                await run.log(f"{target.name}: {error.message}")
                failures.append(error)
        # The failure of the manifest's own target is reported, because this target was reachable when the manifest was
        # read.
        if failures:
            raise failures[0]
        raise not_found("There is no target that backups were copied to.")

    async def _fetch_from(
        self, run: JobRun, target: TargetRow, repository: RepositoryRow, wanted: Sequence[UUID]
    ) -> UUID:
        tools, restic, program = self.tools, self.tools.restic, run.program
        await require_mounted(tools.database, target)
        local = await tools.local(run, repository, create=True)
        remote = target.repository(repository.id, tools.places.work(run.id), tools.sealer)
        # restic takes credentials from the environment of the destination repository only; here the source repository
        # needs credentials.
        reaching = Repository(local.location, local.password_file, remote.options, remote.environment)
        there = await restic.snapshots(program, remote)
        here: list[Snapshot] = []
        if (Path(local.location) / "config").exists():
            await restic.unlock(program, local)
            here = await restic.snapshots(program, local)
        else:
            # A core that was killed may have left an incomplete repository, which cannot be opened without its config
            # file.
            await trio.to_thread.run_sync(partial(remove_tree, local.location, ignore_errors=True))
            await restic.init(program, reaching, remote)
        newest = next((each for each in wanted if ids_of(there, each) or ids_of(here, each)), None)
        if newest is None:
            raise not_found(f"{target.name} holds no complete backup of {repository.domain}.")
        if newest != wanted[0]:
            await run.log(f"The newest backup of {repository.domain} is not at {target.name}; an older one is used.")
        await self._copy(run, remote, reaching, newest, there, here)
        # The newest backup suffices to restore the site, so a failure to copy an older one is only reported.
        for older in wanted[wanted.index(newest) + 1 :]:
            try:
                await self._copy(run, remote, reaching, older, there, here)
            except ServiceError as error:
                await run.log(f"An older backup stays at {target.name} alone: {error.message}")
        lost = [each for each in wanted if not ids_of(there, each) and not ids_of(here, each)]
        await self._forget(run, target, lost)
        return newest

    async def _copy(
        self,
        run: JobRun,
        remote: Repository,
        local: Repository,
        backup_id: UUID,
        there: Sequence[Snapshot],
        here: Sequence[Snapshot],
    ) -> None:
        snapshots = ids_of(there, backup_id)
        # Their number is compared, because a core that was killed may have copied only one of a backup's two snapshots.
        if len(ids_of(here, backup_id)) >= len(snapshots):
            return
        await self.tools.restic.copy(run.program, remote, local, snapshots)

    async def _forget(self, run: JobRun, target: TargetRow, lost: Sequence[UUID]) -> None:
        """Deletes the records of backups that existed only on the lost server."""
        elsewhere = await self.tools.database.fetch(
            """SELECT backup_id FROM backup_copies
               WHERE backup_id = ANY($1::uuid[]) AND target_id <> $2 AND error IS NULL""",
            list(lost),
            target.id,
        )
        gone = set(lost) - {row["backup_id"] for row in elsewhere}
        if gone:
            await run.transact(lambda tx: write_lost(tx, sorted(gone)))
            await run.log(f"{len(gone)} backups were only on the lost server; their records are deleted.")


def _failure(error: Exception) -> ServiceError:
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, (AccountError, OSError)):
        return unavailable(str(error))
    return ServiceError(ErrorCode.INTERNAL, "The service failed while doing this.", hint="Its log has the cause.")
