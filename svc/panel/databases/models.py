"""The API's models of databases, their users and exports, and the fields that name them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal
from uuid import UUID

from pydantic import Field

from svc.panel.services import Panel
from svc.panel.sites.access import locked_site_of, visible_row
from svc.registry.operation import Context, Model, Request
from svc.registry.paging import Condition
from svc.registry.shapes import Shape
from svc_actors.panel.databases import DatabaseStatus
from svc_actors.panel.databases.records import DatabaseRow, DatabaseUserRow, lock_database, lock_user
from svc_actors.store import Record, Transaction
from svc_common.errors import not_found
from svc_webhost.databases import LABEL, Access, DatabaseError, DatabaseName, EngineKind

DatabaseLabel = Annotated[
    str,
    Field(min_length=1, max_length=32, description="The site's number is put before it: shop becomes s1001_shop."),
    Shape(LABEL, "up to 32 lowercase letters, digits and underscores, starting with a letter"),
]
FullName = Annotated[
    str, Field(min_length=4, max_length=64), Shape("s[0-9]{1,15}_[a-z0-9_]{1,48}", "the whole name, such as s1001_shop")
]


class DatabaseRequest(Request):
    """`id` is the path's: of a database, an export or a database user."""

    id: UUID


class DatabaseChange(DatabaseRequest):
    site_id: Annotated[UUID | None, Field(description="Ignored: the database's own site is used.")] = None


class SiteDatabase(Model):
    """`socket` is where programs of the site connect: MariaDB's socket, or PostgreSQL's folder of sockets, which is its
    host. `size` on the disk in bytes; null while its engine does not answer. `problem`: why the engine has not yet
    carried out what `status` says."""

    id: UUID
    site_id: UUID
    domain: str
    engine: EngineKind
    name: str
    status: DatabaseStatus
    problem: str | None
    size: int | None
    socket: str
    created_at: datetime


class DatabaseGrant(Model):
    database_id: UUID
    database: str
    access: Access


class DatabaseUser(Model):
    """`pending`: its last change is not yet applied in the engine."""

    id: UUID
    site_id: UUID
    domain: str
    engine: EngineKind
    name: str
    grants: list[DatabaseGrant]
    pending: bool
    problem: str | None
    created_at: datetime


class DatabaseUserSecret(Model):
    """The password is shown only once."""

    user: DatabaseUser
    password: str


SELECT_DATABASES: Final = """
SELECT databases.id, databases.site_id, sites.domain, databases.engine, databases.name, databases.status,
       databases.problem, databases.created_at
FROM databases JOIN sites ON sites.id = databases.site_id"""
SELECT_USERS: Final = """
SELECT database_users.id, database_users.site_id, sites.domain, database_users.engine, database_users.name,
       database_users.applied < database_users.wanted AS pending, database_users.problem, database_users.created_at,
       ARRAY(SELECT ROW(databases.id, databases.name, database_grants.access)
             FROM database_grants JOIN databases ON databases.id = database_grants.database_id
             WHERE database_grants.user_id = database_users.id ORDER BY databases.name) AS grants
FROM database_users JOIN sites ON sites.id = database_users.site_id"""


async def database_models(context: Context[Panel], rows: list[Record]) -> list[SiteDatabase]:
    """The databases of rows of `SELECT_DATABASES`, with their sizes."""
    databases = context.services.databases
    sizes: dict[tuple[EngineKind, str], int] = {}
    for kind in {EngineKind(row["engine"]) for row in rows}:
        names = [DatabaseName(row["name"]) for row in rows if row["engine"] == kind]
        try:
            found = await databases.server(kind).sizes(names)
        except DatabaseError:
            continue  # an engine that is down: its databases are listed without sizes
        sizes.update({(kind, name): size for name, size in found.items()})
    return [
        SiteDatabase(
            **dict(row),
            size=sizes.get((EngineKind(row["engine"]), row["name"])),
            socket=str(databases.server(EngineKind(row["engine"])).socket),
        )
        for row in rows
    ]


def user_model(row: Record) -> DatabaseUser:
    """The user of a row of `SELECT_USERS`."""
    members = dict(row)
    grants = [
        DatabaseGrant(database_id=database_id, database=name, access=Access(access))
        for database_id, name, access in members.pop("grants")
    ]
    return DatabaseUser(**members, grants=grants)


async def shown_database(context: Context[Panel], database_id: UUID) -> SiteDatabase:
    """The database as the API shows it. Raises not_found if the caller may not see it."""
    return (await database_models(context, [await _database(context, SELECT_DATABASES, database_id)]))[0]


async def require_database(context: Context[Panel], database_id: UUID) -> None:
    """Raises not_found for a database that the caller may not see."""
    await _database(context, "SELECT FROM databases JOIN sites ON sites.id = databases.site_id", database_id)


async def _database(context: Context[Panel], select: str, database_id: UUID) -> Record:
    where, absent = Condition("databases.id = $1", (database_id,)), not_found("There is no such database.")
    return await visible_row(context.services.database, context.principal, select, where, absent)


async def locked_database(tx: Transaction, context: Context[Panel], database_id: UUID) -> DatabaseRow:
    """Lock the row of the site, then that of the database, and return the latter. Raises not_found for a database that
    the caller may not see."""
    await _locked_site(tx, context, "databases", database_id)
    return await lock_database(tx, database_id)


async def locked_user(tx: Transaction, context: Context[Panel], user_id: UUID) -> DatabaseUserRow:
    """Lock the row of the site, then that of the database user, and return the latter. Raises not_found for a user that
    the caller may not see."""
    await _locked_site(tx, context, "database_users", user_id)
    return await lock_user(tx, user_id)


async def _locked_site(
    tx: Transaction, context: Context[Panel], table: Literal["databases", "database_users"], row_id: UUID
) -> None:
    """Lock the site of a row. If the row does not exist, nothing is locked; the caller's own lock of the row then
    raises."""
    site_id = await tx.fetchval(f"SELECT site_id FROM {table} WHERE id = $1", row_id)
    if site_id is not None:
        await locked_site_of(tx, context.principal, site_id)


async def shown_user(context: Context[Panel], user_id: UUID) -> DatabaseUser:
    """The user as the API shows it. Raises not_found if the caller may not see it, or it is being deleted."""
    where = Condition("database_users.id = $1 AND database_users.status = 'active'", (user_id,))
    absent = not_found("There is no such database user.")
    return user_model(await visible_row(context.services.database, context.principal, SELECT_USERS, where, absent))
