"""Shutting down finishes what was accepted, and takes nothing more."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from svc_actors.runtime import Actor, ActorAlert, ActorCrashed, ActorSystem, AlertKind, Draining


class Porter(Actor):
    trace: list[str]

    async def carry(self, what: str, seconds: float = 1.0) -> str:
        await trio.sleep(seconds)
        self.trace.append(what)
        return what

    async def hand_over(self, to: str, what: str) -> str:
        await trio.sleep(1.0)
        return await self.system.ref(Porter, to).ask(Porter.carry, what)

    async def hand_over_elsewhere(self, elsewhere: trio.Nursery, to: str, told: list[str]) -> None:
        async def ask() -> None:
            await trio.sleep(1.0)
            try:
                await self.system.ref(Porter, to).ask(Porter.carry, "by a task of somebody else")
            except Draining:
                told.append("refused")

        elsewhere.start_soon(ask)
        await trio.sleep(2.0)

    async def carry_and_drop(self) -> None:
        async def drop() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("dropped it on the way out")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drop)
            await trio.sleep_forever()

    async def stumble(self, after: float = 0.0) -> None:
        await trio.sleep(after)
        raise ValueError("dropped it")


@pytest.fixture
def trace(system: ActorSystem) -> list[str]:
    Porter.trace = []
    system.register(Porter, lambda key: Porter())
    return Porter.trace


async def test_a_drain_finishes_mailboxes(system: ActorSystem, trace: list[str]) -> None:
    ref = system.ref(Porter, "a")
    for what in ("1", "2", "3"):
        ref.tell(Porter.carry, what)
    await system.drain(30)
    assert trace == ["1", "2", "3"]
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
    assert trace == ["parcel"]


async def test_a_task_that_a_handler_started_elsewhere_does_not_get_past_the_drain(
    system: ActorSystem, trace: list[str]
) -> None:
    told: list[str] = []

    async with trio.open_nursery() as elsewhere:
        system.ref(Porter, "a").tell(Porter.hand_over_elsewhere, elsewhere, "b", told)
        await wait_all_tasks_blocked()
        await system.drain(30)

    assert told == ["refused"]
    assert trace == []


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
        await system.drain(10)
        assert trio.current_time() == began + 10.0
    assert sorted(told) == ["ActorCrashed", "Draining"]
    assert trace == []


async def test_told_messages_that_a_drain_cuts_raise_an_alert_each(
    system: ActorSystem, trace: list[str], alerts: list[ActorAlert]
) -> None:
    for what in ("begun", "queued"):
        system.ref(Porter, "a").tell(Porter.carry, what, 100.0)
    system.ref(Porter, "b").tell(Porter.carry, "in time")
    await wait_all_tasks_blocked()

    await system.drain(10)
    await wait_all_tasks_blocked()

    assert trace == ["in time"]
    assert [(alert.kind, alert.actor, type(alert.error)) for alert in alerts] == [
        (AlertKind.LOST, "Porter:a", ActorCrashed),
        (AlertKind.LOST, "Porter:a", Draining),
    ]


async def test_a_handler_that_fails_while_it_is_cut_is_told_and_the_system_closes(alerts: list[ActorAlert]) -> None:
    async with ActorSystem.open(on_alert=alerts.append) as system:
        system.register(Porter, lambda key: Porter())
        system.ref(Porter, "a").tell(Porter.carry_and_drop)
        await wait_all_tasks_blocked()
        await system.drain(1)

    assert [alert.kind for alert in alerts] == [AlertKind.LOST, AlertKind.CRASHED]
    assert "dropped it on the way out" in repr(alerts[1].error)


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
    assert Porter.trace == ["the last one"]
