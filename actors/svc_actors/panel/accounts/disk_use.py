"""What sites take on the disk, files, databases and exports: counted again and again, and kept beside what is allowed.

There are no quotas of the file system to rely on, so a walk counts. The walks are one at a time, and rest for nine
times as long as they take: a tenth of one disk's time at the most, however many files there are. What an upload or an
export brings is added at once; what else changes is found by the next walk.

Nothing is ever deleted or stopped for being too much, since what PHP writes cannot be told from what visitors need:
whatever comes in through the panel is refused, and an alert tells the customer and administrators.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final
from uuid import UUID

import trio

from svc_actors.alerts import Told, close_alert, close_alerts, raise_alert
from svc_actors.errors import conflict
from svc_actors.host.accounts import SiteAccount
from svc_actors.host.folders import HostFolders
from svc_actors.panel.accounts.allowances import MIB
from svc_actors.store import Database, Queryable, Transaction

LOOK_SECONDS: Final = 60.0
_COUNTED_EVERY: Final = 3600.0
_REST: Final = 9.0
_ALERTS: Final = "account.disk:"
_SITE_ALERTS: Final = "site.disk:"
Measure = Callable[[Path], Awaitable[int | None]]
DatabaseSizes = Callable[[UUID], Awaitable[int | None]]
"""What the databases of a site take; None where an engine does not say."""

_ALLOWED = """
SELECT sites.owner_id, users.email, sites.domain, sites.disk_mib AS site_allowed, hosting_plans.disk_mib AS allowed,
       hosting_plans.name AS plan,
       coalesce((SELECT bytes FROM site_disk_use WHERE site_id = sites.id), 0) AS site_used,
       (SELECT coalesce(sum(bytes), 0)::bigint FROM site_disk_use JOIN sites AS others ON others.id = site_id
        WHERE others.owner_id = sites.owner_id) AS used,
       (SELECT coalesce(sum(size), 0)::bigint FROM file_uploads WHERE site_id = sites.id AND status = 'open')
           AS site_coming,
       (SELECT coalesce(sum(size), 0)::bigint FROM file_uploads JOIN sites AS others ON others.id = site_id
        WHERE others.owner_id = sites.owner_id AND file_uploads.status = 'open') AS coming
