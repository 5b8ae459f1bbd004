"""What is asked of one node at a time: much that waits keeps nothing that is urgent from being sent."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

import pytest
import trio
import trio.testing

from svc_actors.controller.gateway.operations import LANE_LIMITS, NodeOperations, OperationFailed
from svc_actors.controller.tasks.runner import TaskRun, TaskRunner
from svc_actors.store import Database
from svc_actors.tracing import ORIGIN, Origin, working_for
from svc_nodeagent.protocol import (
    FACTS,
    PROTOCOL_VERSION,
    CopiedDisk,
    DownFrame,
    Failed,
    FailureCode,
    Hello,
    Lane,
    NodeOperation,
    OperationId,
    Request,
    Result,
    VmBackup,
    VmFilesOpen,
    VmForceStop,
    VmReboot,
    VmSetPassword,
    VmShutdown,
    VmStart,
)
from tests.controller.machines.test_tasks import new_task
from tests.support.gateway import create, image
from tests.support.machine_service import FakeGateway


@pytest.mark.parametrize(
    "waiting",
    [
        create(),
        VmShutdown(vm_id=uuid4()),
        VmReboot(vm_id=uuid4()),
        VmSetPassword(vm_id=uuid4(), account="root", password_hash="$6$"),
    ],
    ids=lambda operation: operation.op,
)
@pytest.mark.parametrize(
    "urgent",
    [VmForceStop(vm_id=uuid4()), VmStart(vm_id=uuid4(), network=create().machine.network)],
    ids=lambda operation: operation.op,
)
async def test_guests_that_take_their_time_hold_up_no_order_for_another_machine(
    autojump_clock: trio.testing.MockClock, waiting: NodeOperation, urgent: NodeOperation
) -> None:
    operations, sent = NodeOperations(), list[DownFrame]()
    operations.attach(sent.append, Hello(protocol=PROTOCOL_VERSION, agent_version="1", boot_id="one"))

    async def ask(name: str, operation: NodeOperation) -> None:
        await operations.perform(OperationId(name), operation, timeout=60, on_progress=None)

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(ask, f"{number}", waiting)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, "urgent", urgent)
        await trio.testing.wait_all_tasks_blocked()
        assert any(isinstance(frame, Request) and frame.id == "urgent" for frame in sent)
        nursery.cancel_scope.cancel()


async def test_openings_of_copies_that_wait_let_backups_of_other_machines_go_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    operations, sent = NodeOperations(), list[DownFrame]()
    operations.attach(sent.append, Hello(protocol=PROTOCOL_VERSION, agent_version="1", boot_id="one"))
    failed = Failed(code=FailureCode.HOST, message="ended")
    disks = (CopiedDisk(index=0, size_bytes=1, digest="0" * 64),)

    async def ask(name: str, operation: NodeOperation) -> None:
        with pytest.raises(OperationFailed):
            await operations.perform(OperationId(name), operation, timeout=60, on_progress=None)

    def asked() -> list[str]:
        return [frame.id for frame in sent if isinstance(frame, Request)]

    async with trio.open_nursery() as nursery:
        for number in range(4):
            opening = VmFilesOpen(vm_id=uuid4(), copy_id=uuid4(), password="p", disks=disks, system=image())
            nursery.start_soon(ask, f"open-{number}", opening)
            await trio.testing.wait_all_tasks_blocked()
        for number in range(2):
            nursery.start_soon(ask, f"backup-{number}", VmBackup(vm_id=uuid4(), copy_id=uuid4(), password="p"))
            await trio.testing.wait_all_tasks_blocked()

        assert asked() == ["open-0"]
        for _ in range(5):
            operations.ended(Result(id=OperationId(asked()[-1]), outcome=failed))
            await trio.testing.wait_all_tasks_blocked()
        assert asked() == ["open-0", "backup-0", "backup-1", "open-1", "open-2", "open-3"]
        nursery.cancel_scope.cancel()


async def test_an_opening_that_has_waited_long_goes_before_backups_that_came_after_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    operations, sent = NodeOperations(), list[DownFrame]()
    operations.attach(sent.append, Hello(protocol=PROTOCOL_VERSION, agent_version="1", boot_id="one"))
    disks = (CopiedDisk(index=0, size_bytes=1, digest="0" * 64),)

    async def ask(name: str, operation: NodeOperation) -> None:
        with pytest.raises(OperationFailed):
            await operations.perform(OperationId(name), operation, timeout=6 * 3600, on_progress=None)

    def asked() -> list[str]:
        return [frame.id for frame in sent if isinstance(frame, Request)]

    async with trio.open_nursery() as nursery:

        async def back_up(number: int) -> None:
            nursery.start_soon(ask, f"backup-{number}", VmBackup(vm_id=uuid4(), copy_id=uuid4(), password="p"))
            await trio.testing.wait_all_tasks_blocked()

        await back_up(0)
        opening = VmFilesOpen(vm_id=uuid4(), copy_id=uuid4(), password="p", disks=disks, system=image())
        nursery.start_soon(ask, "open", opening)
        await trio.testing.wait_all_tasks_blocked()
        # Another backup is always there before the one under way ends, every ten minutes.
        for number in range(1, 4):
            await back_up(number)
            await trio.sleep(600)
            failed = Failed(code=FailureCode.HOST, message="ended")
            operations.ended(Result(id=OperationId(asked()[-1]), outcome=failed))
            await trio.testing.wait_all_tasks_blocked()
        assert asked() == ["backup-0", "backup-1", "open", "backup-2"]
        nursery.cancel_scope.cancel()


async def test_openings_have_no_more_of_their_lane_than_backups_that_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One customer has many machines, opens the files of all, and each takes an hour."""
    operations, sent = NodeOperations(), list[DownFrame]()
    operations.attach(sent.append, Hello(protocol=PROTOCOL_VERSION, agent_version="1", boot_id="one"))
    disks = (CopiedDisk(index=0, size_bytes=1, digest="0" * 64),)

    async def ask(name: str, operation: NodeOperation) -> None:
        with pytest.raises(OperationFailed):
            await operations.perform(OperationId(name), operation, timeout=24 * 3600, on_progress=None)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            opening = VmFilesOpen(vm_id=uuid4(), copy_id=uuid4(), password="p", disks=disks, system=image())
            nursery.start_soon(ask, f"open-{number}", opening)
            await trio.testing.wait_all_tasks_blocked()
        for number in range(6):
            nursery.start_soon(ask, f"backup-{number}", VmBackup(vm_id=uuid4(), copy_id=uuid4(), password="p"))
        for _ in range(8):
            under_way = sent[-1]
            assert isinstance(under_way, Request)
            await trio.sleep(3600 if under_way.id.startswith("open") else 1200)
            ended = Failed(code=FailureCode.HOST, message="ended")
            operations.ended(Result(id=under_way.id, outcome=ended))
            await trio.testing.wait_all_tasks_blocked()
        assert [frame.id.split("-")[0] for frame in sent if isinstance(frame, Request)] == [
            *("open", "backup", "backup", "backup"),
            *("open", "backup", "backup", "backup", "open"),
        ]
        nursery.cancel_scope.cancel()


