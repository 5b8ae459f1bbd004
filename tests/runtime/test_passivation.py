"""Actors at rest cost nothing, and nobody notices that they rest."""

from __future__ import annotations

import gc
import weakref

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from svc_actors.runtime import Actor, ActorAlert, ActorSystem, AlertKind


class Lamp(Actor):
    """Traces its life; takes as long to be passivated as `leaving` says."""

    trace: list[str]
    leaving: float
    leaves_badly: bool

    async def activate(self) -> None:
        self.trace.append("on")

    async def passivate(self) -> None:
        await trio.sleep(self.leaving)
        if self.leaves_badly:
            raise OSError("the bulb is stuck")
        self.trace.append("off")

    async def blink(self, label: str = "blink") -> Lamp:
        self.trace.append(label)
        return self

    async def burn(self, seconds: float) -> None:
        self.spawn(trio.sleep, seconds)


@pytest.fixture
def trace(system: ActorSystem) -> list[str]:
    Lamp.trace, Lamp.leaving, Lamp.leaves_badly = [], 0.0, False
    system.register(Lamp, lambda key: Lamp())
    return Lamp.trace


async def test_an_idle_actor_is_passivated_and_comes_back_with_the_next_message(
    system: ActorSystem, trace: list[str]
) -> None:
    ref = system.ref(Lamp, "a")
    await ref.ask(Lamp.blink)
    await trio.sleep(9.9)
    assert trace == ["on", "blink"]
    await trio.sleep(0.2)
    assert trace == ["on", "blink", "off"]
    await ref.ask(Lamp.blink)
    assert trace == ["on", "blink", "off", "on", "blink"]


async def test_idleness_is_counted_from_the_last_message(system: ActorSystem, trace: list[str]) -> None:
    for _ in range(3):
        await system.ref(Lamp, "a").ask(Lamp.blink)
        await trio.sleep(9)
    assert "off" not in trace


async def test_actors_at_rest_hold_no_task_and_no_object(system: ActorSystem, trace: list[str]) -> None:
    tasks = trio.lowlevel.current_statistics().tasks_living
    instances = [weakref.ref(await system.ref(Lamp, str(number)).ask(Lamp.blink)) for number in range(200)]
    assert trio.lowlevel.current_statistics().tasks_living == tasks + 200
    await trio.sleep(11)
    gc.collect()
    assert trio.lowlevel.current_statistics().tasks_living == tasks
    assert system.statistics().live == 0
    assert not [instance for instance in instances if instance() is not None]


async def test_a_message_during_passivation_is_not_lost(system: ActorSystem, trace: list[str]) -> None:
    Lamp.leaving = 5.0
    ref = system.ref(Lamp, "a")
    await ref.ask(Lamp.blink, "first")
    await trio.sleep(12)
    ref.tell(Lamp.blink, "second")
    await ref.ask(Lamp.blink, "third")
    assert trace == ["on", "first", "off", "on", "second", "third"]


async def test_a_message_at_the_very_moment_of_passivation_is_not_lost(system: ActorSystem, trace: list[str]) -> None:
    for _ in range(20):
        await system.ref(Lamp, "a").ask(Lamp.blink)
        await trio.sleep(10.0)
    assert trace.count("blink") == 20


async def test_an_actor_with_live_work_is_not_passivated(system: ActorSystem, trace: list[str]) -> None:
    await system.ref(Lamp, "a").ask(Lamp.burn, 100.0)
    await trio.sleep(99)
    assert trace == ["on"]
    await trio.sleep(12)
    assert trace == ["on", "off"]


async def test_a_failing_passivation_is_told_and_the_actor_is_dropped(
    system: ActorSystem, trace: list[str], alerts: list[ActorAlert]
) -> None:
    Lamp.leaves_badly = True
    await system.ref(Lamp, "a").ask(Lamp.blink)
    await trio.sleep(11)
    assert [(alert.kind, alert.during) for alert in alerts] == [(AlertKind.CRASHED, "passivate")]
    assert system.statistics().live == 0


async def test_no_work_can_be_left_behind_by_a_passivated_actor(system: ActorSystem, trace: list[str]) -> None:
    lamp = await system.ref(Lamp, "a").ask(Lamp.blink)
    await trio.sleep(11)
    with pytest.raises(RuntimeError, match="no longer in charge"):
        lamp.spawn(trio.sleep_forever)


async def test_a_type_can_rest_sooner_than_the_system_says(system: ActorSystem) -> None:
    class Brief(Actor):
        async def ping(self) -> None: ...

    system.register(Brief, lambda key: Brief(), idle_after=1.0)
    await system.ref(Brief, "a").ask(Brief.ping)
    await trio.sleep(1.1)
    await wait_all_tasks_blocked()
    assert system.statistics().live == 0
