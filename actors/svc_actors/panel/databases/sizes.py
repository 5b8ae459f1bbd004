"""Disk size of a site's databases."""

from __future__ import annotations

from uuid import UUID

from svc_actors.panel.databases.records import DATABASE_COLUMNS, as_database
from svc_actors.store import Database
from svc_webhost.databases import DatabaseError, DatabaseServers


async def bytes_of_databases(database: Database, servers: DatabaseServers, site_id: UUID) -> int | None:
    """The disk size of the site's databases in bytes; None if an engine does not report it."""
    rows = await database.fetch(
        f"SELECT {DATABASE_COLUMNS} FROM databases WHERE site_id = $1 AND status = 'active'", site_id
    )
    held = [as_database(row) for row in rows]
    total = 0
    for engine in {row.engine for row in held}:
        try:
            total += sum((await servers[engine].sizes([row.name for row in held if row.engine is engine])).values())
        except DatabaseError:
            return None
    return total
