"""What those who ask and tell can rely on."""

from __future__ import annotations

from contextvars import ContextVar
from typing import ClassVar

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from svc_actors.runtime import (
    Actor,
    ActorAlert,
    ActorCrashed,
    ActorSystem,
    AlertKind,
    DomainError,
    MailboxFull,
)


class NotTodayError(DomainError):
    pass


class Clerk(Actor):
    """Writes down what it is given; stands still while its gate is shut."""

    gates: dict[str, trio.Event]
    books: dict[str, list[str]]

    async def activate(self) -> None:
        self.book = self.books.setdefault(self.key, [])
        await trio.lowlevel.checkpoint()

    async def write(self, line: str, *, twice: bool = False) -> int:
        self.book.extend([line, line] if twice else [line])
        return len(self.book)

    async def wait_and_write(self, line: str) -> None:
        await self.gates[self.key].wait()
        self.book.append(line)

    async def refuse(self) -> None:
        raise NotTodayError("closed")

    async def refuse_and_fail(self) -> None:
        raise ExceptionGroup("of a nursery", [NotTodayError("closed"), ValueError("a crash among answers")])

    async def refuse_in_parallel(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.refuse)
            nursery.start_soon(self.refuse)

    async def hang(self) -> None:
        await trio.sleep_forever()

    async def hang_half_changed(self) -> None:
        self.book = ["half-written"]
        try:
            await trio.sleep_forever()
        finally:
            raise NotTodayError("the commit was cut off")

    async def hang_uncancellably(self) -> None:
        with trio.CancelScope(shield=True):
            await self.gates[self.key].wait()


@pytest.fixture
def clerks(system: ActorSystem) -> type[Clerk]:
    gates, books = {"a": trio.Event(), "b": trio.Event()}, dict[str, list[str]]()

    def make(key: str) -> Clerk:
        clerk = Clerk()
        clerk.gates, clerk.books = gates, books
        return clerk

    Clerk.gates, Clerk.books = gates, books
    system.register(Clerk, make)
    return Clerk


async def test_an_ask_returns_what_the_handler_returned(system: ActorSystem, clerks: type[Clerk]) -> None:
    ref = system.ref(Clerk, "a")
    assert await ref.ask(Clerk.write, "one") == 1
    assert await ref.ask(Clerk.write, "two", twice=True) == 3


async def test_an_actor_knows_its_key_and_keys_are_apart(system: ActorSystem, clerks: type[Clerk]) -> None:
    await system.ref(Clerk, "a").ask(Clerk.write, "mine")
    await system.ref(Clerk, "b").ask(Clerk.write, "yours")
    assert clerks.books == {"a": ["mine"], "b": ["yours"]}


async def test_a_domain_error_answers_the_asker_and_the_actor_lives_on(
    system: ActorSystem, clerks: type[Clerk], alerts: list[ActorAlert]
) -> None:
    ref = system.ref(Clerk, "a")
    with pytest.raises(NotTodayError, match="closed"):
        await ref.ask(Clerk.refuse)
    await ref.ask(Clerk.write, "still here")
    assert system.statistics().kinds["Clerk"].activations == 1
    assert alerts == []


async def test_a_domain_error_from_a_handlers_own_nursery_is_an_answer_too(
    system: ActorSystem, clerks: type[Clerk], alerts: list[ActorAlert]
) -> None:
    with pytest.raises(NotTodayError):
        await system.ref(Clerk, "a").ask(Clerk.refuse_in_parallel)
    with pytest.raises(ActorCrashed):
        await system.ref(Clerk, "b").ask(Clerk.refuse_and_fail)
    assert [(alert.actor, alert.kind) for alert in alerts] == [("Clerk:b", AlertKind.CRASHED)]


