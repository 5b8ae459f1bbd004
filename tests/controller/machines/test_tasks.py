"""Tasks: cancelled in every state or refused with a reason, ended by their deadline, logged without gap or repeat."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
import trio
import trio.testing

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.states import Order
from svc_actors.controller.tasks.runner import (
    Ending,
    ResourceKind,
    Task,
    TaskRun,
    TaskRunner,
    TaskStatus,
    create_task,
    end_task,
    read_log,
)
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError, conflict, unavailable
from svc_nodeagent.protocol import FACTS, FailureCode, Lane, NodeInventory, NodeOperation, OperationId, OperationResult
from tests.controller.machines.test_machine_life import order, running_machine
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_service import FakeGateway, make_fleet, open_service


async def new_task(database: Database, op: str = "test.op", *, timeout: float = 60.0, node: UUID | None = None) -> Task:
    async with database.transaction() as tx:
        return await create_task(
            tx,
            ADMINISTRATOR,
            op=op,
            resource_kind=ResourceKind.NODE,
            resource_id=uuid4(),
            resource_name="thing",
            node_id=node,
            project_id=None,
            parameters={},
            timeout=timeout,
        )


async def nothing(run: TaskRun) -> None:
    await run.log("did nothing")


async def hang(gateway: FakeGateway, _: UUID, operation_id: OperationId, __: NodeOperation) -> OperationResult:
    await gateway.until_cancelled(operation_id)
    raise AssertionError


async def test_a_running_task_is_cancelled_on_its_node(database: Database) -> None:
    world, gateway = await make_fleet(database), FakeGateway()
    gateway.answers["vm.create"] = hang
    async with open_service(database, gateway) as service:
        created = await service.create(world.machine())
        await service.until_asked("vm.create")
        asked = await service.tasks.cancel(ADMINISTRATOR, created.task.id)
        assert asked.cancel_requested
        ended = await service.ended(created.task)
        assert ended.status is TaskStatus.CANCELLED
        vm = await service.vm(created.vm_id)
        assert (vm["status"], vm["status_reason"]) == ("failed", "Creation failed: Cancelled.")


async def test_a_cancellation_that_comes_too_late_changes_nothing(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):
        done = await service.ended(await order("shutdown")(service.machine(vm_id)))
        with pytest.raises(ServiceError) as refusal:
            await service.tasks.cancel(ADMINISTRATOR, done.id)
        assert (refusal.value.code, refusal.value.details) == (ErrorCode.CONFLICT, {"status": "succeeded"})


async def test_a_deletion_cannot_be_taken_back(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):
        service.gateway.answers["vm.delete"] = hang
        task = await order("delete")(service.machine(vm_id))
        with pytest.raises(ServiceError) as refusal:
            await service.tasks.cancel(ADMINISTRATOR, task.id)
        assert refusal.value.code is ErrorCode.CONFLICT


async def test_a_task_nobody_has_begun_is_cancelled_at_once(database: Database) -> None:
    task = await new_task(database)
    async with trio.open_nursery() as nursery:
        runner = TaskRunner(database, FakeGateway(), sweep_interval=30)
        runner.handles("test.op", nothing)
        await runner.cancel(ADMINISTRATOR, task.id)
        await nursery.start(runner.run)
        with trio.fail_after(60):
            while (row := await database.fetchrow("SELECT * FROM tasks"))["status"] == "queued":  # type: ignore[index]
                await trio.sleep(0.002)
        assert row is not None
        assert (row["status"], row["error_message"]) == ("cancelled", "Cancelled before it was started.")
        assert await database.fetchval("SELECT count(*) FROM task_events WHERE message = 'did nothing'") == 0
        nursery.cancel_scope.cancel()


async def test_the_first_line_of_a_tasks_log_starts_it_and_who_says_nothing_is_started_soon(database: Database) -> None:
    said, go_on = trio.Event(), trio.Event()

    async def say_something(run: TaskRun) -> None:
        await run.log("There it goes.")
        said.set()
        await go_on.wait()

    async def say_nothing(_: TaskRun) -> None:
        await go_on.wait()

    async def state(task: Task) -> tuple[str, bool]:
        row = await database.fetchone("SELECT status, started_at FROM tasks WHERE id = $1", task.id)
        return row["status"], row["started_at"] is not None

    async with trio.open_nursery() as nursery:
        runner = TaskRunner(database, FakeGateway(), sweep_interval=600)
        runner.handles("test.talks", say_something)
        runner.handles("test.works", say_nothing)
        await nursery.start(runner.run)
        talks, works = await new_task(database, "test.talks"), await new_task(database, "test.works")
        runner.start(talks)
        await said.wait()
        after_its_line = await state(talks)
        runner.start(works)
        with trio.fail_after(60):
            while await state(works) != ("running", True):
                await trio.sleep(0.01)
        go_on.set()
        nursery.cancel_scope.cancel()

    assert after_its_line == ("running", True)


async def test_a_task_that_an_outage_left_open_is_taken_up_at_once_and_not_at_the_next_sweep(
    database: Database,
) -> None:
    task, attempts = await new_task(database), 0

    async def work(_: TaskRun) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise unavailable("The database is away.")

    async with trio.open_nursery() as nursery:
        runner = TaskRunner(database, FakeGateway(), sweep_interval=600)
        runner.handles("test.op", work)
        await nursery.start(runner.run)
        with trio.fail_after(60):
            while await database.fetchval("SELECT status FROM tasks WHERE id = $1", task.id) != "succeeded":
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()

    assert attempts == 2


async def test_work_of_our_own_is_cancelled_without_a_node(database: Database) -> None:
    begun = trio.Event()

    async def work(_: TaskRun) -> None:
        begun.set()
        await trio.sleep_forever()

    async with open_service(database, FakeGateway()) as service:
        service.tasks.handles("test.op", work)
        task = await new_task(database)
        service.tasks.start(task)
        await begun.wait()
        await service.tasks.cancel(ADMINISTRATOR, task.id)
        assert (await service.ended(task)).status is TaskStatus.CANCELLED


async def test_a_task_ends_by_its_deadline_and_the_node_is_told(database: Database) -> None:
    world, gateway = await make_fleet(database), FakeGateway()

    async def silence(*_: object) -> OperationResult:
        await trio.sleep_forever()
        raise AssertionError

    gateway.answers["node.inventory"] = silence

    async def work(run: TaskRun) -> OperationResult:
        return await run.perform(NodeInventory(), step="one", timeout=60)

    async with open_service(database, gateway) as service:
        service.tasks.handles("test.op", work)
        task = await new_task(database, timeout=0.2, node=world.node_id)
        service.tasks.start(task)
        ended = await service.ended(task)
        assert (ended.status, ended.error_code) == (TaskStatus.FAILED, ErrorCode.UNAVAILABLE)
        assert OperationId(f"{task.id}:one") in gateway.cancelled


async def test_a_drain_stores_the_end_of_what_has_one_and_leaves_the_rest_open(database: Database) -> None:
    world, gateway = await make_fleet(database), FakeGateway()
    gateway.answers["node.inventory"] = hang
    has_outcome, go_on = trio.Event(), trio.Event()

    async def wait_for_the_node(run: TaskRun) -> OperationResult:
        return await run.perform(NodeInventory(), step="one", timeout=60)

    async def end(task: Task, ending: Ending) -> None:
        has_outcome.set()
        await go_on.wait()
        async with database.transaction() as tx:
            await end_task(tx, task.id, ending)

    async with open_service(database, gateway) as service, trio.open_nursery() as nursery:
        service.tasks.handles("test.waits", wait_for_the_node)
        service.tasks.handles("test.ends", nothing, end=end)
        waits = await new_task(database, "test.waits", node=world.node_id)
        ends = await new_task(database, "test.ends")
        for task in (waits, ends):
            service.tasks.start(task)
        await service.until_asked("node.inventory")
        await has_outcome.wait()
        with trio.fail_after(60):
            while not await database.fetchval("SELECT started_at FROM tasks WHERE id = $1", waits.id):
                await trio.sleep(0.01)

        nursery.start_soon(service.tasks.drain, 30)
        await trio.testing.wait_all_tasks_blocked()
        late = await new_task(database, "test.ends")
        service.tasks.start(late)
        go_on.set()

        assert (await service.ended(ends)).status is TaskStatus.SUCCEEDED
    status = {row["id"]: row["status"] for row in await database.fetch("SELECT id, status FROM tasks")}
    assert (status[waits.id], status[late.id]) == ("running", "queued")
    assert gateway.cancelled == [], "the node goes on, and answers the next start"


async def test_an_unknown_kind_of_task_ends_with_a_cause(database: Database) -> None:
    async with open_service(database, FakeGateway()) as service:
        task = await new_task(database, "future.op")
        service.tasks.start(task)
        ended = await service.ended(task)
        assert (ended.status, ended.error_code) == (TaskStatus.FAILED, ErrorCode.INTERNAL)


async def test_a_defect_in_the_work_fails_the_task_and_no_other(database: Database) -> None:
    async def broken(_: TaskRun) -> None:
        raise ZeroDivisionError("secret detail")

    async with open_service(database, FakeGateway()) as service:
        service.tasks.handles("test.op", broken)
        service.tasks.handles("other.op", nothing)
        first, second = await new_task(database), await new_task(database, "other.op")
        service.tasks.start(first)
        service.tasks.start(second)
        ended = await service.ended(first)
        assert ended.error_code is ErrorCode.INTERNAL
        assert "secret detail" not in str(ended)
        assert (await service.ended(second)).status is TaskStatus.SUCCEEDED


async def test_a_task_survives_the_databases_absence(database: Database) -> None:
    attempts: list[int] = []

    async def work(_: TaskRun) -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise unavailable("the database is away")

    async with open_service(database, FakeGateway()) as service:
        service.tasks.handles("test.op", work)
        task = await new_task(database)
        service.tasks.start(task)
        assert (await service.ended(task)).status is TaskStatus.SUCCEEDED
        assert len(attempts) == 3


async def test_a_task_that_nobody_began_is_taken_up_by_the_sweep(database: Database) -> None:
    async with open_service(database, FakeGateway()) as service:
        service.tasks.handles("test.op", nothing)
        task = await new_task(database)
        assert (await service.ended(task)).status is TaskStatus.SUCCEEDED


async def test_an_ended_task_never_changes_again(database: Database) -> None:
    task = await new_task(database)
    async with database.transaction() as tx:
        assert await end_task(tx, task.id, Ending(TaskStatus.CANCELLED, "over")) is not None
    async with database.transaction() as tx:
        assert await end_task(tx, task.id, Ending(TaskStatus.SUCCEEDED, "again")) is None
    row = await database.fetchrow("SELECT status, message, last_position FROM tasks")
    assert row is not None
    assert tuple(row) == ("cancelled", "over", 1)


async def test_an_outcome_is_acknowledged_only_once_it_is_stored(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):
        gateway = service.gateway
        stored_at_acknowledgement: dict[UUID, str] = {}
        acknowledge = gateway.acknowledge

        async def noting(node_id: UUID, operation_id: OperationId) -> None:
            task_id = UUID(operation_id.split(":")[0])
            status = await database.fetchval("SELECT status FROM tasks WHERE id = $1", task_id)
            stored_at_acknowledgement.setdefault(task_id, status)
            await acknowledge(node_id, operation_id)

        gateway.acknowledge = noting  # type: ignore[method-assign]
        task = await service.ended(await order("shutdown")(service.machine(vm_id)))
        with trio.fail_after(60):
            while task.id not in stored_at_acknowledgement:
                await trio.sleep(0.002)
        assert stored_at_acknowledgement[task.id] == "succeeded"


@pytest.mark.parametrize(("op", "times"), [("shutdown", 3), ("reboot", 3), ("reset", 1)])
async def test_what_the_agents_death_interrupted_is_asked_again_where_that_is_safe(
    database: Database, op: str, times: int
) -> None:
    async with running_machine(database) as (service, vm_id, _):
        calls: list[OperationId] = []

        async def dying(
            gateway: FakeGateway, _: UUID, operation_id: OperationId, operation: NodeOperation
        ) -> OperationResult:
            calls.append(operation_id)
            if len(calls) < 3:
                raise OperationFailed(FailureCode.INTERRUPTED, "the agent was killed", None)
            return gateway.obey(operation)

        service.gateway.answers[f"vm.{op}"] = dying
        await service.ended(await order(op)(service.machine(vm_id)))
        assert len(calls) == len(set(calls)) == times


async def test_what_the_agents_death_interrupted_is_not_asked_again_nor_said_to_be_cancelled_by_who_cancels(
    database: Database,
) -> None:
    async with running_machine(database) as (service, vm_id, _):
        calls: list[OperationId] = []

        async def dying(gateway: FakeGateway, _: UUID, operation_id: OperationId, __: NodeOperation) -> OperationResult:
            calls.append(operation_id)
            with contextlib.suppress(OperationFailed):
                await gateway.until_cancelled(operation_id)
            raise OperationFailed(FailureCode.INTERRUPTED, "The agent was killed.", None)

        service.gateway.answers["vm.shutdown"] = dying
        task = await order("shutdown")(service.machine(vm_id))
        await service.until_asked("vm.shutdown")
        await service.tasks.cancel(ADMINISTRATOR, task.id)
        ended = await service.ended(task.id)
        assert (ended.status, ended.message, len(calls)) == ("failed", "The agent was killed.", 1)


async def test_a_log_polled_with_after_through_restarts_has_no_gap_and_no_repeat(database: Database) -> None:
    lines = 200
    seen: list[tuple[int, str]] = []
    stop = trio.Event()

    async def work(run: TaskRun) -> None:
        done = await database.fetchval("SELECT count(*) FROM task_events WHERE task_id = $1", run.task.id)
        for number in range(done, lines):
            await run.log(f"line {number}")

    def prepare(tasks: TaskRunner) -> None:
        tasks.handles("test.op", work)

    task = await new_task(database)

    async def poll() -> None:
        while not stop.is_set() or await read_log(database, task.id, after=seen[-1][0] if seen else 0, limit=1):
            for line in await read_log(database, task.id, after=seen[-1][0] if seen else 0, limit=7):
                seen.append((line.position, line.message))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        for _ in range(8):
            with trio.move_on_after(0.04):
                async with open_service(database, FakeGateway(), prepare=prepare):
                    await trio.sleep_forever()
        async with open_service(database, FakeGateway(), prepare=prepare) as service:
            await service.ended(task)
        stop.set()
    assert [position for position, _ in seen] == list(range(1, len(seen) + 1))
    assert [message for _, message in seen] == [*(f"line {number}" for number in range(lines)), "Done."]


async def test_concurrent_lines_get_contiguous_positions(database: Database) -> None:
    async with open_service(database, FakeGateway()) as service:

        async def work(run: TaskRun) -> None:
            async with trio.open_nursery() as nursery:
                for number in range(40):
                    nursery.start_soon(run.log, f"line {number}")

        service.tasks.handles("test.op", work)
        task = await new_task(database)
        service.tasks.start(task)
        await service.ended(task)
        positions = [line.position for line in await read_log(database, task.id, after=0, limit=100)]
        assert positions == list(range(1, 42))


async def test_a_refusal_of_the_work_is_the_tasks_error(database: Database) -> None:
    async def refused(_: TaskRun) -> None:
        raise conflict("it is taken")

    async with open_service(database, FakeGateway()) as service:
        service.tasks.handles("test.op", refused)
        task = await new_task(database)
        service.tasks.start(replace(task))
        ended = await service.ended(task)
        assert (ended.error_code, ended.error_message) == (ErrorCode.CONFLICT, "it is taken")


async def test_only_operations_of_ended_tasks_may_be_forgotten(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):
        done = await service.ended(await order("shutdown")(service.machine(vm_id)))
        service.gateway.answers["vm.start"] = hang
        under_way = await service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, Order.START)
        kept = [OperationId(f"{done.id}:host"), OperationId(f"{under_way.id}:host"), OperationId("query:1")]
        assert await service.tasks.forgettable(kept) == kept[:1]


def test_no_order_waits_for_ever() -> None:
    limits = {op: facts.task_seconds for op, facts in FACTS.items() if facts.task_seconds is not None}

    assert {"vm.create", "vm.start", "vm.shutdown", "vm.delete"} <= set(limits)
    # What copies whole disks takes hours; a forced stop ends it, or, of a machine that is off, a cancellation.
    copying = {op for op in limits if FACTS[op].lane is Lane.BACKUPS}
    copying |= {"vm.migrate", "vm.send", "vm.live.send", "vm.live.receive"}
    hours = {op: 6 if op in copying else 1 for op in limits}
    assert all(0 < seconds <= 3600 * hours[op] for op, seconds in limits.items())
