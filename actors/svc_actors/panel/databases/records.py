"""Databases and their users as the panel's own database keeps them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from svc_actors.panel.databases.states import MOVES, DatabaseMove, DatabaseStatus, statuses_with
from svc_actors.store import Queryable, Record, Target, Transaction
from svc_common.errors import not_found
from svc_webhost.databases import Access, DatabaseName, EngineKind, UserName

DATABASE_COLUMNS: Final = """databases.id, databases.site_id, databases.engine, databases.name, databases.status,
    (SELECT owner_id FROM sites WHERE sites.id = databases.site_id) AS owner_id"""
USER_COLUMNS: Final = """database_users.id, database_users.site_id, database_users.engine, database_users.name,
    database_users.verifier, database_users.status, database_users.wanted, database_users.applied,
    (SELECT owner_id FROM sites WHERE sites.id = database_users.site_id) AS owner_id"""


@dataclass(frozen=True)
class DatabaseRow:
    id: UUID
    site_id: UUID
    owner_id: UUID
    engine: EngineKind
    name: DatabaseName
    status: DatabaseStatus

    @property
    def target(self) -> Target:
        return Target("database", self.id, self.name, self.owner_id)


@dataclass(frozen=True)
class DatabaseUserRow:
    id: UUID
    site_id: UUID
    owner_id: UUID
    engine: EngineKind
    name: UserName
    verifier: str
    deleting: bool
    wanted: int
    applied: int

    @property
    def target(self) -> Target:
        return Target("database_user", self.id, self.name, self.owner_id)


def as_database(row: Record) -> DatabaseRow:
    """Converts a row of `DATABASE_COLUMNS`."""
    return DatabaseRow(
        row["id"],
        row["site_id"],
        row["owner_id"],
        EngineKind(row["engine"]),
        DatabaseName(row["name"]),
        DatabaseStatus(row["status"]),
    )


def as_user(row: Record) -> DatabaseUserRow:
    """Converts a row of `USER_COLUMNS`."""
    return DatabaseUserRow(
        id=row["id"],
        site_id=row["site_id"],
        owner_id=row["owner_id"],
        engine=EngineKind(row["engine"]),
        name=UserName(row["name"]),
        verifier=row["verifier"],
        deleting=row["status"] == "deleting",
        wanted=row["wanted"],
        applied=row["applied"],
    )


async def read_database(queryable: Queryable, database_id: UUID) -> DatabaseRow:
    """Raises not_found, also for a database that is being deleted."""
    row = await queryable.fetchrow(
        f"SELECT {DATABASE_COLUMNS} FROM databases WHERE id = $1 AND status <> 'deleting'", database_id
    )
    if row is None:
        raise not_found("There is no such database.")
    return as_database(row)


async def lock_database(tx: Transaction, database_id: UUID) -> DatabaseRow:
    """As `read_database`, with the row locked until the transaction ends."""
    row = await tx.fetchrow(
        f"SELECT {DATABASE_COLUMNS} FROM databases WHERE id = $1 AND status <> 'deleting' FOR NO KEY UPDATE",
        database_id,
    )
    if row is None:
        raise not_found("There is no such database.")
    return as_database(row)


async def lock_user(tx: Transaction, user_id: UUID) -> DatabaseUserRow:
    """Lock the row until the transaction ends. Raises not_found, also for a user that is being deleted."""
    row = await tx.fetchrow(
        f"SELECT {USER_COLUMNS} FROM database_users WHERE id = $1 AND status <> 'deleting' FOR NO KEY UPDATE", user_id
    )
    if row is None:
        raise not_found("There is no such database user.")
    return as_user(row)


async def under_way(queryable: Queryable, site_id: UUID) -> tuple[list[DatabaseRow], list[DatabaseUserRow]]:
    """A site's databases and users that the engine does not have as recorded yet."""
    databases = await queryable.fetch(
        f"SELECT {DATABASE_COLUMNS} FROM databases WHERE site_id = $1 AND status <> 'active' ORDER BY name", site_id
    )
    users = await queryable.fetch(
        f"""SELECT {USER_COLUMNS} FROM database_users
            WHERE site_id = $1 AND (status <> 'active' OR applied < wanted) ORDER BY name""",
        site_id,
    )
    return [as_database(row) for row in databases], [as_user(row) for row in users]


async def grants_of(queryable: Queryable, user: DatabaseUserRow) -> dict[DatabaseName, Access]:
    """Access to databases that exist and are not being deleted."""
    rows = await queryable.fetch(
        """SELECT databases.name, database_grants.access FROM database_grants
           JOIN databases ON databases.id = database_grants.database_id
           WHERE user_id = $1 AND databases.status = 'active'""",
        user.id,
    )
    return {DatabaseName(row["name"]): Access(row["access"]) for row in rows}


