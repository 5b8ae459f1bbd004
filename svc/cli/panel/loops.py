"""The core's background loops: none ends by a failure, and one that keeps failing opens an alert."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import trio

from svc_actors.store import LoopAlert, keep_repeating, keep_running


@dataclass(frozen=True)
class Loops:
    """They run in `nursery` and end with it; `alert` is told of those that keep failing."""

    nursery: trio.Nursery
    alert: LoopAlert

    def keep(self, name: str, loop: Callable[[], Awaitable[object]]) -> None:
        """Run `loop`, which does not end by itself, again after each failure."""
        self.nursery.start_soon(keep_running, name, loop, self.alert)

    def repeat(self, name: str, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        """Do `work` every `seconds`, for the first time after as many."""
        self.nursery.start_soon(keep_repeating, name, seconds, work, self.alert)

    def repeat_from_now(self, name: str, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        """Do `work` at once, since it takes up what an earlier core has left, and every `seconds` after."""
        self.nursery.start_soon(partial(keep_repeating, name, seconds, work, self.alert, first_after=0))
