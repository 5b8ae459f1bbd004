"""Three lanes over one pool: connections for requests that read, for orders, and for everything else.

No lane waits for the connections of another: many orders, each of which takes a dozen round trips, keep no reader
waiting, and thousands of tasks that resume after a restart queue up among themselves. Code calls `enter_lane` where a
request starts; unmarked work is background. The mark is a context variable: it follows the calls of a task, and the
messages that it sends to actors if the actor system is configured to carry `LANE`.

The number of waiting requests in a lane is bounded. Past that a request is refused at once, with the time to retry:
waiting longer would only make every answer late.
"""

from __future__ import annotations

from contextvars import ContextVar
from enum import StrEnum
from typing import Final

import trio

from svc_actors.store.failures import pool_exhausted, queue_full

MOST_WAITING: Final = 1024
"""Per lane. At a few hundred statements a second and connection, this many are served within about a second."""


class Lane(StrEnum):
    READING = "reading"
    ORDERS = "orders"
    BACKGROUND = "background"


LANE: ContextVar[Lane] = ContextVar("svc_actors.store.lane", default=Lane.BACKGROUND)
"""The lane of the running code."""


def enter_lane(lane: Lane) -> None:
    """Set the lane of this task, from here on."""
    LANE.set(lane)


class Places:
    """Limits the connections that a lane has in use at once; waiting tasks are served in the order they came."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.exhausted = 0
        self._free = trio.Semaphore(size)

    @property
    def in_use(self) -> int:
        return self.size - self._free.value

    @property
    def waiting(self) -> int:
        return self._free.statistics().tasks_waiting

    async def acquire(self, patience: float) -> None:
        """Take a place within `patience` seconds, or raise `unavailable`."""
        try:
            self._free.acquire_nowait()
        except trio.WouldBlock:
            if self.waiting >= MOST_WAITING:
                self.exhausted += 1
                raise queue_full(self.waiting) from None
            with trio.move_on_after(patience) as scope:
                await self._free.acquire()
            if scope.cancelled_caught:
                self.exhausted += 1
                raise pool_exhausted(self.size, patience) from None

    def release(self) -> None:
        self._free.release()
