"""A site's record is made here, before there is an actor that it is a matter of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from uuid import UUID

from svc_actors.errors import conflict
from svc_actors.panel.sites.claims import claim
from svc_actors.panel.sites.names import SiteName
from svc_actors.panel.sites.records import (
    SITE_COLUMNS,
    SiteRow,
    announce,
    as_site,
    suspended_by_administrator,
    write_status,
)
from svc_actors.panel.sites.states import SiteOrder, SiteType, SuspendedBy, move
from svc_actors.store import Caller, Transaction, audit

MOST_SITES: Final = 100
"""Of one customer. Each has an account of the server and a part of the web server's configuration, of which a server
holds some thousand: no single customer takes them all."""


@dataclass(frozen=True)
class NewSite:
    owner_id: UUID
    domain: SiteName
    aliases: Sequence[SiteName]
    type: SiteType
    proxy_target: str | None = None
    proxy_addresses: Sequence[IPv4Address | IPv6Address] = ()


async def create_site(tx: Transaction, caller: Caller, new: NewSite) -> SiteRow:
    """The record of a site that the Site actor is to `build`. The same call again after it has failed takes up what is
    there. Raises `conflict`."""
    failed = await _failed(tx, new)
    if failed is not None:
        await write_status(tx, failed, move(failed.status, SiteOrder.CREATE), None)
        await audit.record(tx, caller, failed.target, {"again": True})
        return failed
    await _require_room(tx, new.owner_id)
    row = await tx.fetchone(
        f"""INSERT INTO sites (owner_id, domain, type, proxy_target, proxy_addresses) VALUES ($1, $2, $3, $4, $5)
            RETURNING {SITE_COLUMNS}""",
        new.owner_id,
        new.domain.name,
        new.type.value,
        new.proxy_target,
        list(new.proxy_addresses),
    )
    site = as_site(row)
    await claim(tx, site.id, new.owner_id, [new.domain, *new.aliases])
    await audit.record(tx, caller, site.target, {"type": new.type.value})
    await announce(tx, site, site.status.value, None)
    return site


async def _require_room(tx: Transaction, owner_id: UUID) -> None:
    """The owner's row is locked, so that of two that are created at once each sees the other."""
    role = await tx.fetchval("SELECT role FROM users WHERE id = $1 FOR NO KEY UPDATE", owner_id)
    held = await tx.fetchval("SELECT count(*) FROM sites WHERE owner_id = $1", owner_id)
    if role != "administrator" and held >= MOST_SITES:
        raise conflict(
            f"A customer has at most {MOST_SITES} sites; nothing was created.",
            hint="Delete a site that is not needed any more, or ask the provider to hand over a further one.",
        )


async def _failed(tx: Transaction, new: NewSite) -> SiteRow | None:
    """The site that this call has left behind as failed. It may only be taken up by the call that it is of."""
    row = await tx.fetchrow(
        f"""SELECT {SITE_COLUMNS}, ARRAY(SELECT name FROM site_domains WHERE site_id = sites.id) AS names
            FROM sites WHERE domain = $1 AND owner_id = $2 AND status = 'failed' FOR NO KEY UPDATE""",
        new.domain.name,
        new.owner_id,
    )
    if row is None:
        return None
    site = as_site(row)
    if site.suspended_by is SuspendedBy.ADMINISTRATOR:
        raise suspended_by_administrator(site)
    wanted = {new.domain.name, *(alias.name for alias in new.aliases)}
    if (site.type, site.proxy_target, set(row["names"])) != (new.type, new.proxy_target, wanted):
        raise conflict(
            f"The site {site.domain} has failed, and was ordered otherwise; nothing was changed.",
            hint="Order it as it was ordered first, or delete it before.",
        )
    return site
