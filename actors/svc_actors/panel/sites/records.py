"""Sites as the database keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from svc_actors.errors import not_found
from svc_actors.panel.sites.states import SiteStatus, SiteType, SuspendedBy
from svc_actors.store import Queryable, Record, Target, Transaction

SITE_COLUMNS: Final = """sites.id, sites.number, sites.owner_id, sites.domain, sites.type, sites.status, sites.reason,
    sites.suspended_by, sites.proxy_target, sites.force_https"""


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
    force_https: bool

    @property
    def account(self) -> str:
        """The site's user and group on this server."""
        return f"s{self.number}"

    @property
    def target(self) -> Target:
        """What the audit calls it. Its owner may read the row."""
        return Target("site", self.id, self.domain, self.owner_id)


def as_site(row: Record) -> SiteRow:
    """What `SITE_COLUMNS` give."""
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
        force_https=row["force_https"],
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
