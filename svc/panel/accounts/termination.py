"""DELETE /accounts/{id}: terminates a customer: deletes every site of theirs, then the account.

The account is suspended at once, in the transaction that queues the job, so nobody adds to what is being removed. Every
step can be repeated; a termination that a restart interrupted continues as a new job. One that fails leaves the account
suspended, and can be ordered again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

import trio

from svc.identity import person_records
from svc.identity.deletion import remove_person
from svc.identity.fields import Email
from svc.panel.accounts.billing import TERMINATION, AccountOrderRequest, locked_customer, ordered
from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.accounts.plans import write_suspended
from svc_actors.panel.dns.zone import DnsZone
from svc_actors.panel.host_work import finished
from svc_actors.panel.jobs import INTERRUPTED, Job, JobClass, JobRun, NewJob, enqueue
from svc_actors.panel.sites.deletion import delete_site
from svc_actors.panel.sites.following import suspend_sites
from svc_actors.panel.sites.records import SITE_COLUMNS, as_site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database, Transaction, audit, service_itself
from svc_common.errors import conflict, invalid, unavailable

operations = Operations[Panel]()

KIND: Final = TERMINATION
STEPS: Final = ("delete_sites", "remove_zones", "remove_account")
_REASON: Final = "This account is being terminated."
_LOOK: Final = 0.5
"""Seconds between two checks of sites whose deletion is under way."""


class AccountTerminateRequest(AccountOrderRequest):
    """`confirm` repeats the customer's address."""

    confirm: Email


@operations.declare(
    "account.terminate",
    "Terminate a customer: delete all their sites and the account",
    Route.delete("/accounts/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    target="user",
)
async def terminate(context: Context[Panel], request: AccountTerminateRequest) -> JobModel:

    async def work(tx: Transaction) -> JobModel:
        person = await locked_customer(tx, request.id)
        if request.confirm != person.email:
            raise invalid(
                f"confirm does not repeat the address of the customer, {person.email}; nothing was deleted.",
                hint=f"Send confirm: {person.email}",
            )
        await write_suspended(tx, person.id, _REASON)
        await person_records.suspend(tx, person.id, _REASON)
        await suspend_sites(tx, person.id, _REASON)
        job = await _enqueue(tx, person.id, person.email)
        await audit.record(tx, context.caller, person.target, {"job": job.id})
        return await job_answer(tx, job)

    return await ordered(context, request.idempotency_key, request, lambda: context.services.database.transact(work))


class AccountTermination:
    """The work of the job."""

    def __init__(
        self, database: Database, actors: ActorSystem, remove_backups: Callable[[UUID], Awaitable[None]]
    ) -> None:
        self._database = database
        self._actors = actors
        self._remove_backups = remove_backups

    async def delete_sites(self, run: JobRun) -> None:
        """Delete the sites by the usual deletion; as many run at once as the job queue has slots."""
        ordered_here = set[UUID]()
        while sites := await self._database.fetch(
            f"SELECT {SITE_COLUMNS} FROM sites WHERE owner_id = $1 ORDER BY number", _account(run)
        ):
            for site in map(as_site, sites):
                if site.status in (SiteStatus.DELETING, SiteStatus.CREATING):
                    # a site that is being created becomes active or failed soon; a later round deletes it
                    continue
                if site.id in ordered_here:
                    raise unavailable(
                        f"{site.domain} was not deleted: {site.reason}", hint="Terminate the account again."
                    )
                await self._order(site.id)
                ordered_here.add(site.id)
                await run.log(f"{site.domain} is being deleted.")
            await trio.sleep(_LOOK)

    async def _order(self, site_id: UUID) -> None:

        async def work(tx: Transaction) -> None:
            row = await tx.fetchrow(f"SELECT {SITE_COLUMNS} FROM sites WHERE id = $1 FOR NO KEY UPDATE", site_id)
            # A staging copy is deleted with its site, which may have happened since the sites were listed.
            if row is not None and row["status"] != SiteStatus.DELETING:
                # No final backup is made, because backups are removed with the account.
                await delete_site(tx, service_itself("site.delete"), as_site(row), final_backup=False)

        await self._database.transact(work)

    async def remove_zones(self, run: JobRun) -> None:
        for row in await self._database.fetch("SELECT name FROM dns_zones WHERE owner_id = $1", _account(run)):
            await finished(self._actors.ref(DnsZone, row["name"]).ask(DnsZone.release))

    async def remove_account(self, run: JobRun) -> None:
        await self._remove_backups(_account(run))

        async def work(tx: Transaction) -> None:
            if await tx.fetchval("SELECT EXISTS (SELECT FROM sites WHERE owner_id = $1)", _account(run)):
                raise conflict(
                    "A site was assigned to this account in the meantime.", hint="Terminate the account again."
                )
            await remove_person(tx, _account(run))

        await self._database.transact(work)

    async def ended(self, tx: Transaction, job: Job) -> None:
        """A termination that was interrupted continues."""
        if job.error == INTERRUPTED:
            await _enqueue(tx, UUID(job.parameters["user_id"]), job.parameters["email"])


def _account(run: JobRun) -> UUID:
    return UUID(run.parameters["user_id"])


async def _enqueue(tx: Transaction, user_id: UUID, email: str) -> Job:
    return await enqueue(
        tx,
        NewJob(
            kind=KIND,
            title=f"Terminate the account {email}",
            job_class=JobClass.SYSTEM,
            steps=STEPS,
            parameters={"user_id": str(user_id), "email": email},
        ),
    )
