"""Lines of many tasks' logs are written together, and nobody waits, or fails, for another's sake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from svc_actors.controller.tasks.lines import LineWriter
from svc_actors.controller.tasks.records import NewLine, read_log
from svc_actors.controller.tasks.runner import Task
from svc_actors.store import Database
from tests.controller.machines.test_tasks import new_task
from tests.support.postgres_server import PATIENCE


@asynccontextmanager
async def writing(database: Database) -> AsyncIterator[LineWriter]:
    lines = LineWriter(database)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lines.run)
        yield lines
        nursery.cancel_scope.cancel()


async def add(lines: LineWriter, tasks: list[Task], message: str | None) -> None:
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for task in tasks:
                nursery.start_soon(lines.add, NewLine(task.id, message, 10, starts=True))


async def test_a_hundred_tasks_that_speak_at_once_need_a_few_transactions(database: Database) -> None:
    tasks = [await new_task(database) for _ in range(100)]
    async with writing(database) as lines:
        await add(lines, tasks, "Building.")

        written = await database.fetchone(
            "SELECT count(*) AS lines, count(DISTINCT xmin::text) AS transactions FROM task_events"
        )
    running = await database.fetchval("SELECT count(*) FROM tasks WHERE status = 'running' AND progress = 10")
    assert (written["lines"], running) == (100, 100)
    assert written["transactions"] <= 5


async def test_a_hundred_tasks_are_started_by_a_few_transactions(database: Database) -> None:
    tasks = [await new_task(database) for _ in range(100)]
    async with writing(database) as lines:
        await add(lines, tasks, None)

        started = await database.fetchone(
            """SELECT count(*) AS tasks, count(DISTINCT xmin::text) AS transactions FROM tasks
               WHERE status = 'running' AND started_at IS NOT NULL AND last_position = 0"""
        )
    assert started["tasks"] == 100
    assert started["transactions"] <= 5


async def test_a_task_whose_row_is_held_delays_no_other(database: Database) -> None:
    held, free = await new_task(database), await new_task(database)
    async with writing(database) as lines, trio.open_nursery() as nursery:
        async with database.transaction() as tx:
            await tx.execute("SELECT FROM tasks WHERE id = $1 FOR UPDATE", held.id)
            nursery.start_soon(lines.add, NewLine(held.id, "late"))

            await add(lines, [free], "at once")

            assert await read_log(database, held.id, after=0, limit=10) == []
    [line] = await read_log(database, held.id, after=0, limit=10)
    assert line.message == "late"


async def test_a_line_that_the_database_refuses_fails_alone(database: Database) -> None:
    tasks = [await new_task(database) for _ in range(3)]
    refused: list[Exception] = []
    async with writing(database) as lines, trio.open_nursery() as nursery:

        async def add_what_is_no_text() -> None:
            with pytest.raises(Exception, match="0x00") as error:
                await lines.add(NewLine(tasks[1].id, "a \0 in the middle"))
            refused.append(error.value)

        nursery.start_soon(lines.add, NewLine(tasks[0].id, "before"))
        nursery.start_soon(add_what_is_no_text)
        nursery.start_soon(lines.add, NewLine(tasks[2].id, "behind"))

    said = [[line.message for line in await read_log(database, task.id, after=0, limit=10)] for task in tasks]
    assert (said, len(refused)) == ([["before"], [], ["behind"]], 1)


async def test_nothing_is_added_to_a_task_that_has_ended(database: Database) -> None:
    ended, open_ = await new_task(database), await new_task(database)
    await database.execute("UPDATE tasks SET status = 'cancelled', ended_at = now() WHERE id = $1", ended.id)
    async with writing(database) as lines:
        await add(lines, [ended, open_], "Building.")

    assert await read_log(database, ended.id, after=0, limit=10) == []
    assert len(await read_log(database, open_.id, after=0, limit=10)) == 1
