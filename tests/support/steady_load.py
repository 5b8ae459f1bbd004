"""People who ask a service at a steady pace through outages, and how soon as many of them are answered as before.

The load is ten requests a second, which a busy machine of two cores answers as well. So throughput is the share of them
that is answered, and not what else the machine has to do.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from tests.support.figures import report_figure

PEOPLE: Final = 6
PACE: Final = 0.6
"""Seconds from one request of a person to their next."""
WINDOW: Final = 3.0
"""Over which throughput is measured, in seconds."""
BACK_WITHIN: Final = 10.0
AS_BEFORE: Final = 0.95


@dataclass
class SteadyLoad:
    """What was answered when, and how often the service said `unavailable`."""

    unavailable: int = 0
    done: bool = False
    _moments: list[float] = field(default_factory=list)

    def count(self) -> None:
        """A request has succeeded."""
        self._moments.append(trio.current_time())

    def rate(self) -> float:
        """What succeeded a second, over the last window."""
        return (len(self._moments) - bisect(self._moments, trio.current_time() - WINDOW)) / WINDOW

    async def person(self, number: int, ask: Callable[[], Awaitable[None]]) -> None:
        """Have somebody `ask` once each `PACE` seconds, however long the answers take, until it is done."""
        due = trio.current_time()
        await trio.sleep(number * PACE / PEOPLE)
        while not self.done:
            await ask()
            due = max(due + PACE, trio.current_time())
            await trio.sleep_until(due)

    @asynccontextmanager
    async def carried(self, person: Callable[[int], Awaitable[None]]) -> AsyncIterator[None]:
        """All `person`s are at it for the length of the block, and have been for two windows when it begins."""
        async with trio.open_nursery() as nursery:
            for number in range(PEOPLE):
                nursery.start_soon(person, number)
            await trio.sleep(2 * WINDOW)
            yield
            self.done = True

    async def outage(self, number: int, usual: float) -> bool:
        """Whether throughput is back in time after what happened just now; it is printed."""
        after, rate = await self.back(AS_BEFORE * usual)
        report_figure(f"outage {number}: {usual:.1f} a second before, {rate:.1f} after {after:.1f} s")
        return rate >= AS_BEFORE * usual

    async def back(self, wanted: float) -> tuple[float, float]:
        """The seconds after which a window began whose throughput is `wanted`, and that throughput; the best there was,
        and `BACK_WITHIN`, when none does in time."""
        began, best = trio.current_time(), 0.0
        await trio.sleep(WINDOW)
        while (after := trio.current_time() - began - WINDOW) <= BACK_WITHIN:
            best = max(best, self.rate())
            if best >= wanted:
                return after, best
            await trio.sleep(WINDOW / 30)
        return BACK_WITHIN, best
