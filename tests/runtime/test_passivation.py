"""Actors at rest cost nothing, and nobody notices that they rest."""

from __future__ import annotations

import gc
import weakref

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from svc_actors.runtime import Actor, ActorCrashed, ActorSystem


class Lamp(Actor):
    """Traces when it is loaded and what it does."""

    trace: list[str]

    async def activate(self) -> None:
        self.trace.append("on")

    async def blink(self, label: str = "blink") -> Lamp:
        self.trace.append(label)
        return self

    async def burst(self) -> None:
        raise ValueError("the bulb burst")


@pytest.fixture
def trace(system: ActorSystem) -> list[str]:
    Lamp.trace = []
    system.register(Lamp, lambda key: Lamp())
    return Lamp.trace


async def test_an_idle_actor_leaves_and_comes_back_with_the_next_message(system: ActorSystem, trace: list[str]) -> None:
    ref = system.ref(Lamp, "a")

    await ref.ask(Lamp.blink)
    await trio.sleep(9.9)
    assert system.statistics().live == 1
    await trio.sleep(0.2)
    assert system.statistics().live == 0
    await ref.ask(Lamp.blink)

    assert trace == ["on", "blink", "on", "blink"]


async def test_idleness_is_counted_from_the_last_message(system: ActorSystem, trace: list[str]) -> None:
    for _ in range(3):
        await system.ref(Lamp, "a").ask(Lamp.blink)
        await trio.sleep(9)

    assert trace.count("on") == 1


async def test_actors_at_rest_hold_no_task_and_no_object(system: ActorSystem, trace: list[str]) -> None:
    tasks = trio.lowlevel.current_statistics().tasks_living
    instances = [weakref.ref(await system.ref(Lamp, str(number)).ask(Lamp.blink)) for number in range(200)]
    assert trio.lowlevel.current_statistics().tasks_living == tasks + 200

    await trio.sleep(11)
    gc.collect()

    assert trio.lowlevel.current_statistics().tasks_living == tasks
    assert system.statistics().live == 0
    assert not [instance for instance in instances if instance() is not None]


async def test_a_message_at_the_very_moment_of_leaving_is_not_lost(system: ActorSystem, trace: list[str]) -> None:
    for _ in range(20):
        await system.ref(Lamp, "a").ask(Lamp.blink)
        await trio.sleep(10.0)

    assert trace.count("blink") == 20


async def test_an_actor_that_crashed_rests_once_its_crash_is_forgotten(system: ActorSystem, trace: list[str]) -> None:
    with pytest.raises(ActorCrashed):
        await system.ref(Lamp, "a").ask(Lamp.burst)

    await trio.sleep(30)
    assert system.statistics().live == 1
    await trio.sleep(2)

    assert system.statistics().live == 0
    assert trace == ["on"]


async def test_a_type_can_stay_live_for_longer_than_the_others(system: ActorSystem, trace: list[str]) -> None:
    class Patient(Actor):
        async def ping(self) -> None: ...

    system.register(Patient, lambda key: Patient(), idle_after=100.0)
    await system.ref(Patient, "a").ask(Patient.ping)
    await system.ref(Lamp, "a").ask(Lamp.blink)

    await trio.sleep(99)
    await wait_all_tasks_blocked()
    live = {name: kind.live for name, kind in system.statistics().kinds.items()}
    await trio.sleep(2)

    assert live == {"Lamp": 0, "Patient": 1}
    assert system.statistics().live == 0
