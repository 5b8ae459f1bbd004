"""When the next backup of a site is due. All times are UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final
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


class DefaultBackups(StrEnum):
    """How often a new site is backed up until its owner chooses otherwise."""

    OFF = "off"
    HOURLY = Frequency.HOURLY.value
    DAILY = Frequency.DAILY.value
    WEEKLY = Frequency.WEEKLY.value


DEFAULT_BACKUPS: Final = DefaultBackups.DAILY
"""Unless the plan or the settings of the server say otherwise."""
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
