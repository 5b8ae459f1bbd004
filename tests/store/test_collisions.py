"""What the server undoes or cancels: run again where that is safe, else an error of that caller and of nobody else."""

from __future__ import annotations

from functools import partial

import asyncpg
import pytest
import trio

from svc_actors.runtime import Actor, ActorSystem, Crash
from svc_actors.store import Collision, Database, EventKind, EventLog, NewEvent, Transaction, append
from svc_actors.store import database as pool_module
from svc_common.errors import ErrorCode, ServiceError
from tests.support.postgres_server import PATIENCE, until


@pytest.fixture
async def table(database: Database) -> Database:
    await database.execute("CREATE TABLE account (id int PRIMARY KEY, balance int)")
    await database.execute("INSERT INTO account VALUES (1, 100), (2, 100)")
    return database


class Teller(Actor):
    """Moves one between two accounts, in the order that it is told: two of them the other way round deadlock."""

    def __init__(self, database: Database, mine: dict[int, trio.Event]) -> None:
        self._database = database
        self._mine = mine

    async def move(self, source: int, target: int) -> None:
        async def work(tx: Transaction) -> None:
            await tx.execute("UPDATE account SET balance = balance - 1 WHERE id = $1", source)
            self._mine[source].set()
            await self._mine[target].wait()
            await tx.execute("UPDATE account SET balance = balance + 1 WHERE id = $1", target)

        await self._database.transact(work)

    async def read(self) -> int:
        async def work(tx: Transaction) -> int:
            row = await tx.fetchone("SELECT * FROM account WHERE id = 1 FOR UPDATE")
            return int(row["balance"])

        return await self._database.transact(work)


async def test_two_actors_that_deadlock_both_finish_and_none_crashes(table: Database) -> None:
    crashes: list[Crash] = []
    mine = {1: trio.Event(), 2: trio.Event()}
    async with ActorSystem.open(on_crash=crashes.append) as actors:
        actors.register(Teller, lambda _: Teller(table, mine))

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(actors.ref(Teller, "a").ask, Teller.move, 1, 2)
                nursery.start_soon(actors.ref(Teller, "b").ask, Teller.move, 2, 1)

    assert crashes == []
    # What is repeated may meet the other once more.
    assert table.statistics().collided >= 1
    assert [row["balance"] for row in await table.fetch("SELECT balance FROM account ORDER BY id")] == [100, 100]


async def test_serialization_failures_are_repeated_until_every_change_counts(table: Database) -> None:
    async def add(tx: Transaction) -> None:
        await tx.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        balance = await tx.fetchval("SELECT balance FROM account WHERE id = 1")
        await tx.execute("UPDATE account SET balance = $1 WHERE id = 1", balance + 1)

    async def add_some() -> None:
        for _ in range(5):
            await table.transact(add)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(add_some)

    assert await table.fetchval("SELECT balance FROM account WHERE id = 1") == 115


async def test_repeating_ends_and_tells_the_caller_that_nothing_was_changed(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_FIRST_BACK_OFF", 0.0)
    attempts = 0

    async def collide(tx: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        await tx.execute("UPDATE account SET balance = 0")
        await tx.execute("DO $$ BEGIN RAISE EXCEPTION 'met another' USING ERRCODE = 'serialization_failure'; END $$")

    with pytest.raises(Collision) as caught:
        await table.transact(collide)

    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert caught.value.details == {"retry_after": 1}
    assert 3 <= attempts <= 10
    assert await table.fetchval("SELECT sum(balance) FROM account") == 200


async def test_a_schema_that_changed_under_a_transaction_crashes_no_actor(table: Database, database_url: str) -> None:
    crashes: list[Crash] = []
    async with ActorSystem.open(on_crash=crashes.append) as actors, Database.open(database_url) as migrator:
        actors.register(Teller, lambda _: Teller(table, {}))
        teller = actors.ref(Teller, "a")
        await teller.ask(Teller.read)

        await migrator.execute("ALTER TABLE account ADD COLUMN owner text")

        assert await teller.ask(Teller.read) == 100
    assert crashes == []


async def test_an_error_of_the_callers_own_is_not_repeated(table: Database) -> None:
    attempts = 0

    async def insert(tx: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        await tx.execute("INSERT INTO account VALUES (1, 0)")

    with pytest.raises(asyncpg.UniqueViolationError):
        await table.transact(insert)

    assert attempts == 1


CANCEL = """SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
            WHERE query LIKE $1 AND state = 'active' AND pid <> pg_backend_pid()"""


async def test_a_cancelled_statement_is_unavailable_to_its_caller_alone(database: Database) -> None:
    told: list[ServiceError] = []

    async def sleep() -> None:
        with pytest.raises(ServiceError) as caught:
            await database.execute("SELECT pg_sleep(600) /* to be cancelled */")
        told.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleep)

        async def cancelled() -> bool:
            return bool(await database.fetchval(CANCEL, "%to be cancelled%"))

        await until(cancelled)
    assert [error.code for error in told] == [ErrorCode.UNAVAILABLE]
    assert "canceling statement" in told[0].message
    assert database.statistics().broken == 0


async def test_the_event_log_goes_on_after_its_statements_were_cancelled(database: Database) -> None:
    log = EventLog(database)

    async def write(number: int) -> None:
        async with database.transaction() as tx:
            await append(tx, NewEvent(kind=EventKind.SYSTEM, payload={"number": number}))

    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        async with log.subscribe(None) as subscription, database.session() as operator:
            for statement, stir in (
                ("%DELETE FROM event_inbox%", partial(write, 0)),
                ("%FROM event WHERE position > %", partial(database.execute, "NOTIFY svc_event")),
            ):
                await operator.execute("BEGIN; LOCK TABLE event IN ACCESS EXCLUSIVE MODE")
                await stir()

                async def cancelled(statement: str = statement) -> bool:
                    return bool(await database.fetchval(CANCEL, statement))

                await until(cancelled)
                await operator.execute("ROLLBACK")
            await write(1)
            with trio.fail_after(PATIENCE):
                numbers = [(await anext(subscription)).payload["number"] for _ in range(2)]
        nursery.cancel_scope.cancel()
    assert numbers == [0, 1]