async def test_a_domain_error_nobody_waits_for_is_not_lost(
    system: ActorSystem, clerks: type[Clerk], alerts: list[ActorAlert]
) -> None:
    ref = system.ref(Clerk, "a")
    ref.tell(Clerk.refuse)
    await ref.ask(Clerk.write, "next")
    assert [(alert.kind, alert.actor, alert.during) for alert in alerts] == [(AlertKind.UNHEARD, "Clerk:a", "refuse")]


async def test_messages_told_before_and_during_activation_are_handled_in_order(
    system: ActorSystem, clerks: type[Clerk]
) -> None:
    ref = system.ref(Clerk, "a")
    ref.tell(Clerk.write, "1")
    ref.tell(Clerk.write, "2")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_all_tasks_blocked)
        ref.tell(Clerk.write, "3")
    assert await ref.ask(Clerk.write, "4") == 4
    assert clerks.books["a"] == ["1", "2", "3", "4"]


async def test_a_full_mailbox_refuses_at_once_and_keeps_what_it_has(system: ActorSystem, clerks: type[Clerk]) -> None:
    ref = system.ref(Clerk, "a")
    ref.tell(Clerk.wait_and_write, "first")
    await wait_all_tasks_blocked()
    for line in ("1", "2", "3", "4"):
        ref.tell(Clerk.write, line)
    before = trio.current_time()
    with pytest.raises(MailboxFull):
        ref.tell(Clerk.write, "one too many")
    with pytest.raises(MailboxFull):
        await ref.ask(Clerk.write, "one too many")
    assert trio.current_time() == before
    clerks.gates["a"].set()
    await wait_all_tasks_blocked()
    assert clerks.books["a"] == ["first", "1", "2", "3", "4"]


async def test_a_stuck_actor_delays_no_other(system: ActorSystem, clerks: type[Clerk]) -> None:
    system.ref(Clerk, "a").tell(Clerk.hang)
    await wait_all_tasks_blocked()
    before = trio.current_time()
    assert await system.ref(Clerk, "b").ask(Clerk.write, "unhindered") == 1
    assert trio.current_time() == before


async def test_a_busy_actor_lets_other_tasks_run(system: ActorSystem) -> None:
    class Perpetual(Actor):
        turns = 0

        async def turn(self) -> None:
            Perpetual.turns += 1
            if Perpetual.turns < 10_000:
                self.system.ref(Perpetual, self.key).tell(Perpetual.turn)

    system.register(Perpetual, lambda key: Perpetual())
    system.ref(Perpetual, "x").tell(Perpetual.turn)
    for _ in range(5):
        await trio.lowlevel.checkpoint()
    assert 0 < Perpetual.turns < 10_000


async def test_a_begun_ask_is_finished_though_its_asker_has_gone(system: ActorSystem, clerks: type[Clerk]) -> None:
    with trio.move_on_after(2) as waited:
        await system.ref(Clerk, "a").ask(Clerk.wait_and_write, "asked")
    assert waited.cancelled_caught

    clerks.gates["a"].set()
    await wait_all_tasks_blocked()

    assert clerks.books["a"] == ["asked"]


async def test_an_ask_that_was_not_begun_leaves_with_its_asker(system: ActorSystem, clerks: type[Clerk]) -> None:
    ref = system.ref(Clerk, "a")
    ref.tell(Clerk.wait_and_write, "before them")
    await wait_all_tasks_blocked()

    with trio.move_on_after(2):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(ref.ask, Clerk.write, "asked by somebody who has gone")
    ref.tell(Clerk.write, "there is room again")
    clerks.gates["a"].set()
    await wait_all_tasks_blocked()

    assert clerks.books["a"] == ["before them", "there is room again"]


async def test_an_asker_cancelled_beforehand_sends_nothing(system: ActorSystem, clerks: type[Clerk]) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await system.ref(Clerk, "a").ask(Clerk.write, "never")
    assert system.statistics().live == 0


