"""What nobody can record ends all the same: with words of the controller's own, without end of tries, and alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest
import trio

from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.tasks import ends
from svc_actors.controller.tasks.lines import LineWriter
from svc_actors.controller.tasks.records import MOST_LINES, Ending, Task, end_task
from svc_actors.controller.tasks.runner import TaskRun, TaskRunner, TaskStatus
from svc_actors.runtime import ActorCrashed, HandlerOverdue
from svc_actors.store import Database, Record
from svc_common.errors import ErrorCode, unavailable
from svc_nodeagent.protocol import FailureCode
from tests.controller.machines.test_machine_life import order, refuse, running_machine
from tests.controller.machines.test_tasks import new_task, nothing
from tests.support.machine_service import FakeGateway

OWN_WORDS = "The controller could not record the outcome; its log has the cause."


@pytest.fixture(autouse=True)
def trying_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """An end that could not be written is written again at once."""
    monkeypatch.setattr(ends, "_FIRST_PAUSE", 0.005)


@asynccontextmanager
async def hosting(
    database: Database,
    work: Callable[[TaskRun], Awaitable[None]],
    end: Callable[[Task, Ending], Awaitable[None]] | None = None,
) -> AsyncIterator[TaskRunner]:
    async with trio.open_nursery() as nursery:
        runner = TaskRunner(database, FakeGateway(), sweep_interval=0.05)
        runner.handles("test.op", work, end=end)
        await nursery.start(runner.run)
        yield runner
        nursery.cancel_scope.cancel()


async def ended(database: Database, task: Task) -> Record:
    with trio.fail_after(60):
        while (row := await database.fetchone("SELECT * FROM tasks WHERE id = $1", task.id))["ended_at"] is None:
            await trio.sleep(0.005)
    return row


async def forgotten(runner: TaskRunner) -> None:
    """Wait until the runner is done with all tasks, which it is only after their ends are written."""
    with trio.fail_after(60):
        while runner._hosted:
            await trio.sleep(0.005)


async def crash(*_: object) -> NoReturn:
    await trio.lowlevel.checkpoint()
    raise ActorCrashed("Machine:m1", "ended")


async def raw(*_: object) -> NoReturn:
    await trio.lowlevel.checkpoint()
    raise ValueError("what no column holds")


@pytest.mark.parametrize("failure", [crash, raw])
async def test_an_end_that_its_actor_cannot_take_is_written_without_it(
    database: Database, failure: Callable[..., Awaitable[None]]
) -> None:
    tries: list[Ending] = []

    async def end(_: Task, ending: Ending) -> None:
        tries.append(ending)
        await failure()

    task = await new_task(database)
    async with hosting(database, nothing, end) as runner:
        runner.start(task)
        row = await ended(database, task)
        told = len(tries)
        assert (row["status"], row["error_code"], row["error_message"]) == ("failed", "internal", OWN_WORDS)
        assert [each.succeeded for each in tries] == [True, True, True, False]
        await forgotten(runner)
        assert (len(tries), runner.ended[TaskStatus.FAILED]) == (told, 1)


async def test_an_end_with_what_cannot_be_stored_ends_with_words_of_our_own(database: Database) -> None:
    async def end(task: Task, ending: Ending) -> None:
        if ending.succeeded:
            await crash()
        await database.transact(lambda tx: end_task(tx, task.id, ending))

    task = await new_task(database)
    async with hosting(database, nothing, end) as runner:
        runner.start(task)
        assert (await ended(database, task))["error_message"] == OWN_WORDS


@pytest.mark.parametrize("error", [unavailable("The database is away."), HandlerOverdue("Machine:m1", "ended", 30)])
async def test_an_end_is_tried_for_as_long_as_it_may_pass_and_the_task_is_open(
    database: Database, error: Exception
) -> None:
    tries = 0

    async def end(*_: object) -> None:
        nonlocal tries
        tries += 1
        if isinstance(error, HandlerOverdue):
            crashed = ActorCrashed("Machine:m1", "ended")
            raise crashed from error
        raise error

    task = await new_task(database)
    async with hosting(database, nothing, end) as runner:
        runner.start(task)
        with trio.fail_after(60):
            while tries < 8:
                await trio.sleep(0.005)
        assert task.id in runner._hosted
        other = Ending(TaskStatus.CANCELLED, "A forced stop superseded it.")
        await database.transact(lambda tx: end_task(tx, task.id, other))
        await forgotten(runner)
        assert (await ended(database, task))["status"] == "cancelled"


async def test_work_over_which_an_actor_always_crashes_has_failed(database: Database) -> None:
    tries = 0

    async def work(_: TaskRun) -> None:
        nonlocal tries
        tries += 1
        await crash()

    task = await new_task(database)
    async with hosting(database, work) as runner:
        runner.start(task)
        row = await ended(database, task)
        assert (row["status"], row["error_code"], tries) == ("failed", ErrorCode.INTERNAL, 3)
        await forgotten(runner)
        assert not runner._crashes


async def test_a_machine_whose_node_answered_with_a_zero_character_takes_its_next_order(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):
        service.gateway.answers["vm.reset"] = refuse(FailureCode.HOST, "a\x00b")
        task = await service.ended(await order("reset")(service.machine(vm_id)))
        assert (task.status, task.error_message) == (TaskStatus.FAILED, OWN_WORDS)
        assert (await service.ended(await order("force_stop")(service.machine(vm_id)))).status is TaskStatus.SUCCEEDED
        assert service.actors.ref(Machine, str(vm_id))


async def test_a_log_has_an_end_and_says_how_much_it_left_out(database: Database) -> None:
    async def work(run: TaskRun) -> None:
        for number in range(MOST_LINES + 500):
            await run.log(f"line {number}", percent=number // 150)

    task = await new_task(database)
    async with hosting(database, work) as runner:
        runner.start(task)
        await ended(database, task)
    lines = await database.fetch(
        "SELECT position, message FROM task_events WHERE task_id = $1 ORDER BY position", task.id
    )
    assert [line["position"] for line in lines] == [*range(1, MOST_LINES + 3)]
    assert [line["message"] for line in lines[-3:]] == [
        f"line {MOST_LINES - 1}",
        f"500 more lines were left out: a log has {MOST_LINES} at most.",
        "Done.",
    ]


async def test_a_full_log_costs_the_database_nothing_more_than_its_progress(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[str | None] = []
    add = LineWriter.add

    async def counted(self: LineWriter, line: object) -> bool:
        added.append(line.message)  # type: ignore[attr-defined]
        return await add(self, line)  # type: ignore[arg-type]

    monkeypatch.setattr(LineWriter, "add", counted)
    progress: list[int] = []

    async def work(run: TaskRun) -> None:
        for number in range(300):
            await run.log(f"line {number}", percent=number % 100)
        progress.append(await database.fetchval("SELECT progress FROM tasks WHERE id = $1", run.task.id))

    task = await new_task(database)
    # As after a restart: an earlier process has filled it.
    await database.execute("UPDATE tasks SET status = 'running', last_position = $1", MOST_LINES)
    async with hosting(database, work) as runner:
        runner.start(task)
        await ended(database, task)
    assert (len(added) <= 102, progress) == (True, [99])
    assert await database.fetchval("SELECT count(*) FROM task_events WHERE message LIKE '300 more lines%'") == 1
