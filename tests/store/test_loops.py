"""Background loops go on whatever happens in them, and operators are told of one that keeps failing, until it works."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from svc_actors.store.loops import ALERT_AFTER, LONGEST_PAUSE, Loops, keep_repeating, keep_running

HOUR = 3600.0


class Work:
    """Fails so many times in a row, then works; counts."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.left = failures
        self.error = error or ValueError("a defect")
        self.begun = self.done = 0

    async def round(self) -> None:
        self.begun += 1
        if self.left:
            self.left -= 1
            raise self.error
        self.done += 1

    async def loop(self) -> None:
        await self.round()
        await trio.sleep_forever()


class Told:
    """What operators are told of loops."""

    def __init__(self) -> None:
        self.words: list[tuple[str, str | None]] = []

    def notice(self, name: str, error: Exception | None) -> None:
        self.words.append((name, None if error is None else str(error)))


async def fail_when_cancelled() -> None:
    """As a loop whose next message is refused because the service shuts down."""
    try:
        await trio.sleep_forever()
    finally:
        raise LookupError("nobody takes messages any more")


async def fail_beside_the_cancelled() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        await fail_when_cancelled()


@pytest.mark.parametrize("how", ["running", "repeating"])
async def test_a_loop_that_keeps_failing_is_alerted_once_and_the_alert_closed_when_it_works(
    how: str, autojump_clock: MockClock
) -> None:
    work, told = Work(2 * ALERT_AFTER), Told()
    loops = {
        "running": partial(keep_running, "loop", work.loop, told.notice),
        "repeating": partial(keep_repeating, "loop", 60.0, work.round, told.notice),
    }

    async with trio.open_nursery() as nursery:
        nursery.start_soon(loops[how])
        await trio.sleep(HOUR)
        nursery.cancel_scope.cancel()

    assert told.words == [("loop", "a defect"), ("loop", None)]
    assert work.done > 0


async def test_a_loop_that_has_run_for_a_moment_does_not_work_again_yet(autojump_clock: MockClock) -> None:
    told = Told()

    async def fail_after_a_while() -> None:
        await trio.sleep(0.9 * LONGEST_PAUSE)
        raise ValueError("a defect")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_running, "loop", fail_after_a_while, told.notice)
        await trio.sleep(HOUR)
        nursery.cancel_scope.cancel()

    assert told.words == [("loop", "a defect")]


async def test_a_round_that_comes_once_an_hour_is_alerted_all_the_same(autojump_clock: MockClock) -> None:
    work, told = Work(1_000_000), Told()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(keep_repeating, first_after=60.0), "loop", 3600.0, work.round, told.notice)
        await trio.sleep(120)
        nursery.cancel_scope.cancel()

    assert told.words == [("loop", "a defect")]


async def test_a_failed_round_is_repeated_before_its_time_and_one_that_works_in_its_time(
    autojump_clock: MockClock,
) -> None:
    work = Work(3)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_repeating, "loop", 3600.0, work.round)
        await trio.sleep(3610)
        assert (work.begun, work.done) == (4, 1)
        await trio.sleep(3600)
        assert (work.begun, work.done) == (5, 2)
        nursery.cancel_scope.cancel()


async def test_a_few_failures_in_a_row_are_nobodys_alert(autojump_clock: MockClock) -> None:
    work, told = Work(ALERT_AFTER - 1), Told()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_repeating, "loop", 60.0, work.round, told.notice)
        await trio.sleep(HOUR)
        nursery.cancel_scope.cancel()

    assert told.words == []


@pytest.mark.parametrize("work", [fail_when_cancelled, fail_beside_the_cancelled])
@pytest.mark.parametrize("keep", [partial(keep_running, "loop"), partial(keep_repeating, "loop", 1.0, first_after=0.0)])
async def test_a_failure_in_the_moment_of_the_cancellation_stays_in_the_loop(
    work: Callable[[], Awaitable[object]],
    keep: Callable[[Callable[[], Awaitable[object]]], Awaitable[None]],
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep, work)
        await trio.testing.wait_all_tasks_blocked()

        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("wanted", "ran"),
    [(None, ["kept", "repeated"]), (["repeated"], ["repeated"]), ((), [])],
    ids=["all", "one", "none"],
)
async def test_only_the_loops_that_are_wanted_run(
    wanted: list[Literal["kept", "repeated"]] | None, ran: list[str], autojump_clock: MockClock
) -> None:
    kept, repeated = Work(0), Work(0)
    async with trio.open_nursery() as nursery:
        loops = Loops[Literal["kept", "repeated"]](nursery, Told().notice, wanted)
        loops.keep("kept", kept.loop)
        loops.repeat("repeated", 1.0, repeated.round)
        await trio.sleep(HOUR)
        nursery.cancel_scope.cancel()

    assert [name for name, work in (("kept", kept), ("repeated", repeated)) if work.done] == ran


async def test_a_step_of_a_loop_that_does_not_run_is_made_by_hand() -> None:
    work = Work(0)
    async with trio.open_nursery() as nursery:
        loops = Loops[Literal["repeated"]](nursery, Told().notice, ())
        loops.repeat("repeated", 1.0, work.round)
        await loops.step("repeated")

    assert work.done == 1


async def test_the_loop_that_writes_alerts_goes_on_and_has_none_of_its_own(autojump_clock: MockClock) -> None:
    work, told = Work(ALERT_AFTER + 1), Told()
    async with trio.open_nursery() as nursery:
        Loops[Literal["alerts"]](nursery, told.notice).keep_untold("alerts", work.loop)
        await trio.sleep(HOUR)
        nursery.cancel_scope.cancel()

    assert work.done == 1
    assert told.words == []
