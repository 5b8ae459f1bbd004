"""A token bucket: a number of actions per minute, at most a minute's worth at once.

It limits what strangers could otherwise write without end: audit rows of refusals, reports about a node.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

import trio


class Allowance:
    def __init__(self, *, per_minute: float) -> None:
        self._most = per_minute
        self._left = per_minute
        self._at = -math.inf

    def spend(self) -> bool:
        """Take one action from the bucket, if one is left; returns whether it was."""
        now = trio.current_time()
        self._left = min(self._most, self._left + max(0.0, now - self._at) * self._most / 60)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Allowances:
    """An allowance for each key. If there are more than `MOST_KEYS`, the least recently used key is forgotten, and its
    bucket is full again. Whatever issues the keys must keep a client from having that many."""

    MOST_KEYS = 10_000

    def __init__(self, *, per_minute: float) -> None:
        self._per_minute = per_minute
        self._of: dict[Hashable, Allowance] = {}

    def spend(self, key: Hashable) -> bool:
        allowance = self._of.pop(key, None) or Allowance(per_minute=self._per_minute)
        self._of[key] = allowance
        if len(self._of) > self.MOST_KEYS:
            del self._of[next(iter(self._of))]
        return allowance.spend()
