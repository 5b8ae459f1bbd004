"""Decisions about databases and their users: each in one transaction with its audit row. The engines follow afterwards
(`SiteDatabases.agree`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from svc_actors.panel.accounts.allowances import lock_owner, require_database_room
from svc_actors.panel.databases.records import (
    DATABASE_COLUMNS,
    USER_COLUMNS,
    DatabaseRow,
    DatabaseUserRow,
    as_database,
    as_user,
    users_of_customer,
    write_customer_wanted,
    write_move,
    write_others_wanted,
    write_user_wanted,
    write_users_wanted,
)
from svc_actors.panel.databases.states import DatabaseMove
from svc_actors.panel.sites.records import SiteRow, lock_site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.store import Caller, Transaction, audit
from svc_common.errors import conflict
from svc_webhost.databases import CONNECTIONS, Access, EngineKind, database_name, user_name

MOST_OF_A_SITE: Final = 50
"""The most databases of a site."""
MOST_USERS: Final = 20
"""The most users of a site on each engine. With so few, each of them can have at least one of the site's connections to
the engine."""
_BUSY: Final = ("database.export", "database.import")


async def create_database(
    tx: Transaction, caller: Caller, site_id: UUID, engine: EngineKind, label: str
) -> DatabaseRow:
    """Record a new database; its engine creates it afterwards. Raises conflict if the site has the name already, or may
    not have another database."""
    site = await _site(tx, site_id)
    await require_database_room(tx, await lock_owner(tx, site.owner_id))
    await _require_room(tx, site)
    row = await tx.fetchrow(
        f"""INSERT INTO databases (site_id, engine, name) VALUES ($1, $2, $3) ON CONFLICT (engine, name) DO NOTHING
            RETURNING {DATABASE_COLUMNS}""",
        site.id,
        engine.value,
        database_name(site.number, label),
    )
    if row is None:
        raise conflict(f"The site has a database {label} of this engine; nothing was created.")
    database = as_database(row)
    await audit.record(tx, caller, database.target, {"site": site.domain, "engine": engine.value})
    return database


async def create_user(
    tx: Transaction, caller: Caller, database: DatabaseRow, label: str, access: Access, verifier: str
) -> DatabaseUserRow:
    """Create a user, with access to this database only at first. Raises conflict if the site has the name already."""
    site = await _site(tx, database.site_id)
    held = await tx.fetchval(
        "SELECT count(*) FROM database_users WHERE site_id = $1 AND engine = $2", site.id, database.engine.value
    )
    if held >= MOST_USERS:
        raise conflict(f"A site has at most {MOST_USERS} users of databases of one engine; nothing was created.")
    await lock_owner(tx, site.owner_id)
    most = CONNECTIONS[database.engine].customer
    of_customer = await users_of_customer(tx, site.owner_id, database.engine)
    if of_customer >= most:
        raise conflict(
            f"The sites of a customer have at most {most} users of databases of one engine; nothing was created.",
            hint="Delete users that nothing uses, or have several databases of a site used by one user.",
        )
    row = await tx.fetchrow(
        f"""INSERT INTO database_users (site_id, engine, name, verifier) VALUES ($1, $2, $3, $4)
            ON CONFLICT (engine, name) DO NOTHING RETURNING {USER_COLUMNS}""",
        site.id,
        database.engine.value,
        user_name(site.number, label),
        verifier,
    )
    if row is None:
        raise conflict(f"The site has a database user {label} of this engine; nothing was created.")
    user = as_user(row)
    await write_others_wanted(tx, user)
    if CONNECTIONS[user.engine].is_shared(of_customer + 1):
        await write_customer_wanted(tx, site.owner_id, user.engine)
    await _write_grant(tx, user, database, access)
    await audit.record(tx, caller, user.target, {"database": database.name, "access": access.value})
    return user


async def set_password(tx: Transaction, caller: Caller, user: DatabaseUserRow, verifier: str) -> None:
    await write_user_wanted(tx, user.id, verifier)
    await audit.record(tx, caller, user.target)


async def set_access(
    tx: Transaction, caller: Caller, user: DatabaseUserRow, database: DatabaseRow, access: Access | None
) -> None:
    """Set what the user may do with the database; None revokes all access. Raises conflict if they are not of the same
    site and engine."""
    if (user.site_id, user.engine) != (database.site_id, database.engine):
        raise conflict(f"The user {user.name} and the database {database.name} are not of the same site and engine.")
    if access is None:
        await tx.execute("DELETE FROM database_grants WHERE user_id = $1 AND database_id = $2", user.id, database.id)
    else:
        await _write_grant(tx, user, database, access)
    await write_user_wanted(tx, user.id)
    details = {"database": database.name, "access": access.value if access else "none"}
    await audit.record(tx, caller, user.target, details)


async def delete_user(tx: Transaction, caller: Caller, user: DatabaseUserRow) -> None:
    await tx.execute("UPDATE database_users SET status = 'deleting' WHERE id = $1", user.id)
    await write_others_wanted(tx, user)
    await _share_again(tx, user.site_id, [user.engine])
    await audit.record(tx, caller, user.target)


async def delete_database(tx: Transaction, caller: Caller, database: DatabaseRow) -> None:
    """Record that the database is to be deleted; its engine follows. Raises conflict while it is exported or
    imported."""
    job = await tx.fetchval(
        """SELECT id FROM jobs WHERE site_id = $1 AND status = 'running' AND kind = ANY($2::text[])
           AND parameters ->> 'database' = $3""",
        database.site_id,
        list(_BUSY),
        str(database.id),
    )
    if job is not None:
        raise conflict(f"The job {job} works on this database; nothing was deleted.", hint="Wait for it, or cancel it.")
    await write_users_wanted(tx, database.id)
    await tx.execute("DELETE FROM database_grants WHERE database_id = $1", database.id)
    await write_move(tx, [database.id], DatabaseMove.DELETE)
    await audit.record(tx, caller, database.target)


async def delete_all_of_site(tx: Transaction, site: SiteRow) -> None:
    """Delete all databases of a site. No audit rows: the site's deletion has its own."""
    rows = await tx.fetch("SELECT id FROM databases WHERE site_id = $1 FOR NO KEY UPDATE", site.id)
    await write_move(tx, [row["id"] for row in rows], DatabaseMove.DELETE)
    await tx.execute("UPDATE database_users SET status = 'deleting' WHERE site_id = $1", site.id)
    await _share_again(tx, site.id, EngineKind)


