"""Messages to one actor are handled one at a time, in order, none lost, across crashes and rest.

Programs of several clients are drawn at random and run under the virtual clock with a drawn seed for Trio's scheduler.
A `World` outside the actors remembers what was sent, what was begun and who was busy, and is the judge.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from math import inf

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from svc_actors.runtime import Actor, ActorCrashed, ActorSystem, Crash, DomainError, MailboxFull, cell

scheduler = importlib.import_module("trio._core._run")


class Does(StrEnum):
    ANSWER = "answer"
    REFUSE = "refuse"
    CRASH = "crash"


@dataclass(frozen=True)
class Step:
    """After a pause, one message to the actor `key`, whose handler takes `lasts` seconds; the asker waits for at most
    `patience` seconds."""

    pause: float
    key: str
    patience: float
    does: Does
    lasts: float


Program = Sequence[Sequence[Step]]
"""The steps of each client."""


@dataclass
class World:
    sent: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    begun: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    refused: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    trace: list[tuple[float, str]] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    messages: int = 0
    began: float = field(default_factory=trio.current_time)

    def note(self, event: str) -> None:
        self.trace.append((round(trio.current_time() - self.began, 3), event))

    @contextmanager
    def alone(self, key: str, what: str) -> Iterator[None]:
        if key in self.busy:
            self.wrong.append(f"{key} began {what} while it was busy")
        self.busy.add(key)
        self.note(f"{key} begins {what}")
        try:
            yield
        finally:
            self.busy.discard(key)
            self.note(f"{key} ends {what}")


class Ledger(Actor):
    def __init__(self, world: World) -> None:
        self.world = world
        self.crashed = False

    async def record(self, number: int, does: Does, lasts: float) -> int:
        with self.world.alone(self.key, str(number)):
            if self.crashed:
                self.world.wrong.append(f"{number} was handled by an instance that had crashed")
            self.world.begun[self.key].append(number)
            await trio.sleep(lasts)
            match does:
                case Does.ANSWER:
                    return number
                case Does.REFUSE:
                    raise DomainError(str(number))
                case Does.CRASH:
                    self.crashed = True
                    raise ValueError(number)


async def send(world: World, system: ActorSystem, step: Step) -> None:
    await trio.sleep(step.pause)
    world.messages += 1
    number = world.messages
    world.sent[step.key].append(number)
    outcome: str = "no answer"
    with trio.move_on_after(step.patience):
        try:
            answer = await system.ref(Ledger, step.key).ask(Ledger.record, number, step.does, step.lasts)
            outcome = Does.ANSWER if answer == number else "the answer to another message"
        except MailboxFull:
            world.refused.add(number)
            return
        except ActorCrashed:
            outcome = Does.CRASH
        except DomainError as error:
            outcome = Does.REFUSE if str(error) == str(number) else "the error of another message"
    world.note(f"{number}: {outcome}")
    if outcome == "no answer" and step.patience < inf:
        if number not in world.begun[step.key]:
            world.refused.add(number)
    elif outcome != step.does:
        world.wrong.append(f"{number} should have led to {step.does}, but led to {outcome}")


async def run_program(program: Program) -> World:
    world = World()

    async def run_client(steps: Sequence[Step]) -> None:
        for step in steps:
            await send(world, system, step)

    def note_crash(crash: Crash) -> None:
        world.note(f"{crash.actor} crashed in {crash.during}")

    async with ActorSystem.open(on_crash=note_crash) as system:
        system.register(Ledger, lambda key: Ledger(world))
        async with trio.open_nursery() as nursery:
            for steps in program:
                nursery.start_soon(run_client, steps)
        await system.drain(100_000.0)
        if system.statistics()["Ledger"].live:
            world.wrong.append("the drain left actors behind")
    return world


def run(program: Program, seed: int) -> World:
    scheduler._r.seed(seed)
    return trio.run(partial(run_program, program), clock=MockClock(autojump_threshold=0))


steps = st.builds(
    Step,
    pause=st.sampled_from([0.0, 0.0, 0.0, 0.2, 5.0, 5.5, 12.0]),
    key=st.sampled_from("ab"),
    patience=st.sampled_from([inf, inf, 0.4]),
    does=st.sampled_from([Does.ANSWER, Does.ANSWER, *Does]),
    lasts=st.sampled_from([0.0, 0.0, 0.4, 3.0]),
)
programs = st.lists(st.lists(steps, max_size=8), min_size=1, max_size=8)
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True, scope="module")
def small_mailboxes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cell, "MAILBOX_LIMIT", 3)
        yield


def asked(does: Does, *, pause: float = 0.0) -> Step:
    return Step(pause, "a", inf, does, 0.4)


@given(programs, seeds)
@example([[asked(Does.CRASH), asked(Does.ANSWER), asked(Does.CRASH)]] * 3, 1)
@example([[asked(Does.ANSWER, pause=5.0)] * 8, [asked(Does.ANSWER, pause=5.5)] * 8], 2)
@settings(max_examples=200, deadline=None)
def test_messages_are_handled_one_at_a_time_in_order_and_none_is_lost(program: Program, seed: int) -> None:
    world = run(program, seed)
    assert world.wrong == []
    for key, numbers in world.sent.items():
        assert world.begun[key] == [number for number in numbers if number not in world.refused]


@given(programs, seeds)
@settings(max_examples=40, deadline=None)
def test_the_same_seed_gives_the_same_trace(program: Program, seed: int) -> None:
    assert run(program, seed).trace == run(program, seed).trace


def test_another_seed_gives_another_interleaving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    program = [[asked(Does.ANSWER)], [asked(Does.CRASH)], [asked(Does.REFUSE)]]
    traces = {tuple(run(program, seed).trace) for seed in range(20)}
    assert len(traces) > 1
