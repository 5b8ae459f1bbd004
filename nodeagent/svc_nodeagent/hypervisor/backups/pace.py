"""Throttles the reading of a guest's disk while the guest uses the disk: the guest has priority.

A backup competes with the guest for the disk, for QEMU's own thread, and for the host's processors, which restic uses.
So while the guest uses its disk, the backup works for at most `BUSY_SHARE` of the time and pauses otherwise. If the
guest does not use its disk, the backup reads as fast as it can. How busy the disk is follows from the time that the
guest's requests have taken, which QEMU reports.

Rejected: a fixed rate, which would be wrong for the next disk; QEMU's own limits, which consider the guest's requests,
and not how much the backup slows them down; and a share of a tenth of the time: on a quiet machine the guest's reads
still had less than four fifths of their throughput, since restic keeps working for a while on what it was fed.

Why: docs/decisions/0030-snapshots-and-backup-format.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

BUSY_SHARE: Final = 0.05
_BUSY: Final = 0.02
"""If the guest waits for its disk for this share of the time or longer, the full throttle applies; below it, a
proportional part."""
_LOOK_SECONDS: Final = 0.25
_MOST_SECONDS: Final = 1.0
Waited = Callable[[], Awaitable[float | None]]
"""Returns the total number of seconds for which the guest's requests have waited; None if it is not known."""


class BackupThrottle:
    """`waited` is called four times a second. The guest counts as busy until `waited` has returned two values, and
    while it returns none."""

    def __init__(self, waited: Waited) -> None:
        self._waited = waited
        self._looked_at = -_LOOK_SECONDS
        self._before: float | None = None
        self._debt = 0.0
        self._restraint = 1.0

    async def rest_after_work(self, seconds: float) -> None:
        """Pause for as long as this many seconds of work require."""
        if trio.current_time() - self._looked_at >= _LOOK_SECONDS:
            await self._look()
        self._debt += seconds * self._restraint * (1 / BUSY_SHARE - 1)
        # Short rests are added up until they reach 5 ms. What exceeds a second is dropped: by then the disk is to be
        # checked again, and the guest may no longer be using it.
        if self._debt >= 0.005:
            await trio.sleep(min(self._debt, _MOST_SECONDS))
            self._debt = 0.0

    async def _look(self) -> None:
        waited, now = await self._waited(), trio.current_time()
        if waited is None or self._before is None:
            self._restraint = 1.0
        else:
            busy = (waited - self._before) / max(now - self._looked_at, 0.001)
            self._restraint = min(1.0, max(0.0, busy) / _BUSY)
        self._before, self._looked_at = waited, now