async def _site(tx: Transaction, site_id: UUID) -> SiteRow:
    site = await lock_site(tx, site_id)
    if site.status in (SiteStatus.DELETING, SiteStatus.FAILED):
        raise conflict(f"The site {site.domain} is {site.status.value}; nothing was created.")
    return site


async def _require_room(tx: Transaction, site: SiteRow) -> None:
    """Call this under the lock of the site's row, so that concurrent calls count each other."""
    held = await tx.fetchval("SELECT count(*) FROM databases WHERE site_id = $1", site.id)
    if held >= MOST_OF_A_SITE:
        raise conflict(f"A site has at most {MOST_OF_A_SITE} databases; nothing was created.")


async def _share_again(tx: Transaction, site_id: UUID, engines: Iterable[EngineKind]) -> None:
    """Share the connections of users that are removed among the customer's remaining users."""
    owner_id = await tx.fetchval("SELECT owner_id FROM sites WHERE id = $1", site_id)
    for engine in engines:
        if CONNECTIONS[engine].is_shared(await users_of_customer(tx, owner_id, engine)):
            await write_customer_wanted(tx, owner_id, engine)


async def _write_grant(tx: Transaction, user: DatabaseUserRow, database: DatabaseRow, access: Access) -> None:
    await tx.execute(
        """INSERT INTO database_grants (user_id, database_id, access) VALUES ($1, $2, $3)
           ON CONFLICT (user_id, database_id) DO UPDATE SET access = excluded.access""",
        user.id,
        database.id,
        access.value,
    )
