"""Sites as the database keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final
from uuid import UUID

from svc_actors.panel.event_kinds import PanelEvent
from svc_actors.panel.sites.states import SiteStatus, SiteType, SuspendedBy
from svc_actors.store import NewEvent, Queryable, Record, Target, Transaction
from svc_actors.store import append as append_event
from svc_common.errors import ServiceError, forbidden, not_found
from svc_webhost.accounts import SiteAccount
from svc_webhost.launcher import Limits

SITE_COLUMNS: Final = """sites.id, sites.number, sites.owner_id, sites.domain, sites.type, sites.status, sites.reason,
    sites.suspended_by, sites.proxy_target, sites.proxy_addresses, sites.force_https,
    sites.fallback_page, sites.cache_assets, sites.utf8_pages, sites.wanted, sites.served, sites.php,
    sites.cpu_percent, sites.memory_mib, sites.processes, sites.staging_of"""


STATUS_CHANNEL: Final = "site_status"
"""Announced with the id of a site whose status has changed: its programs may have to end."""


@dataclass(frozen=True)
class SiteRow:
    id: UUID
    number: int
    owner_id: UUID
    domain: str
    type: SiteType
    status: SiteStatus
    reason: str | None
    suspended_by: SuspendedBy | None
    proxy_target: str | None
    proxy_addresses: tuple[IPv4Address | IPv6Address, ...]
    force_https: bool
    fallback_page: str | None
    """The path of the page that answers for paths without a file."""
    cache_assets: bool
    """Whether browsers may keep files whose name has a hash of their content."""
    utf8_pages: bool
    """Whether files of HTML are sent as UTF-8."""
    wanted: int
    served: int
    """The value of `wanted` that the web server has applied last."""
    php: Mapping[str, Any]
    """The value of `sites.php`; empty for a site without PHP."""
    limits: Limits
    staging_of: UUID | None = None
    """The live site of a staging copy, which may have been deleted."""

    @property
    def account(self) -> SiteAccount:
        """The site's user and group on this server."""
        return SiteAccount(self.number)

    @property
    def target(self) -> Target:
        """The target of audit rows. Its owner may read them."""
        return Target("site", self.id, self.domain, self.owner_id)


def as_site(row: Record) -> SiteRow:
    """Converts a row of `SITE_COLUMNS`."""
    return SiteRow(
        id=row["id"],
        number=row["number"],
        owner_id=row["owner_id"],
        domain=row["domain"],
        type=SiteType(row["type"]),
        status=SiteStatus(row["status"]),
        reason=row["reason"],
        suspended_by=SuspendedBy(row["suspended_by"]) if row["suspended_by"] else None,
        proxy_target=row["proxy_target"],
        proxy_addresses=tuple(ip_address(str(address)) for address in row["proxy_addresses"]),
        force_https=row["force_https"],
        fallback_page=row["fallback_page"],
        cache_assets=row["cache_assets"],
        utf8_pages=row["utf8_pages"],
        wanted=row["wanted"],
        served=row["served"],
        php=row["php"],
        limits=Limits(row["cpu_percent"], row["memory_mib"], row["processes"]),
        staging_of=row["staging_of"],
    )


def suspended_by_administrator(site: SiteRow) -> ServiceError:
    """Whether an administrator has suspended the site. True also for a site that was suspended with its account,
    because only administrators suspend accounts."""
    return forbidden(
        f"{site.domain} was suspended by an administrator; nothing was changed.", hint="Ask the provider why."
    )


async def read_site(queryable: Queryable, site_id: UUID) -> SiteRow | None:
    row = await queryable.fetchrow(f"SELECT {SITE_COLUMNS} FROM sites WHERE id = $1", site_id)
    return None if row is None else as_site(row)


async def lock_site(tx: Transaction, site_id: UUID) -> SiteRow:
    """The site's row, locked until the transaction ends. Raises not_found."""
    row = await tx.fetchrow(f"SELECT {SITE_COLUMNS} FROM sites WHERE id = $1 FOR NO KEY UPDATE", site_id)
    if row is None:
        raise not_found("There is no such site.")
    return as_site(row)


async def write_status(
    tx: Transaction, site: SiteRow, status: SiteStatus, reason: str | None, suspended_by: SuspendedBy | None = None
) -> None:
    """Write the status. Raises the number `wanted` as well, because a status changes what the web server serves."""
    await tx.execute(
        "UPDATE sites SET status = $2, reason = $3, suspended_by = $4, wanted = wanted + 1 WHERE id = $1",
        site.id,
        status.value,
        reason,
        suspended_by.value if suspended_by else None,
    )
    tx.announce(STATUS_CHANNEL, str(site.id))
    await announce(tx, site, status.value, reason)


_CHANGEABLE: Final = frozenset(
    {
        *("owner_id", "force_https", "fallback_page", "cache_assets", "utf8_pages"),
        *("proxy_target", "proxy_addresses", "php"),
        *("cpu_percent", "memory_mib", "processes", "disk_mib", "shell"),
    }
)


async def change_record(tx: Transaction, site: SiteRow, values: Mapping[str, object]) -> None:
    """Set changeable columns of a site."""
    assert values.keys() <= _CHANGEABLE
    for column, value in values.items():
        await tx.execute(f"UPDATE sites SET {column} = $2 WHERE id = $1", site.id, value)


async def write_changed(tx: Transaction, site: SiteRow) -> None:
    """Record a change that the web server must apply: raise the desired generation `wanted`."""
    await tx.execute("UPDATE sites SET wanted = wanted + 1 WHERE id = $1", site.id)
    await announce(tx, site, site.status.value, site.reason)


async def write_served(database: Queryable, site: SiteRow) -> None:
    """Record that the web server serves `site.wanted`: the generation when `site` was read, which a later change may
    have raised since."""
    await database.execute("UPDATE sites SET served = $2 WHERE id = $1 AND served < $2", site.id, site.wanted)


async def write_up_to_date(tx: Transaction, site_id: UUID) -> None:
    """Record that the web server serves the desired generation as of this transaction."""
    await tx.execute("UPDATE sites SET served = wanted WHERE id = $1", site_id)


async def remove_record(tx: Transaction, site: SiteRow) -> None:
    """Remove the record with its names and redirects."""
    await tx.execute("DELETE FROM sites WHERE id = $1", site.id)
    await announce(tx, site, "deleted", None)


async def announce(tx: Transaction, site: SiteRow, status: str, reason: str | None) -> None:
    await append_event(
        tx,
        NewEvent(
            kind=PanelEvent.SITE,
            subject=str(site.id),
            project_id=site.owner_id,
            payload={"id": str(site.id), "domain": site.domain, "status": status, "reason": reason},
        ),
    )


async def mark_all_unserved(tx: Transaction) -> None:
    """Have all sites served anew, on a server that was lost and is being recovered: no site is served yet, and
    deletions that were under way have stopped half-way."""
    await tx.execute("UPDATE sites SET wanted = wanted + 1")
    await tx.execute(
        "UPDATE sites SET status = 'failed', reason = 'The server was lost while it was being deleted.' "
        "WHERE status = 'deleting'"
    )
