"""Tasks beside everything else: thousands that resume at once, and transactions that somebody holds open."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from svc_actors.controller.tasks.run import TaskRun
from svc_actors.controller.tasks.runner import TaskRunner
from svc_actors.store import Database, EventKind, EventLog, Lane, NewEvent, append, enter_lane
from tests.support.machine_service import FakeGateway
from tests.support.postgres_server import PATIENCE, until


@pytest.fixture
async def lanes(database_url: str) -> AsyncIterator[Database]:
    async with Database.open(database_url, lanes={Lane.READING: 4, Lane.ORDERS: 4, Lane.BACKGROUND: 4}) as database:
        yield database


async def add_tasks(database: Database, count: int) -> None:
    await database.execute(
        """
        INSERT INTO tasks (op, resource_kind, resource_id, resource_name, caller, deadline_at, created_at)
        SELECT 'node.inventory', 'node', gen_random_uuid(), 'n', $2, now() + interval '1 hour',
               now() - interval '1 minute'
        FROM generate_series(1, $1::int)
        """,
        count,
        {},
    )


async def test_reads_are_answered_while_four_thousand_tasks_resume(lanes: Database) -> None:
    await add_tasks(lanes, 4000)
    tasks = TaskRunner(lanes, FakeGateway())

    async def work(run: TaskRun) -> None:
        await trio.sleep_forever()

    tasks.handles("node.inventory", work)
    took: list[float] = []

    async def read() -> None:
        enter_lane(Lane.READING)
        for _ in range(20):
            began = trio.current_time()
            await lanes.fetchval("SELECT count(*) FROM nodes")
            took.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        await nursery.start(tasks.run)
        async with trio.open_nursery() as readers:
            readers.start_soon(read)

        async def all_run() -> bool:
            return bool(await lanes.fetchval("SELECT count(*) = 4000 FROM tasks WHERE status = 'running'"))

        still_resuming = not await all_run()
        await until(all_run)
        nursery.cancel_scope.cancel()
    assert still_resuming, "the reads came too late to show anything"
    assert sorted(took)[len(took) // 2] < 1.0
    assert lanes.statistics().exhausted == 0


@pytest.fixture
def clock() -> MockClock:
    """Real time, and ten minutes more when the test says so."""
    return MockClock(rate=1.0)


async def test_events_and_tasks_flow_while_a_transaction_is_held_open_for_ten_minutes(
    lanes: Database, clock: MockClock
) -> None:
    log, tasks = EventLog(lanes), TaskRunner(lanes, FakeGateway(), sweep_interval=5.0)
    done: list[TaskRun] = []

    async def work(run: TaskRun) -> None:
        done.append(run)

    tasks.handles("node.inventory", work)

    async def write(first: int) -> None:
        for number in range(first, first + 20):
            async with lanes.transaction() as tx:
                await append(tx, NewEvent(kind=EventKind.SYSTEM, payload={"number": number}))

    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        await nursery.start(tasks.run)
        async with (
            lanes.transaction() as held,
            log.subscribe(None) as subscription,
        ):
            await held.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            await held.execute("INSERT INTO locations (name) VALUES ('held')")
            for round_ in range(2):
                await write(20 * round_)
                await add_tasks(lanes, 5)
                clock.jump(300)
                with trio.fail_after(PATIENCE):
                    numbers: list[int] = []
                    while len(numbers) < 20:
                        event = await anext(subscription)
                        if event.kind == EventKind.SYSTEM:
                            numbers.append(event.payload["number"])
                assert numbers == list(range(20 * round_, 20 * round_ + 20))

                async def worked(count: int = 5 * (round_ + 1)) -> bool:
                    return len(done) == count

                await until(worked)
        nursery.cancel_scope.cancel()
