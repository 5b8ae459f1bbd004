"""Cyclic garbage is freed, and what lives is not visited again and again for it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing
from trio.testing import MockClock

from svc.service.garbage import PERIOD, GarbageCollection


class Knot:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@asynccontextmanager
async def collecting() -> AsyncIterator[GarbageCollection]:
    async with GarbageCollection.open() as garbage:
        await trio.testing.wait_all_tasks_blocked()
        yield garbage


def visited(it: object) -> bool:
    """Whether a full collection looks at this object."""
    return any(each is it for each in gc.get_objects())


async def test_what_lives_is_not_visited_by_later_collections(autojump_clock: MockClock) -> None:
    before = Knot()

    async with collecting():
        after = Knot()
        assert (visited(before), visited(after)) == (False, True)
        await trio.sleep(PERIOD + 0.1)
        assert (visited(before), visited(after)) == (False, False)

    assert visited(before), "what was frozen is thawed at the end"


async def test_a_cycle_that_is_dropped_is_freed_within_the_period(autojump_clock: MockClock) -> None:
    async with collecting():
        knot = Knot()
        left = weakref.ref(knot)
        del knot

        await trio.sleep(PERIOD + 0.1)

        assert left() is None


async def test_cycles_dropped_after_they_were_frozen_are_freed_once_they_are_many(autojump_clock: MockClock) -> None:
    async with collecting():
        share = gc.get_freeze_count() // 4
        left: list[weakref.ref[Knot]] = []
        for _ in range(8):
            knots = [Knot() for _ in range(share)]
            left.append(weakref.ref(knots[0]))
            await trio.sleep(PERIOD + 0.1)
            del knots

        assert [knot() for knot in left[:4]] == [None] * 4


async def test_automatic_full_collections_are_off_while_it_runs(autojump_clock: MockClock) -> None:
    before = gc.get_threshold()

    async with collecting() as garbage:
        assert gc.get_threshold()[2] > 1_000_000
        await trio.sleep(PERIOD + 0.1)
        assert garbage.longest_pause > 0.0

    assert gc.get_threshold() == before


async def test_a_service_that_is_never_idle_is_collected_too(autojump_clock: MockClock) -> None:
    async def spin() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    async with collecting(), trio.open_nursery() as nursery:
        knot = Knot()
        left = weakref.ref(knot)
        del knot

        nursery.start_soon(spin)
        autojump_clock.jump(PERIOD + 0.1)
        for _ in range(1000):
            await trio.lowlevel.checkpoint()

        assert left() is None
        nursery.cancel_scope.cancel()
