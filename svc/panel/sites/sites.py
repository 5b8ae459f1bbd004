"""Sites: created, changed, suspended and deleted."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from svc.identity.fields import Email
from svc.panel.accounts.member_roles import beyond_role
from svc.panel.config import PanelConfig
from svc.panel.dns.pointing import SitePointing, site_pointing
from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.panel.sites.access import (
    SiteChange,
    SiteRequest,
    accounts_open_to,
    locked_site_of,
    site_of,
    visible_sites,
)
from svc.panel.sites.creation import SiteFields, plan_site
from svc.panel.sites.fields import Domain, FallbackPage, ProxyTarget, SuspensionReason, WithWww
from svc.panel.sites.models import (
    SELECT_SITES,
    CpuPercent,
    DiskMib,
    MemoryMib,
    Processes,
    Site,
    preview_urls,
    shown_site,
    site_model,
)
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.paging import Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access, Principal, Role
from svc.registry.scopes import Scope
from svc.registry.shapes import NULL_RESETS
from svc_actors.alerts import hand_over_alerts
from svc_actors.panel.accounts.allowances import lock_owner
from svc_actors.panel.handover import end_credentials
from svc_actors.panel.host_work import soon
from svc_actors.panel.sites.claims import MOST_NAMES, hand_over
from svc_actors.panel.sites.deletion import delete_site
from svc_actors.panel.sites.names import SiteName, is_below, site_name
from svc_actors.panel.sites.php import PHP_TYPES
from svc_actors.panel.sites.proxying import proxy_addresses
from svc_actors.panel.sites.records import SiteRow, change_record, suspended_by_administrator
from svc_actors.panel.sites.site import Change, ChangedT, ChangedTo
from svc_actors.panel.sites.site import Site as SiteActor
from svc_actors.panel.sites.states import SiteStatus, SiteType, SuspendedBy
from svc_actors.panel.staging.records import read_staging
from svc_actors.store import Transaction
from svc_common.errors import conflict, forbidden, invalid, not_found, wrong_field
from svc_webhost.knot.names import to_ascii
from svc_webhost.launcher import Limits

operations = Operations[Panel]()


class SiteListRequest(PageRequest):
    status: SiteStatus | None = None


class SiteCreateRequest(SiteFields):
    """`owner_email`: the owner, by default the caller; only administrators may name somebody else. `admin_email`: the
    administrator of the software that is installed in the site; if an administrator of the panel names no owner, this
    person owns the site. `php_version`: for a site with PHP, by default the newest on the server. Only administrators
    set limits; a limit that is left out is that of the owner's plan. For the type app, `runtime` and `entry` say what
    `app.start` will start. `www` adds www.example.org to example.org, unless another site has that name; the pages and
    the command line ask for it by default.

    `title` and `language` are for the type wordpress. Such a site is created by a job; its status is `creating` in the
    answer."""

    domain: Domain
    type: SiteType
    owner_email: Email | None = None
    admin_email: Email | None = None
    aliases: Annotated[list[Domain], Field(default_factory=list, max_length=MOST_NAMES - 1)]
    www: WithWww = False
    cpu_percent: CpuPercent | None = None
    memory_mib: MemoryMib | None = None
    processes: Processes | None = None


class SiteUpdateRequest(SiteChange):
    """Fields left out stay as they are. Only administrators change `owner_email`, `shell` and the limits. Null removes
    a limit and the fallback page; null for `shell` means what the owner's plan says. A fallback page is for the types
    static and php, `cache_assets` and `utf8_pages` for these and wordpress."""

    owner_email: Email | None = None
    force_https: bool | None = None
    fallback_page: Annotated[FallbackPage | None, NULL_RESETS] = None
    cache_assets: Annotated[
        bool | None,
        Field(description="Whether browsers may keep files whose name has a hash of their content for a year."),
    ] = None
    utf8_pages: Annotated[
        bool | None,
        Field(description="Whether files of HTML are sent as UTF-8, for pages that do not say their character set."),
    ] = None
    proxy_target: ProxyTarget | None = None
    cpu_percent: CpuPercent | None = None
    memory_mib: MemoryMib | None = None
    processes: Processes | None = None
    disk_mib: DiskMib | None = None
    shell: bool | None = None


class SiteSuspendRequest(SiteChange):
    """`suspended` false lifts the suspension."""

    suspended: bool = True
    reason: SuspensionReason | None = None


class SiteDeleteRequest(SiteChange):
    """`confirm` repeats the site's domain. `final_backup`: back the site up first, and keep this backup for its owner
    for 30 days."""

    confirm: Domain
    final_backup: bool = True


class SiteShown(Site):
    """`pointing`: which records lead visitors to this server, and where the names of the site lead today."""

    pointing: SitePointing


class SiteHandover(Model):
    """What the change of owner revoked: access accounts that were deleted, and database users whose password was
    replaced by a random one (`database_user.reset_password` sets another). `job_id`: the job that applies it to the
    servers."""

    sftp_logins: list[str]
    database_users: list[str]
    job_id: int


class SiteUpdated(Site):
    """`handover` is set if the owner was changed."""

    handover: SiteHandover | None = None


_LIMITS = frozenset({"cpu_percent", "memory_mib", "processes", "disk_mib", "shell"})


@operations.declare(
    "site.list",
    "The caller's sites; administrators see all",
    Route.get("/sites"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("domain", "type", "status", "owner=owner_email", "id"),
)
async def list_sites(context: Context[Panel], request: SiteListRequest) -> Page[Site]:
    rows, total = await paginate(
        context.services.database,
        select=SELECT_SITES,
        source="sites JOIN users ON users.id = sites.owner_id",
        where=[
            visible_sites(context.principal),
            equals("sites.status", request.status),
            contains(_in_ascii(request.q), "sites.domain", "users.email"),
        ],
        sortable={"domain": "sites.domain", "created_at": "sites.created_at", "status": "sites.status"},
        default_sort="domain",
        request=request,
        tie="sites.id",
    )
    previews = await preview_urls(context.services)
    return Page[Site].of([site_model(row, previews) for row in rows], total, request)


@operations.declare(
    "site.get",
    "One site, and where its names lead",
    Route.get("/sites/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def get_site(context: Context[Panel], request: SiteRequest) -> SiteShown:
    site = await shown_site(context.services, context.principal, request.id)
    pointing = await site_pointing(context.services, site.id, site.owner_id)
    return SiteShown(**site.model_dump(), pointing=pointing)


@operations.declare(
    "site.create",
    "Create a site that visitors can open",
    Route.post("/sites", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("domain",),
)
async def create(context: Context[Panel], request: SiteCreateRequest) -> Site:
    services, principal = context.services, context.principal
    domain, *aliases = [usable_name(context, text) for text in (request.domain, *request.aliases)]
    admin_email = request.admin_email or request.owner_email or (None if principal.local else principal.email)
    planned = await plan_site(context, request.type, request, domain, aliases, admin_email, www=request.www)
    limits = Limits(request.cpu_percent, request.memory_mib, request.processes)
    if limits != Limits() and not principal.is_operator:
        raise forbidden("Limits of a site are set by administrators.")

    async def work(tx: Transaction) -> SiteRow:
        return await planned.record(tx, context.caller, await _owner(tx, principal, request), limits)

    site = await services.database.transact(work)
    if not planned.by_job:
        await soon(services.actors.ref(SiteActor, str(site.id)).ask(SiteActor.build))
    return await shown_site(services, principal, site.id)


@operations.declare(
    "site.update",
    "Change a site's limits, owner, target, HTTPS or files",
    Route.patch("/sites/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def update(context: Context[Panel], request: SiteUpdateRequest) -> SiteUpdated:
    principal, database = context.principal, context.services.database
    site = await site_of(database, principal, request.id)
    values = _given(request)
    if not principal.is_operator and (_LIMITS & values.keys() or request.owner_email is not None):
        raise forbidden("Limits, shell and owner of a site are changed by administrators.")
    _require_files(site, request)
    if request.proxy_target is not None:
        if site.type is not SiteType.PROXY:
            raise wrong_field("proxy_target", f"does not apply to a site of the type {site.type.value}")
        values["proxy_addresses"] = await proxy_addresses(
            database,
            request.proxy_target,
            context.services.config.dns.site_addresses(),
            anywhere=principal.is_operator,
        )

    async def change(tx: Transaction, locked: SiteRow) -> ChangedTo[SiteHandover | None]:
        handover: SiteHandover | None = None
        details: dict[str, Any] = {"changed": sorted(request.model_fields_set - {"id", "site_id"})}
        if request.owner_email is not None:
            await _refuse_staged(tx, locked)
            values["owner_id"] = await person_of(tx, request.owner_email)
            # Administrators may exceed the plan of the new owner, but may not give a site to a suspended one.
            await lock_owner(tx, values["owner_id"])
            await hand_over(tx, locked, values["owner_id"])
        await change_record(tx, locked, values)
        if values.get("owner_id", locked.owner_id) != locked.owner_id:
            ended = await end_credentials(tx, locked, values["owner_id"], context.services.databases)
            handover = SiteHandover(**vars(ended))
            details["ended"] = {"sftp_logins": ended.sftp_logins, "database_users": ended.database_users}
            await hand_over_alerts(tx, "site", locked.id, locked.owner_id, values["owner_id"])
        return ChangedTo(locked.target, details, result=handover)

    changed = await ask_change(context, site.id, change)
    if "shell" in values:
        await context.services.sftp.agree()
    shown = await shown_site(context.services, principal, site.id)
    return SiteUpdated(**shown.model_dump(), handover=changed.result)


@operations.declare(
    "site.suspend",
    "Suspend or unsuspend a site; visitors of a suspended one get a page that says so",
    Route.post("/sites/{id}/suspend"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    frees_space=True,
)
async def suspend(context: Context[Panel], request: SiteSuspendRequest) -> Site:
    principal, database = context.principal, context.services.database
    site = await site_of(database, principal, request.id)
    by = SuspendedBy.ADMINISTRATOR if principal.is_operator else SuspendedBy.OWNER
    actor = context.services.actors.ref(SiteActor, str(site.id))
    if request.suspended:
        if request.reason is None:
            raise wrong_field("reason", "give a reason; it is shown to the owner of the site")
        await soon(actor.ask(SiteActor.suspend, context.caller, by, request.reason))
    else:
        await soon(actor.ask(SiteActor.unsuspend, context.caller, by))
    return await shown_site(context.services, principal, site.id)


@operations.declare(
    "site.delete",
    "Delete a site with all its files",
    Route.delete("/sites/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete(context: Context[Panel], request: SiteDeleteRequest) -> JobModel:

    async def work(tx: Transaction) -> JobModel:
        locked = await locked_site_of(tx, context.principal, request.id)
        if site_name(request.confirm).name != locked.domain:
            raise invalid(
                f"confirm does not repeat the domain of the site, {locked.domain}; nothing was deleted.",
                hint=f"Send confirm: {locked.domain}",
            )
        require_may_free_names(context.principal, locked)
        if locked.staging_of is not None and await read_staging(tx, locked.staging_of) is not None:
            raise conflict(
                f"{locked.domain} is a staging copy; nothing was deleted.",
                hint="Delete it by the domain of its live site: svc site staging delete DOMAIN.",
            )
        job = await delete_site(tx, context.caller, locked, final_backup=request.final_backup)
        return await job_answer(tx, job)

    return await context.services.database.transact(work)


def _in_ascii(q: str | None) -> str | None:
    """What is searched for as names are stored: a part of a label in other letters finds nothing, a whole one does."""
    if q is None or q.isascii():
        return q
    try:
        return ".".join(label if label.isascii() else to_ascii(label) for label in q.split("."))
    except ValueError:
        return q


def usable_name(context: Context[Panel], text: str) -> SiteName:
    """The name, if the caller may give it to a site. Raises `invalid` or `forbidden`.

    A site below the panel's own name could set cookies that browsers send to the panel, and so could one next to it:
    these names are for administrators."""
    return name_of_a_site(context.services.config, text, provider=context.principal.is_operator)


def name_of_a_site(config: PanelConfig, text: str, *, provider: bool) -> SiteName:
    """As `usable_name`. If `provider`, names of the provider's own domain are allowed as well."""
    name = site_name(text)
    if any(is_below(name.name, reserved) for reserved in config.reserved_names):
        raise invalid(
            f"{name.name} is a name of the panel or of its name servers, or below one.", hint="Give another domain."
        )
    if not provider and is_below(config.public_host, name.registrable):
        raise forbidden(f"Names of {name.registrable} are the provider's.", hint="Give a domain of your own.")
    return name


