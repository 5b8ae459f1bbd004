"""What the pool and its transactions promise while the server is well."""

# ruff: noqa: PT012  # what raises is how a block ends

from __future__ import annotations

import datetime
import ipaddress
import uuid

import asyncpg
import pytest
import trio

from svc_actors.store import Database, UniqueViolationError
from svc_actors.store import database as pool_module
from svc_actors.store import transactions as transactions_module
from svc_actors.store import transport as transport_module
from svc_common.errors import ErrorCode, ServiceError
from tests.support.postgres_proxy import proxy_to
from tests.support.postgres_server import until


@pytest.fixture
async def table(database: Database) -> Database:
    await database.execute("CREATE TABLE note (id int PRIMARY KEY, body text)")
    return database


async def count(database: Database) -> int:
    found: int = await database.fetchval("SELECT count(*) FROM note")
    return found


async def test_values_come_back_as_they_went_in(database: Database) -> None:
    values = (
        {"list": [1, None, "ü"], "deep": {"a": True}},
        ["json", 2.5],
        uuid.uuid4(),
        datetime.datetime(2026, 11, 21, 7, 30, tzinfo=datetime.UTC),
        ipaddress.ip_address("192.0.2.1"),
        ipaddress.ip_network("2001:db8::/64"),
        b"\0\1",
        ["a", "b"],
        None,
    )
    row = await database.fetchrow(
        "SELECT $1::jsonb, $2::json, $3::uuid, $4::timestamptz, $5::inet, $6::cidr, $7::bytea, $8::text[], $9::int",
        *values,
    )
    assert row is not None
    assert tuple(row.values()) == values


async def test_a_type_of_postgresqls_own_is_looked_up_once_and_not_by_each_connection(database: Database) -> None:
    values = (["a", "b"], [uuid.uuid4()], [{"deep": [1]}])
    ask = "SELECT $1::text[], $2::uuid[], $3::jsonb[]"
    async with database.session() as first, database.session() as second:
        answers = [tuple((await session.fetchone(ask, *values)).values()) for session in (first, second)]
        prepared = await second.fetch("SELECT statement FROM pg_prepared_statements")

    assert answers == [values, values]
    assert [row["statement"] for row in prepared if "pg_type" in row["statement"]] == []


async def test_a_type_of_a_databases_own_is_that_of_each_database(database: Database) -> None:
    await database.execute("CREATE TYPE point_of_a_map AS (x int, labels text[])")
    await database.execute("CREATE DOMAIN few AS int[] CHECK (cardinality(VALUE) < 3)")
    ask = "SELECT $1::point_of_a_map[], $2::few"
    async with database.session() as first, database.session() as second:
        for session in (first, second):
            points, few = tuple((await session.fetchone(ask, [(1, ["a"])], [7])).values())
            assert ([tuple(point) for point in points], few) == ([(1, ["a"])], [7])


async def test_a_value_larger_than_every_buffer_goes_both_ways(database: Database) -> None:
    large = "0123456789" * 2_000_000
    assert await database.fetchval("SELECT $1::text", large) == large


async def test_many_rows_of_any_size_are_written_in_order(table: Database) -> None:
    rows = [(number, "x" * (number * 7919 % 70_000)) for number in range(300)]
    async with table.transaction() as transaction:
        await transaction.executemany("INSERT INTO note VALUES ($1, $2)", rows)
    assert [tuple(row) for row in await table.fetch("SELECT id, body FROM note ORDER BY id")] == rows


async def test_many_documents_of_any_size_are_written(database: Database) -> None:
    await database.execute("CREATE TABLE document (id uuid, content jsonb)")
    rows = [(uuid.uuid4(), {"text": "x" * size}) for size in (1, 10, 50_000, 200_000, 3, 200_000, 1) * 3]
    async with database.transaction() as transaction:
        await transaction.executemany("INSERT INTO document VALUES ($1, $2)", rows)
    assert {row["id"]: row["content"] for row in await database.fetch("SELECT id, content FROM document")} == dict(rows)


