"""Users of databases: their privileges on each database, and their passwords, each shown once."""

from __future__ import annotations

from uuid import UUID

from svc.panel.databases.models import (
    SELECT_USERS,
    DatabaseChange,
    DatabaseLabel,
    DatabaseRequest,
    DatabaseUser,
    DatabaseUserSecret,
    locked_database,
    locked_user,
    require_database,
    shown_database,
    shown_user,
    user_model,
)
from svc.panel.services import Panel
from svc.panel.sites.access import visible_sites
from svc.registry.declare import Operations
from svc.registry.operation import Context, Request, Route
from svc.registry.paging import Condition, Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.databases.changes import create_user, delete_user, set_access, set_password
from svc_actors.panel.databases.records import lock_user
from svc_actors.store import Transaction
from svc_webhost.databases import Access as DatabaseAccess
from svc_webhost.databases import new_password

operations = Operations[Panel]()


class DatabaseUserListRequest(PageRequest):
    site: UUID | None = None


class DatabaseUserCreateRequest(Request):
    """A user of one database. `database_user.grant` gives it access to other databases of the same site and engine."""

    database_id: UUID
    name: DatabaseLabel
    access: DatabaseAccess = DatabaseAccess.FULL


class DatabaseGrantRequest(DatabaseChange):
    database_id: UUID
    access: DatabaseAccess = DatabaseAccess.FULL


class DatabaseRevokeRequest(DatabaseChange):
    database: UUID


@operations.declare(
    "database_user.list",
    "Database users of the caller's sites; administrators see all",
    Route.get("/database-users"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("name", "engine", "domain", "id"),
)
async def list_users(context: Context[Panel], request: DatabaseUserListRequest) -> Page[DatabaseUser]:
    rows, total = await paginate(
        context.services.database,
        select=SELECT_USERS,
        source="database_users JOIN sites ON sites.id = database_users.site_id",
        where=[
            visible_sites(context.principal),
            Condition("database_users.status = 'active'"),
            equals("database_users.site_id", request.site),
            contains(request.q, "database_users.name", "sites.domain"),
        ],
        sortable={"name": "database_users.name", "created_at": "database_users.created_at"},
        default_sort="name",
        request=request,
        tie="database_users.id",
    )
    return Page[DatabaseUser].of([user_model(row) for row in rows], total, request)


@operations.declare(
    "database_user.get",
    "One database user",
    Route.get("/database-users/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def get_user(context: Context[Panel], request: DatabaseRequest) -> DatabaseUser:
    return await shown_user(context, request.id)


@operations.declare(
    "database_user.create",
    "Create a user of a database; its password is shown once",
    Route.post("/database-users", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("database_id", "name"),
)
async def create(context: Context[Panel], request: DatabaseUserCreateRequest) -> DatabaseUserSecret:
    services = context.services
    database = await shown_database(context, request.database_id)
    password = new_password()
    verifier = services.databases.server(database.engine).verifier(password)

    async def work(tx: Transaction) -> UUID:
        locked = await locked_database(tx, context, request.database_id)
        return (await create_user(tx, context.caller, locked, request.name, request.access, verifier)).id

    user_id = await services.database.transact(work)
    await services.databases.agree(database.site_id)
    return DatabaseUserSecret(user=await shown_user(context, user_id), password=password)


@operations.declare(
    "database_user.reset_password",
    "Reset the password of a database user; the new one is shown once",
    Route.post("/database-users/{id}/password"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def reset_password(context: Context[Panel], request: DatabaseChange) -> DatabaseUserSecret:
    services = context.services
    user = await shown_user(context, request.id)
    password = new_password()
    verifier = services.databases.server(user.engine).verifier(password)

    async def work(tx: Transaction) -> None:
        await set_password(tx, context.caller, await locked_user(tx, context, request.id), verifier)

    await services.database.transact(work)
    await services.databases.agree(user.site_id)
    return DatabaseUserSecret(user=await shown_user(context, request.id), password=password)


@operations.declare(
    "database_user.grant",
    "Set the access of a user to a database",
    Route.post("/database-users/{id}/grants"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "database_id"),
)
async def grant(context: Context[Panel], request: DatabaseGrantRequest) -> DatabaseUser:
    return await _set_access(context, request.id, request.database_id, request.access)


@operations.declare(
    "database_user.revoke",
    "Revoke a user's access to a database",
    Route.delete("/database-users/{id}/grants/{database}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def revoke(context: Context[Panel], request: DatabaseRevokeRequest) -> DatabaseUser:
    return await _set_access(context, request.id, request.database, None)


@operations.declare(
    "database_user.delete",
    "Delete a database user; the tables that it created stay",
    Route.delete("/database-users/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete(context: Context[Panel], request: DatabaseChange) -> None:
    user = await shown_user(context, request.id)

    async def work(tx: Transaction) -> None:
        await delete_user(tx, context.caller, await locked_user(tx, context, request.id))

    await context.services.database.transact(work)
    await context.services.databases.agree(user.site_id)


async def _set_access(
    context: Context[Panel], user_id: UUID, database_id: UUID, access: DatabaseAccess | None
) -> DatabaseUser:
    user = await shown_user(context, user_id)
    await require_database(context, database_id)

    async def work(tx: Transaction) -> None:
        # The database is locked before the user, in the same order as when a database is deleted.
        database = await locked_database(tx, context, database_id)
        await set_access(tx, context.caller, await lock_user(tx, user_id), database, access)

    await context.services.database.transact(work)
    await context.services.databases.agree(user.site_id)
    return await shown_user(context, user_id)
