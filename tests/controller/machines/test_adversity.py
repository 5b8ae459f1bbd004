"""What goes wrong at the worst moment: no task is left open by it, and no record says more than is true."""

from __future__ import annotations

from uuid import UUID

import trio

from svc_actors.controller.gateway import OperationFailed
from svc_actors.controller.machine import Changes, Machine
from svc_actors.controller.tasks import TaskStatus
from svc_actors.store import Database
from svc_nodeagent.protocol import DomainState, FailureCode, NodeOperation, OperationId, OperationResult
from tests.controller.machines.service import ADMINISTRATOR, FakeGateway, make_world, open_service
from tests.controller.machines.test_machine_life import order, refuse, running_machine


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
    world, gateway = await make_world(database), FakeGateway()
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
