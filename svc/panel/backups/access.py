"""Which backup a caller may use, and which site it is restored into."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from svc.panel.sites.access import visible_row
from svc.registry.paging import Condition
from svc.registry.principal import Principal
from svc_actors.panel.backups.records import BACKUP_COLUMNS, BACKUP_SOURCE, OWNER, BackupRow, as_backup
from svc_actors.store import Queryable, Record, Transaction
from svc_common.errors import conflict, not_found

OF_SITE: Final = (OWNER, "backup_repositories.site_id")
"""The SQL expressions for the owner and the site of a backup."""


async def visible_backup(
    queryable: Queryable, principal: Principal, select: str, backup_id: UUID, *, lock: str = ""
) -> Record:
    """The backup's row of `select`, if the caller may run the current operation on it. Raises not_found, forbidden."""
    owner, site = OF_SITE
    where, absent = Condition("backups.id = $1", (backup_id,)), not_found("There is no such backup.")
    return await visible_row(queryable, principal, select, where, absent, owner=owner, site=site, lock=lock)


async def backup_of(queryable: Queryable, principal: Principal, backup_id: UUID, *, lock: str = "") -> BackupRow:
    """The backup, if the caller may run the current operation on it. Raises not_found, forbidden."""
    select = f"SELECT {BACKUP_COLUMNS} FROM {BACKUP_SOURCE}"
    return as_backup(await visible_backup(queryable, principal, select, backup_id, lock=lock))


async def locked_backup(tx: Transaction, principal: Principal, backup_id: UUID) -> BackupRow:
    return await backup_of(tx, principal, backup_id, lock="FOR NO KEY UPDATE OF backups")


def site_to_restore(backup: BackupRow, requested: UUID | None) -> UUID:
    """The site that the backup is restored into. Raises `conflict` if the backup's own site is gone and no other is
    named."""
    site_id = requested or backup.site_id
    if site_id is None:
        raise conflict(
            "The site of this backup was deleted; nothing was restored.",
            hint="Give the id of the site to restore it into.",
        )
    return site_id
