"""Shutting down finishes what was accepted, and takes nothing more."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from svc_actors.runtime import Actor, ActorCrashed, ActorSystem, Crash, DomainError, Draining


class Porter(Actor):
    def __init__(self, carried: list[str]) -> None:
        self.carried = carried

    async def carry(self, what: str, seconds: float = 1.0) -> str:
        await trio.sleep(seconds)
        self.carried.append(what)
        return what

    async def carry_and_drop(self) -> None:
        async def drop() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("dropped it on the way out")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drop)
            await trio.sleep_forever()

    async def carry_and_give_up(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise DomainError("put it down")

    async def stumble(self) -> None:
        await trio.sleep(5.0)
        raise ValueError("dropped it")


@pytest.fixture
def carried(system: ActorSystem) -> list[str]:
    carried: list[str] = []
    system.register(Porter, lambda key: Porter(carried))
    return carried


async def test_a_drain_finishes_mailboxes_and_refuses_messages(system: ActorSystem, carried: list[str]) -> None:
    async with trio.open_nursery() as nursery:
        for what in ("1", "2", "3"):
            nursery.start_soon(system.ref(Porter, "a").ask, Porter.carry, what)
            await wait_all_tasks_blocked()
        nursery.start_soon(system.drain, 30)
        await wait_all_tasks_blocked()
        for key in ("a", "b"):
            with pytest.raises(Draining):
                await system.ref(Porter, key).ask(Porter.carry, "too late")
    assert carried == ["1", "2", "3"]
    assert system.statistics()["Porter"].live == 0


async def test_what_a_drain_cannot_finish_in_time_is_cancelled_and_its_askers_are_told(
    system: ActorSystem, carried: list[str], crashes: list[Crash]
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
        await system.drain(10)
        assert trio.current_time() == began + 10.0
    assert sorted(told) == ["ActorCrashed", "Draining"]
    assert (carried, crashes) == ([], [])


async def test_a_handler_that_fails_while_it_is_cut_is_told_and_the_system_closes() -> None:
    crashes: list[Crash] = []

    async with trio.open_nursery() as nursery:

        async def fail(system: ActorSystem) -> None:
            with pytest.raises(ActorCrashed):
                await system.ref(Porter, "a").ask(Porter.carry_and_drop)

        async def give_up(system: ActorSystem) -> None:
            with pytest.raises(DomainError, match="put it down"):
                await system.ref(Porter, "b").ask(Porter.carry_and_give_up)

        async with ActorSystem.open(on_crash=crashes.append) as system:
            system.register(Porter, lambda key: Porter([]))
            nursery.start_soon(fail, system)
            nursery.start_soon(give_up, system)
            await wait_all_tasks_blocked()
            await system.drain(1)

    assert [crash.actor for crash in crashes] == ["Porter:a"]
    assert "dropped it on the way out" in repr(crashes[0].error)


async def test_a_crash_during_the_drain_does_not_prolong_it(system: ActorSystem, carried: list[str]) -> None:
    async def stumble() -> None:
        with pytest.raises(ActorCrashed):
            await system.ref(Porter, "a").ask(Porter.stumble)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stumble)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await system.drain(30)
        assert trio.current_time() == began + 5.0


async def test_an_idle_system_drains_at_once_and_stays_shut(system: ActorSystem, carried: list[str]) -> None:
    await system.ref(Porter, "a").ask(Porter.carry, "something", 0.0)
    began = trio.current_time()
    await system.drain(30)
    await system.drain(30)
    assert trio.current_time() == began
    with pytest.raises(Draining):
        await system.ref(Porter, "a").ask(Porter.carry, "anything")


async def test_leaving_the_block_without_a_drain_answers_everybody() -> None:
    told: list[str] = []

    async def ask(system: ActorSystem) -> None:
        with pytest.raises(ActorCrashed):
            await system.ref(Porter, "a").ask(Porter.carry, "what", 100.0)
        told.append("told")

    async with trio.open_nursery() as nursery, ActorSystem.open() as system:
        system.register(Porter, lambda key: Porter([]))
        nursery.start_soon(ask, system)
        await wait_all_tasks_blocked()
    assert told == ["told"]


async def test_a_cancelled_block_can_still_drain() -> None:
    carried: list[str] = []
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with ActorSystem.open() as system:
                system.register(Porter, lambda key: Porter(carried))
                nursery.start_soon(system.ref(Porter, "a").ask, Porter.carry, "the last one", 5.0)
                await wait_all_tasks_blocked()
                try:
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
                finally:
                    with trio.CancelScope(shield=True):
                        await system.drain(30)
    assert carried == ["the last one"]
