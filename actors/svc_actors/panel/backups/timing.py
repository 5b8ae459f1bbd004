"""When the next backup of a site is due. All times are UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from uuid import UUID


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