async def test_statements_go_on_working_when_the_schema_changes_under_them(table: Database, database_url: str) -> None:
    async with Database.open(database_url, size=1) as database:
        for column in range(3):
            rows = await database.fetch("SELECT * FROM note")
            await table.execute("INSERT INTO note (id) VALUES ($1)", column)
            assert len(rows) == column
            await table.execute(f"ALTER TABLE note ADD COLUMN more_{column} int")
        row = await database.fetchrow("SELECT * FROM note")
        assert row is not None
        assert list(row.keys()) == ["id", "body", "more_0", "more_1", "more_2"]
        assert database.statistics().opened == 1


async def test_a_transaction_that_raises_leaves_nothing(table: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        async with table.transaction() as transaction:
            await transaction.execute("INSERT INTO note VALUES (1, 'a')")
            raise ZeroDivisionError
    assert await count(table) == 0


async def test_a_savepoint_is_undone_alone(table: Database) -> None:
    async with table.transaction() as transaction:
        await transaction.execute("INSERT INTO note VALUES (1, 'a')")
        with pytest.raises(UniqueViolationError):
            async with transaction.savepoint():
                await transaction.execute("INSERT INTO note VALUES (2, 'b')")
                await transaction.execute("INSERT INTO note VALUES (1, 'c')")
        await transaction.execute("INSERT INTO note VALUES (3, 'd')")
    assert [row["id"] for row in await table.fetch("SELECT id FROM note ORDER BY id")] == [1, 3]


async def test_a_transaction_that_swallowed_an_error_is_not_reported_as_committed(table: Database) -> None:
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        async with table.transaction() as transaction:
            await transaction.execute("INSERT INTO note VALUES (1, 'a')")
            with pytest.raises(UniqueViolationError):
                await transaction.execute("INSERT INTO note VALUES (1, 'b')")
    assert await count(table) == 0


async def test_a_cancelled_transaction_leaves_nothing_and_its_connection_is_usable(table: Database) -> None:
    with trio.CancelScope() as scope:
        async with table.transaction() as transaction:
            await transaction.execute("INSERT INTO note VALUES (1, 'a')")
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert await count(table) == 0
    assert table.statistics().in_use == 0


async def test_nothing_is_sent_for_a_task_that_is_cancelled_already(table: Database) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await table.execute("INSERT INTO note VALUES (1, 'a')")
    assert await count(table) == 0
    assert table.statistics().broken == 0


async def test_a_task_with_quick_queries_leaves_others_their_turn(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "_QUICK", 10.0)
    monkeypatch.setattr(transport_module, "_LONGEST_RUN", 0.0)
    turns = 0
    async with trio.open_nursery() as nursery:

        async def take_turns() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        nursery.start_soon(take_turns)
        for _ in range(100):
            await database.fetchval("SELECT 1")
        nursery.cancel_scope.cancel()
    assert turns >= 90


async def test_a_commit_is_finished_even_when_it_is_cancelled(table: Database) -> None:
    await table.execute(
        """
        CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.05); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON note DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION dawdle();
        """
    )
    with trio.CancelScope() as scope:
        async with table.transaction() as transaction:
            await transaction.execute("INSERT INTO note VALUES (1, 'a')")
            scope.cancel()
    assert await count(table) == 1
    assert table.statistics().broken == 0


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_commit_whose_answer_is_lost_is_reported_as_unknown(
    table: Database, database_url: str, arrives: bool
) -> None:
    async with proxy_to(database_url) as proxy, Database.open(proxy.url) as database:
        with pytest.raises(ServiceError) as caught:
            async with database.transaction() as transaction:
                await transaction.execute("INSERT INTO note VALUES (1, 'a')")
                if arrives:
                    proxy.after = lambda piece: b"COMMIT" in piece
                else:
                    proxy.before = lambda piece: b"COMMIT" in piece
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert caught.value.details == {"outcome": "unknown"}
        proxy.after = proxy.before = lambda piece: False
        if arrives:

            async def it_is_there() -> bool:
                return await count(database) == 1

            await until(it_is_there)
        else:
            assert await count(database) == 0


async def test_a_write_of_its_own_whose_answer_is_lost_is_reported_as_unknown(
    table: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxy_to(database_url) as proxy, Database.open(proxy.url, size=1) as database:
        await database.execute("INSERT INTO note VALUES ($1, 'a')", 1)
        proxy.answering = False
        proxy.after = lambda piece: True
        with pytest.raises(ServiceError) as caught:
            await database.execute("INSERT INTO note VALUES ($1, 'a')", 2)
        with monkeypatch.context() as patched, pytest.raises(ServiceError) as read:
            patched.setattr(pool_module, "CONNECT_TIMEOUT", 0.1)
            await database.fetchval("SELECT count(*) FROM note")
    assert caught.value.details == {"outcome": "unknown"}
    assert "outcome" not in (read.value.details or {})

    async def it_is_there() -> bool:
        return await count(table) == 2

    await until(it_is_there)


async def test_a_write_of_its_own_that_is_answered_too_late_is_reported_as_unknown(table: Database) -> None:
    await table.execute(
        """
        CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(600); RETURN NULL; END';
        CREATE TRIGGER slow AFTER INSERT ON note FOR EACH ROW EXECUTE FUNCTION dawdle();
        """
    )
    with pytest.raises(ServiceError) as caught:
        await table.execute("INSERT INTO note VALUES (1, 'a')", timeout=0.05)
    assert caught.value.details == {"outcome": "unknown"}


async def test_a_transaction_that_loses_its_connection_is_known_to_be_undone(
    table: Database, database_url: str
) -> None:
    async with proxy_to(database_url) as proxy, Database.open(proxy.url) as database:
        proxy.after = lambda piece: b"pg_backend_pid" in piece
        with pytest.raises(ServiceError) as caught:
            async with database.transaction() as transaction:
                await transaction.execute("INSERT INTO note VALUES (1, 'a')")
                with pytest.raises(ServiceError):
                    await transaction.fetchval("SELECT pg_backend_pid()")
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert caught.value.details is None
    assert await count(table) == 0


async def test_waiting_for_a_connection_ends_with_unavailable(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "ACQUIRE_TIMEOUT", 0.05)
    async with Database.open(database_url, size=1) as database:
        async with database.transaction():
            with pytest.raises(ServiceError) as caught:
                await database.fetchval("SELECT 1")
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert await database.fetchval("SELECT 2") == 2
        assert database.statistics().exhausted == 1


async def test_those_who_wait_for_a_connection_are_all_served(database_url: str) -> None:
    served: list[int] = []
    async with Database.open(database_url, size=2) as database:

        async def ask(number: int) -> None:
            served.append(await database.fetchval("SELECT $1::int", number))

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, number)
        assert sorted(served) == list(range(50))
        assert database.statistics().opened == 2


@pytest.mark.parametrize("usual", [True, False])
async def test_a_statement_past_its_time_is_stopped_and_the_caller_told(
    database_url: str, usual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_WATCH_PERIOD", 0.01)
    if usual:
        monkeypatch.setattr(transactions_module, "STATEMENT_TIMEOUT", 0.05)
    async with Database.open(database_url) as database:
        await expire(database)


async def expire(database: Database) -> None:
    with pytest.raises(ServiceError) as caught:
        await database.execute("SELECT pg_sleep(600) /* too long */", timeout=0.05)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert "did not answer within 0.05 s" in caught.value.message

    async def nobody_works_on_it() -> bool:
        return not await database.fetchval(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%too long%' AND pid <> pg_backend_pid())"
        )

    await until(nobody_works_on_it)


async def test_an_advisory_lock_lives_as_long_as_its_session(database: Database) -> None:
    async with database.session() as holder, database.session() as other:
        assert await holder.fetchval("SELECT pg_try_advisory_lock(7)")
        assert not await other.fetchval("SELECT pg_try_advisory_lock(7)")

    async def it_is_free() -> bool:
        async with database.session() as next_one:
            return bool(await next_one.fetchval("SELECT pg_try_advisory_lock(7)"))

    await until(it_is_free)


async def test_the_caller_sees_its_own_exception_and_not_a_group(database_url: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Database.open(database_url) as database, database.listen("somewhere"):
            raise ZeroDivisionError


async def test_a_server_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "CONNECT_TIMEOUT", 0.05)
    with pytest.raises(ServiceError) as caught:
        async with Database.open("postgresql://svc@/svc?host=/nonexistent"):
            pytest.fail("there is no server to open")
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert "Cannot connect" in caught.value.message