def require_may_free_names(principal: Principal, site: SiteRow) -> None:
    """Raise `forbidden` if an administrator has suspended the site and the caller is no administrator: its owner could
    delete the site and create it again under the same names, without the suspension."""
    if site.suspended_by not in (None, SuspendedBy.OWNER) and not principal.is_operator:
        raise suspended_by_administrator(site)


async def ask_change(context: Context[Panel], site_id: UUID, change: Change[ChangedT]) -> ChangedT:
    """Apply `change` to the site under its lock; returns what `change` returns. Raises not_found if the caller has lost
    access to the site before its row was locked."""

    async def allowed(tx: Transaction, locked: SiteRow) -> ChangedT:
        await site_of(tx, context.principal, locked.id)
        return await change(tx, locked)

    site = context.services.actors.ref(SiteActor, str(site_id))
    return await soon(site.ask(SiteActor.change, context.caller, allowed))


async def person_of(tx: Transaction, email: str) -> UUID:
    """The person with this address, who may own sites. Raises not_found, and `conflict` for a person without an
    account."""
    person = await tx.fetchrow("SELECT id, role FROM users WHERE email = $1", email)
    if person is None:
        raise not_found(f"There is no person with the address {email}.", hint="Create the person first.")
    if person["role"] == Role.MEMBER:
        raise conflict(
            f"{email} is only a member of other people's accounts and cannot own a site; nothing was changed.",
            hint="Make them a customer first (svc user update).",
        )
    owner_id: UUID = person["id"]
    return owner_id