async def count_users(queryable: Queryable, user: DatabaseUserRow) -> tuple[int, int]:
    """How many users the user's site, and its customer, have in the engine, the user included."""
    row = await queryable.fetchrow(
        """SELECT count(*) FILTER (WHERE site_id = $1) AS of_site, count(*) AS of_customer
           FROM database_users JOIN sites ON sites.id = site_id
           WHERE engine = $2 AND database_users.status = 'active'
           AND owner_id = (SELECT owner_id FROM sites WHERE id = $1)""",
        user.site_id,
        user.engine.value,
    )
    assert row is not None
    return max(1, row["of_site"]), max(1, row["of_customer"])


async def users_of_customer(queryable: Queryable, owner_id: UUID, engine: EngineKind) -> int:
    """Includes users that are being removed: they may still be connected."""
    found: int = await queryable.fetchval(
        """SELECT count(*) FROM database_users JOIN sites ON sites.id = site_id
           WHERE engine = $2 AND owner_id = $1""",
        owner_id,
        engine.value,
    )
    return found


async def write_move(queryable: Queryable, databases: Collection[UUID], by: DatabaseMove) -> None:
    """Make this move for the databases whose status allows it, and clear their problems."""
    for status in statuses_with(by):
        await queryable.execute(
            "UPDATE databases SET status = $3, problem = NULL WHERE id = ANY($1::uuid[]) AND status = $2",
            list(databases),
            status.value,
            MOVES[status][by].value,
        )


async def write_users_wanted(tx: Transaction, database_id: UUID) -> None:
    """Have the engine apply the current access of every user of the database again."""
    await tx.execute(
        """UPDATE database_users SET wanted = wanted + 1
           WHERE id IN (SELECT user_id FROM database_grants WHERE database_id = $1)""",
        database_id,
    )


async def write_user_wanted(tx: Transaction, user_id: UUID, verifier: str | None = None) -> None:
    await tx.execute(
        "UPDATE database_users SET wanted = wanted + 1, verifier = coalesce($2, verifier) WHERE id = $1",
        user_id,
        verifier,
    )


async def write_others_wanted(tx: Transaction, user: DatabaseUserRow) -> None:
    """Record that the engine has to apply new connection limits to the site's other users."""
    await tx.execute(
        """UPDATE database_users SET wanted = wanted + 1
           WHERE site_id = $1 AND engine = $2 AND id <> $3 AND status = 'active'""",
        user.site_id,
        user.engine.value,
        user.id,
    )


async def write_customer_wanted(tx: Transaction, owner_id: UUID, engine: EngineKind) -> None:
    """Record that the engine has to apply new connection limits to all of the customer's users."""
    await tx.execute(
        """UPDATE database_users SET wanted = wanted + 1
           WHERE engine = $2 AND status = 'active' AND site_id IN (SELECT id FROM sites WHERE owner_id = $1)""",
        owner_id,
        engine.value,
    )


async def write_user_applied(queryable: Queryable, user: DatabaseUserRow) -> None:
    await queryable.execute(
        "UPDATE database_users SET applied = $2, problem = NULL WHERE id = $1 AND applied < $2", user.id, user.wanted
    )


async def write_problem(queryable: Queryable, subject: DatabaseRow | DatabaseUserRow, problem: str) -> None:
    if isinstance(subject, DatabaseRow):
        await queryable.execute("UPDATE databases SET problem = $2 WHERE id = $1", subject.id, problem)
    else:
        await queryable.execute("UPDATE database_users SET problem = $2 WHERE id = $1", subject.id, problem)


async def remove_record(queryable: Queryable, subject: DatabaseRow | DatabaseUserRow) -> None:
    """Remove the record of a database or user, with its grants and the records of its exports."""
    if isinstance(subject, DatabaseRow):
        await queryable.execute("DELETE FROM databases WHERE id = $1 AND status = 'deleting'", subject.id)
    else:
        await queryable.execute("DELETE FROM database_users WHERE id = $1 AND status = 'deleting'", subject.id)


async def mark_all_for_rebuild(tx: Transaction) -> None:
    """Have everything created again: for engines that have lost everything, on a server that is being recovered."""
    await tx.execute("UPDATE databases SET status = 'creating', problem = NULL WHERE status = 'active'")
    await tx.execute("UPDATE database_users SET wanted = wanted + 1, problem = NULL")
