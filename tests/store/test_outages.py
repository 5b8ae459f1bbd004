"""The server goes away and comes back: nothing acknowledged is lost, nobody gets a wrong answer, the pool recovers."""

from __future__ import annotations

import random

import pytest
import trio

from svc_actors.store import Database, NotificationKind
from svc_actors.store import database as pool_module
from svc_common.errors import ErrorCode, ServiceError
from tests.support.postgres_server import PATIENCE, answered, kill_server, own_server, until

AS_BEFORE = 0.9
WRITERS, PACE = 16, 0.1
"""Writers at once, and the seconds from one write of a writer to its next: so few that a busy machine acknowledges as
many as an idle one, and a share is missing only where writes wait or fail."""


async def terminate_all_others(database: Database) -> None:
    await database.execute(
        """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
        """
    )


async def test_idle_connections_that_the_server_closed_are_replaced_unnoticed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_TRUSTED_IDLE", 0.0)
    async with Database.open(database_url) as operator, Database.open(database_url) as database:
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(database.execute, "SELECT pg_sleep(0.02)")
        await terminate_all_others(operator)

        async def all_have_said_good_bye() -> bool:
            return not any(connection.is_quiet() for connection in database._idle)

        await until(all_have_said_good_bye)
        for number in range(20):
            assert await database.fetchval("SELECT $1::int", number) == number


async def test_whoever_was_waiting_for_a_killed_backend_is_told_unavailable(database_url: str) -> None:
    async with Database.open(database_url) as operator, Database.open(database_url) as database:
        told: list[ServiceError] = []

        async def wait_long() -> None:
            with pytest.raises(ServiceError) as caught:
                await database.execute("SELECT pg_sleep(600)")
            told.append(caught.value)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(wait_long)

            async def all_wait() -> bool:
                waiting = await operator.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
                return bool(waiting == 5)

            await until(all_wait)
            await terminate_all_others(operator)
        assert [error.code for error in told] == [ErrorCode.UNAVAILABLE] * 5
        assert await database.fetchval("SELECT 1") == 1


async def test_no_acknowledged_write_is_lost_when_the_server_is_killed_under_load() -> None:
    async with own_server() as (url, folder), Database.open(url) as database:
        await database.execute("CREATE TABLE entry (writer int, number int, PRIMARY KEY (writer, number))")
        acknowledged: set[tuple[int, int]] = set()
        refused = 0
        stop = trio.Event()

        async def write(writer: int) -> None:
            nonlocal refused
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    async with database.transaction() as transaction:
                        await transaction.execute("INSERT INTO entry VALUES ($1, $2)", writer, number)
                    acknowledged.add((writer, number))
                except ServiceError as error:
                    if error.code is not ErrorCode.UNAVAILABLE:
                        raise
                    refused += 1

        async def progress(of: int) -> None:
            goal = len(acknowledged) + of

            async def reached() -> bool:
                return len(acknowledged) >= goal

            await until(reached)

        async with trio.open_nursery() as nursery:
            for writer in range(12):
                nursery.start_soon(write, writer)
            choose = random.Random(5)
            for _ in range(3):
                await progress(choose.randint(20, 200))
                kill_server(folder)
            await progress(100)
            stop.set()
        written = {(row["writer"], row["number"]) for row in await database.fetch("SELECT writer, number FROM entry")}
        assert acknowledged <= written
        assert len(written - acknowledged) <= refused
        assert database.statistics().in_use == 0


async def test_throughput_is_back_within_seconds_of_each_outage(request: pytest.FixtureRequest) -> None:
    """The server killed, its backends killed, more writers than connections: no acknowledged write is lost, and in some
    second of the next ten as many are acknowledged as before."""
    outages = 20 if request.config.getoption("--full") else 4
    async with own_server() as (url, folder), Database.open(url, size=4) as database:
        await database.execute("CREATE TABLE entry (writer int, number int, PRIMARY KEY (writer, number))")
        acknowledged: set[tuple[int, int]] = set()
        stop = trio.Event()

        async def write(writer: int) -> None:
            number = 0
            # One after the other, not all in the same moment of a tenth of a second.
            due = trio.current_time() + PACE * writer / WRITERS
            await trio.sleep_until(due)
            while not stop.is_set():
                number += 1
                try:
                    async with database.transaction() as tx:
                        await tx.execute("INSERT INTO entry VALUES ($1, $2)", writer, number)
                    acknowledged.add((writer, number))
                except ServiceError as error:
                    if error.code is not ErrorCode.UNAVAILABLE:
                        raise
                due = max(due + PACE, trio.current_time())
                await trio.sleep_until(due)

        async def rate() -> float:
            """Writes a second, of the time that passed indeed."""
            before, began = len(acknowledged), trio.current_time()
            await trio.sleep(1)
            return (len(acknowledged) - before) / (trio.current_time() - began)

        async def terminate() -> None:
            await terminate_all_others(database)

        slow: list[str] = []
        async with trio.open_nursery() as nursery:
            for writer in range(WRITERS):
                nursery.start_soon(write, writer)
            await rate()
            # No second has more than all of them write: one that seems to ended between two of their rounds.
            before = min(await rate(), WRITERS / PACE)
            for outage in range(outages):
                if outage % 2:
                    await answered(terminate)
                else:
                    kill_server(folder)
                rates: list[float] = []
                while len(rates) < 10 and max(rates, default=0) < AS_BEFORE * before:
                    rates.append(await rate())
                if max(rates) < AS_BEFORE * before:
                    slow.append(
                        f"outage {outage}: {before:.0f} a second before, then {[round(rate) for rate in rates]}"
                    )
            stop.set()
        written = {(row["writer"], row["number"]) for row in await database.fetch("SELECT writer, number FROM entry")}
    assert slow == []
    assert acknowledged <= written
    assert database.statistics().in_use == 0


async def test_listening_goes_on_after_a_restart_and_says_that_it_was_away() -> None:
    async with own_server() as (url, folder), Database.open(url) as database, database.listen("news") as news:
        await database.execute("SELECT pg_notify('news', 'one')")
        with trio.fail_after(PATIENCE):
            assert (await news.receive()).payload == "one"
            kill_server(folder)
            assert (await news.receive()).kind is NotificationKind.RECONNECTED
            await answered(lambda: database.execute("SELECT pg_notify('news', 'two')"))
            received = await news.receive()
            while received.kind is NotificationKind.RECONNECTED:
                received = await news.receive()
            assert (received.channel, received.payload) == ("news", "two")


async def test_listening_can_be_left_while_more_arrives_than_is_read(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # what raises is how the block ends
        async with database.listen("busy") as notifications:
            await database.execute("SELECT pg_notify('busy', number::text) FROM generate_series(1, 5000) AS number")

            async def its_buffer_is_full() -> bool:
                return notifications.statistics().tasks_waiting_send > 0

            await until(its_buffer_is_full)
            raise ZeroDivisionError


async def test_notifications_arrive_in_the_order_of_the_commits(database: Database) -> None:
    async with database.listen("first", 'strange "name"') as notifications:
        for number in range(300):
            await database.execute("SELECT pg_notify($1, $2)", ["first", 'strange "name"'][number % 2], str(number))
        with trio.fail_after(PATIENCE):
            assert [(await notifications.receive()).payload for _ in range(300)] == [str(n) for n in range(300)]