FROM sites JOIN users ON users.id = sites.owner_id
LEFT JOIN hosting_accounts ON hosting_accounts.user_id = sites.owner_id
LEFT JOIN hosting_plans ON hosting_plans.id = hosting_accounts.plan_id
WHERE sites.id = $1"""
"""What a site and its account may have on the disk, have, and are about to have by uploads that are open."""


async def require_disk_room(queryable: Queryable, site_id: UUID, size: int) -> int | None:
    """Raises `conflict` where a file of so many bytes would be more than the site or its account may have. How many
    bytes both may have besides what they have: of what grows as it is written; None without a bound."""
    row = await queryable.fetchrow(_ALLOWED, site_id)
    if row is None:
        return None
    left = None
    for what, allowed, used in (
        (f"The site {row['domain']}", row["site_allowed"], row["site_used"] + row["site_coming"]),
        (f"The plan {row['plan']}", row["allowed"], row["used"] + row["coming"]),
    ):
        if allowed is not None and used + size > allowed * MIB:
            raise conflict(
                f"{what} may have {allowed} MiB on the disk, and {-(-used // MIB)} are used; nothing was written.",
                hint="Delete files, databases or exports, or ask for more. They are counted again within the hour.",
            )
        if allowed is not None:
            room = allowed * MIB - used
            left = room if left is None else min(left, room)
    return left


async def add_use(tx: Transaction, site_id: UUID, size: int, *, exported: bool = False) -> None:
    """A file of so many bytes has come, or was `exported`: known before the next walk."""
    await tx.execute(
        """INSERT INTO site_disk_use (site_id, bytes, export_bytes, measured_at) VALUES ($1, $2, $3, 'epoch')
           ON CONFLICT (site_id) DO UPDATE
           SET bytes = site_disk_use.bytes + excluded.bytes,
               export_bytes = site_disk_use.export_bytes + excluded.export_bytes""",
        site_id,
        size,
        size if exported else 0,
    )


class DiskUse:
    """The walks."""

    def __init__(self, database: Database, folders: HostFolders, measure: Measure, databases: DatabaseSizes) -> None:
        self._database = database
        self._folders = folders
        self._measure = measure
        self._databases = databases

    async def round(self) -> None:
        """Walk through every site that was not counted for an hour."""
        await self._database.transact(_close_what_is_over)
        for row in await self._database.fetch(
            """SELECT sites.id, sites.number FROM sites LEFT JOIN site_disk_use ON site_id = sites.id
               WHERE status IN ('active', 'suspended')
                     AND coalesce(measured_at, 'epoch') < now() - make_interval(secs => $1)
               ORDER BY measured_at NULLS FIRST, sites.id""",
            _COUNTED_EVERY,
        ):
            began = trio.current_time()
            await self.count(row["id"], SiteAccount(row["number"]))
            await trio.sleep(_REST * (trio.current_time() - began))

    async def count(self, site_id: UUID, account: SiteAccount) -> None:
        found = await self._measure(self._folders.sites / account.name)
        if found is None:
            return  # It is being deleted, or takes longer than half an hour to walk through: what is known stays.
        in_databases = await self._databases(site_id)

        async def work(tx: Transaction) -> None:
            there = await tx.fetchval("SELECT true FROM sites WHERE id = $1 FOR KEY SHARE", site_id)
            if not there:
                return
            with tx.unmarked():
                await tx.execute(
                    # Where an engine does not say how large databases are, they are as large as they were.
                    """WITH counted AS (
                           SELECT $2::bigint AS files,
                                  coalesce($3::bigint, (SELECT database_bytes FROM site_disk_use WHERE site_id = $1), 0)
                                      AS in_databases,
                                  (SELECT coalesce(sum(size), 0)::bigint
                                   FROM database_exports JOIN databases ON databases.id = database_id
                                   WHERE databases.site_id = $1) AS in_exports
                       )
                       INSERT INTO site_disk_use (site_id, bytes, database_bytes, export_bytes)
                       SELECT $1, files + in_databases + in_exports, in_databases, in_exports FROM counted
                       ON CONFLICT (site_id) DO UPDATE
                       SET bytes = excluded.bytes, database_bytes = excluded.database_bytes,
                           export_bytes = excluded.export_bytes, measured_at = now()""",
                    site_id,
                    found,
                    in_databases,
                )
            await _tell(tx, site_id)

        await self._database.transact(work)


async def _close_what_is_over(tx: Transaction) -> None:
    """Also of an account whose last site, whose plan, or which itself is gone: no walk would find that."""
    rows = await tx.fetch(
        """SELECT sites.owner_id FROM site_disk_use JOIN sites ON sites.id = site_id
           JOIN hosting_accounts ON hosting_accounts.user_id = sites.owner_id
           JOIN hosting_plans ON hosting_plans.id = hosting_accounts.plan_id
           GROUP BY sites.owner_id, hosting_plans.disk_mib HAVING sum(bytes) > hosting_plans.disk_mib * $1::bigint""",
        MIB,
    )
    await close_alerts(tx, _ALERTS, keep=[f"{_ALERTS}{row['owner_id']}" for row in rows])
    rows = await tx.fetch(
        """SELECT site_id FROM site_disk_use JOIN sites ON sites.id = site_id
           WHERE bytes > sites.disk_mib * $1::bigint""",
        MIB,
    )
    await close_alerts(tx, _SITE_ALERTS, keep=[f"{_SITE_ALERTS}{row['site_id']}" for row in rows])


async def _tell(tx: Transaction, site_id: UUID) -> None:
    """An alert while the site has more than its limit, and one while the account has more than its plan allows."""
    row = await tx.fetchone(_ALLOWED, site_id)
    site_key = f"{_SITE_ALERTS}{site_id}"
    if row["site_allowed"] is None or row["site_used"] <= row["site_allowed"] * MIB:
        await close_alert(tx, site_key)
    else:
        used = f"{row['domain']}: {-(-row['site_used'] // MIB)} MiB of disk are used of {row['site_allowed']}"
        await raise_alert(
            tx,
            site_key,
            f"{used}.",
            resource_kind="site",
            resource_id=site_id,
            told=Told(
                row["owner_id"],
                f"{used}: uploads, exports, imports and backups by hand are refused until there is less.",
            ),
        )
    key = f"{_ALERTS}{row['owner_id']}"
    if row["allowed"] is None or row["used"] <= row["allowed"] * MIB:
        await close_alert(tx, key)
        return
    used = f"{-(-row['used'] // MIB)} MiB of disk are used, and the plan {row['plan']} allows {row['allowed']}"
    await raise_alert(
        tx,
        key,
        f"{row['email']}: {used}.",
        resource_kind="user",
        resource_id=row["owner_id"],
        told=Told(
            row["owner_id"], f"{used}: uploads, exports, imports and backups by hand are refused until there is less."
        ),
    )
