"""Staging copies follow their live site: they are suspended, restored and deleted with it."""

from __future__ import annotations

from svc_actors.panel.sites.records import SITE_COLUMNS, SiteRow, as_site, write_status
from svc_actors.panel.sites.states import SiteStatus, SuspendedBy
from svc_actors.store import Transaction


async def copies_of(tx: Transaction, live: SiteRow) -> list[SiteRow]:
    """The site's staging copies; their rows are locked."""
    rows = await tx.fetch(
        f"SELECT {SITE_COLUMNS} FROM sites WHERE staging_of = $1 ORDER BY id FOR NO KEY UPDATE", live.id
    )
    return [as_site(row) for row in rows]


async def suspend_copies(tx: Transaction, live: SiteRow, reason: str, by: SuspendedBy) -> None:
    """Suspend the copies in the records; the next round of `resuming` updates the web server."""
    for copy in await copies_of(tx, live):
        if copy.status is SiteStatus.ACTIVE:
            await write_status(tx, copy, SiteStatus.SUSPENDED, reason, by)


async def restore_copies(tx: Transaction, live: SiteRow) -> None:
    """Restores the copies that were suspended by the same party as the site."""
    for copy in await copies_of(tx, live):
        if copy.status is SiteStatus.SUSPENDED and copy.suspended_by is live.suspended_by:
            await write_status(tx, copy, SiteStatus.ACTIVE, None)
