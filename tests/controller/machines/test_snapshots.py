"""Snapshots of a machine: what is recorded of each, what is refused, and what a failure leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.snapshots import DELETE, RESTORE, TAKE, Delete, Restore, SnapshotOrder, Take
from svc_actors.controller.reconcile.restored import record_restoration
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import (
    DomainState,
    FailureCode,
    NodeOperation,
    OperationId,
    OperationResult,
    SnapshotOperation,
    SnapshotResult,
    VmSnapshotDelete,
    VmSnapshotRestore,
    VmSnapshotTake,
)
from svc_nodeagent.simulated import SimulatedHost
from tests.controller.backups.test_backups import copy_made, restored
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_service import FakeGateway, make_fleet, open_service
from tests.support.machines import MachineHarness, refusal, stage


def refusing(code: FailureCode, words: str) -> Any:
    async def refuse(*_: Any) -> OperationResult:
        raise OperationFailed(code, words, None)

    return refuse


async def machine(now: MachineHarness, *, running: bool = True) -> UUID:
    vm_id: UUID = (await now.created()).vm.id
    if not running:
        await stopped(now, vm_id)
    return vm_id


async def stopped(now: MachineHarness, vm_id: UUID) -> None:
    await now.service.ended((await now.customer("vm.shutdown", id=vm_id)).id)


async def done(now: MachineHarness, op: str, /, **values: object) -> str:
    """The status of the task that the customer's order began, once it has ended."""
    return (await now.service.ended((await now.customer(op, **values)).id)).status


async def taken(now: MachineHarness, vm_id: UUID, name: str = "before") -> UUID:
    assert await done(now, "vm.snapshot.take", id=vm_id, name=name) == "succeeded"
    return (await listed(now, vm_id))[0].id  # type: ignore[no-any-return]


async def listed(now: MachineHarness, vm_id: UUID) -> list[Any]:
    return await now.customer("vm.snapshot.list", id=vm_id)  # type: ignore[no-any-return]


async def states(now: MachineHarness, vm_id: UUID) -> list[tuple[str, str]]:
    return [(each.name, each.state.value) for each in await listed(now, vm_id)]


