"""A request waits for no connection behind orders or background work, and is refused where waiting is hopeless."""

from __future__ import annotations

import pytest
import trio

from svc_actors.runtime import Actor, ActorSystem
from svc_actors.store import LANE, Database, Lane, enter_lane, lanes
from svc_common.errors import ErrorCode, ServiceError
from tests.support.postgres_server import PATIENCE, until


def one_each(*, background: int = 1) -> dict[Lane, int]:
    return {Lane.READING: 1, Lane.ORDERS: 1, Lane.BACKGROUND: background}


async def as_request(database: Database) -> int:
    enter_lane(Lane.READING)
    number: int = await database.fetchval("SELECT 1")
    return number


async def test_a_request_is_served_while_all_background_connections_are_held(database_url: str) -> None:
    async with Database.open(database_url, lanes=one_each(background=2)) as database, trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(database.execute, "SELECT pg_sleep(600)")
        await until(lambda: _waiting(database, 198))

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as requests:
                for _ in range(20):
                    requests.start_soon(as_request, database)

        assert database.statistics().waiting == 198
        nursery.cancel_scope.cancel()


async def test_a_request_that_reads_does_not_wait_behind_orders(database_url: str) -> None:
    async with Database.open(database_url, lanes=one_each()) as database, trio.open_nursery() as nursery:

        async def order() -> None:
            enter_lane(Lane.ORDERS)
            await database.execute("SELECT pg_sleep(600)")

        for _ in range(10):
            nursery.start_soon(order)
        await until(lambda: _waiting(database, 9))

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as requests:
                for _ in range(5):
                    requests.start_soon(as_request, database)

        nursery.cancel_scope.cancel()


async def test_background_work_goes_on_while_requests_hold_all_of_theirs(database_url: str) -> None:
    async with Database.open(database_url, lanes=one_each()) as database, trio.open_nursery() as nursery:

        async def long_request() -> None:
            enter_lane(Lane.READING)
            await database.execute("SELECT pg_sleep(600)")

        nursery.start_soon(long_request)
        nursery.start_soon(long_request)
        await until(lambda: _waiting(database, 1))

        assert await database.fetchval("SELECT 2") == 2
        nursery.cancel_scope.cancel()


async def test_past_the_queue_a_caller_is_refused_at_once_and_told_when_to_come_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MOST_WAITING", 3)
    async with Database.open(database_url, size=1) as database, trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(database.execute, "SELECT pg_sleep(600)")
        await until(lambda: _waiting(database, 3))

        with pytest.raises(ServiceError) as caught:
            await database.fetchval("SELECT 1")

        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert caught.value.details == {"retry_after": 1}
        assert database.statistics().exhausted == 1
        nursery.cancel_scope.cancel()


class Clerk(Actor):
    async def lane(self) -> Lane:
        return LANE.get()


async def test_an_actor_works_in_the_lane_of_whoever_asks_it() -> None:
    async with ActorSystem.open(carried=(LANE,)) as actors:
        actors.register(Clerk, lambda _: Clerk())
        clerk = actors.ref(Clerk, "a")
        seen: list[Lane] = []

        async def request() -> None:
            enter_lane(Lane.READING)
            seen.append(await clerk.ask(Clerk.lane))

        seen.append(await clerk.ask(Clerk.lane))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(request)
        seen.append(await clerk.ask(Clerk.lane))

    assert seen == [Lane.BACKGROUND, Lane.READING, Lane.BACKGROUND]


async def _waiting(database: Database, number: int) -> bool:
    return database.statistics().waiting == number
