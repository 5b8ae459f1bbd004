"""The event log: every committed change once, in order, to everyone who listens from anywhere in the log."""

# ruff: noqa: PT012  # what raises is how a block ends

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

import pytest
import trio

from svc_actors.controller.event_kinds import ControllerEvent
from svc_actors.store import (
    Database,
    Event,
    EventKind,
    EventLog,
    NewEvent,
    PositionLost,
    Retention,
    SlowReader,
    Subscription,
    append,
    migrate,
    sequencing,
)
from svc_actors.store import events as events_module
from svc_actors.store.sequencing import WRITE_TO_INBOX, prune
from svc_common.errors import ServiceError
from tests.support.postgres_server import PATIENCE, kill_server, own_server, until


def numbered(number: int, writer: int = 0) -> NewEvent:
    return NewEvent(kind=ControllerEvent.VM, subject=f"vm-{writer}", payload={"writer": writer, "number": number})


async def write(database: Database, *events: NewEvent) -> None:
    async with database.transaction() as transaction:
        for event in events:
            await append(transaction, event)


@asynccontextmanager
async def running(database: Database, *, buffer: int = 1024) -> AsyncIterator[EventLog]:
    log = EventLog(database, buffer=buffer)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        yield log
        nursery.cancel_scope.cancel()


async def take(subscription: Subscription, count: int) -> list[Event]:
    with trio.fail_after(PATIENCE):
        return [await anext(subscription) for _ in range(count)]


async def logged(log: EventLog, count: int) -> list[Event]:
    """The first `count` events of the log."""
    async with log.subscribe(0) as subscription:
        return await take(subscription, count)


async def test_an_event_arrives_as_it_was_appended_and_only_when_committed(database: Database) -> None:
    appended = NewEvent(
        kind=EventKind.ALERT,
        subject="node-1",
        project_id=uuid4(),
        node_id=uuid4(),
        administrators_only=True,
        payload={"text": "ü", "list": [1, None]},
    )
    async with running(database) as log, log.subscribe(None) as subscription:
        with pytest.raises(ZeroDivisionError):
            async with database.transaction() as transaction:
                await append(transaction, numbered(1))
                raise ZeroDivisionError
        async with database.transaction() as transaction:
            with pytest.raises(ZeroDivisionError):
                async with transaction.savepoint():
                    await append(transaction, numbered(2))
                    raise ZeroDivisionError
            await append(transaction, appended)
        (event,) = await take(subscription, 1)
        assert event.position == 1
        assert {name: getattr(event, name) for name in vars(appended)} == vars(appended)


async def test_what_json_cannot_say_is_refused_when_it_is_appended(database: Database) -> None:
    async with database.transaction() as transaction:
        with pytest.raises(TypeError):
            await append(transaction, NewEvent(kind=ControllerEvent.VM, payload={"id": uuid4()}))


