"""When sites are backed up, and which backups are kept: the rules, and the only writer of `backup_schedules`.

A number of the last backups is kept, and the last backup of each of the last days, weeks and months that have one (as
in `restic forget --keep-daily`). The newest backup is always kept. All times are UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from svc_actors.panel.backups.repositories import RepositoryRow
from svc_actors.store import Queryable, Transaction


class Frequency(StrEnum):
    HOURLY = "hourly"
    DAILY = "daily"
    WEEKLY = "weekly"

    @property
    def period(self) -> timedelta:
        return {
            Frequency.HOURLY: timedelta(hours=1),
            Frequency.DAILY: timedelta(days=1),
            Frequency.WEEKLY: timedelta(weeks=1),
        }[self]


class DefaultBackups(StrEnum):
    """How often a new site is backed up until its owner chooses otherwise."""

    OFF = "off"
    HOURLY = Frequency.HOURLY.value
    DAILY = Frequency.DAILY.value
    WEEKLY = Frequency.WEEKLY.value


DEFAULT_BACKUPS: Final = DefaultBackups.DAILY
"""The default of new sites, unless the plan or the settings of the server say otherwise."""
_NIGHT: Final = range(1, 6)


def default_time(site_id: UUID) -> tuple[int, int]:
    """Hour (of the night) and weekday of a default schedule. They depend on the site, as the minute does (`next_run`),
    so that the backups of all sites of a server do not queue up in the same hour."""
    number = site_id.int // 60
    return _NIGHT[number % len(_NIGHT)], number // len(_NIGHT) % 7


def next_run(frequency: Frequency, hour: int, weekday: int, site_id: UUID, after: datetime) -> datetime:
    """The first time after `after`. The minute depends on the site, so that not all sites start at once. `hourly`
    ignores hour and weekday, `daily` the weekday (0 is Monday)."""
    at = after.astimezone(UTC).replace(minute=site_id.int % 60, second=0, microsecond=0)
    if frequency is not Frequency.HOURLY:
        at = at.replace(hour=hour)
    if frequency is Frequency.WEEKLY:
        at += timedelta(days=weekday - at.weekday())
    while at <= after:
        at += frequency.period
    return at


def overdue(frequency: Frequency, last: datetime | None, since: datetime, now: datetime) -> bool:
    """Whether the last completed backup is older than two periods. `since`: when the site got its schedule, or was
    created."""
    return now - (last or since) > 2 * frequency.period


@dataclass(frozen=True)
class RetentionPolicy:
    last: int = 3
    daily: int = 7
    weekly: int = 4
    monthly: int = 3


DEFAULT_KEEP: Final = RetentionPolicy()
"""The retention of sites without a schedule."""

_PERIODS: Final[dict[str, Callable[[datetime], tuple[int, ...]]]] = {
    "daily": lambda at: (at.year, at.month, at.day),
    "weekly": lambda at: at.isocalendar()[:2],
    "monthly": lambda at: (at.year, at.month),
}


def expired(backups: Sequence[tuple[UUID, datetime]], keep: RetentionPolicy) -> list[UUID]:
    """The backups that no rule keeps."""
    newest_first = sorted(backups, key=lambda backup: backup[1], reverse=True)
    kept = {backup_id for backup_id, _ in newest_first[: max(keep.last, 1)]}
    for name, period_of in _PERIODS.items():
        periods: set[tuple[int, ...]] = set()
        for backup_id, at in newest_first:
            period = period_of(at.astimezone(UTC))
            if period not in periods and len(periods) < getattr(keep, name):
                periods.add(period)
                kept.add(backup_id)
    return [backup_id for backup_id, _ in newest_first if backup_id not in kept]


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
