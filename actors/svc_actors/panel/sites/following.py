"""Sites follow their account: they are suspended and restored with it, and limited by its plan. Staging copies follow
their live site: they are suspended, restored and deleted with it.

Invariant: suspending or restoring an account, and creating a site for it, lock the owner's row. So no site is added to
an account while it is suspended, and a site that is being created at that time is suspended as soon as it is finished
(`Site.build`).
"""

from __future__ import annotations

from uuid import UUID

from svc_actors.panel.accounts.allowances import Allowances
from svc_actors.panel.sites.records import SITE_COLUMNS, SiteRow, announce, as_site, write_status
from svc_actors.panel.sites.states import SiteStatus, SuspendedBy
from svc_actors.panel.webhooks import Subject, WebhookEvent, emit
from svc_actors.store import Transaction


async def suspend_sites(tx: Transaction, owner_id: UUID, reason: str) -> list[UUID]:
    """Suspend every active site of the account; returns those that changed. A site that was already suspended for
    another reason stays suspended when the account is restored. A site that an earlier suspension of the account has
    suspended gets this reason."""
    changed = []
    for site in await _locked(tx, owner_id):
        if site.status is SiteStatus.ACTIVE:
            await suspend_with_account(tx, site, reason)
        elif site.status is SiteStatus.SUSPENDED and site.suspended_by is SuspendedBy.ACCOUNT:
            await write_status(tx, site, SiteStatus.SUSPENDED, reason, SuspendedBy.ACCOUNT)
        else:
            continue
        changed.append(site.id)
    return changed


async def suspend_with_account(tx: Transaction, site: SiteRow, reason: str) -> None:
    """Suspend an active site because its account is suspended. The caller has locked its row."""
    await write_status(tx, site, SiteStatus.SUSPENDED, reason, SuspendedBy.ACCOUNT)
    await _tell(tx, WebhookEvent.SITE_SUSPENDED, site)


async def restore_sites(tx: Transaction, owner_id: UUID) -> list[UUID]:
    """Restore the sites that were suspended with the account; returns their ids."""
    changed = []
    for site in await _locked(tx, owner_id):
        if site.status is SiteStatus.SUSPENDED and site.suspended_by is SuspendedBy.ACCOUNT:
            await write_status(tx, site, SiteStatus.ACTIVE, None)
            await _tell(tx, WebhookEvent.SITE_UNSUSPENDED, site)
            changed.append(site.id)
    return changed


async def limit_sites(tx: Transaction, owner_id: UUID, before: Allowances, after: Allowances) -> list[UUID]:
    """Replace the limits that sites have from the previous plan by those of the new one. A limit that was set for a
    single site stays. Returns the ids of the changed sites."""
    changed = []
    for site in await _locked(tx, owner_id):
        row = await tx.fetchone("SELECT cpu_percent, memory_mib, processes FROM sites WHERE id = $1", site.id)
        limits = {name: getattr(after, name) if held == getattr(before, name) else held for name, held in row.items()}
        if limits == dict(row):
            continue
        await tx.execute(
            """UPDATE sites SET cpu_percent = $2, memory_mib = $3, processes = $4, wanted = wanted + 1
               WHERE id = $1""",
            site.id,
            limits["cpu_percent"],
            limits["memory_mib"],
            limits["processes"],
        )
        await announce(tx, site, site.status.value, site.reason)
        changed.append(site.id)
    return changed


async def _locked(tx: Transaction, owner_id: UUID) -> list[SiteRow]:
    rows = await tx.fetch(
        f"SELECT {SITE_COLUMNS} FROM sites WHERE owner_id = $1 ORDER BY id FOR NO KEY UPDATE", owner_id
    )
    return [as_site(row) for row in rows]


async def _tell(tx: Transaction, event: WebhookEvent, site: SiteRow) -> None:
    data = {"type": site.type.value, "by": SuspendedBy.ACCOUNT.value}
    await emit(tx, event, subject=Subject("site", str(site.id), site.domain), data=data)


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
