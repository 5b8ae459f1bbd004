"""Mail that programs of a site send: whether it is sent, its limits, and the delivery of each mail.

Owners see the state of their sites' mail, and may release held mail once a day; only administrators set limits. Nobody
is shown the content of a mail.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.identity.settings import read_as
from svc.panel.mail.domains import MailDomain, expected_spf, mail_domains
from svc.panel.services import Panel
from svc.panel.settings import MailsPerDay, MailsPerHour, PanelSettings
from svc.panel.sites.access import SiteChange, SiteRequest, locked_site_of, site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.paging import Condition, Nullable, Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import NULL_RESETS
from svc_actors.mail import MailState
from svc_actors.panel.mail import holds, queue
from svc_actors.panel.mail.holds import SiteMailSettings, mail_settings_of
from svc_actors.panel.mail.limits import counts_of, limits_of
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.store import Queryable, Transaction, audit
from svc_common.errors import not_found

operations = Operations[Panel]()

_BUSIEST: Final = 10


class LimitSource(StrEnum):
    """Where a limit comes from: set for the site, by its owner's plan, or by the server's settings."""

    SITE = "site"
    PLAN = "plan"
    SERVER = "server"


class MailLimit(Model):
    """`sent` counts recipients: of the last hour or day, and not before the site's last release."""

    limit: int
    source: LimitSource
    sent: int


class MailHold(Model):
    """`until`: when it ends by itself; null: once somebody releases it."""

    since: datetime
    reason: str
    until: datetime | None


class SendingScript(Model):
    """`script` as the site gave it: a hint, no proof. Null: unknown."""

    script: str | None
    mails: int


class SiteMail(Model):
    """`problem` says why mail of the site is not sent now, and what to do; null: it is sent. `queued` are mails that
    wait for the relay. `scripts` are the programs that sent most in the last 24 hours."""

    enabled: bool
    problem: str | None
    held: MailHold | None
    hour: MailLimit
    day: MailLimit
    queued: int
    scripts: list[SendingScript]
    domains: list[MailDomain]


class MailOfSite(Model):
    """One recipient of a message. `message` is the same for all of its recipients. `error` is what the relay said last,
    or why it could not be asked."""

    id: UUID
    message: UUID
    sender: str
    recipient: str
    script: str | None
    bytes: int
    state: MailState
    attempts: int
    error: str | None
    accepted_at: datetime
    next_attempt_at: datetime | None
    ended_at: datetime | None


class CancelledMails(Model):
    cancelled: int


class SiteMailListRequest(PageRequest):
    """`q`: part of the recipient's or the script's name."""

    id: UUID
    state: MailState | None = None


class SiteMailUpdateRequest(SiteChange):
    """What is left out stays. A limit of null is as the owner's plan or the server's settings say; 0 is no mail."""

    enabled: Annotated[bool | None, Field(description="Whether its mail is accepted and sent.")] = None
    mails_per_hour: Annotated[MailsPerHour | None, NULL_RESETS] = None
    mails_per_day: Annotated[MailsPerDay | None, NULL_RESETS] = None


class SiteMailRetryRequest(SiteChange):
    mail_id: UUID


_SELECT: Final = """
SELECT id, message, sender, recipient, script, bytes, state, attempts, error, accepted_at, ended_at,
       CASE WHEN state = 'queued' THEN attempt_at END AS next_attempt_at
FROM site_mails"""


