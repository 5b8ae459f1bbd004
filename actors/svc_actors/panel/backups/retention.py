"""Decides which backups of a site are kept: the newest ones, and the last backup of each of the last days, weeks and
months that have one (as in `restic forget --keep-daily`). The newest is always kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID


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
