"""Backup repositories of sites as the database keeps them: one per site, which outlives it for a while."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from svc_actors.panel.sites.records import SiteRow
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable, Target, Transaction
from svc_common.errors import not_found

KEY_PURPOSE: Final = "backup repository"
_REPOSITORY: Final = """SELECT backup_repositories.id, backup_repositories.site_id,
    coalesce(sites.owner_id, backup_repositories.owner_id) AS owner_id,
    coalesce(sites.domain, backup_repositories.domain) AS domain, backup_repositories.sealed_key,
    backup_repositories.known_until
    FROM backup_repositories LEFT JOIN sites ON sites.id = backup_repositories.site_id"""


@dataclass(frozen=True)
class RepositoryRow:
    """`site_id` is None if the site was deleted. `known_until`: at this time the records listed every backup that
    existed. So a backup that is older and has no record has expired, even though its deletion was not recorded. None if
    the records were never known to be complete."""

    id: UUID
    site_id: UUID | None
    owner_id: UUID
    domain: str
    sealed_key: bytes
    known_until: datetime | None

    def key(self, sealer: Sealer) -> str:
        return sealer.unseal(self.sealed_key, KEY_PURPOSE).decode()

    @property
    def target(self) -> Target:
        return Target("backup_key", self.id, self.domain)


async def read_repository(queryable: Queryable, repository_id: UUID) -> RepositoryRow:
    """The record of a repository. Raises not_found."""
    row = await queryable.fetchrow(f"{_REPOSITORY} WHERE backup_repositories.id = $1", repository_id)
    if row is None:
        raise not_found("The repository no longer exists.")
    return RepositoryRow(**dict(row))


async def repositories_of(queryable: Queryable, owner_id: UUID) -> list[UUID]:
    """Repositories of this person's deleted sites."""
    rows = await queryable.fetch(
        "SELECT id FROM backup_repositories WHERE owner_id = $1 AND site_id IS NULL ORDER BY id", owner_id
    )
    return [row["id"] for row in rows]


async def expired_repositories(queryable: Queryable) -> list[UUID]:
    """Repositories of deleted sites that were kept for long enough."""
    rows = await queryable.fetch(
        "SELECT id FROM backup_repositories WHERE site_id IS NULL AND kept_until < now() ORDER BY id"
    )
    return [row["id"] for row in rows]


async def ensure_repository(tx: Transaction, sealer: Sealer, site: SiteRow) -> UUID:
    """The repository of a site, whose row is locked."""
    await tx.execute(
        """INSERT INTO backup_repositories (site_id, domain, sealed_key) VALUES ($1, $2, $3)
           ON CONFLICT (site_id) DO NOTHING""",
        site.id,
        site.domain,
        sealer.seal(secrets.token_urlsafe(32).encode(), KEY_PURPOSE),
    )
    repository_id: UUID = await tx.fetchval("SELECT id FROM backup_repositories WHERE site_id = $1", site.id)
    return repository_id


async def set_expiry(tx: Transaction, site: SiteRow, days: int) -> None:
    """The site is deleted: its backups, if any, stay available to its owner for so many days."""
    await tx.execute(
        """UPDATE backup_repositories
           SET owner_id = $2, domain = $3,
               kept_until = CASE WHEN EXISTS (SELECT FROM site_backups WHERE repository_id = backup_repositories.id
                                                                   AND status = 'completed')
                            THEN now() + make_interval(days => $4) ELSE now() END
           WHERE site_id = $1""",
        site.id,
        site.owner_id,
        site.domain,
        days,
    )


async def remove_repository_row(tx: Transaction, repository_id: UUID) -> None:
    """Remove the repository's row, and with it those of its backups."""
    await tx.execute("DELETE FROM backup_repositories WHERE id = $1", repository_id)
