"""Backup schedules of sites, and their retention: the only writer of `backup_schedules`."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from svc_actors.panel.backups.repositories import RepositoryRow
from svc_actors.panel.backups.retention import DEFAULT_KEEP, Keep
from svc_actors.panel.backups.timing import Frequency
from svc_actors.store import Queryable, Transaction


async def keep_of(queryable: Queryable, repository: RepositoryRow) -> Keep:
    row = await queryable.fetchrow(
        """SELECT keep_last AS last, keep_daily AS daily, keep_weekly AS weekly, keep_monthly AS monthly
           FROM backup_schedules WHERE site_id = $1""",
        repository.site_id,
    )
    return DEFAULT_KEEP if row is None else Keep(**dict(row))


async def write_schedule(
    tx: Transaction, site_id: UUID, frequency: Frequency, hour: int, weekday: int, keep: Keep, next_run_at: datetime
) -> None:
    await tx.execute(
        """INSERT INTO backup_schedules
               (site_id, frequency, hour, weekday, keep_last, keep_daily, keep_weekly, keep_monthly, next_run_at)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
           ON CONFLICT (site_id) DO UPDATE
           SET frequency = EXCLUDED.frequency, hour = EXCLUDED.hour, weekday = EXCLUDED.weekday,
               keep_last = EXCLUDED.keep_last, keep_daily = EXCLUDED.keep_daily, keep_weekly = EXCLUDED.keep_weekly,
               keep_monthly = EXCLUDED.keep_monthly, next_run_at = EXCLUDED.next_run_at""",
        site_id,
        frequency.value,
        hour,
        weekday,
        keep.last,
        keep.daily,
        keep.weekly,
        keep.monthly,
        next_run_at,
    )


async def remove_schedule(tx: Transaction, site_id: UUID) -> None:
    await tx.execute("DELETE FROM backup_schedules WHERE site_id = $1", site_id)


async def postpone(tx: Transaction, site_id: UUID, next_run_at: datetime) -> None:
    await tx.execute("UPDATE backup_schedules SET next_run_at = $2 WHERE site_id = $1", site_id, next_run_at)
