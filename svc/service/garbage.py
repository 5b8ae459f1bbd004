"""When a service collects cyclic garbage, so that a collection never holds up its event loop for long.

Reference counts free nearly everything that a service drops; the collector is needed for cycles alone. But the
collector has to visit objects: with 1,000 nodes a full collection visits half a million of them to free a few dozen,
and for a fifth to half of a second nothing else runs. So:

- objects that survived a full collection are frozen, so later collections do not visit them. A full collection starts
  every half second, at a moment when no task is ready to run; its cost depends on the objects that were allocated since
  the last one and are still alive;
- automatic collections only do the young generation, whose threshold is raised from 700 to 10,000, since they may start
  at any moment;
- reference counts still free frozen objects; only cycles that were frozen and then dropped (the objects of a
  connection, say) stay. The frozen objects are counted whenever so many have joined that they may have grown by half.
  If they have, everything is thawed, collected and frozen again: the one long pause, needed if the service has grown or
  such cycles have piled up.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

import structlog
import trio

PERIOD: Final = 0.5
GROWTH: Final = 0.5
"""The growth of the frozen objects, relative to their number after the last complete collection, that makes the next
one due. Counting them walks through a list: 20 ms for 600,000."""
YOUNG: Final = (10_000, 5, 1_000_000_000)
"""Net allocations before a young collection, young collections before a middle one (which visits at most 50,000
objects, some 10 ms), and practically never a full one."""

IDLE_TURN: Final = 100e-6
"""A turn of the scheduler that takes at most this many seconds counts as idle. Turns are timed because asking Trio for
the length of its run queue walks through all sockets, and each node has one."""
MOST_TURNS, LONGEST_WAIT = 50, 0.1
"""For how many turns, and how many seconds, a collection waits for an idle moment. A service that is never idle (a
thousand nodes connect at once) collects after that, before much has piled up."""

log = structlog.get_logger("svc.garbage")


class GarbageCollection:
    """One a process: it changes the whole interpreter's settings, and restores them at the end."""

    def __init__(self) -> None:
        self.longest_pause = 0.0
        """The longest pause in seconds of all collections, including automatic ones, except the first."""
        self._frozen = 0
        """The number of frozen objects after the last complete collection."""
        self._began = 0.0

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[GarbageCollection]:
        """Runs for the length of the block."""
        garbage = cls()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(garbage._run)
            yield garbage
            nursery.cancel_scope.cancel()

    async def _run(self) -> None:
        """Collect until cancelled. Called once the service has started, since the objects that exist by then live as
        long as the service."""
        thresholds = gc.get_threshold()
        gc.set_threshold(*YOUNG)
        self._collect_everything()
        gc.callbacks.append(self._measure)
        try:
            joined = 0
            while True:
                await trio.sleep(PERIOD)
                await _idle_moment()
                gc.collect()
                joined += len(gc.get_objects())
                gc.freeze()
                if joined > self._frozen * GROWTH:
                    joined = 0
                    if gc.get_freeze_count() > self._frozen * (1 + GROWTH):
                        await _idle_moment()
                        self._collect_everything()
        finally:
            gc.callbacks.remove(self._measure)
            gc.set_threshold(*thresholds)
            gc.unfreeze()

    def _collect_everything(self) -> None:
        gc.unfreeze()
        began = perf_counter()
        freed = gc.collect()
        took = perf_counter() - began
        gc.freeze()
        self._frozen = gc.get_freeze_count()
        log.info("garbage.collected", objects=self._frozen, freed=freed, milliseconds=round(1e3 * took, 1))

    def _measure(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = perf_counter()
        else:
            self.longest_pause = max(self.longest_pause, perf_counter() - self._began)


async def _idle_moment() -> None:
    began = turn = perf_counter()
    for _ in range(MOST_TURNS):
        await trio.lowlevel.checkpoint()
        now = perf_counter()
        if now - turn < IDLE_TURN or now - began > LONGEST_WAIT:
            return
        turn = now
