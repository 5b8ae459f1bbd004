"""What happens when a handler fails, or does not end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from svc_actors.runtime import Actor, ActorCrashed, ActorSystem, Crash, DomainError, HandlerOverdue
from svc_actors.runtime.cell import HANDLER_DEADLINE


class Teller(Actor):
    """Its balance lasts (`balances`), what it has counted in memory does not."""

    def __init__(self, balances: dict[str, int]) -> None:
        self.balances = balances
        self.counted = 0

    async def deposit(self, amount: int) -> int:
        self.counted += 1
        if amount < 0:
            raise ValueError(f"cannot deposit {amount}")
        self.balances[self.key] = self.balances.get(self.key, 0) + amount
        return self.balances[self.key]

    async def wait_for(self, event: trio.Event) -> None:
        await event.wait()

    async def count(self) -> int:
        return self.counted

    async def hang(self) -> None:
        self.counted += 1
        await trio.sleep_forever()

    async def hang_and_refuse(self) -> None:
        self.counted += 1
        try:
            await trio.sleep_forever()
        finally:
            raise DomainError("the commit was cut off")

    async def commit_slowly(self) -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(HANDLER_DEADLINE + 5)
        return "committed"


@pytest.fixture
def tellers(system: ActorSystem) -> dict[str, int]:
    balances = dict[str, int]()

    def make(key: str) -> Teller:
        if key == "broken":
            raise OSError("no descriptors left")
        if key == "missing":
            raise DomainError("there is no such account")
        return Teller(balances)

    system.register(Teller, make)
    return balances


async def test_a_crash_answers_its_ask_with_the_cause_and_is_reported(
    system: ActorSystem, tellers: dict[str, int], crashes: list[Crash], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ActorCrashed, match=r"Teller:a failed in deposit") as failure:
        await system.ref(Teller, "a").ask(Teller.deposit, -1)
    cause = failure.value.__cause__
    assert isinstance(cause, ValueError)
    assert crashes == [Crash("Teller:a", "deposit", cause)]
    assert "Teller:a crashed in deposit: ValueError: cannot deposit -1" in caplog.text


async def test_after_a_crash_only_what_was_stored_is_known(system: ActorSystem, tellers: dict[str, int]) -> None:
    ref = system.ref(Teller, "a")
    await ref.ask(Teller.deposit, 5)
    with pytest.raises(ActorCrashed):
        await ref.ask(Teller.deposit, -3)
    assert await ref.ask(Teller.count) == 0
    assert await ref.ask(Teller.deposit, 1) == 6


async def test_messages_waiting_at_a_crash_survive_it_in_order(system: ActorSystem, tellers: dict[str, int]) -> None:
    ref, go_on = system.ref(Teller, "a"), trio.Event()
    answers: dict[int, int | str] = {}

    async def ask(amount: int) -> None:
        try:
            answers[amount] = await ref.ask(Teller.deposit, amount)
        except ActorCrashed:
            answers[amount] = "crashed"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ref.ask, Teller.wait_for, go_on)
        for amount in (1, -1, 10, 100):
            await wait_all_tasks_blocked()
            nursery.start_soon(ask, amount)
        await wait_all_tasks_blocked()
        go_on.set()
    assert answers == {1: 1, -1: "crashed", 10: 11, 100: 111}


async def test_however_often_an_actor_crashes_the_next_message_is_handled_at_once(
    system: ActorSystem, tellers: dict[str, int], crashes: list[Crash]
) -> None:
    began = trio.current_time()
    for _ in range(20):
        with pytest.raises(ActorCrashed):
            await system.ref(Teller, "a").ask(Teller.deposit, -1)
    assert await system.ref(Teller, "a").ask(Teller.deposit, 1) == 1
    assert trio.current_time() == began
    assert len(crashes) == system.statistics()["Teller"].crashes == 20


async def test_an_actor_that_cannot_be_made_answers_its_askers_and_harms_no_other(
    system: ActorSystem, tellers: dict[str, int], crashes: list[Crash]
) -> None:
    with pytest.raises(ActorCrashed):
        await system.ref(Teller, "broken").ask(Teller.count)
    with pytest.raises(DomainError, match="no such account"):
        await system.ref(Teller, "missing").ask(Teller.count)
    assert await system.ref(Teller, "a").ask(Teller.deposit, 1) == 1
    assert [crash.actor for crash in crashes] == ["Teller:broken"]


@pytest.mark.parametrize("hang", [Teller.hang, Teller.hang_and_refuse])
async def test_a_late_handler_is_ended_and_has_crashed_whatever_it_raises(
    system: ActorSystem, tellers: dict[str, int], crashes: list[Crash], hang: Callable[[Teller], Awaitable[None]]
) -> None:
    ref = system.ref(Teller, "a")
    began = trio.current_time()

    with pytest.raises(ActorCrashed) as failure:
        await ref.ask(hang)

    assert trio.current_time() == began + HANDLER_DEADLINE
    assert isinstance(failure.value.__cause__, HandlerOverdue)
    assert await ref.ask(Teller.count) == 0
    assert [type(crash.error) for crash in crashes] == [HandlerOverdue]


async def test_a_late_handler_that_succeeds_has_succeeded(
    system: ActorSystem, tellers: dict[str, int], crashes: list[Crash]
) -> None:
    assert await system.ref(Teller, "a").ask(Teller.commit_slowly) == "committed"
    assert crashes == []


async def test_each_handler_has_its_own_deadline(system: ActorSystem, tellers: dict[str, int]) -> None:
    ended: dict[str, float] = {}
    began = trio.current_time()

    async def hang(key: str, after: float) -> None:
        await trio.sleep(after)
        with pytest.raises(ActorCrashed):
            await system.ref(Teller, key).ask(Teller.hang)
        ended[key] = trio.current_time() - began

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang, "a", 0.0)
        nursery.start_soon(hang, "b", 7.0)

    assert ended == {"a": HANDLER_DEADLINE, "b": HANDLER_DEADLINE + 7.0}


async def test_statistics_say_what_each_type_does(system: ActorSystem, tellers: dict[str, int]) -> None:
    go_on = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(system.ref(Teller, "a").ask, Teller.wait_for, go_on)
        await system.ref(Teller, "b").ask(Teller.deposit, 1)
        await wait_all_tasks_blocked()
        figures = system.statistics()["Teller"]
        go_on.set()

    assert (figures.live, figures.waiting, figures.crashes) == (2, 2, 0)