@pytest.mark.parametrize("seed", range(2))
async def test_events_come_in_commit_order_whoever_writes_and_whatever_is_held_open(
    database: Database, database_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each writer appends first and only then takes the lock that decides the order of the commits, so an order by the
    time of appending would be wrong."""
    # What was held open is found by a sweep.
    monkeypatch.setattr(sequencing, "SWEEP_PERIOD", 0.2)
    choose = random.Random(seed)
    await database.execute("CREATE TABLE counter (value int)")
    await database.execute("INSERT INTO counter VALUES (0)")
    committed: list[int] = []
    async with Database.open(database_url, size=18) as many, running(database) as log, trio.open_nursery() as nursery:
        let_go = trio.Event()

        async def hold_open(task_status: trio.TaskStatus[None]) -> None:
            async with many.transaction() as transaction:
                await transaction.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                await transaction.execute(WRITE_TO_INBOX, ["system"], [None], [None], [None], [False], ["{}"])
                await transaction.fetchval("SELECT count(*) FROM counter")
                task_status.started()
                await let_go.wait()

        await nursery.start(hold_open)

        async def work(writer: int) -> None:
            for _ in range(8):
                async with many.transaction() as transaction:
                    await append(transaction, numbered(0, writer))
                    await trio.sleep(choose.uniform(0, 0.004))
                    value = await transaction.fetchval("UPDATE counter SET value = value + 1 RETURNING value")
                    await append(transaction, numbered(value, writer))
                    await trio.sleep(choose.uniform(0, 0.001))
                committed.append(value)

        async with trio.open_nursery() as writers:
            for writer in range(16):
                writers.start_soon(work, writer)
        events = await logged(log, 256)
        assert [event.position for event in events] == list(range(1, 257))
        assert sorted(committed) == list(range(1, 129))
        assert [event.payload["number"] for event in events] == [n for value in range(1, 129) for n in (0, value)]

        let_go.set()
        async with log.subscribe(256) as subscription:
            (last,) = await take(subscription, 1)
        assert (last.position, last.kind) == (257, EventKind.SYSTEM)


async def test_a_reader_can_resume_after_any_position(database: Database) -> None:
    async with running(database) as log:
        for number in range(1, 31):
            await write(database, numbered(number))
        await logged(log, 30)
        for after in range(31):
            async with log.subscribe(after) as subscription:
                resumed = await take(subscription, 30 - after)
                assert [event.payload["number"] for event in resumed] == list(range(after + 1, 31))


@pytest.mark.parametrize("seed", range(2))
async def test_readers_who_come_at_any_time_get_each_event_once(
    database: Database, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "_PAGE", 7)
    choose = random.Random(seed)
    total = 300
    async with running(database, buffer=4096) as log:

        async def produce() -> None:
            number = 0
            while number < total:
                batch = [numbered(number + step) for step in range(1, min(choose.randint(1, 9), total - number) + 1)]
                await write(database, *batch)
                number += len(batch)

        async def read(pause: float) -> None:
            await trio.sleep(pause)
            positions: list[int] = []
            while len(positions) < total:
                # Leaves now and then, and comes back where it was.
                async with log.subscribe(positions[-1] if positions else 0) as subscription:
                    positions += [
                        event.position
                        for event in await take(subscription, min(choose.randint(1, 90), total - len(positions)))
                    ]
            assert positions == list(range(1, total + 1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            for _ in range(10):
                nursery.start_soon(read, choose.uniform(0, 0.2))


async def test_a_reader_that_does_not_keep_up_is_cut_off_alone(database: Database) -> None:
    async with running(database, buffer=8) as log, log.subscribe(None) as slow, log.subscribe(None) as quick:
        for number in range(1, 21):
            await write(database, numbered(number))
            assert [event.position for event in await take(quick, 1)] == [number]
        assert [event.position for event in await take(slow, 8)] == list(range(1, 9))
        with pytest.raises(SlowReader):
            await anext(slow)
        assert log.statistics().dropped == 1
        async with log.subscribe(slow.position) as again:
            assert [event.position for event in await take(again, 12)] == list(range(9, 21))


async def test_a_position_that_was_pruned_or_never_was_is_gone(database: Database) -> None:
    async with running(database) as log:
        await write(database, *(numbered(number) for number in range(1, 11)))
        await logged(log, 10)
        assert await prune(database, Retention(rows=4)) == 6
        for unknown in (0, 5, 11):
            with pytest.raises(PositionLost):
                async with log.subscribe(unknown):
                    pytest.fail("the log does not reach this position")
        async with log.subscribe(6) as subscription:
            assert [event.position for event in await take(subscription, 4)] == [7, 8, 9, 10]


async def test_positions_go_on_after_everything_grew_old(database: Database) -> None:
    async with running(database) as log:
        await write(database, *(numbered(number) for number in range(1, 11)))
        await logged(log, 10)
        await database.execute("UPDATE event SET at = at - interval '30 days' WHERE position < 5")
        assert await prune(database, Retention(age=timedelta(days=7))) == 4
        assert await prune(database, Retention(age=timedelta(0))) == 5
        await write(database, numbered(11))
        async with log.subscribe(9) as subscription:
            assert [event.position for event in await take(subscription, 2)] == [10, 11]


async def _sequences(log: EventLog) -> bool:
    return log.statistics().sequencing


async def test_another_process_numbers_events_when_the_first_one_stops(database: Database, database_url: str) -> None:
    async with Database.open(database_url) as other, trio.open_nursery() as nursery:
        first, second = EventLog(database), EventLog(other)
        first_runs = trio.CancelScope()

        async def run_first(task_status: trio.TaskStatus[None]) -> None:
            with first_runs:
                await first.run(task_status)

        await nursery.start(run_first)
        await until(lambda: _sequences(first))
        await nursery.start(second.run)
        await write(database, numbered(1))
        for log in (first, second):
            assert [event.position for event in await logged(log, 1)] == [1]
        assert (first.statistics().sequencing, second.statistics().sequencing) == (True, False)
        first_runs.cancel()
        await write(other, numbered(2))
        assert [event.payload["number"] for event in await logged(second, 2)] == [1, 2]
        assert second.statistics().sequencing
        nursery.cancel_scope.cancel()


async def test_subscribers_live_through_a_restart_of_the_server() -> None:
    async with own_server() as (url, folder), Database.open(url) as database:
        await migrate(database)
        async with running(database) as log, log.subscribe(None) as subscription:
            await write(database, numbered(1))
            assert len(await take(subscription, 1)) == 1
            kill_server(folder)
            number = 1
            acknowledged: list[int] = []

            async def written() -> bool:
                nonlocal number
                number += 1
                try:
                    await write(database, numbered(number))
                except ServiceError:
                    return False
                acknowledged.append(number)
                return len(acknowledged) > 20

            await until(written)
            events = await take(subscription, 20)
            assert [event.position for event in events] == list(range(2, 22))
            got = [event.payload["number"] for event in events]
            assert got == sorted(set(got))
            assert set(acknowledged[:10]) <= set(got)


async def test_subscriptions_end_when_the_log_stops(database: Database) -> None:
    ended = trio.Event()
    async with trio.open_nursery() as readers:
        async with running(database) as log:

            async def read(task_status: trio.TaskStatus[None]) -> None:
                async with log.subscribe(None) as subscription:
                    task_status.started()
                    async for _ in subscription:
                        pytest.fail("nothing was written")
                ended.set()

            await readers.start(read)
        with trio.fail_after(PATIENCE):
            await ended.wait()
