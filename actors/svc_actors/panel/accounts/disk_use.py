"""Measures the disk use of sites (files, databases and exports) again and again, and compares it with what is allowed.

The file system offers no quotas that could be relied on, so the files are walked over and counted. One walk runs at a
time, followed by a pause nine times as long: so walks take at most a tenth of one disk's time, however many files there
are. The bytes of an upload or an export are added at once; the next walk finds all other changes.

Exceeding a limit never deletes or stops anything, since nobody can distinguish files that PHP writes from files that
visitors need. Instead, files that would be added through the panel are refused, and an alert notifies the customer and
administrators.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final
from uuid import UUID

import trio

from svc_actors.alerts import CustomerNotice, close_alert, close_alerts, raise_alert
from svc_actors.panel.accounts.allowances import MIB
from svc_actors.store import Database, Queryable, Transaction
from svc_common.errors import conflict
from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders

LOOK_SECONDS: Final = 60.0
_COUNTED_EVERY: Final = 3600.0
_REST: Final = 9.0
_ALERTS: Final = "account.disk:"
_SITE_ALERTS: Final = "site.disk:"
Measure = Callable[[Path], Awaitable[int | None]]
DatabaseSizes = Callable[[UUID], Awaitable[int | None]]
"""Returns the size of a site's databases in bytes; None if an engine does not report it."""

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
"""For each site and its account: the disk space that they may use, that they use, and that they will use once their
open uploads have ended."""


async def require_disk_room(queryable: Queryable, site_id: UUID, size: int) -> int | None:
    """Raises `conflict` if a file of `size` bytes would exceed what the site or its account may have. Returns how many
    bytes both have left, as a limit for files that grow while they are written; None without a limit."""
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
                hint="Delete files, databases or exports, or ask for more space. They are measured hourly.",
            )
        if allowed is not None:
            room = allowed * MIB - used
            left = room if left is None else min(left, room)
    return left


async def add_use(tx: Transaction, site_id: UUID, size: int, *, exported: bool = False) -> None:
    """Count a new file of `size` bytes, or an export if `exported`, without waiting for the next walk."""
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
    """The walks over the files of sites."""

    def __init__(self, database: Database, folders: HostFolders, measure: Measure, databases: DatabaseSizes) -> None:
        self._database = database
        self._folders = folders
        self._measure = measure
        self._databases = databases

    async def round(self) -> None:
        """Measure every site that was not measured for an hour."""
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
            # The site is being deleted, or measuring takes longer than half an hour: the last measured size stays.
            return
        in_databases = await self._databases(site_id)

        async def work(tx: Transaction) -> None:
            there = await tx.fetchval("SELECT true FROM sites WHERE id = $1 FOR KEY SHARE", site_id)
            if not there:
                return
            with tx.unmarked():
                await tx.execute(
                    # If an engine does not report the size of the databases, their last known size stays.
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
    """Close the alerts whose cause is over. This includes the alerts of an account whose last site, plan or person was
    deleted, since no walk visits that account."""
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
    """Open an alert while the site exceeds its own limit, and another while its account exceeds the plan."""
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
            notice=CustomerNotice(
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
        notice=CustomerNotice(
            row["owner_id"], f"{used}: uploads, exports, imports and backups by hand are refused until there is less."
        ),
    )
