"""Backups of a site that has lost most of its files since the backup before.

The site may have been emptied by mistake, and retention would in time leave only such backups. So the backup is marked,
an alert reports it, and retention counts it apart from the others (`schedules`).
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alert, raise_alert, was_acknowledged
from svc_actors.panel.backups.records import accept_reduced_backups
from svc_actors.panel.backups.repositories import RepositoryRow
from svc_actors.store import Queryable, Transaction

MOST_LOST: Final = 10
"""With less than a tenth of the previous backup's files, a backup has lost most of them."""


async def reduced_from(queryable: Queryable, repository: RepositoryRow, files: int) -> int | None:
    """How many files the last backup of usual size had, if a backup with `files` files has lost most of them. None if
    somebody has acknowledged the alert: then the site was made smaller on purpose."""
    before: int | None = await queryable.fetchval(
        """SELECT files FROM site_backups WHERE repository_id = $1 AND status = 'completed' AND files_before IS NULL
           AND files IS NOT NULL ORDER BY created_at DESC LIMIT 1""",
        repository.id,
    )
    if before is None or files * MOST_LOST >= before:
        return None
    return None if await was_acknowledged(queryable, reduced_alert(repository.id)) else before


async def tell_of_reduced(tx: Transaction, repository: RepositoryRow, files: int, before: int | None) -> None:
    """`before`: the result of `reduced_from`."""
    key = reduced_alert(repository.id)
    if before is None:
        if await was_acknowledged(tx, key):
            await accept_reduced_backups(tx, repository.id)
        await close_alert(tx, key)
        return
    message = (
        f"The backup of {repository.domain} has {files:,} files, and an earlier one has {before:,}. Both are kept: a "
        "backup with so few files removes no earlier one. If the site has lost its files, restore them from an "
        "earlier backup. If it was made smaller on purpose, acknowledge this alert: the next backup is the usual "
        "size then."
    )
    await raise_alert(tx, key, message, resource_kind="site", resource_id=repository.site_id)


def reduced_alert(repository_id: UUID) -> str:
    return f"backup-files:{repository_id}"
