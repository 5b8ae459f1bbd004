"""Backup schedules of sites, and their retention: the only writer of `backup_schedules`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from svc_actors.panel.backups.repositories import RepositoryRow
from svc_actors.panel.backups.retention import DEFAULT_KEEP, RetentionPolicy
from svc_actors.panel.backups.timing import DEFAULT_BACKUPS, DefaultBackups, Frequency, default_time, next_run
from svc_actors.store import Queryable, Transaction

DEFAULT_OF: Final = f"""coalesce(
    (SELECT hosting_plans.default_backups
     FROM hosting_accounts JOIN hosting_plans ON hosting_plans.id = hosting_accounts.plan_id
     WHERE hosting_accounts.user_id = {{owner}}),
    (SELECT value #>> '{{{{}}}}' FROM settings WHERE settings.name = 'default_backups'),
    '{DEFAULT_BACKUPS.value}')"""
"""SQL: the `DefaultBackups` of a customer's new sites; format with an SQL expression for the customer's id."""


async def keep_of(queryable: Queryable, repository: RepositoryRow) -> RetentionPolicy:
    row = await queryable.fetchrow(
        """SELECT keep_last AS last, keep_daily AS daily, keep_weekly AS weekly, keep_monthly AS monthly
           FROM backup_schedules WHERE site_id = $1""",
        repository.site_id,
    )
    return DEFAULT_KEEP if row is None else RetentionPolicy(**dict(row))


async def write_schedule(
    tx: Transaction,
    site_id: UUID,
    frequency: Frequency,
    hour: int,
    weekday: int,
    keep: RetentionPolicy,
    next_run_at: datetime,
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


async def write_default_schedule(tx: Transaction, site_id: UUID, owner_id: UUID) -> None:
    """Back up a new site as its owner's plan says, else the server's settings. Not in its first hour, when it is set up
    or imported."""
    chosen = DefaultBackups(await tx.fetchval(f"SELECT {DEFAULT_OF.format(owner='$1::uuid')}", owner_id))
    if chosen is DefaultBackups.OFF:
        return
    frequency = Frequency(chosen)
    hour, weekday = default_time(site_id)
    at = next_run(frequency, hour, weekday, site_id, datetime.now(UTC) + timedelta(hours=1))
    await write_schedule(tx, site_id, frequency, hour, weekday, DEFAULT_KEEP, at)


async def remove_schedule(tx: Transaction, site_id: UUID) -> None:
    await tx.execute("DELETE FROM backup_schedules WHERE site_id = $1", site_id)


async def postpone(tx: Transaction, site_id: UUID, next_run_at: datetime) -> None:
    await tx.execute("UPDATE backup_schedules SET next_run_at = $2 WHERE site_id = $1", site_id, next_run_at)
