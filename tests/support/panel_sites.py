"""Sites straight into the database, for tests of what belongs to a site."""

from __future__ import annotations

from uuid import UUID

from svc_actors.store import Database


async def site_row(
    database: Database,
    owner_id: UUID,
    domain: str,
    *,
    type: str = "static",
    status: str = "active",
    registrable: str | None = None,
) -> UUID:
    """A site that nothing was made for on any server."""
    async with database.transaction() as tx:
        site_id: UUID = await tx.fetchval(
            """INSERT INTO sites (owner_id, domain, type, status, proxy_target)
               VALUES ($1, $2, $3, $4, CASE WHEN $3 = 'proxy' THEN 'http://192.0.2.9' END) RETURNING id""",
            owner_id,
            domain,
            type,
            status,
        )
        await tx.execute(
            "INSERT INTO site_domains (site_id, name, registrable) VALUES ($1, $2, $3)",
            site_id,
            domain,
            registrable or domain,
        )
    return site_id
