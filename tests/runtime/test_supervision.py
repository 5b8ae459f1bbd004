"""What happens when a handler or an activation fails."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from svc_actors.runtime import (
    Actor,
    ActorAlert,
    ActorCrashed,
    ActorSystem,
    ActorUnavailable,
    AlertKind,
    DomainError,
    RestartPolicy,
)


class Teller(Actor):
    """Its balance lasts (`balances`), what it has counted in memory does not."""

    balances: dict[str, int]
    broken: set[str]

    async def activate(self) -> None:
        if self.key in self.broken:
            raise OSError("the store cannot be read")
        if self.key.startswith("missing"):
            raise DomainError("there is no such account")
        self.balance = self.balances.get(self.key, 0)
        self.counted = 0

    async def deposit(self, amount: int) -> int:
        self.counted += 1
        self.balance += amount
        if amount < 0:
            raise ValueError(f"cannot deposit {amount}")
        self.balances[self.key] = self.balance
        return self.balance

    async def wait_for(self, event: trio.Event) -> None:
        await event.wait()

    async def count(self) -> int:
        return self.counted


@pytest.fixture
def tellers(system: ActorSystem) -> type[Teller]:
    Teller.balances, Teller.broken = {}, set()
    system.register(Teller, lambda key: Teller())
    return Teller


async def test_a_crash_fails_its_ask_with_the_cause(system: ActorSystem, tellers: type[Teller]) -> None:
    with pytest.raises(ActorCrashed, match=r"Teller:a failed in deposit") as failure:
        await system.ref(Teller, "a").ask(Teller.deposit, -1)
    assert isinstance(failure.value.__cause__, ValueError)


async def test_after_a_crash_only_what_was_stored_is_known(system: ActorSystem, tellers: type[Teller]) -> None:
    ref = system.ref(Teller, "a")
    await ref.ask(Teller.deposit, 5)
    with pytest.raises(ActorCrashed):
        await ref.ask(Teller.deposit, -3)
    assert await ref.ask(Teller.count) == 0
    assert await ref.ask(Teller.deposit, 1) == 6


async def test_messages_waiting_at_a_crash_survive_it_in_order(system: ActorSystem, tellers: type[Teller]) -> None:
    ref, go_on = system.ref(Teller, "a"), trio.Event()
    answers: dict[int, int | str] = {}

    async def ask(amount: int) -> None:
        try:
            answers[amount] = await ref.ask(Teller.deposit, amount)
        except ActorCrashed:
            answers[amount] = "crashed"

    async with trio.open_nursery() as nursery:
        ref.tell(Teller.wait_for, go_on)
        for amount in (1, -1, 10, 100):
            nursery.start_soon(ask, amount)
            await wait_all_tasks_blocked()
        go_on.set()
    assert answers == {1: 1, -1: "crashed", 10: 11, 100: 111}


async def test_each_crash_in_the_window_doubles_the_pause(system: ActorSystem, tellers: type[Teller]) -> None:
    ref = system.ref(Teller, "a")
    pauses = []
    for _ in range(2):
        with pytest.raises(ActorCrashed):
            await ref.ask(Teller.deposit, -1)
        before = trio.current_time()
        await ref.ask(Teller.count)
        pauses.append(trio.current_time() - before)
    assert pauses == pytest.approx([1.0, 2.0])


def test_a_crash_outside_the_window_is_forgotten() -> None:
    policy = RestartPolicy(intensity=1, window=10.0, first_pause=1.0, longest_pause=4.0, cool_down=60.0)
    assert policy.judge((0.0,), 9.0).refuse
    assert not policy.judge((0.0,), 10.0).refuse
    assert policy.judge((0.0,), 10.0).pause == 1.0


def test_the_pause_never_passes_its_limit() -> None:
    policy = RestartPolicy(intensity=2000, window=10.0, first_pause=1.0, longest_pause=4.0)
    assert policy.judge(tuple([0.0] * 1500), 1.0).pause == 4.0


async def crash(system: ActorSystem, times: int) -> None:
    for _ in range(times):
        with pytest.raises(ActorCrashed):
            await system.ref(Teller, "a").ask(Teller.deposit, -1)
    await wait_all_tasks_blocked()


async def test_past_the_restart_intensity_an_actor_alerts_and_refuses_until_it_has_cooled_down(
    system: ActorSystem, tellers: type[Teller], alerts: list[ActorAlert]
) -> None:
    await crash(system, 3)
    assert [alert.kind for alert in alerts] == [AlertKind.CRASHED, AlertKind.CRASHED, AlertKind.REFUSING]
    assert alerts[-1].retry_after == 60.0
    began = trio.current_time()
    with pytest.raises(ActorUnavailable) as refusal:
        await system.ref(Teller, "a").ask(Teller.deposit, 1)
    assert refusal.value.retry_after == pytest.approx(60.0)
    assert trio.current_time() == began
    assert await system.ref(Teller, "b").ask(Teller.deposit, 7) == 7
    await trio.sleep(60.1)
    assert await system.ref(Teller, "a").ask(Teller.deposit, 1) == 1


async def test_when_an_actor_begins_to_refuse_its_askers_are_told_and_told_messages_wait(
    system: ActorSystem, tellers: type[Teller]
) -> None:
    await crash(system, 2)
    ref = system.ref(Teller, "a")
    refused: list[str] = []

    async def ask() -> None:
        with pytest.raises(ActorUnavailable):
            await ref.ask(Teller.deposit, 10)
        refused.append("asked")

    async with trio.open_nursery() as nursery:
        ref.tell(Teller.deposit, -1)
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        ref.tell(Teller.deposit, 5)
    assert refused == ["asked"]
    await trio.sleep(61)
    assert tellers.balances == {"a": 5}


async def test_an_actor_that_cannot_be_loaded_is_tried_again_and_its_message_waits(
    system: ActorSystem, tellers: type[Teller], alerts: list[ActorAlert]
) -> None:
    tellers.broken.add("a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(system.ref(Teller, "a").ask, Teller.deposit, 3)
        await wait_all_tasks_blocked()
        tellers.broken.clear()
    assert tellers.balances == {"a": 3}
    assert [(alert.kind, alert.during) for alert in alerts] == [
        (AlertKind.CRASHED, "activate"),
        (AlertKind.RECOVERED, "deposit"),
    ]


async def test_an_actor_that_cannot_be_loaded_at_all_leaves_no_asker_waiting(
    system: ActorSystem, tellers: type[Teller]
) -> None:
    tellers.broken.add("a")

    with pytest.raises(ActorUnavailable):
        await system.ref(Teller, "a").ask(Teller.deposit, 3)

    await trio.sleep(120)
    assert system.statistics().live == 0


async def test_an_actor_that_cannot_be_loaded_stays_refusing_however_often_it_is_asked(
    system: ActorSystem, tellers: type[Teller], alerts: list[ActorAlert]
) -> None:
    tellers.broken.add("a")
    began = trio.current_time()

    while trio.current_time() - began < 600:
        with pytest.raises(ActorUnavailable) as refusal:
            await system.ref(Teller, "a").ask(Teller.deposit, 3)
        await trio.sleep(refusal.value.retry_after + 0.01)

    assert len(alerts) == 3 + 9, "three until it refuses, then one a minute"


async def test_an_actor_that_can_no_longer_be_loaded_is_tried_for_messages_only(
    system: ActorSystem, tellers: type[Teller], alerts: list[ActorAlert]
) -> None:
    with pytest.raises(ActorCrashed):
        await system.ref(Teller, "a").ask(Teller.deposit, -1)
    tellers.broken.add("a")

    await trio.sleep(3600)

    assert [alert.kind for alert in alerts] == [AlertKind.CRASHED, AlertKind.RECOVERED]
    assert system.statistics().live == 0


async def test_after_the_cool_down_one_message_decides(
    system: ActorSystem, tellers: type[Teller], alerts: list[ActorAlert]
) -> None:
    await crash(system, 3)
    await trio.sleep(60.1)
    await crash(system, 1)
    assert [alert.kind for alert in alerts[2:]] == [AlertKind.REFUSING, AlertKind.REFUSING]

    await trio.sleep(60.1)
    await system.ref(Teller, "a").ask(Teller.deposit, 1)
    await crash(system, 1)

    assert [alert.kind for alert in alerts[4:]] == [AlertKind.RECOVERED, AlertKind.CRASHED]


async def test_an_actor_that_works_again_is_told_of_once(
    system: ActorSystem, tellers: type[Teller], alerts: list[ActorAlert]
) -> None:
    await crash(system, 2)

    for _ in range(3):
        await system.ref(Teller, "a").ask(Teller.deposit, 1)

    assert [alert.kind for alert in alerts] == [AlertKind.CRASHED, AlertKind.CRASHED, AlertKind.RECOVERED]


async def test_an_actor_that_cannot_even_be_made_harms_no_other(
    system: ActorSystem, tellers: type[Teller], alerts: list[ActorAlert]
) -> None:
    class Unmakeable(Actor):
        async def ping(self) -> None: ...

    def fail(key: str) -> Unmakeable:
        raise OSError("no descriptors left")

    system.register(Unmakeable, fail)
    with pytest.raises(ActorUnavailable):
        await system.ref(Unmakeable, "x").ask(Unmakeable.ping)
    assert {(alert.actor, alert.during) for alert in alerts} == {("Unmakeable:x", "activate")}
    assert await system.ref(Teller, "a").ask(Teller.deposit, 1) == 1


async def test_what_does_not_exist_answers_with_a_domain_error_and_leaves_nothing_behind(
    system: ActorSystem, tellers: type[Teller], alerts: list[ActorAlert]
) -> None:
    with pytest.raises(DomainError, match="no such account"):
        await system.ref(Teller, "missing").ask(Teller.count)
    await wait_all_tasks_blocked()
    assert system.statistics().live == 0
    assert alerts == []


async def test_a_failing_actor_does_not_take_its_asker_with_it(
    system: ActorSystem, tellers: type[Teller], alerts: list[ActorAlert]
) -> None:
    class Branch(Actor):
        async def forward(self, amount: int) -> int:
            return await self.system.ref(Teller, "a").ask(Teller.deposit, amount)

    system.register(Branch, lambda key: Branch())
    with pytest.raises(ActorCrashed, match="Teller:a"):
        await system.ref(Branch, "b").ask(Branch.forward, -1)
    assert [alert.actor for alert in alerts] == ["Teller:a"]


async def test_an_alert_that_cannot_be_delivered_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def lose(alert: ActorAlert) -> None:
        raise OSError("the pager is down")

    Teller.balances, Teller.broken = {}, set()
    async with ActorSystem.open(on_alert=lose) as system:
        system.register(Teller, lambda key: Teller())
        ref = system.ref(Teller, "a")
        with pytest.raises(ActorCrashed):
            await ref.ask(Teller.deposit, -1)
        assert await ref.ask(Teller.deposit, 1) == 1
    assert "Teller:a crashed in deposit: ValueError: cannot deposit -1" in caplog.text


async def test_without_a_receiver_alerts_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    Teller.balances, Teller.broken = {}, set()
    async with ActorSystem.open() as system:
        system.register(Teller, lambda key: Teller())
        with pytest.raises(ActorCrashed):
            await system.ref(Teller, "a").ask(Teller.deposit, -1)
        await wait_all_tasks_blocked()
    assert "Teller:a crashed in deposit: ValueError: cannot deposit -1; tried again in 0.1 seconds" in caplog.text


async def test_statistics_say_what_each_type_does(system: ActorSystem, tellers: type[Teller]) -> None:
    go_on = trio.Event()
    system.ref(Teller, "a").tell(Teller.wait_for, go_on)
    system.ref(Teller, "b").tell(Teller.deposit, 1)
    await wait_all_tasks_blocked()
    system.ref(Teller, "a").tell(Teller.deposit, 1)

    figures = system.statistics().kinds["Teller"]

    assert (figures.live, figures.handling, figures.waiting) == (2, 1, 1)
    assert (figures.activations, figures.crashes, figures.refusing) == (2, 0, 0)
