"""The deletion of a site: a job that leaves nothing of it on the server.

Every step may be repeated, and removes whatever is there, so a deletion that a restart has interrupted continues as a
new job. Each area's data is removed by a step of its own: `STEPS` is the one list of them, in their order. The record
is removed last: as long as any part of the site is left, the site is listed and can be deleted again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final, Protocol
from uuid import UUID

from svc_actors.panel.host_work import finished
from svc_actors.panel.jobs import INTERRUPTED, Job, JobClass, JobRun, JobStatus, NewJob, enqueue
from svc_actors.panel.sites.following import copies_of
from svc_actors.panel.sites.programs import SitePrograms
from svc_actors.panel.sites.records import SiteRow, lock_site, read_site, remove_record, write_status
from svc_actors.panel.sites.site import Site
from svc_actors.panel.sites.states import IllegalTransition, SiteEnd, SiteOrder, SiteStatus, move
from svc_actors.runtime import ActorSystem, DeliveryError
from svc_actors.store import Caller, Database, Transaction, audit, service_itself
from svc_actors.undelivered import why_undelivered
from svc_common.errors import ServiceError, conflict, unavailable
from svc_webhost.accounts import AccountError, Accounts
from svc_webhost.apps import AppError, AppServing

KIND: Final = "site.delete"
STEPS: Final = (
    "remove_copy",
    "stop_serving",
    "stop_programs",
    "close_access",
    "remove_certificate",
    "end_processes",
    "remove_databases",
    "remove_account",
    "remove_record",
)
FINAL_BACKUP: Final = "final_backup"
"""The first step, unless the caller declines it. If the backup fails, nothing was deleted yet."""
_ORDERED_AT: Final = "ordered_at"
"""The parameter of a job that continues an interrupted one: when the deletion was ordered."""
IRREVOCABLE: Final = "A site that is being deleted has lost some of its files already."


async def delete_site(tx: Transaction, caller: Caller, site: SiteRow, *, final_backup: bool) -> Job:
    """Delete a site, whose row is locked; with `final_backup`, a backup is made first. Raises `conflict` while it is
    being created or deleted. The record keeps who suspended the site: if the deletion fails, the suspension still
    applies."""
    try:
        status = move(site.status, SiteOrder.DELETE)
    except IllegalTransition:
        raise conflict(f"The site {site.domain} is {site.status.value} and cannot be deleted now.") from None
    await write_status(tx, site, status, None, site.suspended_by)
    await audit.record(tx, caller, site.target, {"final_backup": final_backup})
    return await _enqueue(tx, site, final_backup=final_backup)


async def _enqueue(tx: Transaction, site: SiteRow, *, final_backup: bool, ordered_at: datetime | None = None) -> Job:
    since = {} if ordered_at is None else {_ORDERED_AT: ordered_at.isoformat()}
    return await enqueue(
        tx,
        NewJob(
            kind=KIND,
            title=f"Delete {site.domain}",
            job_class=JobClass.SITES,
            site_id=site.id,
            owner_id=site.owner_id,
            steps=(FINAL_BACKUP, *STEPS) if final_backup else STEPS,
            parameters={FINAL_BACKUP: final_backup, **since},
        ),
    )


class BackedUp(Protocol):
    """The functions of backups that a deletion uses."""

    async def back_up_finally(self, run: JobRun, site: SiteRow, ordered_at: datetime) -> None: ...

    async def site_removed(self, tx: Transaction, site: SiteRow) -> None: ...


class SiteDeletion:
    """The work of the jobs."""

    def __init__(
        self,
        database: Database,
        accounts: Accounts,
        actors: ActorSystem,
        programs: SitePrograms,
        apps: AppServing,
        forget_certificate: Callable[[SiteRow], Awaitable[None]],
        backups: BackedUp,
        remove_databases: Callable[[SiteRow], Awaitable[None]],
        agree_access: Callable[[], Awaitable[None]],
    ) -> None:
        self._database = database
        self._accounts = accounts
        self._actors = actors
        self._programs = programs
        self._apps = apps
        self._forget_certificate = forget_certificate
        self._backups = backups
        self._remove_databases = remove_databases
        self._agree_access = agree_access

    async def final_backup(self, run: JobRun) -> None:
        site = await self._site(run)
        try:
            await self._backups.back_up_finally(run, site, _ordered_at(run.job))
        except ServiceError as error:
            message = f"The site could not be backed up, so nothing of it was removed: {error.message}"
            raise ServiceError(error.code, message, hint="Delete it without a final backup to go on.") from error

    async def remove_copy(self, run: JobRun) -> None:
        """Delete the site's staging copy, in a job of its own and without a backup."""
        site = await self._site(run)

        async def work(tx: Transaction) -> None:
            for copy in await copies_of(tx, site):
                if copy.status is SiteStatus.CREATING:
                    await write_status(tx, copy, move(copy.status, SiteEnd.BROKEN), "Its site is being deleted.")
                    copy = await lock_site(tx, copy.id)
                if copy.status is not SiteStatus.DELETING:
                    await delete_site(tx, service_itself("site.delete"), copy, final_backup=False)

        await self._database.transact(work)

    async def stop_serving(self, run: JobRun) -> None:
        site = await self._site(run)
        try:
            # Done by the site's actor, which is the only one that changes how the web server serves the site: so no
            # concurrent change serves it again.
            await finished(self._actors.ref(Site, str(site.id)).ask(Site.stop_serving))
        except DeliveryError as error:
            raise _not_removed(error) from error
        await run.log(f"{site.domain} and its other names are no longer served.")

    async def stop_programs(self, run: JobRun) -> None:
        site = await self._site(run)
        await self._programs.remove(site.account)
        try:
            await self._apps.remove(site.account)
        except AppError as error:
            raise _not_removed(error) from error

    async def close_access(self, run: JobRun) -> None:
        """End SFTP access: a site that is being deleted is not active, so nobody may sign in to it."""
        await self._agree_access()

    async def remove_certificate(self, run: JobRun) -> None:
        await self._forget_certificate(await self._site(run))

    async def end_processes(self, run: JobRun) -> None:
        site = await self._site(run)
        await _told(lambda: self._accounts.end_processes(site.account))

    async def remove_databases(self, run: JobRun) -> None:
        """Comes after the site's programs have ended, which would otherwise find their databases gone."""
        await self._remove_databases(await self._site(run))

    async def remove_account(self, run: JobRun) -> None:
        site = await self._site(run)
        await _told(lambda: self._accounts.remove(site.account))
        await run.log(f"The account {site.account.name} is removed with its files and its logs.")

    async def remove_record(self, run: JobRun) -> None:
        site = await self._site(run)

        async def remove(tx: Transaction) -> None:
            await self._backups.site_removed(tx, site)
            await remove_record(tx, site)

        await self._database.transact(remove)

    async def ended(self, tx: Transaction, job: Job) -> None:
        """An interrupted deletion continues; a failed or cancelled one leaves the site as failed."""
        if job.status is JobStatus.SUCCEEDED:
            return
        assert job.site_id is not None
        site = await read_site(tx, job.site_id)
        if site is None or site.status is not SiteStatus.DELETING:
            return
        if job.error == INTERRUPTED:
            final_backup = job.parameters.get(FINAL_BACKUP, False)
            await _enqueue(tx, site, final_backup=final_backup, ordered_at=_ordered_at(job))
            return
        site = await lock_site(tx, site.id)
        why = job.error.message if job.error is not None else "it was cancelled"
        reason = f"The deletion was not finished: {why}"
        await write_status(tx, site, move(site.status, SiteEnd.BROKEN), reason, site.suspended_by)

    async def _site(self, run: JobRun) -> SiteRow:
        site_id: UUID | None = run.job.site_id
        site = await read_site(self._database, site_id) if site_id is not None else None
        if site is None or site.status is not SiteStatus.DELETING:
            raise conflict("The site is no longer being deleted.")
        return site


def _ordered_at(job: Job) -> datetime:
    told: str | None = job.parameters.get(_ORDERED_AT)
    return job.created_at if told is None else datetime.fromisoformat(told)


async def _told(work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except AccountError as error:
        raise _not_removed(error) from error


def _not_removed(error: AccountError | AppError | DeliveryError) -> ServiceError:
    why = why_undelivered(error) if isinstance(error, DeliveryError) else str(error)
    return unavailable(why, hint="Delete the site again once the cause is fixed.")
