"""Work on the server that outlives the message which asked for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from svc_actors.panel import host_work
from svc_actors.panel.host_work import HOST_PATIENCE, LONGEST, HostWork, Ordered, finished, soon
from svc_actors.runtime import Crash
from svc_common.errors import ErrorCode, ServiceError, unavailable


@dataclass
class Server:
    """Does what it is asked once it `may`, and notes what it did."""

    may: trio.Event = field(default_factory=trio.Event)
    did: list[str] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    error: Exception | None = None

    async def do(self, what: str) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.may.wait()
        finally:
            self.at_once -= 1
        if self.error is not None:
            raise self.error
        self.did.append(what)

    async def first(self) -> None:
        await self.do("first")

    async def change(self) -> None:
        await self.do("change")


@pytest.fixture
def crashes() -> list[Crash]:
    return []


@pytest.fixture
async def works(crashes: list[Crash]) -> AsyncIterator[HostWork]:
    async with HostWork.open(crashes.append) as opened:
        yield opened


def order(works: HostWork, kind: str, server: Server, key: str = "Site:a") -> Ordered[None]:
    return works.order(key, kind, server.first if kind == "first" else server.change, what="It is recorded")


async def busy(works: HostWork, kind: str, server: Server) -> Ordered[None]:
    ordered = order(works, kind, server)
    with pytest.raises(ServiceError, match="has not finished it within 30 seconds"):
        await ordered.soon()
    return ordered


async def test_what_takes_long_goes_on_and_is_told_so(works: HostWork, autojump_clock: MockClock) -> None:
    server, began = Server(), trio.current_time()

    async def ask() -> Ordered[None]:
        return order(works, "first", server)

    with pytest.raises(ServiceError) as told:
        await soon(ask())

    assert trio.current_time() - began == pytest.approx(HOST_PATIENCE)
    assert told.value.code is ErrorCode.UNAVAILABLE
    assert told.value.message == "It is recorded: this server has not finished it within 30 seconds."
    server.may.set()
    await trio.testing.wait_all_tasks_blocked()
    assert server.did == ["first"]


async def test_of_one_key_one_thing_is_done_at_a_time_and_what_waits_is_done_once(
    works: HostWork, autojump_clock: MockClock
) -> None:
    server, other = Server(), Server()
    first = await busy(works, "first", server)
    asked = [await busy(works, "change", server) for _ in range(3)]
    other.may.set()
    await order(works, "first", other, key="Site:b").soon()

    server.may.set()
    for each in (first, *asked):
        await each.outcome()

    assert server.did == ["first", "change"]
    assert server.most_at_once == 1
    assert other.did == ["first"]


async def test_who_waits_gets_what_the_work_answers_or_the_handler(works: HostWork, autojump_clock: MockClock) -> None:
    async def look() -> int:
        await trio.sleep(1)
        return 5

    ordered = [works.order("Site:a", "look", look, what="It is looked at") for _ in range(2)]

    assert [await each.outcome() for each in ordered] == [5, 5]
    assert await ordered[0].answering("handler").soon() == "handler"


async def test_who_still_waits_gets_the_failure_and_the_next_is_done(
    works: HostWork, autojump_clock: MockClock
) -> None:
    server = Server(error=unavailable("systemd is away"))
    server.may.set()

    with pytest.raises(ServiceError, match="systemd is away"):
        await order(works, "first", server).soon()
    server.error = None
    await order(works, "first", server).soon()

    assert server.did == ["first"]


async def test_a_defect_is_alerted_of_and_answered_without_its_text(
    works: HostWork, autojump_clock: MockClock, crashes: list[Crash]
) -> None:
    server = Server(error=ValueError("a defect"))
    server.may.set()

    with pytest.raises(ServiceError) as told:
        await order(works, "first", server).soon()

    assert told.value.code is ErrorCode.INTERNAL
    assert "a defect" not in told.value.message
    assert [(crash.actor, crash.during) for crash in crashes] == [("Site:a", "first")]


@pytest.mark.parametrize("error", [unavailable("systemd is away"), ValueError("a defect")])
async def test_a_failure_that_nobody_waits_for_ends_nothing_else(
    works: HostWork, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    server = Server(error=error)
    await busy(works, "first", server)
    server.may.set()
    await trio.testing.wait_all_tasks_blocked()
    server.error = None

    await order(works, "change", server).soon()

    assert server.did == ["change"]
    assert "host_work." in capsys.readouterr().out


async def test_a_job_waits_for_the_end_and_gets_its_failure(works: HostWork, autojump_clock: MockClock) -> None:
    server = Server(error=unavailable("systemd is away"))

    async def ask() -> Ordered[None]:
        return order(works, "first", server)

    async def answer() -> None:
        await trio.sleep(10 * HOST_PATIENCE)
        server.may.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        refused = None
        try:
            await finished(ask())
        except ServiceError as error:
            refused = error.message
    assert refused == "systemd is away"


async def test_work_that_never_ends_is_given_up_and_keeps_no_other_waiting(
    works: HostWork, autojump_clock: MockClock
) -> None:
    server = Server()
    told = await busy(works, "first", server)

    with pytest.raises(ServiceError, match="not finished within 1800 seconds"):
        await told.outcome()
    assert trio.current_time() <= LONGEST + host_work.HOST_PATIENCE
    server.may.set()
    await order(works, "change", server).soon()
    assert server.did == ["change"]


async def in_a_nursery(server: Server) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.first)


@pytest.mark.parametrize("do", [Server.first, in_a_nursery])
async def test_who_waits_while_the_service_stops_is_told(
    autojump_clock: MockClock, crashes: list[Crash], do: Callable[[Server], Awaitable[None]]
) -> None:
    server = Server()
    told: list[str] = []

    async def ask(works: HostWork) -> None:
        try:
            await works.order("Site:a", "first", partial(do, server), what="It is recorded").soon()
        except ServiceError as error:
            told.append(error.message)

    async with trio.open_nursery() as nursery:
        async with HostWork.open(crashes.append) as works:
            nursery.start_soon(ask, works)
            await trio.testing.wait_all_tasks_blocked()

    assert told == ["The service is stopping; the work continues once it runs again."]
    assert server.did == []


async def test_a_drain_lets_what_is_under_way_end_and_starts_nothing_else(
    works: HostWork, autojump_clock: MockClock
) -> None:
    server = Server()
    first, waiting = await busy(works, "first", server), await busy(works, "change", server)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(works.drain, 10.0)
        await trio.testing.wait_all_tasks_blocked()
        server.may.set()
    late = order(works, "first", server, key="Site:b")

    await first.outcome()
    for ordered in (waiting, late):
        with pytest.raises(ServiceError, match="The service is stopping"):
            await ordered.outcome()
    assert server.did == ["first"]


async def test_a_drain_waits_no_longer_than_it_is_told(works: HostWork, autojump_clock: MockClock) -> None:
    await busy(works, "first", Server())
    began = trio.current_time()

    await works.drain(10.0)

    assert trio.current_time() - began == pytest.approx(10.0)
