"""Backups outside of single jobs: leftovers of an earlier core, scheduled backups, and backups of deleted sites."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final, Literal
from uuid import UUID

import structlog
import trio

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.panel.backups.configuration_restore import ConfigurationRestore
from svc_actors.panel.backups.data_check import DataCheckWork
from svc_actors.panel.backups.data_check_records import CHECK_DATA, start_due_data_check
from svc_actors.panel.backups.drill import DrillWork, remove_scratch
from svc_actors.panel.backups.drill_records import DRILL, drill_alert, start_due_drill
from svc_actors.panel.backups.records import (
    CREATE,
    DELETE,
    RESTORE,
    Cause,
    add_backup,
    awaits_recovery,
    backup_of_job,
    create_backup,
    fail_backup,
    forget_old_deletions,
    has_final,
    open_jobs,
    orphans,
    pending_job,
)
from svc_actors.panel.backups.repositories import ensure_repository, expired_repositories, repositories_of, set_expiry
from svc_actors.panel.backups.restore import RestoreWork
from svc_actors.panel.backups.schedules import Frequency, next_run, postpone
from svc_actors.panel.backups.tools import Tools
from svc_actors.panel.backups.work import BackupWork, DeletionWork, remove_repository
from svc_actors.panel.jobs import INTERRUPTED, JobClass, JobRun, Jobs, JobStatus, NewJob, enqueue
from svc_actors.panel.sites.records import SiteRow, lock_site, read_site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.store import Record, Transaction
from svc_common.errors import ServiceError, not_found
from svc_webhost.accounts import Accounts
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.tree_removal import remove_tree
from svc_webhost.tree_switch import switched, undo

ROUND_SECONDS: Final = 30.0
KEPT_DAYS: Final = 30
"""How long the backups of a deleted site are kept."""
_BACKED_UP: Final = (SiteStatus.ACTIVE, SiteStatus.SUSPENDED)

BackupLoop = Literal[
    "backups of former sites",
    "backups that are due",
    "data of backups",
    "databases of drills",
    "drills of backups",
    "leftovers of backups",
]

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.backups")

PUT_BACK: Final = "backup.put_back"
UNKNOWN_DAYS: Final = 30
"""For as long as the backups of a deleted site are kept."""
AGAIN_MINUTES: Final = 10
"""The pause after a failed attempt, for example because the database server was down."""


class Backups:
    """One per process."""

    def __init__(
        self, tools: Tools, files: ConfinedFiles, configuration: ConfigurationRestore, accounts: Accounts
    ) -> None:
        self._tools = self.tools = tools
        self._work = BackupWork(tools)
        self._restore = self.restoring = RestoreWork(tools, files, configuration, accounts)

    def install(self, jobs: Jobs) -> None:
        jobs.handle(CREATE, self._work)
        jobs.handle(RESTORE, self._restore)
        jobs.handle(DELETE, DeletionWork(self._tools))
        jobs.handle(
            PUT_BACK, PutBackWork(self._tools), irrevocable="Without this job the databases would stay incomplete."
        )
        jobs.handle(DRILL, DrillWork(self._tools))
        jobs.handle(CHECK_DATA, DataCheckWork(self._tools))

    async def recover(self) -> None:
        """Call this before any job starts: it undoes what an interrupted restoration has moved, and removes what jobs
        have left."""
        await self._tidy(await trio.to_thread.run_sync(self._tools.places.left_over))

    async def _tidy(self, job_ids: Collection[int]) -> None:
        places = self._tools.places
        for job_id in job_ids:
            try:
                if not await trio.to_thread.run_sync(switched, places.staging(job_id)):
                    await trio.to_thread.run_sync(places.keep_aside, job_id)
                if await trio.to_thread.run_sync(undo, places.staging(job_id)):
                    log.warning("backups.restoration_undone", job_id=job_id)
                await trio.to_thread.run_sync(places.remove_work, job_id)
            except OSError as error:
                log.warning("backups.not_tidied", job_id=job_id, error=str(error))

    def rounds(self) -> Mapping[BackupLoop, Callable[[], Awaitable[None]]]:
        """The rounds by name, each due every `ROUND_SECONDS`. Run each in a loop of its own, so that a failure of one
        does not delay the others."""
        return {
            "leftovers of backups": self._tidy_leftovers,
            "backups that are due": self._begin_due,
            "drills of backups": self._begin_due_drill,
            "data of backups": self._begin_due_data_check,
            "databases of drills": partial(remove_scratch, self._tools),
            "backups of former sites": self._remove_overstayed,
        }

    async def _tidy_leftovers(self) -> None:
        """Remove the leftovers of jobs, and queue the databases that must be put back."""
        database = self._tools.database
        left = set(await trio.to_thread.run_sync(self._tools.places.left_over))
        if left:
            await self._tidy(left.difference(await open_jobs(database, left)))
        await queue_put_back(self._tools)

    async def _begin_due(self) -> None:
        """Fail pending backups without a job, because a site with a pending backup gets no other; then queue the
        backups that are due."""
        database = self._tools.database
        for backup in await orphans(database):
            await database.transact(partial(fail_backup, backup=backup, why=INTERRUPTED.message))
        due = await database.fetch("SELECT * FROM backup_schedules WHERE next_run_at <= now() ORDER BY next_run_at")
        for row in due:
            await database.transact(partial(self._begin_scheduled, row=row))

    async def _begin_due_drill(self) -> None:
        await self._tools.database.transact(start_due_drill)

    async def _begin_due_data_check(self) -> None:
        await self._tools.database.transact(start_due_data_check)

    async def _remove_overstayed(self) -> None:
        """Remove the repositories of deleted sites that were kept for `KEPT_DAYS`. All repositories are tried; then the
        first failure is raised, which the loop reports. The next round tries again."""
        await forget_old_deletions(self._tools.database)
        failures: list[OSError] = []
        for repository_id in await expired_repositories(self._tools.database):
            try:
                await remove_repository(self._tools, repository_id)
            except OSError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def _begin_scheduled(self, tx: Transaction, row: Record) -> None:
        """Start scheduled backups. A schedule that was missed (the server was down, for example) runs once."""
        now = datetime.now(UTC)
        after = next_run(Frequency(row["frequency"]), row["hour"], row["weekday"], row["site_id"], now)
        await postpone(tx, row["site_id"], after)
        site = await lock_site(tx, row["site_id"])
        if await awaits_recovery(tx, site.id):
            return
        if site.status in _BACKED_UP and await pending_job(tx, site.id) is None:
            await create_backup(tx, self._tools.sealer, site, Cause.SCHEDULED)

    async def back_up_finally(self, run: JobRun, site: SiteRow, ordered_at: datetime) -> None:
        """Make the last backup of a site, as a step of the deletion that was ordered at that time. A final backup of an
        earlier, unfinished deletion does not count, because the site may have been restored since. Raises ServiceError;
        then there is no backup."""
        tools = self._tools
        if not (tools.places.folders.sites / site.account.name).exists():
            await run.log("The site has no files, so there is nothing to keep.")
            return
        if await has_final(tools.database, site.id, ordered_at):
            return  # An earlier job of the same deletion has already made the backup.
        await self._back_up(run, site, Cause.FINAL)

    async def back_up_before(self, run: JobRun, site: SiteRow) -> None:
        """Make a backup, as a step of jobs that replace the content of a site. Raises ServiceError; then there is no
        backup."""
        await self._back_up(run, site, Cause.MANUAL)

    async def _back_up(self, run: JobRun, site: SiteRow, cause: Cause) -> None:
        tools = self._tools

        async def write(tx: Transaction) -> None:
            locked = await lock_site(tx, site.id)
            await add_backup(tx, await ensure_repository(tx, tools.sealer, locked), cause, run.id)

        await tools.database.transact(write)
        work = self._work
        try:
            for step in (
                *(work.plan, work.manifest, work.reserve_disk, work.dump_databases, work.verify_dumps),
                *(work.snapshot, work.check, work.copy),
            ):
                await step(run)
        except ServiceError as error:
            why = error.message
            backup = await backup_of_job(tools.database, run.id)
            if backup is not None:
                await run.transact(partial(fail_backup, backup=backup, why=why))
            raise
        await tools.clean(run.id)

    async def site_removed(self, tx: Transaction, site: SiteRow) -> None:
        """Call it in the transaction that removes the site's record."""
        await set_expiry(tx, site, KEPT_DAYS)
        await close_alert(tx, drill_alert(site.id))

    async def account_removed(self, owner_id: UUID) -> None:
        """A person's account is removed: remove the backups of the person's deleted sites with it."""
        for repository_id in await repositories_of(self._tools.database, owner_id):
            await remove_repository(self._tools, repository_id)


