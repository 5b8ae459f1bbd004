"""Importing sites from other hosts: an archive is uploaded, its plan is reviewed, and the plan is applied (the panel's
specification, Migration)."""

from __future__ import annotations

from uuid import UUID

from svc.panel.accounts.member_roles import beyond_role
from svc.panel.imports.models import (
    Import,
    ImportApplyRequest,
    ImportBeginRequest,
    ImportChunkRequest,
    ImportDeleted,
    ImportFinishRequest,
    ImportListRequest,
    ImportPlan,
    ImportRequest,
)
from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.panel.sites.access import visible_row, visible_sites
from svc.panel.sites.sites import person_of, usable_name
from svc.registry.declare import Operations
from svc.registry.operation import Context, Route
from svc.registry.paging import Condition, Page, contains, equals, paginate
from svc.registry.principal import Access, Role
from svc.registry.scopes import Scope
from svc_actors.panel.accounts.allowances import lock_owner
from svc_actors.panel.imports import applying
from svc_actors.panel.imports.applied import choices_of
from svc_actors.panel.imports.plan import Choices, ServerFacts, aliases_of, items_of
from svc_actors.panel.imports.records import IMPORT_COLUMNS, ImportRow, as_import, lock_import, sites_of
from svc_actors.store import Transaction, audit
from svc_common.errors import forbidden, not_found, wrong_field
from svc_webhost.archives.model import Kind

operations = Operations[Panel]()

_NO_SITE = "NULL::uuid"


@operations.declare(
    "import.list",
    "Imports of sites from other hosts",
    Route.get("/imports"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("name", "status", "format", "size", "created=created_at", "id"),
)
async def list_imports(context: Context[Panel], request: ImportListRequest) -> Page[Import]:
    rows, total = await paginate(
        context.services.database,
        select=f"SELECT {IMPORT_COLUMNS} FROM imports",
        source="imports",
        where=[
            visible_sites(context.principal, "imports.owner_id", _NO_SITE),
            equals("imports.status", request.status),
            contains(request.q, "imports.name"),
        ],
        sortable={"created_at": "imports.created_at", "name": "imports.name"},
        default_sort="-created_at",
        request=request,
        tie="imports.id",
    )
    return Page[Import].of([Import.of(as_import(row)) for row in rows], total, request)


@operations.declare(
    "import.show",
    "One import, with its plan: every item of the archive, and what is done with it",
    Route.get("/imports/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def show_import(context: Context[Panel], request: ImportRequest) -> ImportPlan:
    return await _shown(context, await _visible(context, request.id))


@operations.declare(
    "import.begin",
    "Start the upload of an archive of another host",
    Route.post("/imports/upload", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    hidden=True,
)
async def start_upload(context: Context[Panel], request: ImportBeginRequest) -> Import:
    owner = await context.services.database.transact(lambda tx: owner_of(tx, context, request.owner_email))
    row = await context.services.imports.start(context.caller, owner, request.name, request.size)
    return Import.of(row)


@operations.declare(
    "import.chunk",
    "Send a part of an archive, at its offset",
    Route.put("/imports/{id}/upload"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    hidden=True,
)
async def put_chunk(context: Context[Panel], request: ImportChunkRequest) -> Import:
    row = await _visible(context, request.id)
    return Import.of(await context.services.imports.write(row, request.offset, request.data_base64))


@operations.declare(
    "import.finish",
    "Analyse an archive once all its parts are uploaded: a job",
    Route.post("/imports/{id}/upload/finish"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    hidden=True,
)
async def finish_upload(context: Context[Panel], request: ImportFinishRequest) -> Import:
    row = await _visible(context, request.id)
    return Import.of(await context.services.imports.finish(context.caller, row, request.sha256))


@operations.declare(
    "import.apply",
    "Create the sites of an import, as its plan says: a job",
    Route.post("/imports/{id}/apply"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def apply_import(context: Context[Panel], request: ImportApplyRequest) -> JobModel:
    services = context.services
    row = await _visible(context, request.id)
    renamed = [each.partition("=") for each in request.domains]
    domains = {old.lower(): usable_name(context, new).name for old, _, new in renamed}
    choices = Choices(domains, frozenset(request.without))
    _require_choices(context, row, choices)

    async def write(tx: Transaction) -> JobModel:
        locked = await lock_import(tx, row.id)
        owner = locked.owner_id if request.owner_email is None else await owner_of(tx, context, request.owner_email)
        await lock_owner(tx, owner)
        job = await applying.start_apply(tx, locked, owner, choices, accept_htaccess=request.accept_htaccess)
        details = {"job": job.id, "domains": domains, "without": sorted(choices.without)}
        await audit.record(tx, context.caller, locked.target, details)
        return await job_answer(tx, job)

    return await services.database.transact(write)


@operations.declare(
    "import.delete",
    "Delete an import and its archive; the sites created from it stay",
    Route.delete("/imports/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    frees_space=True,
)
async def delete_import(context: Context[Panel], request: ImportRequest) -> ImportDeleted:
    await context.services.imports.delete(context.caller, await _visible(context, request.id))
    return ImportDeleted()


def _require_choices(context: Context[Panel], row: ImportRow, choices: Choices) -> None:
    """Check the caller's choices against the plan. Raises `invalid` for choices that do not fit the plan; `conflict`
    and `forbidden` for names that the caller may not use."""
    account = row.account
    known = {item.id for item in items_of(account, ServerFacts(()), choices)}
    for item in sorted(choices.without - known):
        raise wrong_field("without", f"the plan has no item {item}", hint="`svc import show` lists them.")
    for name in sorted(choices.domains.keys() - {site.domain for site in account.sites}):
        raise wrong_field("domains", f"the plan has no site {name}", hint="`svc import show` lists them.")
    wanted = [site for site in account.sites if choices.wants(Kind.SITE, site.domain)]
    if not wanted:
        raise wrong_field("without", "no site is left, so there is nothing to import")
    for site in wanted:
        for name in (choices.domain(site), *aliases_of(site, choices)):
            usable_name(context, name)


async def _shown(context: Context[Panel], row: ImportRow) -> ImportPlan:
    services = context.services
    made = await sites_of(services.database, row.id)
    if row.found is None:
        return ImportPlan.planned(row, [], made)
    server = ServerFacts(await services.php.versions(), services.config.dns.site_addresses())
    return ImportPlan.planned(row, items_of(row.account, server, choices_of(row)), made)


async def _visible(context: Context[Panel], import_id: UUID) -> ImportRow:
    row = await visible_row(
        context.services.database,
        context.principal,
        f"SELECT {IMPORT_COLUMNS} FROM imports",
        Condition("imports.id = $1", (import_id,)),
        not_found("There is no such import."),
        owner="imports.owner_id",
        site=_NO_SITE,
    )
    return as_import(row)


async def owner_of(tx: Transaction, context: Context[Panel], email: str | None) -> UUID:
    """The owner of the imported sites. Raises `forbidden` for another person."""
    principal = context.principal
    if principal.is_operator:
        if email is not None:
            return await person_of(tx, email)
        if principal.user_id is None:
            raise wrong_field("owner_email", "give the address of the person who will own the sites")
    elif principal.role is Role.MEMBER:
        # A member owns no sites and has no plan that would limit their uploads.
        raise beyond_role(principal.member_roles)
    elif email not in (None, principal.email):
        raise forbidden("Only administrators import sites for others.")
    assert principal.user_id is not None
    return principal.user_id
