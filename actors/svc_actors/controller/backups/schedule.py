"""When a machine's backup is due: pure rules, no clock and no database.

A plan names an hour of UTC, and each machine's run starts at a moment within that hour which is computed from the
machine's id: so a plan's machines are spread over the hour, and each has the same moment every time. After an outage,
the last run that was missed is made up for as soon as possible; the runs before it are not.

UTC and not the operator's time zone: an hour that a zone skips or repeats would drop a run or make two.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

_HOUR_SECONDS: Final = 3600
LATE_AFTER: Final = timedelta(hours=12)
"""A machine whose backup is overdue for this long gets an alert: 12 hours are half of the shortest period, a day."""


class BackupSchedule(StrEnum):
    OFF = "off"
    DAILY = "daily"
    WEEKLY = "weekly"


@dataclass(frozen=True)
class BackupPolicy:
    """`hour` is of UTC. `weekday` is for weekly backups; 0 is Sunday. `keep`: how many complete copies to keep, 0 for
    all. 1 is a ValueError: at least one other copy must be kept while the newest is being made."""

    schedule: BackupSchedule = BackupSchedule.OFF
    hour: int = 0
    weekday: int = 0
    keep: int = 0

    def __post_init__(self) -> None:
        if self.keep == 1 or self.keep < 0:
            raise ValueError("keep is 0, or 2 and more")

    @property
    def period(self) -> timedelta:
        return timedelta(days=7 if self.schedule is BackupSchedule.WEEKLY else 1)

    def superseded(self, copies: int) -> int:
        """How many of `copies` copies the policy does not keep."""
        return 0 if self.keep == 0 else max(0, copies - self.keep)


def next_due(policy: BackupPolicy, vm_id: UUID, *, done: datetime | None, since: datetime, now: datetime) -> datetime:
    """When the machine's next run is due; a time in the past means that the run is overdue since then. `done`: when its
    last complete copy was started. `since`: the time since when the policy asks for copies of this machine. The policy
    must have a schedule."""
    # `done` is the time at which the copy was started, not when it was complete: a copy started before a run was due
    # and completed after it does not count for that run.
    last = _last_run(policy, vm_id, now)
    return last if last >= since and (done is None or done < last) else last + policy.period


def own_seconds(vm_id: UUID) -> timedelta:
    """How far into the plan's hour the machine's moment is; `watch._OVERDUE` has the same computation in SQL."""
    # The last 32 bits of the id, which are random.
    return timedelta(seconds=vm_id.int % 2**32 % _HOUR_SECONDS)


def last_hour(policy: BackupPolicy, now: datetime) -> datetime:
    """The start of the latest hour of runs that has started."""
    hour = now.replace(hour=policy.hour, minute=0, second=0, microsecond=0)
    if policy.schedule is BackupSchedule.WEEKLY:
        hour += timedelta(days=policy.weekday - (now.weekday() + 1) % 7)  # Python's Monday is 0, the policy's Sunday.
    return hour if hour <= now else hour - policy.period


def _last_run(policy: BackupPolicy, vm_id: UUID, now: datetime) -> datetime:
    """The latest moment of a run that is not after `now`."""
    run = last_hour(policy, now) + own_seconds(vm_id)
    return run if run <= now else run - policy.period