async def _owner(tx: Transaction, principal: Principal, request: SiteCreateRequest) -> UUID:
    if principal.is_operator:
        email = request.owner_email or request.admin_email
        if email is not None:
            return await person_of(tx, email)
        if principal.user_id is None:
            raise wrong_field(
                "owner_email",
                "give the address of the person who will own the site",
                hint="On the command line: --owner-email ADDRESS, or --admin-email for who administers it as well.",
            )
    elif principal.role is Role.MEMBER or request.owner_email not in (None, principal.email):
        return await _account_of_others(tx, principal, request.owner_email)
    assert principal.user_id is not None
    return principal.user_id


async def _account_of_others(tx: Transaction, principal: Principal, email: str | None) -> UUID:
    """The account in which a member creates a site: the named one, or the only one."""
    open_to = await accounts_open_to(tx, principal)
    if email is None and len(open_to) > 1:
        raise wrong_field(
            "owner_email",
            "give the owner of the account to create the site in",
            hint=f"One of {', '.join(sorted(open_to))}.",
        )
    account = open_to.get(email) if email is not None else next(iter(open_to.values()), None)
    if account is not None:
        return account
    seen = await accounts_open_to(tx, principal, whatever_role=True)
    if email in seen or (email is None and seen):
        raise beyond_role(principal.member_roles)
    if email in (None, principal.email):
        raise forbidden(
            "You have no account of your own.", hint="Ask an account's owner to make you a member of all of it."
        )
    raise forbidden("Only administrators create sites for others.")


