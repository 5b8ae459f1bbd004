"""Actors at rest cost nothing, and nobody notices that they rest."""

from __future__ import annotations

import gc
import weakref

import pytest
import trio

from svc_actors.runtime import Actor, ActorSystem
from svc_actors.runtime.cell import IDLE_AFTER


class Lamp(Actor):
    """Says which instance it is."""

    made = 0

    def __init__(self) -> None:
        Lamp.made += 1

    async def blink(self) -> Lamp:
        return self


@pytest.fixture
def lamps(system: ActorSystem) -> ActorSystem:
    Lamp.made = 0
    system.register(Lamp, lambda key: Lamp())
    return system


def live(lamps: ActorSystem) -> int:
    return lamps.statistics()["Lamp"].live


async def test_an_idle_actor_leaves_and_comes_back_with_the_next_message(lamps: ActorSystem) -> None:
    ref = lamps.ref(Lamp, "a")

    await ref.ask(Lamp.blink)
    await trio.sleep(IDLE_AFTER - 0.1)
    assert live(lamps) == 1
    await trio.sleep(0.2)
    assert live(lamps) == 0
    await ref.ask(Lamp.blink)

    assert Lamp.made == 2


async def test_idleness_is_counted_from_the_last_message(lamps: ActorSystem) -> None:
    for _ in range(3):
        await lamps.ref(Lamp, "a").ask(Lamp.blink)
        await trio.sleep(IDLE_AFTER - 0.1)

    assert Lamp.made == 1


async def test_actors_at_rest_hold_no_task_and_no_object(lamps: ActorSystem) -> None:
    tasks = trio.lowlevel.current_statistics().tasks_living
    instances = [weakref.ref(await lamps.ref(Lamp, str(number)).ask(Lamp.blink)) for number in range(200)]
    assert trio.lowlevel.current_statistics().tasks_living == tasks + 200

    await trio.sleep(IDLE_AFTER + 0.1)
    gc.collect()

    assert trio.lowlevel.current_statistics().tasks_living == tasks
    assert live(lamps) == 0
    assert not [instance for instance in instances if instance() is not None]


async def test_a_message_at_the_very_moment_of_leaving_is_not_lost(lamps: ActorSystem) -> None:
    for _ in range(50):
        await lamps.ref(Lamp, "a").ask(Lamp.blink)
        await trio.sleep(IDLE_AFTER)

    assert 1 < Lamp.made < 50, "the actor had left at some of these moments, and at others it had not"
