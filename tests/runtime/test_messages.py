"""What those who ask can rely on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from svc_actors.runtime import Actor, ActorCrashed, ActorSystem, Crash, DomainError, MailboxFull
from svc_actors.runtime.cell import MAILBOX_LIMIT

LANE = ContextVar("LANE", default="of nobody")
OTHER = ContextVar("OTHER", default="of nobody")


class NotTodayError(DomainError):
    pass


class Clerk(Actor):
    """Writes down what it is given; stands still while its gate is shut."""

    def __init__(self, book: list[str], gate: trio.Event) -> None:
        self.book, self.gate = book, gate

    async def write(self, line: str, *, twice: bool = False) -> int:
        self.book.extend([line, line] if twice else [line])
        return len(self.book)

    async def wait_and_write(self, line: str) -> None:
        await self.gate.wait()
        self.book.append(line)

    async def refuse(self) -> None:
        raise NotTodayError("closed")

    async def refuse_and_fail(self) -> None:
        raise ExceptionGroup("of a nursery", [NotTodayError("closed"), ValueError("a crash among answers")])

    async def refuse_in_parallel(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.refuse)
            nursery.start_soon(self.refuse)

    async def ask(self, key: str) -> None:
        await self.system.ref(Clerk, key).ask(Clerk.write, "asked by an actor")

    async def ask_in_a_child_task(self, key: str) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.ask, key)

    async def ask_elsewhere(self, elsewhere: trio.Nursery, begin: trio.Event) -> None:
        async def ask() -> None:
            await begin.wait()
            await self.ask(self.key)

        elsewhere.start_soon(ask)

    async def lane(self) -> tuple[str, str]:
        return LANE.get(), OTHER.get()


class Office:
    def __init__(self, system: ActorSystem) -> None:
        self.books = dict[str, list[str]]()
        self.gate = trio.Event()
        self.made = 0
        system.register(Clerk, self.make)

    def make(self, key: str) -> Clerk:
        self.made += 1
        return Clerk(self.books.setdefault(key, []), self.gate)


@pytest.fixture
async def office(system: ActorSystem) -> Office:
    return Office(system)


async def test_an_ask_returns_what_the_handler_returned(system: ActorSystem, office: Office) -> None:
    ref = system.ref(Clerk, "a")
    assert await ref.ask(Clerk.write, "one") == 1
    assert await ref.ask(Clerk.write, "two", twice=True) == 3


async def test_keys_are_apart(system: ActorSystem, office: Office) -> None:
    await system.ref(Clerk, "a").ask(Clerk.write, "mine")
    await system.ref(Clerk, "b").ask(Clerk.write, "yours")
    assert office.books == {"a": ["mine"], "b": ["yours"]}


async def test_a_domain_error_answers_the_asker_and_the_actor_lives_on(
    system: ActorSystem, office: Office, crashes: list[Crash]
) -> None:
    ref = system.ref(Clerk, "a")
    with pytest.raises(NotTodayError, match="closed"):
        await ref.ask(Clerk.refuse)
    await ref.ask(Clerk.write, "still here")
    assert (office.made, crashes) == (1, [])


async def test_a_domain_error_from_a_handlers_own_nursery_is_an_answer_too(
    system: ActorSystem, office: Office, crashes: list[Crash]
) -> None:
    with pytest.raises(NotTodayError):
        await system.ref(Clerk, "a").ask(Clerk.refuse_in_parallel)
    with pytest.raises(ActorCrashed):
        await system.ref(Clerk, "b").ask(Clerk.refuse_and_fail)
    assert [crash.actor for crash in crashes] == ["Clerk:b"]


async def test_a_full_mailbox_refuses_at_once_and_keeps_what_it_has(system: ActorSystem, office: Office) -> None:
    ref = system.ref(Clerk, "a")
    lines = [str(number) for number in range(MAILBOX_LIMIT)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ref.ask, Clerk.wait_and_write, "first")
        for line in lines:
            await wait_all_tasks_blocked()
            nursery.start_soon(ref.ask, Clerk.write, line)
        await wait_all_tasks_blocked()
        before = trio.current_time()
        with pytest.raises(MailboxFull):
            await ref.ask(Clerk.write, "one too many")
        assert trio.current_time() == before
        office.gate.set()
    assert office.books["a"] == ["first", *lines]


async def test_a_stuck_actor_delays_no_other(system: ActorSystem, office: Office) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(system.ref(Clerk, "a").ask, Clerk.wait_and_write, "late")
        await wait_all_tasks_blocked()
        before = trio.current_time()
        assert await system.ref(Clerk, "b").ask(Clerk.write, "unhindered") == 1
        assert trio.current_time() == before
        office.gate.set()


async def test_a_begun_ask_is_finished_though_its_asker_has_gone(system: ActorSystem, office: Office) -> None:
    with trio.move_on_after(2) as waited:
        await system.ref(Clerk, "a").ask(Clerk.wait_and_write, "asked")
    assert waited.cancelled_caught

    office.gate.set()
    await wait_all_tasks_blocked()

    assert office.books["a"] == ["asked"]


async def test_an_ask_that_was_not_begun_leaves_with_its_asker(system: ActorSystem, office: Office) -> None:
    ref = system.ref(Clerk, "a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ref.ask, Clerk.wait_and_write, "before them")
        await wait_all_tasks_blocked()
        with trio.move_on_after(2):
            async with trio.open_nursery() as askers:
                for _ in range(MAILBOX_LIMIT):
                    askers.start_soon(ref.ask, Clerk.write, "asked by somebody who has gone")
        nursery.start_soon(ref.ask, Clerk.write, "there is room again")
        await wait_all_tasks_blocked()
        office.gate.set()

    assert office.books["a"] == ["before them", "there is room again"]


async def test_an_asker_cancelled_beforehand_sends_nothing(system: ActorSystem, office: Office) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await system.ref(Clerk, "a").ask(Clerk.write, "never")
    assert system.statistics()["Clerk"].live == 0


@pytest.mark.parametrize("ask", [Clerk.ask, Clerk.ask_in_a_child_task])
@pytest.mark.parametrize("key", ["a", "b"])
async def test_an_ask_within_a_handler_is_refused_at_once(
    system: ActorSystem, office: Office, crashes: list[Crash], ask: Callable[[Clerk, str], Awaitable[None]], key: str
) -> None:
    began = trio.current_time()
    with pytest.raises(ActorCrashed):
        await system.ref(Clerk, "a").ask(ask, key)
    assert trio.current_time() == began
    assert f"Clerk:{key} was asked within the handler ask" in repr(crashes[0].error)


async def test_a_task_that_outlives_its_handler_may_ask(system: ActorSystem, office: Office) -> None:
    begin = trio.Event()
    async with trio.open_nursery() as elsewhere:
        await system.ref(Clerk, "a").ask(Clerk.ask_elsewhere, elsewhere, begin)
        begin.set()
    assert office.books["a"] == ["asked by an actor"]


async def test_a_type_is_registered_once_and_before_it_is_addressed(system: ActorSystem, office: Office) -> None:
    with pytest.raises(ValueError, match="registered already"):
        system.register(Clerk, office.make)

    class Stranger(Actor):
        pass

    with pytest.raises(KeyError, match="Stranger"):
        system.ref(Stranger, "x")


async def test_a_handler_has_its_askers_values_of_the_variables_that_are_carried_and_no_others() -> None:
    async with ActorSystem.open(carried=[LANE]) as system:
        Office(system)
        seen = [await system.ref(Clerk, "a").ask(Clerk.lane)]
        LANE.set("the asker's")
        OTHER.set("the asker's")
        seen += [await system.ref(Clerk, key).ask(Clerk.lane) for key in ("a", "b")]
    assert seen == [("of nobody", "of nobody"), ("the asker's", "of nobody"), ("the asker's", "of nobody")]
