"""How full a disk is: a level by thresholds, with hysteresis, for the service's own disk and for those of its nodes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from svc_actors.alerts import Severity
from svc_actors.sizes import memory_text
from svc_actors.store import Queryable

MIB: Final = 1024 * 1024
_CALM: Final = 2
"""Percentage points that a disk must fall below a threshold before its alert is closed. An alert about little free
space is closed when an eighth more than its threshold is free. A figure that oscillates around a threshold thus opens
one alert only."""


class DiskLevel(StrEnum):
    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def severity(self) -> Severity:
        """Severity of the alert for a disk of this level; `OK` has none."""
        return Severity(self.value)


@dataclass(frozen=True)
class Space:
    """Bytes of a file system: `free` is available to programs without privileges; `size` is that plus what is used, as
    in df."""

    size: int
    free: int

    @classmethod
    def of(cls, folder: Path) -> Space:
        """Raises `OSError`."""
        found = os.statvfs(folder)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        return cls(used + found.f_bavail * found.f_frsize, found.f_bavail * found.f_frsize)

    @property
    def used_percent(self) -> float:
        return 100 * (1 - self.free / self.size) if self.size else 100.0

    def __str__(self) -> str:
        free, size = memory_text(self.free / MIB), memory_text(self.size / MIB)
        return f"{self.used_percent:.0f} % full, {free} of {size} free"


@dataclass(frozen=True)
class Thresholds:
    """The shares of use from which there is an alert, and the free space that is critical whatever the share. The
    settings `disk_...`."""

    warning_percent: int = 85
    critical_percent: int = 95
    critical_free_mib: int = 2048

    def level(self, space: Space, before: DiskLevel) -> DiskLevel:
        """The level of a disk that had the level `before`: raised at a threshold, lowered only well below it."""

        def above(percent: int, level: DiskLevel) -> bool:
            return space.used_percent >= percent - (_CALM if _RANK[before] >= _RANK[level] else 0)

        least = self.critical_free_mib * MIB
        if above(self.critical_percent, DiskLevel.CRITICAL) or space.free < least + (
            least // 8 if before is DiskLevel.CRITICAL else 0
        ):
            return DiskLevel.CRITICAL
        return DiskLevel.WARNING if above(self.warning_percent, DiskLevel.WARNING) else DiskLevel.OK


_RANK: Final = {DiskLevel.OK: 0, DiskLevel.WARNING: 1, DiskLevel.CRITICAL: 2}


async def read_thresholds(queryable: Queryable) -> Thresholds:
    rows = await queryable.fetch("SELECT substr(name, 6) AS name, value FROM settings WHERE starts_with(name, 'disk_')")
    return Thresholds(**{row["name"]: row["value"] for row in rows})