async def test_a_late_handler_is_answered_alerted_and_ended(
    system: ActorSystem, clerks: type[Clerk], alerts: list[ActorAlert]
) -> None:
    ref = system.ref(Clerk, "a")
    began = trio.current_time()

    with pytest.raises(ActorCrashed, match="hang"):
        await ref.ask(Clerk.hang)

    assert trio.current_time() == began + 20.0
    assert await ref.ask(Clerk.write, "after the reload") == 1
    assert [alert.kind for alert in alerts] == [AlertKind.OVERDUE, AlertKind.CRASHED, AlertKind.RECOVERED]


async def test_a_late_handler_that_cannot_be_cancelled_still_frees_its_asker(
    system: ActorSystem, clerks: type[Clerk], alerts: list[ActorAlert]
) -> None:
    ref = system.ref(Clerk, "a")
    began = trio.current_time()

    with pytest.raises(ActorCrashed):
        await ref.ask(Clerk.hang_uncancellably)

    assert trio.current_time() == began + 20.0
    assert [alert.kind for alert in alerts] == [AlertKind.OVERDUE]
    clerks.gates["a"].set()
    assert await ref.ask(Clerk.write, "after the reload") == 1


async def test_a_late_handler_that_ends_with_a_domain_error_has_crashed_all_the_same(
    system: ActorSystem, clerks: type[Clerk], alerts: list[ActorAlert]
) -> None:
    ref = system.ref(Clerk, "a")

    with pytest.raises(ActorCrashed):
        await ref.ask(Clerk.hang_half_changed)

    assert await ref.ask(Clerk.write, "on a fresh page") == 1
    assert [alert.kind for alert in alerts] == [AlertKind.OVERDUE, AlertKind.CRASHED, AlertKind.RECOVERED]


async def test_of_two_handlers_each_has_its_own_deadline(
    system: ActorSystem, clerks: type[Clerk], alerts: list[ActorAlert]
) -> None:
    ended: dict[str, float] = {}
    began = trio.current_time()

    async def hang(key: str, after: float) -> None:
        await trio.sleep(after)
        with pytest.raises(ActorCrashed):
            await system.ref(Clerk, key).ask(Clerk.hang)
        ended[key] = trio.current_time() - began

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hang, "a", 0.0)
        nursery.start_soon(hang, "b", 7.0)

    assert ended == {"a": 20.0, "b": 27.0}


async def test_the_deadline_holds_for_activation_too(system: ActorSystem, alerts: list[ActorAlert]) -> None:
    class Slow(Actor):
        attempts = 0

        async def activate(self) -> None:
            Slow.attempts += 1
            if Slow.attempts == 1:
                await trio.sleep_forever()

        async def ping(self) -> str:
            return "pong"

    system.register(Slow, lambda key: Slow())

    assert await system.ref(Slow, "x").ask(Slow.ping) == "pong"
    assert [alert.kind for alert in alerts] == [AlertKind.OVERDUE, AlertKind.CRASHED, AlertKind.RECOVERED]


async def test_a_type_is_registered_once_and_before_it_is_addressed(system: ActorSystem, clerks: type[Clerk]) -> None:
    with pytest.raises(ValueError, match="registered already"):
        system.register(Clerk, lambda key: Clerk())

    class Stranger(Actor):
        pass

    with pytest.raises(LookupError, match="Stranger"):
        system.ref(Stranger, "x")


LANE = ContextVar("LANE", default="of nobody")


async def test_a_handler_has_its_askers_values_of_the_variables_that_are_carried() -> None:
    class Reader(Actor):
        seen: ClassVar[list[str]] = []

        async def read(self) -> None:
            self.seen.append(LANE.get())

    LANE.set("the system's")
    async with ActorSystem.open(carried=[LANE]) as system:
        system.register(Reader, lambda key: Reader())
        LANE.set("the asker's")

        await system.ref(Reader, "a").ask(Reader.read)
        system.ref(Reader, "a").tell(Reader.read)
        await system.drain(1)

    assert Reader.seen == ["the asker's", "the system's"]
