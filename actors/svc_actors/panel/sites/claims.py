"""Claims names for sites: a name leads to one site, and all names of a registrable domain belong to one customer.

Otherwise, if `example.org` belongs to one customer, another could take `login.example.org`, get a certificate for it,
and set cookies that browsers send to the first customer's sites; and both would share a zone.

Invariant: code that claims or moves names below a registrable domain holds the lock of the domain, so that concurrent
claims see each other.

Why: docs/decisions/0044-site-records-and-names.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from svc_actors.panel.accounts import members
from svc_actors.panel.sites.names import SiteName
from svc_actors.panel.sites.previews import require_no_preview, require_no_site
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Transaction
from svc_common.errors import ErrorCode, ServiceError, conflict, not_found

MOST_NAMES: Final = 100
"""The most names of a site."""


async def claim(
    tx: Transaction, site_id: UUID, owner_id: UUID, names: Sequence[SiteName], *, redirect_to_primary: bool = False
) -> list[UUID]:
    """Add names to a site; returns their ids. Raises `conflict`; then nothing was claimed."""
    await _lock(tx, (name.registrable for name in names))
    await _require_free(tx, [name.name for name in names])
    await require_no_preview(tx, owner_id, names)
    await _require_own(tx, owner_id, names)
    held = await tx.fetchval("SELECT count(*) FROM site_domains WHERE site_id = $1", site_id)
    if held + len(names) > MOST_NAMES:
        raise conflict(f"A site has at most {MOST_NAMES} names; this one has {held}.")
    ids: list[UUID] = [
        await tx.fetchval(
            """INSERT INTO site_domains (site_id, name, registrable, redirect_to_primary)
               VALUES ($1, $2, $3, $4) RETURNING id""",
            site_id,
            name.name,
            name.registrable,
            redirect_to_primary,
        )
        for name in names
    ]
    return ids


async def claim_if_free(tx: Transaction, site_id: UUID, owner_id: UUID, name: SiteName) -> None:
    """Add a name to a site, unless `claim` refuses it."""
    try:
        await claim(tx, site_id, owner_id, [name])
    except ServiceError as error:
        if error.code is not ErrorCode.CONFLICT:
            raise


async def require_free_for_previews(tx: Transaction, domain: SiteName) -> None:
    """Raises `conflict` if names of sites keep `domain` from being the preview domain. Nobody claims such a name until
    the transaction ends."""
    await _lock(tx, [domain.registrable])
    await require_no_site(tx, domain)


async def hand_over(tx: Transaction, site: SiteRow, owner_id: UUID) -> None:
    """Give the names of a site to another person, and their zones with all records; the site's members are removed.
    Raises `conflict` if another name of the same domain does not belong to that person."""
    rows = await tx.fetch("SELECT name, registrable FROM site_domains WHERE site_id = $1", site.id)
    names = [SiteName(row["name"], row["registrable"]) for row in rows]
    await _lock(tx, (name.registrable for name in names))
    await require_no_preview(tx, owner_id, names)
    await _require_own(tx, owner_id, names, but=site.id)
    # These zones contain only names of this site's former owner: a zone is removed once its owner has no site in it. So
    # they move to the new owner with the site.
    await tx.execute(
        "UPDATE dns_zones SET owner_id = $1 WHERE owner_id = $2 AND name = ANY($3)",
        owner_id,
        site.owner_id,
        sorted({name.registrable for name in names}),
    )
    await members.end_of_site(tx, site.id)


async def set_domain(
    tx: Transaction, site: SiteRow, domain_id: UUID, *, primary: bool, redirect_to_primary: bool | None
) -> str:
    """Change what a name of the site is used for; returns the name. The primary name is never redirected."""
    name = await _name_of(tx, site, domain_id)
    if primary:
        await tx.execute("UPDATE sites SET domain = $2 WHERE id = $1", site.id, name)
        await tx.execute("UPDATE site_domains SET redirect_to_primary = false WHERE id = $1", domain_id)
    elif redirect_to_primary is not None:
        if redirect_to_primary and name == site.domain:
            raise conflict(f"{name} is the primary name, which redirected names point to.")
        await tx.execute(
            "UPDATE site_domains SET redirect_to_primary = $2 WHERE id = $1", domain_id, redirect_to_primary
        )
    return name


async def set_redirected(tx: Transaction, site: SiteRow, name: str, to_primary: bool) -> None:
    """Set whether a name other than the primary is redirected."""
    await tx.execute(
        "UPDATE site_domains SET redirect_to_primary = $3 WHERE site_id = $1 AND name = $2", site.id, name, to_primary
    )


async def release(tx: Transaction, site: SiteRow, domain_id: UUID) -> str:
    """Remove a name from the site; returns the name. Raises `conflict` for its primary name."""
    name = await _name_of(tx, site, domain_id)
    if name == site.domain:
        raise conflict(
            f"{name} is the primary of its site; nothing was changed.", hint="Make another name the primary first."
        )
    await tx.execute("DELETE FROM site_domains WHERE id = $1", domain_id)
    return name


async def _name_of(tx: Transaction, site: SiteRow, domain_id: UUID) -> str:
    name: str | None = await tx.fetchval(
        "SELECT name FROM site_domains WHERE id = $1 AND site_id = $2 FOR NO KEY UPDATE", domain_id, site.id
    )
    if name is None:
        raise not_found("There is no such domain.")
    return name


async def _lock(tx: Transaction, registrables: Iterable[str]) -> None:
    """Lock the domains in sorted order, which avoids deadlocks."""
    for registrable in sorted(set(registrables)):
        await tx.execute("SELECT pg_advisory_xact_lock(hashtextextended('site name ' || $1, 0))", registrable)


async def _require_free(tx: Transaction, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise conflict("A name is given twice; nothing was changed.")
    taken = await tx.fetchval("SELECT name FROM site_domains WHERE name = ANY($1) ORDER BY name LIMIT 1", list(names))
    if taken is not None:
        raise conflict(f"{taken} is already a name of a site on this server; nothing was changed.")


async def _require_own(tx: Transaction, owner_id: UUID, names: Sequence[SiteName], *, but: UUID | None = None) -> None:
    """Raises `conflict` if another person has a name of the same registrable domain."""
    found = await tx.fetchval(
        """
        SELECT held.registrable FROM site_domains AS held JOIN sites ON sites.id = held.site_id
        WHERE held.registrable = ANY($2) AND sites.owner_id <> $1 AND sites.id IS DISTINCT FROM $3
        ORDER BY held.registrable LIMIT 1
        """,
        owner_id,
        sorted({name.registrable for name in names}),
        but,
    )
    if found is not None:
        raise conflict(
            f"Another customer has a name of {found}; nothing was changed.",
            hint="All names of one domain belong to one customer.",
        )
