"""How fast a guest's disk is read while the guest uses it: the guest goes first.

What a backup costs a guest is its share of the time: of the disk, of QEMU's own thread, and of the host's processors,
which restic uses. So while the guest's disk is at work, the backup is for at most `BUSY_SHARE` of the time, and rests
for the others; beside a guest that rests it goes as fast as it can. How busy the disk is says QEMU: the time that the
guest's requests have taken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

BUSY_SHARE: Final = 0.05
_BUSY: Final = 0.02
"""Of the time that the guest waits for its disk: from there on all of the restraint is due, below a part of it."""
_LOOK_SECONDS: Final = 0.25
_MOST_SECONDS: Final = 1.0
Waited = Callable[[], Awaitable[float | None]]
"""The seconds for which the guest's requests have waited in all; None where that is not known."""


class Pace:
    """`waited` is asked four times a second. Until it has answered twice the guest counts as busy, and where it has no
    answer as well."""

    def __init__(self, waited: Waited) -> None:
        self._waited = waited
        self._looked_at = -_LOOK_SECONDS
        self._before: float | None = None
        self._debt = 0.0
        self._restraint = 1.0

    async def worked(self, seconds: float) -> None:
        """Rest as is due after so much work."""
        if trio.current_time() - self._looked_at >= _LOOK_SECONDS:
            await self._look()
        self._debt += seconds * self._restraint * (1 / BUSY_SHARE - 1)
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
