"""Creates a site's record, before its actor exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from uuid import UUID

from svc_actors.panel.accounts.allowances import lock_owner, require_site_room
from svc_actors.panel.backups.schedules import write_default_schedule
from svc_actors.panel.sites.claims import claim, claim_if_free
from svc_actors.panel.sites.names import SiteName
from svc_actors.panel.sites.php import SitePhp
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
from svc_common.errors import conflict
from svc_webhost.launcher import Limits


@dataclass(frozen=True)
class NewSite:
    owner_id: UUID
    domain: SiteName
    aliases: Sequence[SiteName]
    type: SiteType
    proxy_target: str | None = None
    proxy_addresses: Sequence[IPv4Address | IPv6Address] = ()
    php: SitePhp | None = None
    limits: Limits = field(default_factory=Limits)
    staging_of: UUID | None = None
    www: SiteName | None = None
    """Another alias, unless a site has this name already."""


async def create_site(tx: Transaction, caller: Caller, new: NewSite) -> SiteRow:
    """Create the record of a new site, which the Site actor then builds (`build`). Repeating the same call after a
    failure continues the failed site. Its first limits and its backup schedule are those of its owner's plan. Raises
    `conflict` if the plan allows no further site, and `forbidden` while the owner's account is suspended."""
    owner = await lock_owner(tx, new.owner_id)
    failed = await _failed(tx, new)
    if failed is not None:
        await write_status(tx, failed, move(failed.status, SiteOrder.CREATE), None)
        await audit.record(tx, caller, failed.target, {"again": True})
        return failed
    await require_site_room(tx, owner)
    row = await tx.fetchone(
        f"""INSERT INTO sites (owner_id, domain, type, proxy_target, proxy_addresses, php,
                               cpu_percent, memory_mib, processes, staging_of)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
            RETURNING {SITE_COLUMNS}""",
        new.owner_id,
        new.domain.name,
        new.type.value,
        new.proxy_target,
        list(new.proxy_addresses),
        {} if new.php is None else new.php.record,
        owner.allowed.cpu_percent if new.limits.cpu_percent is None else new.limits.cpu_percent,
        owner.allowed.memory_mib if new.limits.memory_mib is None else new.limits.memory_mib,
        owner.allowed.processes if new.limits.processes is None else new.limits.processes,
        new.staging_of,
    )
    site = as_site(row)
    await claim(tx, site.id, new.owner_id, [new.domain, *new.aliases])
    if new.www is not None:
        await claim_if_free(tx, site.id, new.owner_id, new.www)
    if new.staging_of is None:
        await write_default_schedule(tx, site.id, new.owner_id)
    await audit.record(tx, caller, site.target, {"type": new.type.value})
    await announce(tx, site, site.status.value, None)
    return site


async def _failed(tx: Transaction, new: NewSite) -> SiteRow | None:
    """The failed site that an earlier, identical call has left. Only an identical call may continue it."""
    row = await tx.fetchrow(
        f"""SELECT {SITE_COLUMNS}, ARRAY(SELECT name FROM site_domains WHERE site_id = sites.id) AS names
            FROM sites WHERE domain = $1 AND owner_id = $2 AND status = 'failed' FOR NO KEY UPDATE""",
        new.domain.name,
        new.owner_id,
    )
    if row is None:
        return None
    site = as_site(row)
    if site.suspended_by not in (None, SuspendedBy.OWNER):
        raise suspended_by_administrator(site)
    if site.staging_of != new.staging_of:
        raise conflict(
            f"{site.domain} was a staging copy that has failed; nothing was changed.", hint="Delete it first."
        )
    wanted = {new.domain.name, *(alias.name for alias in new.aliases)}
    unless_taken = set() if new.www is None else {new.www.name}
    if (site.type, site.proxy_target, set(row["names"]) - unless_taken) != (new.type, new.proxy_target, wanted):
        raise conflict(
            f"The site {site.domain} has failed and was ordered with other values; nothing was changed.",
            hint="Repeat the original order, or delete the site first.",
        )
    return site
