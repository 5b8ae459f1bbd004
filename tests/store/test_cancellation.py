"""A query may be given up at any moment; no later query is ever answered by its reply."""

from __future__ import annotations

import random

import pytest
import trio

from svc_actors.store import Database
from tests.support.postgres_server import until


@pytest.mark.parametrize("seed", range(4))
async def test_a_query_is_answered_by_its_own_reply_or_not_at_all(database_url: str, seed: int) -> None:
    choose = random.Random(seed)
    given_up = 0
    async with Database.open(database_url, size=3, application_name=f"cancel-{seed}") as database:

        async def ask(number: int, patience: float, length: int, seconds: float) -> None:
            nonlocal given_up
            with trio.move_on_after(patience) as scope:
                row = await database.fetchrow(
                    "SELECT $1::int AS number, repeat($2::text, $3::int) AS padding, pg_sleep($4::float8)",
                    number,
                    chr(97 + number % 26),
                    length,
                    seconds,
                )
                assert row is not None
                assert row["number"] == number
                assert row["padding"] == chr(97 + number % 26) * length
            given_up += scope.cancelled_caught

        async with trio.open_nursery() as nursery:
            for number in range(250):
                patience = choose.choice([1000.0, choose.uniform(0, 0.003), choose.uniform(0, 0.05)])
                length = choose.choice([1, 10, 300_000])
                nursery.start_soon(ask, number, patience, length, choose.choice([0.0, 0.0, choose.uniform(0, 0.005)]))
        assert 0 < given_up < 250
        assert await database.fetchval("SELECT 'still well'") == "still well"
        statistics = database.statistics()
        assert (statistics.in_use, statistics.waiting) == (0, 0)
        assert statistics.idle <= 3


@pytest.mark.parametrize("seed", range(2))
async def test_a_cancelled_transaction_is_whole_or_absent(database: Database, seed: int) -> None:
    choose = random.Random(seed)
    await database.execute("CREATE TABLE pair (id int, half int, padding text)")

    async def write(number: int, patience: float) -> None:
        with trio.move_on_after(patience):
            async with database.transaction() as transaction:
                for half in (1, 2):
                    await transaction.execute("INSERT INTO pair VALUES ($1, $2, $3)", number, half, "x" * 50_000)

    async with trio.open_nursery() as nursery:
        for number in range(120):
            nursery.start_soon(write, number, choose.uniform(0, 0.1))
    assert await database.fetch("SELECT id FROM pair GROUP BY id HAVING count(*) <> 2") == []


async def test_the_server_stops_working_on_what_nobody_waits_for(database: Database) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(database.execute, "SELECT pg_sleep(600) /* abandoned */")

        async def working() -> bool:
            found = await database.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%abandoned%' AND pid <> pg_backend_pid()"
            )
            return bool(found)

        await until(working)
        nursery.cancel_scope.cancel()

    async def idle() -> bool:
        return not await working()

    await until(idle)
    assert database.statistics().interrupted == 1
