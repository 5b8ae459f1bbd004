"""The Site actor changes a site's record and makes the server follow it. `creation` writes the record first, and
`deletion` removes it.

It decides a change and writes it in one transaction: the record, its audit row, its event, and the webhook if there is
one. Then it orders `host_work` to give the change to the web server, and the caller waits for this work. If the web
server does not take the change, the change stays recorded as wanted, the caller learns this, and `resuming` hands it
over again until it is taken.

Invariants:
- every status is reached by a move of the table in `states`;
- everything done to the server may be repeated: a core that was killed between two steps does them again;
- the row is locked during a decision;
- no message waits for the server.

Why: docs/decisions/0044-site-records-and-names.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from svc_actors.panel.host_work import HostWork, Ordered, Work
from svc_actors.panel.sites.first_page import first_page
from svc_actors.panel.sites.following import restore_copies, suspend_copies, suspend_with_account
from svc_actors.panel.sites.programs import SitePrograms
from svc_actors.panel.sites.records import (
    SiteRow,
    lock_site,
    read_site,
    suspended_by_administrator,
    write_changed,
    write_served,
    write_status,
    write_up_to_date,
)
from svc_actors.panel.sites.serving import ServedBy, server_of
from svc_actors.panel.sites.states import (
    IllegalTransition,
    SiteEnd,
    SiteOrder,
    SiteStatus,
    SuspendedBy,
    move,
)
from svc_actors.panel.webhooks import Subject, WebhookEvent, emit
from svc_actors.runtime import Actor
from svc_actors.store import Caller, Database, Target, Transaction, audit
from svc_common.errors import ErrorCode, ServiceError, conflict, unavailable
from svc_webhost.accounts import AccountError, Accounts
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import LauncherError, SiteLauncher
from svc_webhost.site_runtime import site_group

_AGAIN: Final = "It is retried every 30 s."


@dataclass(frozen=True)
class Changed:
    """What a change did, for the audit."""

    target: Target
    details: Mapping[str, Any] | None = None


ResultT = TypeVar("ResultT")
ChangedT = TypeVar("ChangedT", bound=Changed)
Change = Callable[[Transaction, SiteRow], Awaitable[ChangedT]]


@dataclass(frozen=True, kw_only=True)
class ChangedTo(Changed, Generic[ResultT]):
    """A change with a result for its caller."""

    result: ResultT


class Site(Actor):
    """Nothing is kept in memory: each message locks and reads the row that it decides on."""

    def __init__(
        self,
        database: Database,
        accounts: Accounts,
        programs: SitePrograms,
        web_server: ServedBy,
        folders: HostFolders,
        launcher: SiteLauncher,
        host_work: HostWork,
    ) -> None:
        self._database = database
        self._programs = programs
        self._accounts = accounts
        self._web_server = web_server
        self._folders = folders
        self._launcher = launcher
        self._host_work = host_work

    @property
    def site_id(self) -> UUID:
        return UUID(self.key)

    async def build(self) -> Ordered[None]:
        """Create what the site's record wants, and have the site served. Does nothing for a site that is not being
        created. The ordered work fails if a step failed. Then the site is `failed`; or, if only the web server or the
        database could not be reached, the site is still being created, and the work is retried."""
        return self._order("creation", self._build, what="The site is not served yet")

    async def _build(self) -> None:
        site = await read_site(self._database, self.site_id)
        if site is None or site.status is not SiteStatus.CREATING:
            return
        try:
            await self._accounts.make(site.account, first_page(site.domain))
            await self._serve(site)
        except (AccountError, ServiceError) as error:
            if isinstance(error, ServiceError) and error.code is ErrorCode.UNAVAILABLE:
                raise unavailable(
                    f"The site {site.domain} is not served yet: {error.message}",
                    hint="Creation continues in the background and is retried every 30 s.",
                ) from error
            reason = str(error)
            await self._database.transact(lambda tx: self._end(tx, SiteEnd.BROKEN, reason))
            raise unavailable(
                f"The site {site.domain} was not finished: {reason}",
                hint="Repeat the call to continue; deleting the site removes what was created.",
            ) from error

        async def served(tx: Transaction) -> None:
            await self._end(tx, SiteEnd.SERVED, None)
            # The web server serves a site in `creating` exactly like an active one, so nothing has to change there.
            await write_up_to_date(tx, site.id)
            await _tell(tx, WebhookEvent.SITE_CREATED, site)
            await self._suspend_with_account(tx)

        await self._database.transact(served)
        await self._follow_now()

    async def change(self, caller: Caller, change: Change[ChangedT]) -> Ordered[ChangedT]:
        """Run `change` in the deciding transaction, have the site served according to the new record, and return the
        result of `change`."""

        async def work(tx: Transaction) -> ChangedT:
            site = await lock_site(tx, self.site_id)
            if site.status in (SiteStatus.DELETING, SiteStatus.CREATING):
                raise conflict(f"The site {site.domain} is {site.status.value}; nothing was changed.")
            changed = await change(tx, site)
            await write_changed(tx, site)
            await audit.record(tx, caller, changed.target, changed.details)
            return changed

        changed = await self._database.transact(work)
        return (await self.follow()).answering(changed)

    async def suspend(self, caller: Caller, by: SuspendedBy, reason: str) -> Ordered[None]:
        """Suspend the site: visitors get a page that says so. A suspended site may be suspended again with another
        reason; a suspension by an administrator stays one."""

        async def work(tx: Transaction) -> None:
            site = await lock_site(tx, self.site_id)
            status = site.status if site.status is SiteStatus.SUSPENDED else _moved(site, SiteOrder.SUSPEND)
            if site.suspended_by not in (None, SuspendedBy.OWNER) and by is SuspendedBy.OWNER:
                raise suspended_by_administrator(site)
            await write_status(tx, site, status, reason, by)
            await suspend_copies(tx, site, reason, by)
            await audit.record(tx, caller, site.target, {"suspended": True, "reason": reason})
            if site.status is not status:
                await _tell(tx, WebhookEvent.SITE_SUSPENDED, site, by)

        await self._database.transact(work)
        return await self.follow()

    async def unsuspend(self, caller: Caller, by: SuspendedBy) -> Ordered[None]:
        """Restore the site for visitors. An active site stays active."""

        async def work(tx: Transaction) -> None:
            site = await lock_site(tx, self.site_id)
            if site.suspended_by not in (None, SuspendedBy.OWNER) and by is SuspendedBy.OWNER:
                raise suspended_by_administrator(site)
            if site.status is not SiteStatus.ACTIVE:
                await write_status(tx, site, _moved(site, SiteOrder.UNSUSPEND), None)
                await restore_copies(tx, site)
                await _tell(tx, WebhookEvent.SITE_UNSUSPENDED, site, by)
            await audit.record(tx, caller, site.target, {"suspended": False})

        await self._database.transact(work)
        return await self.follow()

    async def serve_again(self) -> Ordered[None]:
        """Hand the record to the web server again although the web server has taken it before, because others have
        changed its configuration of the site. Does nothing for an unfinished site."""
        return self._order("repetition", self._serve_again, what="The site is being handed to the web server again")

    async def _serve_again(self) -> None:
        site = await read_site(self._database, self.site_id)
        if site is not None and site.status in (SiteStatus.ACTIVE, SiteStatus.SUSPENDED):
            await self._serve(site)

    async def stop_serving(self) -> Ordered[None]:
        """Stop serving a site that is being deleted. Earlier changes are served by now, and later ones find that it is
        being deleted: so nothing serves the site again. May be repeated."""
        return self._order("end", self._stop_serving, what="The site is still served")

    async def _stop_serving(self) -> None:
        site = await read_site(self._database, self.site_id)
        if site is not None:
            await self._web_server.change({site.number: None})

    async def follow(self) -> Ordered[None]:
        """Have the web server serve the current record. The ordered work fails if the web server does not take it."""
        return self._order("change", self._follow_now, what="The change is recorded, but visitors do not see it yet")

    def _order(self, kind: str, work: Work, *, what: str) -> Ordered[None]:
        return self._host_work.order(f"Site:{self.key}", kind, work, what=what)

    async def _follow_now(self) -> None:
        site = await read_site(self._database, self.site_id)
        if site is None or site.served >= site.wanted or site.status in (SiteStatus.CREATING, SiteStatus.DELETING):
            return
        try:
            await self._serve(site)
        except ServiceError as error:
            raise unavailable(
                f"The change is recorded, but the web server has not applied it: {error.message}",
                hint="It is retried every 30 s, and with the next change.",
            ) from error

    async def _serve(self, site: SiteRow) -> None:
        try:
            await self._launcher.limit(site_group(site.account), site.limits)
        except LauncherError as error:
            raise unavailable(f"The limits of {site.domain} are not applied yet: {error}", hint=_AGAIN) from error
        # Programs are started before the web server is changed, so that visitors meet a program that answers.
        await self._programs.start(site)
        await self._web_server.change({site.number: await server_of(self._database, site, self._folders)})
        await write_served(self._database, site)
        self._programs.settle()

    async def _suspend_with_account(self, tx: Transaction) -> None:
        """Suspends the site if its account was suspended while the site was being created. A suspension of the account
        that comes later waits for this row, and then finds the site active."""
        site = await lock_site(tx, self.site_id)
        reason = await tx.fetchval("SELECT suspended_for FROM hosting_accounts WHERE user_id = $1", site.owner_id)
        if reason is not None:
            await suspend_with_account(tx, site, reason)

    async def _end(self, tx: Transaction, end: SiteEnd, reason: str | None) -> None:
        site = await lock_site(tx, self.site_id)
        await write_status(tx, site, move(site.status, end), reason)


def _moved(site: SiteRow, order: SiteOrder) -> SiteStatus:
    try:
        return move(site.status, order)
    except IllegalTransition:
        doing = {SiteOrder.SUSPEND: "suspended", SiteOrder.UNSUSPEND: "put back"}.get(order, order.value)
        raise conflict(f"The site {site.domain} is {site.status.value} and cannot be {doing} now.") from None


async def _tell(tx: Transaction, event: WebhookEvent, site: SiteRow, by: SuspendedBy | None = None) -> None:
    data = {"type": site.type.value} | ({"by": by.value} if by else {})
    await emit(tx, event, subject=Subject("site", str(site.id), site.domain), data=data)