async def test_a_snapshot_is_taken_restored_and_deleted(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await machine(now)
        first = await taken(now, vm_id)
        await stopped(now, vm_id)
        second = await taken(now, vm_id, "while off")
        newest, oldest = await listed(now, vm_id)
        assert [(each.id, each.state, each.frozen) for each in (newest, oldest)] == [
            (second, "ready", False),
            (first, "ready", True),
        ]
        assert newest.taken_at > oldest.taken_at

        assert await done(now, "vm.snapshot.restore", id=vm_id, snapshot_id=first, confirm="web") == "succeeded"
        assert (await now.customer("vm.show", id=vm_id)).status == "stopped"
        [_, oldest] = await listed(now, vm_id)
        assert (oldest.state, oldest.restored_at > oldest.taken_at) == ("ready", True)
        assert await done(now, "vm.snapshot.delete", id=vm_id, snapshot_id=second) == "succeeded"
        assert await states(now, vm_id) == [("before", "ready")]

        ids = [each.snapshot_id for each in now.service.gateway.asked if isinstance(each, SnapshotOperation)]
        assert ids == [first, second, first, second]
        audited = await database.fetch(
            "SELECT operation, details FROM audit WHERE operation LIKE 'vm.snapshot.%' ORDER BY id"
        )
        assert [(row["operation"], row["details"]["name"]) for row in audited] == [
            ("vm.snapshot.take", "before"),
            ("vm.snapshot.take", "while off"),
            ("vm.snapshot.restore", "before"),
            ("vm.snapshot.delete", "while off"),
        ]


async def test_a_machine_has_as_many_as_the_settings_allow_each_with_a_name_of_its_own(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await machine(now)
        await taken(now, vm_id)
        again = await refusal(now.customer, "vm.snapshot.take", id=vm_id, name="before")
        assert (again.code, "already has a snapshot named before" in again.message) == (ErrorCode.CONFLICT, True)
        await now.administrator("settings.update", most_snapshots=2)
        await taken(now, vm_id, "second")
        full = await refusal(now.customer, "vm.snapshot.take", id=vm_id, name="third")
        assert (full.code, full.details) == (ErrorCode.CONFLICT, {"limit": 2})
        await done(now, "vm.snapshot.delete", id=vm_id, snapshot_id=(await listed(now, vm_id))[0].id)
        await taken(now, vm_id, "third")
        await now.administrator("settings.update", most_snapshots=0)
        other = (await now.created(name="other")).vm.id
        assert (await refusal(now.customer, "vm.snapshot.take", id=other, name="one")).code is ErrorCode.CONFLICT


async def test_it_is_restored_only_while_the_machine_is_off_by_its_owner_and_with_its_name(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await machine(now)
        snapshot_id = await taken(now, vm_id)
        restore = {"id": vm_id, "snapshot_id": snapshot_id, "confirm": "web"}
        runs = await refusal(now.customer, "vm.snapshot.restore", **restore)
        assert (runs.code, runs.hint) == (ErrorCode.CONFLICT, "Shut it down first.")
        await stopped(now, vm_id)
        unnamed = await refusal(now.customer, "vm.snapshot.restore", **restore | {"confirm": "other"})
        assert unnamed.code is not ErrorCode.CONFLICT or "name" in unnamed.message
        for name in ("vm.snapshot.list", "vm.snapshot.take", "vm.snapshot.restore", "vm.snapshot.delete"):
            values = {"id": vm_id}
            values |= {"snapshot_id": snapshot_id} if name.endswith(("restore", "delete")) else {}
            more = {"name": "x"} if name.endswith("take") else {"confirm": "web"} if name.endswith("restore") else {}
            assert (await refusal(now.stranger, name, **values, **more)).code is ErrorCode.NOT_FOUND
        other = (await now.created(name="other")).vm.id
        for name, more in (("vm.snapshot.delete", {}), ("vm.snapshot.restore", {"confirm": "other"})):
            if more:
                await stopped(now, other)
            theirs = await refusal(now.customer, name, id=other, snapshot_id=snapshot_id, **more)
            assert theirs.code is ErrorCode.NOT_FOUND
        assert not any(isinstance(each, VmSnapshotRestore) for each in now.service.gateway.asked)


async def test_nothing_else_is_done_to_the_disks_meanwhile(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await machine(now)
        let_go = now.service.gateway.hold("vm.snapshot.take")
        task = await now.customer("vm.snapshot.take", id=vm_id, name="before")
        await now.service.until_asked("vm.snapshot.take")
        assert await states(now, vm_id) == [("before", "taking")]
        for caller, name, values in (
            (now.staff, "vm.backup", {}),
            (now.staff, "vm.resize", {"disk_gib": 2}),
            (now.administrator, "vm.migrate", {"node_id": uuid4()}),
            (now.customer, "vm.snapshot.take", {"name": "another"}),
            (now.customer, "vm.snapshot.delete", {"snapshot_id": (await listed(now, vm_id))[0].id}),
        ):
            assert (await refusal(caller, name, id=vm_id, **values)).code is ErrorCode.NOT_READY, name
        let_go.set()
        await now.service.ended(task.id)

        let_go = now.service.gateway.hold("vm.backup")
        backup = await now.staff("vm.backup", id=vm_id)
        await now.service.until_asked("vm.backup")
        busy = await refusal(now.customer, "vm.snapshot.take", id=vm_id, name="another")
        assert (busy.code, busy.details and busy.details["op"]) == (ErrorCode.NOT_READY, "vm.backup")
        await now.staff("task.cancel", id=backup.id)


async def test_a_forced_stop_ends_the_taking_and_what_is_left_is_deleted(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await machine(now)

        async def goes_on(gateway: FakeGateway, _: UUID, operation_id: OperationId, __: NodeOperation) -> Any:
            await gateway.until_cancelled(operation_id)

        now.service.gateway.answers["vm.snapshot.take"] = goes_on
        await now.customer("vm.snapshot.take", id=vm_id, name="before")
        await now.service.until_asked("vm.snapshot.take")
        assert await done(now, "vm.force_stop", id=vm_id, confirm="web") == "succeeded"
        [left] = await listed(now, vm_id)
        assert (left.state, "forced to stop" in left.error) == ("failed", True)
        refused = await refusal(now.customer, "vm.snapshot.restore", id=vm_id, snapshot_id=left.id, confirm="web")
        assert (refused.code, "is incomplete" in refused.message) == (ErrorCode.CONFLICT, True)
        assert await done(now, "vm.snapshot.delete", id=vm_id, snapshot_id=left.id) == "succeeded"
        assert await listed(now, vm_id) == []


@pytest.mark.parametrize("code", [FailureCode.HOST, FailureCode.UNSUPPORTED])
async def test_one_that_could_not_be_taken_says_why_and_is_deleted(database: Database, code: FailureCode) -> None:
    async with stage(database) as now:
        vm_id = await machine(now)
        # An agent of before snapshots refuses the deletion as well
        for op in ("vm.snapshot.take", "vm.snapshot.delete")[: 2 if code is FailureCode.UNSUPPORTED else 1]:
            now.service.gateway.answers[op] = refusing(code, "the host said no")
        assert await done(now, "vm.snapshot.take", id=vm_id, name="before") == "failed"
        [left] = await listed(now, vm_id)
        assert (left.state, "the host said no" in left.error, left.taken_at) == ("failed", True, None)
        assert (await now.customer("vm.show", id=vm_id)).status == "running"
        assert await done(now, "vm.snapshot.delete", id=vm_id, snapshot_id=left.id) == "succeeded"
        assert await listed(now, vm_id) == []


async def test_a_failure_leaves_the_snapshot_unless_the_host_does_not_have_it_whole(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await machine(now, running=False)
        snapshot_id = await taken(now, vm_id)
        answers = now.service.gateway.answers
        restore = {"id": vm_id, "snapshot_id": snapshot_id, "confirm": "web"}
        answers["vm.snapshot.restore"] = refusing(FailureCode.CAPACITY, "no room")
        assert await done(now, "vm.snapshot.restore", **restore) == "failed"
        assert await states(now, vm_id) == [("before", "ready")]
        answers["vm.snapshot.restore"] = refusing(FailureCode.NOT_FOUND, "the disk does not have it")
        assert await done(now, "vm.snapshot.restore", **restore) == "failed"
        assert await states(now, vm_id) == [("before", "failed")]

        other = await taken(now, vm_id, "other")
        for code in (FailureCode.HOST, FailureCode.UNSUPPORTED):
            answers["vm.snapshot.delete"] = refusing(code, "half of it is gone")
            assert await done(now, "vm.snapshot.delete", id=vm_id, snapshot_id=other) == "failed"
            assert (await states(now, vm_id))[0] == ("other", "failed")
        del answers["vm.snapshot.delete"]
        assert await done(now, "vm.snapshot.delete", id=vm_id, snapshot_id=other) == "succeeded"


async def test_they_end_with_the_disks_that_they_are_in(database: Database) -> None:
    async with stage(database) as now:
        now.service.gateway.answers |= {"vm.backup": copy_made, "vm.restore": restored}
        vm_id = await machine(now)
        await taken(now, vm_id)
        await now.service.ended((await now.staff("vm.backup", id=vm_id)).id)
        assert await states(now, vm_id) == [("before", "ready")]
        reinstalled = await now.customer("vm.reinstall", id=vm_id, confirm="web")
        await now.service.ended(reinstalled.task.id)
        assert await listed(now, vm_id) == []

        await stopped(now, vm_id)
        await taken(now, vm_id)
        [copy] = await now.customer("vm.backups", id=vm_id)
        assert await done(now, "vm.restore", id=vm_id, backup_id=copy.id, confirm="web") == "succeeded"
        assert await listed(now, vm_id) == []

        await taken(now, vm_id)
        assert await done(now, "vm.delete", id=vm_id, confirm="web") == "succeeded"
        assert await database.fetchval("SELECT count(*) FROM machine_snapshots") == 0


@pytest.mark.parametrize("op", [TAKE, RESTORE, DELETE])
async def test_a_controller_that_dies_over_one_goes_on_with_the_same_operation(database: Database, op: str) -> None:
    world, gateway = await make_fleet(database), FakeGateway()
    async with open_service(database, gateway) as service:
        created = await service.create(world.machine(start=False))
        await service.ended(created.task)
        machine, taking = service.machine(created.vm_id), Take("before")
        if op != TAKE:
            await service.ended(await machine.ask(Machine.snapshot, ADMINISTRATOR, taking))
        snapshot_id = await database.fetchval("SELECT id FROM machine_snapshots")
        orders: dict[str, SnapshotOrder] = {TAKE: taking, RESTORE: Restore(snapshot_id), DELETE: Delete(snapshot_id)}
        let_go = gateway.hold(op)
        task = await machine.ask(Machine.snapshot, ADMINISTRATOR, orders[op])
        first = await service.until_asked(op)
    let_go.set()
    async with open_service(database, gateway) as service:
        assert (await service.ended(task)).status == "succeeded"
        assert set(gateway.asked_ids[gateway.asked_ids.index(first) :]) == {first}
        rows = await database.fetch("SELECT state, restored_at IS NOT NULL AS restored FROM machine_snapshots")
        assert [tuple(row.values()) for row in rows] == ([] if op == DELETE else [("ready", op == RESTORE)])


async def test_after_a_restored_controller_none_is_taken_for_whole_that_may_not_be(database: Database) -> None:
    async with stage(database) as now:
        for name, op in (("web", "vm.snapshot.take"), ("other", "vm.snapshot.restore")):
            vm_id = (await now.created(name=name)).vm.id
            if op.endswith("restore"):
                await stopped(now, vm_id)
                now.service.gateway.answers.pop("vm.snapshot.take", None)
                more: dict[str, object] = {"snapshot_id": await taken(now, vm_id), "confirm": name}
            else:
                more = {"name": "before"}
            now.service.gateway.hold(op)
            await now.customer(op, id=vm_id, **more)
            await now.service.until_asked(op)
        taken_at = datetime.now(UTC) - timedelta(hours=1)
        await database.transact(partial(record_restoration, taken_at=taken_at, release="0.1.0"))
        rows = await database.fetch("SELECT state FROM machine_snapshots ORDER BY ordered_at")
        assert [row["state"] for row in rows] == ["failed", "ready"]


async def test_a_simulated_host_answers_as_a_real_one() -> None:
    async with SimulatedHost("simulated", uuid4()) as host:
        host.populate(1)
        [vm_id] = host.machines
        snapshot_id = uuid4()

        async def report(*_: object) -> None:
            return None

        async def perform(kind: Any) -> OperationResult:
            return await host.perform(kind(vm_id=vm_id, snapshot_id=snapshot_id), report)

        answer = await perform(VmSnapshotTake)
        assert answer == SnapshotResult(vm_id=vm_id, snapshot_id=snapshot_id, frozen=True)
        with pytest.raises(HostError) as runs:
            await perform(VmSnapshotRestore)
        host.set_state(vm_id, DomainState.STOPPED, "off")
        await perform(VmSnapshotRestore)
        for _ in range(2):
            await perform(VmSnapshotDelete)
        with pytest.raises(HostError) as gone:
            await perform(VmSnapshotRestore)
        assert (runs.value.code, gone.value.code) == (FailureCode.CONFLICT, FailureCode.NOT_FOUND)