async def test_guests_of_one_project_that_do_not_answer_leave_others_a_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    operations, sent = NodeOperations(), list[DownFrame]()
    operations.attach(sent.append, Hello(protocol=PROTOCOL_VERSION, agent_version="1", boot_id="one"))
    silent, other = uuid4(), uuid4()

    async def ask(name: str, project_id: UUID) -> None:
        operation = VmSetPassword(vm_id=uuid4(), account="root", password_hash="$6$")
        with working_for(Origin(None, owner_id=project_id)), pytest.raises(OperationFailed):
            await operations.perform(OperationId(name), operation, timeout=600, on_progress=None)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(ask, f"silent-{number}", silent)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, "other", other)
        await trio.testing.wait_all_tasks_blocked()
        under_way = [frame.id for frame in sent if isinstance(frame, Request)]
        assert len(under_way) == LANE_LIMITS[Lane.GUEST_AGENTS]
        operations.ended(Result(id=under_way[0], outcome=Failed(code=FailureCode.TIMED_OUT, message="silent")))
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(sent[-1], Request)
        assert sent[-1].id == "other"
        nursery.cancel_scope.cancel()


async def test_a_task_asks_for_the_project_that_it_is_of(database: Database) -> None:
    asked = list[UUID | None]()

    async def work(_: TaskRun) -> None:
        await trio.lowlevel.checkpoint()
        origin = ORIGIN.get()
        asked.append(origin.owner_id if origin is not None else None)

    async with trio.open_nursery() as nursery:
        runner = TaskRunner(database, FakeGateway())
        runner.handles("test.op", work)
        await nursery.start(runner.run)
        task = replace(await new_task(database), project_id=uuid4())
        runner.start(task)
        with trio.fail_after(60):
            while runner._hosted:
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    assert asked == [task.project_id]


def test_only_what_nothing_depends_on_is_last_in_its_lane() -> None:
    assert {op for op, facts in FACTS.items() if facts.last_in_lane} == {"vm.files.open"}