@operations.declare(
    "site.mail",
    "Mail of a site: limits, what is held and why, the programs that send most, DKIM and SPF",
    Route.get("/sites/{id}/mail"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def show(context: Context[Panel], request: SiteRequest) -> SiteMail:
    database = context.services.database
    return await _shown(context, await site_of(database, context.principal, request.id))


@operations.declare(
    "site.update_mail",
    "Switch the mail of a site on or off, or set its limits",
    Route.patch("/sites/{id}/mail"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def update(context: Context[Panel], request: SiteMailUpdateRequest) -> SiteMail:
    given = request.model_fields_set & {"enabled", "mails_per_hour", "mails_per_day"}

    async def work(tx: Transaction) -> SiteRow:
        site = await locked_site_of(tx, context.principal, request.id)
        before = await mail_settings_of(tx, site.id)
        if request.enabled is not None:
            await holds.set_enabled(tx, site, request.enabled)
        if given - {"enabled"}:
            per_hour = request.mails_per_hour if "mails_per_hour" in given else before.per_hour
            per_day = request.mails_per_day if "mails_per_day" in given else before.per_day
            await holds.set_limits(tx, site, per_hour, per_day)
        await audit.record(tx, context.caller, site.target, {name: getattr(request, name) for name in sorted(given)})
        return site

    return await _shown(context, await context.services.database.transact(work))


@operations.declare(
    "site.release_mail",
    "Accept the mail of a site again that is held; its owner may do this once a day",
    Route.post("/sites/{id}/mail/release"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def release(context: Context[Panel], request: SiteChange) -> SiteMail:

    async def work(tx: Transaction) -> SiteRow:
        site = await locked_site_of(tx, context.principal, request.id)
        before = await mail_settings_of(tx, site.id)
        await holds.release(tx, site, by_owner=not context.principal.is_operator)
        details = {} if before.hold is None else {"held_for": before.hold.reason}
        await audit.record(tx, context.caller, site.target, details)
        return site

    return await _shown(context, await context.services.database.transact(work))


@operations.declare(
    "site.mails",
    "Mails of a site that wait, were sent or failed, the newest first",
    Route.get("/sites/{id}/mails"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("accepted=accepted_at", "recipient", "script", "state", "attempts", "error", "id"),
)
async def list_mails(context: Context[Panel], request: SiteMailListRequest) -> Page[MailOfSite]:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    rows, total = await paginate(
        database,
        select=_SELECT,
        source="site_mails",
        where=[
            Condition("site_id = $1", (site.id,)),
            equals("state", request.state),
            contains(request.q, "recipient", "script"),
        ],
        sortable={
            "accepted_at": "accepted_at",
            "attempts": "attempts",
            "recipient": "recipient",
            "script": Nullable("script"),
            "state": "state",
        },
        default_sort="-accepted_at",
        request=request,
    )
    return Page[MailOfSite].of([MailOfSite(**dict(row)) for row in rows], total, request)


@operations.declare(
    "site.retry_mail",
    "Send a mail of a site now that waits for its next attempt",
    Route.post("/sites/{id}/mails/{mail_id}/retry"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def retry(context: Context[Panel], request: SiteMailRetryRequest) -> MailOfSite:

    async def work(tx: Transaction) -> MailOfSite:
        site = await locked_site_of(tx, context.principal, request.id)
        where = "WHERE id = $1 AND site_id = $2"
        if await tx.fetchrow(f"SELECT FROM site_mails {where}", request.mail_id, site.id) is None:
            raise not_found("There is no such mail.")
        await queue.retry(tx, request.mail_id)
        mail = MailOfSite(**dict(await tx.fetchone(f"{_SELECT} {where}", request.mail_id, site.id)))
        await audit.record(tx, context.caller, site.target, {"mail": str(mail.id), "recipient": mail.recipient})
        return mail

    return await context.services.database.transact(work)


@operations.declare(
    "site.cancel_mails",
    "Cancel all mails of a site that wait: they are not sent",
    Route.post("/sites/{id}/mails/cancel"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def cancel(context: Context[Panel], request: SiteChange) -> CancelledMails:

    async def work(tx: Transaction) -> CancelledMails:
        site = await locked_site_of(tx, context.principal, request.id)
        cancelled = await queue.cancel_queued(tx, site.id, f"cancelled by {context.principal.display}")
        await audit.record(tx, context.caller, site.target, {"cancelled": cancelled})
        return CancelledMails(cancelled=cancelled)

    return await context.services.database.transact(work)


async def _shown(context: Context[Panel], site: SiteRow) -> SiteMail:
    services = context.services
    database = services.database
    settings = await mail_settings_of(database, site.id)
    limits, counts = await limits_of(database, site.id), await counts_of(database, site.id)
    plan = await database.fetchrow(
        """SELECT mails_per_hour, mails_per_day FROM hosting_accounts
           JOIN hosting_plans ON hosting_plans.id = hosting_accounts.plan_id WHERE hosting_accounts.user_id = $1""",
        site.owner_id,
    )
    by_plan = (None, None) if plan is None else (plan["mails_per_hour"], plan["mails_per_day"])
    spf = expected_spf(services, await read_as(PanelSettings, database))
    return SiteMail(
        enabled=settings.enabled,
        problem=_problem(services, site, settings),
        held=_held(settings),
        hour=MailLimit(limit=limits.per_hour, source=_source(settings.per_hour, by_plan[0]), sent=counts.hour),
        day=MailLimit(limit=limits.per_day, source=_source(settings.per_day, by_plan[1]), sent=counts.day),
        queued=await database.fetchval(
            "SELECT count(*) FROM site_mails WHERE site_id = $1 AND state = 'queued'", site.id
        ),
        scripts=await _scripts(database, site.id),
        domains=await mail_domains(services, site, spf),
    )


def _problem(services: Panel, site: SiteRow, settings: SiteMailSettings) -> str | None:
    if site.staging_of is not None:
        return "This is a staging copy: what its programs send stays in its folder private/mail."
    if services.config.mail is None:
        return "This server sends no mail of sites: an administrator sets a relay, the host of [mail] (docs/mail.md)."
    if not settings.enabled:
        return "The mail of this site is switched off: it is refused, and what is queued waits."
    if site.status is not SiteStatus.ACTIVE:
        return f"The site is {site.status.value}: nothing is sent."
    if settings.hold is not None:
        return f"The mail of this site is held: {settings.hold.reason}."
    return None


def _held(settings: SiteMailSettings) -> MailHold | None:
    if settings.hold is None or settings.held_at is None:
        return None
    return MailHold(since=settings.held_at, reason=settings.hold.reason, until=settings.hold.until)


def _source(site: int | None, plan: int | None) -> LimitSource:
    if site is not None:
        return LimitSource.SITE
    return LimitSource.SERVER if plan is None else LimitSource.PLAN


async def _scripts(queryable: Queryable, site_id: UUID) -> list[SendingScript]:
    rows = await queryable.fetch(
        """SELECT script, count(*) AS mails FROM site_mails
           WHERE site_id = $1 AND accepted_at > now() - interval '1 day'
           GROUP BY script ORDER BY mails DESC, script LIMIT $2""",
        site_id,
        _BUSIEST,
    )
    return [SendingScript(script=row["script"], mails=row["mails"]) for row in rows]
