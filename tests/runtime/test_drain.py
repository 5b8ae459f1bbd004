"""Shutting down finishes what was accepted, and takes nothing more."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from svc_actors.runtime import Actor, ActorAlert, ActorCrashed, ActorSystem, Draining


class Porter(Actor):
    trace: list[str]

    async def passivate(self) -> None:
        self.trace.append(f"{self.key} left")

    async def carry(self, what: str, seconds: float = 1.0) -> str:
        await trio.sleep(seconds)
        self.trace.append(what)
        return what

    async def hand_over(self, to: str, what: str) -> str:
        await trio.sleep(1.0)
        return await self.system.ref(Porter, to).ask(Porter.carry, what)

    async def haul(self, what: str, seconds: float, endless: bool = False) -> None:
        self.spawn(self.carry, what, seconds, until_drain=endless)

    async def haul_and_report(self, seconds: float) -> None:
        async def work() -> None:
            await trio.sleep(seconds)
            self.ref().tell(Porter.carry, "report")

        self.spawn(work)

    async def stumble(self, after: float = 0.0) -> None:
        await trio.sleep(after)
        raise ValueError("dropped it")


@pytest.fixture
def trace(system: ActorSystem) -> list[str]:
    Porter.trace = []
    system.register(Porter, lambda key: Porter())
    return Porter.trace


async def test_a_drain_finishes_mailboxes_and_passivates(system: ActorSystem, trace: list[str]) -> None:
    ref = system.ref(Porter, "a")
    for what in ("1", "2", "3"):
        ref.tell(Porter.carry, what)
    await system.drain(30)
    assert trace == ["1", "2", "3", "a left"]
    assert system.statistics().live == 0


async def test_a_drain_lets_actors_ask_each_other_but_nobody_outside_ask(system: ActorSystem, trace: list[str]) -> None:
    answers: list[str] = []

    async def ask() -> None:
        answers.append(await system.ref(Porter, "a").ask(Porter.hand_over, "b", "parcel"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        nursery.start_soon(system.drain, 30)
        await wait_all_tasks_blocked()
        with pytest.raises(Draining):
            await system.ref(Porter, "c").ask(Porter.carry, "too late")
        with pytest.raises(Draining):
            system.ref(Porter, "c").tell(Porter.carry, "too late")
    assert answers == ["parcel"]
    assert trace == ["parcel", "b left", "a left"]


async def test_a_drain_waits_for_work_but_ends_the_endless(system: ActorSystem, trace: list[str]) -> None:
    await system.ref(Porter, "a").ask(Porter.haul, "piano", 20.0)
    await system.ref(Porter, "b").ask(Porter.haul, "never", 1e6, True)
    began = trio.current_time()
    await system.drain(30)
    assert trace == ["b left", "piano", "a left"]
    assert trio.current_time() == began + 20.0


async def test_work_may_report_back_while_the_system_drains(system: ActorSystem, trace: list[str]) -> None:
    await system.ref(Porter, "a").ask(Porter.haul_and_report, 20.0)
    await system.drain(30)
    assert trace == ["report", "a left"]


async def test_what_a_drain_cannot_finish_in_time_is_cancelled_and_its_askers_are_told(
    system: ActorSystem, trace: list[str]
) -> None:
    told: list[str] = []

    async def ask(what: str) -> None:
        try:
            await system.ref(Porter, "a").ask(Porter.carry, what, 100.0)
        except (ActorCrashed, Draining) as error:
            told.append(type(error).__name__)

    async with trio.open_nursery() as nursery:
        for what in ("begun", "queued"):
            nursery.start_soon(ask, what)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await system.drain(30)
        assert trio.current_time() == began + 30.0
    assert sorted(told) == ["ActorCrashed", "Draining"]
    assert trace == []


async def test_a_drain_does_not_wait_for_the_rest_after_a_crash(
    system: ActorSystem, trace: list[str], alerts: list[ActorAlert]
) -> None:
    ref = system.ref(Porter, "a")
    for _ in range(3):
        with pytest.raises(ActorCrashed):
            await ref.ask(Porter.stumble)
    await wait_all_tasks_blocked()
    assert alerts[-1].retry_after == 60.0
    began = trio.current_time()
    await system.drain(30)
    assert trio.current_time() == began


async def test_a_crash_during_the_drain_does_not_prolong_it(system: ActorSystem, trace: list[str]) -> None:
    async def stumble() -> None:
        with pytest.raises(ActorCrashed):
            await system.ref(Porter, "a").ask(Porter.stumble, 5.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stumble)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await system.drain(30)
        assert trio.current_time() == began + 5.0


async def test_an_idle_system_drains_at_once_and_stays_shut(system: ActorSystem, trace: list[str]) -> None:
    await system.drain(30)
    await system.drain(30)
    with pytest.raises(Draining):
        await system.ref(Porter, "a").ask(Porter.carry, "anything")


async def test_leaving_the_block_without_a_drain_answers_everybody() -> None:
    Porter.trace = []
    told: list[str] = []

    async def ask(system: ActorSystem) -> None:
        with pytest.raises(ActorCrashed):
            await system.ref(Porter, "a").ask(Porter.carry, "what", 100.0)
        told.append("told")

    async with trio.open_nursery() as nursery, ActorSystem.open() as system:
        system.register(Porter, lambda key: Porter())
        nursery.start_soon(ask, system)
        await wait_all_tasks_blocked()
    assert told == ["told"]


async def test_a_cancelled_block_can_still_drain() -> None:
    Porter.trace = []
    with trio.CancelScope() as scope:
        async with ActorSystem.open() as system:
            system.register(Porter, lambda key: Porter())
            system.ref(Porter, "a").tell(Porter.carry, "the last one", 5.0)
            try:
                scope.cancel()
                await trio.lowlevel.checkpoint()
            finally:
                with trio.CancelScope(shield=True):
                    await system.drain(30)
    assert Porter.trace == ["the last one", "a left"]
