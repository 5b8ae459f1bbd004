"""Databases of sites: created, listed, exported, imported and deleted."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.panel.databases.models import (
    SELECT_DATABASES,
    DatabaseChange,
    DatabaseLabel,
    DatabaseRequest,
    DatabaseUserSecret,
    FullName,
    SiteDatabase,
    database_models,
    locked_database,
    require_database,
    shown_database,
    shown_user,
)
from svc.panel.files.models import SitePath
from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.panel.sites.access import locked_site_of, site_of, visible_sites
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.databases.changes import create_database, create_user, delete_database
from svc_actors.panel.databases.transfers import require_export, start_export, start_import
from svc_actors.panel.files import site_folder
from svc_actors.store import Transaction
from svc_common.errors import invalid, wrong_field
from svc_webhost.confined.protocol import Stat
from svc_webhost.databases import Access as DatabaseAccess
from svc_webhost.databases import EngineKind, new_password

operations = Operations[Panel]()


class DatabaseListRequest(PageRequest):
    site: UUID | None = None
    engine: EngineKind | None = None


class DatabaseCreateRequest(Request):
    """`user`: also create a user of this name with full access to the database; the answer has the password."""

    site_id: UUID
    name: DatabaseLabel
    engine: EngineKind = EngineKind.MARIADB
    user: DatabaseLabel | None = None


class DatabaseCreated(Model):
    """`login` is the user, if the request named one."""

    database: SiteDatabase
    login: DatabaseUserSecret | None


class DatabaseDeleteRequest(DatabaseChange):
    """`confirm` repeats the whole name of the database."""

    confirm: FullName


class DatabaseImportRequest(DatabaseChange):
    """Either `path`, an SQL file of the site, plain or compressed by gzip, bzip2 or xz; or `export`, an export of a
    database of the same site and engine. `replace`: remove the database's content first."""

    path: SitePath | None = None
    export: UUID | None = None
    replace: Annotated[bool, Field(description="Empty the database first.")] = False


@operations.declare(
    "database.list",
    "Databases of the caller's sites; administrators see all",
    Route.get("/databases"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("name", "engine", "status", "size", "domain", "id"),
)
async def list_databases(context: Context[Panel], request: DatabaseListRequest) -> Page[SiteDatabase]:
    rows, total = await paginate(
        context.services.database,
        select=SELECT_DATABASES,
        source="databases JOIN sites ON sites.id = databases.site_id",
        where=[
            visible_sites(context.principal),
            equals("databases.site_id", request.site),
            equals("databases.engine", request.engine),
            contains(request.q, "databases.name", "sites.domain"),
        ],
        sortable={"name": "databases.name", "created_at": "databases.created_at"},
        default_sort="name",
        request=request,
        tie="databases.id",
    )
    return Page[SiteDatabase].of(await database_models(context, rows), total, request)


@operations.declare(
    "database.get", "One database", Route.get("/databases/{id}"), access=Access.SIGNED_IN, scope=Scope.READ
)
async def get_database(context: Context[Panel], request: DatabaseRequest) -> SiteDatabase:
    return await shown_database(context, request.id)


@operations.declare(
    "database.create",
    "Create a database for a site",
    Route.post("/databases", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("site_id", "name"),
)
async def create(context: Context[Panel], request: DatabaseCreateRequest) -> DatabaseCreated:
    services = context.services
    site = await site_of(services.database, context.principal, request.site_id)
    password = new_password()
    verifier = services.databases.server(request.engine).verifier(password)

    async def work(tx: Transaction) -> tuple[UUID, UUID | None]:
        await locked_site_of(tx, context.principal, site.id)
        database = await create_database(tx, context.caller, site.id, request.engine, request.name)
        if request.user is None:
            return database.id, None
        full = DatabaseAccess.FULL
        return database.id, (await create_user(tx, context.caller, database, request.user, full, verifier)).id

    database_id, user_id = await services.database.transact(work)
    await services.databases.agree(site.id)
    login = None
    if user_id is not None:
        login = DatabaseUserSecret(user=await shown_user(context, user_id), password=password)
    return DatabaseCreated(database=await shown_database(context, database_id), login=login)


@operations.declare(
    "database.delete",
    "Delete a database with all that is in it, and its exports",
    Route.delete("/databases/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete(context: Context[Panel], request: DatabaseDeleteRequest) -> None:
    services = context.services
    await require_database(context, request.id)

    async def work(tx: Transaction) -> UUID:
        database = await locked_database(tx, context, request.id)
        if request.confirm != database.name:
            raise invalid(
                f"confirm does not repeat the name of the database, {database.name}; nothing was deleted.",
                hint=f"Send confirm: {database.name}",
            )
        await delete_database(tx, context.caller, database)
        return database.site_id

    await services.databases.agree(await services.database.transact(work))
    await services.transfers.sweep()


@operations.declare(
    "database.export",
    "Export a database to a file that can be downloaded for a week",
    Route.post("/databases/{id}/export"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def export(context: Context[Panel], request: DatabaseChange) -> JobModel:
    await require_database(context, request.id)

    async def work(tx: Transaction) -> JobModel:
        return await job_answer(
            tx, await start_export(tx, context.caller, await locked_database(tx, context, request.id))
        )

    return await context.services.database.transact(work)


@operations.declare(
    "database.import",
    "Import an SQL file into a database",
    Route.post("/databases/{id}/import"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def import_file(context: Context[Panel], request: DatabaseImportRequest) -> JobModel:
    services = context.services
    database = await shown_database(context, request.id)
    if (request.path is None) is (request.export is None):
        raise wrong_field("path", "give either a path or an export, not both")
    if request.path is not None:
        site = await site_of(services.database, context.principal, database.site_id)
        await services.files.ask(site_folder(services.config.folders, site), Stat(request.path))

    async def work(tx: Transaction) -> JobModel:
        locked = await locked_database(tx, context, request.id)
        source = {"path": request.path} if request.path is not None else {"export": str(request.export)}
        if request.export is not None:
            await require_export(tx, request.export, locked)
        job = await start_import(tx, context.caller, locked, source, replace=request.replace)
        return await job_answer(tx, job)

    return await services.database.transact(work)