# Databases are put back after a restoration was interrupted by a kill of the core or of their server. The restoration
# saved the databases' content before it emptied them. The saved content is kept (`Places.keep_aside`) until it is
# loaded, however many attempts that takes. No backup or restoration of the site starts before that (`Tools.put_back`).
class PutBackWork:
    """The work of `backup.put_back`."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def load(self, run: JobRun) -> None:
        site = await read_site(self._tools.database, run.site_id)
        if site is None:
            raise not_found("The site no longer exists.")
        await self._tools.put_back(run, site)


async def queue_put_back(tools: Tools) -> None:
    """Queue a job for each site with databases to put back, unless the site has such a job or had one minutes ago. The
    saved databases of a site without a record may be the last copy: they stay for `UNKNOWN_DAYS`, and an alert reports
    them."""
    places = tools.places
    for job_id in await trio.to_thread.run_sync(places.kept_aside):
        number = await trio.to_thread.run_sync(places.number_kept_aside, job_id)
        site = None if number is None else await _site_of(tools, number)
        if site is not None:
            await tools.database.transact(partial(_queue, site=site))
        elif number is None or await trio.to_thread.run_sync(places.days_kept_aside, job_id) > UNKNOWN_DAYS:
            await trio.to_thread.run_sync(remove_tree, places.put_back(job_id))
            await tools.database.transact(partial(close_alert, key=_alert(job_id)))
        else:
            message = (
                f"The databases of a site s{number}, which has no record, are in {places.put_back(job_id)}: they were "
                "set aside for a restore or an import that failed. They are removed after "
                f"{UNKNOWN_DAYS} days; move the folder elsewhere to keep them."
            )
            await tools.database.transact(partial(raise_alert, key=_alert(job_id), message=message))


async def _site_of(tools: Tools, number: int) -> SiteRow | None:
    site_id = await tools.database.fetchval("SELECT id FROM sites WHERE number = $1", number)
    return None if site_id is None else await read_site(tools.database, site_id)


def _alert(job_id: int) -> str:
    return f"databases-aside:{job_id}"


async def _queue(tx: Transaction, site: SiteRow) -> None:
    there = await tx.fetchval(
        """SELECT 1 FROM jobs WHERE kind = $1 AND site_id = $2
           AND (status = ANY($3) OR ended_at > now() - make_interval(mins => $4))""",
        PUT_BACK,
        site.id,
        [status.value for status in JobStatus if status.open],
        AGAIN_MINUTES,
    )
    if there is None:
        title = f"Put back the databases of {site.domain}"
        await enqueue(tx, NewJob(PUT_BACK, title, JobClass.BACKUPS, ("load",), site.id, site.owner_id))