async def _refuse_staged(tx: Transaction, site: SiteRow) -> None:
    """Raise `conflict` if the site is a staging copy or has one: the copy belongs to the site's owner, and its name is
    below the site's domain."""
    if site.staging_of is not None:
        raise conflict(f"{site.domain} is a staging copy, whose owner is that of its live site; nothing was changed.")
    if await read_staging(tx, site.id) is not None:
        raise conflict(
            f"{site.domain} has a staging copy; nothing was changed.",
            hint=f"Delete the copy first: svc site staging delete {site.domain}",
        )


def _require_files(site: SiteRow, request: SiteUpdateRequest) -> None:
    """Raises `invalid` for settings of files that do not apply to a site of this type."""
    if request.fallback_page is not None and site.type not in (SiteType.STATIC, SiteType.PHP):
        raise wrong_field("fallback_page", f"does not apply to a site of the type {site.type.value}")
    for field in ("cache_assets", "utf8_pages"):
        if getattr(request, field) and site.type not in (SiteType.STATIC, *PHP_TYPES):
            raise wrong_field(field, f"does not apply to a site of the type {site.type.value}")


def _given(request: SiteUpdateRequest) -> dict[str, Any]:
    """The columns that the request changes, with their values. Only limits and the fallback page can be null."""
    given = {name: getattr(request, name) for name in request.model_fields_set - {"id", "site_id", "owner_email"}}
    return {name: value for name, value in given.items() if value is not None or name in {*_LIMITS, "fallback_page"}}
