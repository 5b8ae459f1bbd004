"""What goes wrong at the worst moment: no task is left open by it, and no record says more than is true."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn
from uuid import UUID

import pytest
import trio

from svc.controller.machines import creation
from svc.controller.machines.models import VMCreateResult
from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.images.images import order_refresh
from svc_actors.controller.machines.changes import Changes
from svc_actors.controller.machines.creation import create_machine
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.placement.scheduler import lock_capacity
from svc_actors.controller.reconcile.machine_watch import MachineWatch
from svc_actors.controller.tasks import runner as tasks
from svc_actors.controller.tasks.runner import Ending, Task, TaskRun, TaskRunner, TaskStatus, end_task
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError, unavailable
from svc_nodeagent.protocol import DomainState, FailureCode, NodeOperation, OperationId, OperationResult
from tests.controller.machines.test_machine_life import order, refuse, running_machine
from tests.support.callers import ADMINISTRATOR
from tests.support.collisions import collide_once
from tests.support.machine_service import SEALER, FakeGateway, make_fleet, open_service
from tests.support.machines import stage


async def test_a_rename_that_fails_ends_although_the_old_name_was_taken_meanwhile(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, world):
        finish = trio.Event()

        async def fail_late(_: FakeGateway, __: UUID, ___: OperationId, ____: NodeOperation) -> OperationResult:
            await finish.wait()
            raise OperationFailed(FailureCode.HOST, "the host said no", None)

        service.gateway.answers["vm.update"] = fail_late
        renaming = await service.machine(vm_id).ask(Machine.update, ADMINISTRATOR, Changes(name="new"))
        await service.until_asked("vm.update")
        other = await service.create(world.machine("web"))
        await service.ended(other.task)
        finish.set()
        assert (await service.ended(renaming)).status is TaskStatus.FAILED
        assert (await service.vm(vm_id))["name"] == "new"
        del service.gateway.answers["vm.update"]
        again = await service.machine(vm_id).ask(Machine.update, ADMINISTRATOR, Changes(name="newer"))
        assert (await service.ended(again)).status is TaskStatus.SUCCEEDED


async def test_a_machine_never_built_stays_failed_when_its_deletion_fails(database: Database) -> None:
    world, gateway = await make_fleet(database), FakeGateway()
    gateway.answers["vm.create"] = refuse(FailureCode.TIMED_OUT, "given up half-way")
    gateway.answers["vm.delete"] = refuse(FailureCode.HOST, "the disk is busy")
    async with open_service(database, gateway) as service:
        created = await service.create(world.machine())
        await service.ended(created.task)
        # The host had half of it, and said so.
        machine = service.machine(created.vm_id)
        await machine.ask(Machine.observed, world.node_id, DomainState.RUNNING, "started")
        await service.ended(await order("delete")(machine))
        vm = await service.vm(created.vm_id)
        assert (vm["status"], vm["status_reason"]) == ("failed", "Deletion failed: the disk is busy")


async def test_no_machine_is_placed_on_a_node_that_is_deleted_meanwhile(database: Database) -> None:
    world = await make_fleet(database)
    refused: list[ErrorCode] = []

    async def create() -> None:
        try:
            await create_machine(database, SEALER, ADMINISTRATOR, world.machine())
        except ServiceError as error:
            refused.append(error.code)

    async with trio.open_nursery() as nursery:
        # As a node's deletion does: node and capacity are locked, no machine is found on it, the record is marked.
        async with database.transaction() as tx:
            await tx.execute("SELECT FROM nodes WHERE id = $1 FOR UPDATE", world.node_id)
            await lock_capacity(tx, world.node_id)
            nursery.start_soon(create)
            with trio.fail_after(60):
                while not await database.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
                    await trio.sleep(0.005)
            await tx.execute("UPDATE nodes SET state = 'offline', deleted_at = now() WHERE id = $1", world.node_id)
    assert refused == [ErrorCode.CAPACITY]
    assert await database.fetchval("SELECT count(*) FROM vms") == 0


async def test_an_outcome_once_had_outlives_the_deadline_while_it_cannot_be_stored(database: Database) -> None:
    world, gateway, back = await make_fleet(database), FakeGateway(), trio.Event()
    overdue = trio.Event()

    def store_nothing_at_first(tasks: TaskRunner) -> None:
        handler = tasks._handlers["vm.create"]

        async def end(task: Task, ending: Ending) -> None:
            if not back.is_set():
                tasks._deadlines[task.id] = trio.current_time()
                overdue.set()
                raise unavailable("The database is away.")
            assert handler.end is not None
            await handler.end(task, ending)

        tasks.handles("vm.create", handler.work, end=end)

    async with open_service(database, gateway, prepare=store_nothing_at_first) as service:
        created = await service.create(world.machine())
        await overdue.wait()
        back.set()
        assert (await service.ended(created.task)).status is TaskStatus.SUCCEEDED
        assert await service.status(created.vm_id) == "running"


async def test_a_defect_in_one_tasks_end_ends_no_other_task(database: Database) -> None:
    world, crashed = await make_fleet(database), trio.Event()

    def break_refreshes(tasks: TaskRunner) -> None:
        async def work(_: TaskRun) -> None:
            await trio.lowlevel.checkpoint()

        async def end(task: Task, ending: Ending) -> None:
            if not crashed.is_set():
                crashed.set()
                raise RuntimeError("a defect")
            async with database.transaction() as tx:
                await end_task(tx, task.id, ending)

        tasks.handles("images.refresh", work, end=end)

    async with open_service(database, FakeGateway(), prepare=break_refreshes) as service:
        async with database.transaction() as tx:
            broken = await order_refresh(tx, ADMINISTRATOR)
        service.tasks.start(broken)
        await crashed.wait()
        created = await service.create(world.machine())
        assert (await service.ended(created.task)).status is TaskStatus.SUCCEEDED
        assert (await service.ended(broken)).status is TaskStatus.SUCCEEDED


async def test_what_was_cancelled_before_a_restart_is_not_begun_after_it(database: Database) -> None:
    world, gateway = await make_fleet(database), FakeGateway()

    async def lost(*_: object) -> NoReturn:
        await trio.sleep_forever()

    async def reset(gateway: FakeGateway, _: UUID, operation_id: OperationId, op: NodeOperation) -> OperationResult:
        if operation_id in gateway.cancelled:
            raise OperationFailed(FailureCode.CANCELLED, "cancelled before the node had begun", None)
        return gateway.obey(op)

    gateway.answers["vm.reset"] = lost
    async with open_service(database, gateway) as service:
        created = await service.create(world.machine())
        await service.ended(created.task)
        task = await order("reset")(service.machine(created.vm_id))
        await service.until_asked("vm.reset")
        await service.tasks.cancel(ADMINISTRATOR, task.id)
    gateway.cancelled.clear()
    gateway.answers["vm.reset"] = reset
    async with open_service(database, gateway) as service:
        assert (await service.ended(task)).status is TaskStatus.CANCELLED
    assert f"{task.id}:host" not in gateway.done


async def test_a_cancellation_that_meets_another_change_is_made_all_the_same(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, gateway = await make_fleet(database), FakeGateway()

    async def until_cancelled(gateway: FakeGateway, _: UUID, operation_id: OperationId, __: NodeOperation) -> NoReturn:
        await gateway.until_cancelled(operation_id)
        raise AssertionError

    async with open_service(database, gateway) as service:
        created = await service.create(world.machine())
        await service.ended(created.task)
        gateway.answers["vm.reset"] = until_cancelled
        task = await order("reset")(service.machine(created.vm_id))
        await service.until_asked("vm.reset")
        calls = collide_once(monkeypatch, tasks, "log_task")
        await service.tasks.cancel(ADMINISTRATOR, task.id)
        assert (await service.ended(task)).status is TaskStatus.CANCELLED
    assert len(calls) >= 2
    asked = "SELECT count(*) FROM task_events WHERE task_id = $1 AND message LIKE 'Cancellation requested%'"
    assert await database.fetchval(asked, task.id) == 1


async def test_callers_whose_leases_of_one_key_were_lost_get_one_machine_and_its_answer(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unguarded(_: object, *, run: Callable[[], Awaitable[object]], **__: object) -> tuple[object, bool]:
        return await run(), False

    monkeypatch.setattr(creation, "run_idempotent", unguarded)
    async with stage(database) as now:
        answers: list[VMCreateResult] = []

        async def create() -> None:
            answers.append(await now.customer("vm.create", **now.order(idempotency_key="order-1")))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(create)
        assert len({answer.vm.id for answer in answers}) == 1
        assert sorted(answer.replayed for answer in answers) == [False, True, True, True, True]


async def test_a_defect_in_one_round_ends_neither_the_watch_nor_the_tasks(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, rounds, swept = await make_fleet(database), [trio.Event(), trio.Event()], trio.Event()

    async def defect(*_: object, **__: object) -> NoReturn:
        await trio.lowlevel.checkpoint()
        rounds[rounds[0].is_set()].set()
        raise OverflowError("a figure that nobody thought of")

    async def no_sweep(*_: object, older_than: float = 0.0) -> list[Task]:
        await trio.lowlevel.checkpoint()
        if older_than:
            swept.set()
            raise ValueError("a row that this version does not know")
        return []

    monkeypatch.setattr(tasks, "open_tasks", no_sweep)
    async with open_service(database, FakeGateway()) as service, trio.open_nursery() as nursery:
        watch = MachineWatch(database, interval=0.1)
        monkeypatch.setattr(watch, "point_out_orphans", defect)
        await nursery.start(watch.run)
        with trio.fail_after(60):
            await rounds[1].wait()
            await swept.wait()
        created = await service.create(world.machine())
        assert (await service.ended(created.task)).status is TaskStatus.SUCCEEDED
        nursery.cancel_scope.cancel()
