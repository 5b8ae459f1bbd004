"""A forced stop supersedes what is under way, says so, and the machine stays off."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio

from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.states import Order
from svc_actors.controller.tasks.runner import TaskStatus
from svc_actors.store import Database
from svc_nodeagent.protocol import DomainState, NodeOperation, OperationId, OperationResult
from tests.controller.machines.test_machine_life import order, running_machine
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_service import FakeGateway, open_service


@pytest.mark.parametrize("name", ["start", "shutdown", "reboot", "reset"])
async def test_a_forced_stop_ends_what_is_under_way_and_the_machine_stays_off(database: Database, name: str) -> None:
    async with running_machine(database) as (service, vm_id, _):
        gateway = service.gateway
        machine = service.machine(vm_id)
        if name == "start":
            await service.ended(await order("shutdown")(machine))

        async def hang(_: FakeGateway, __: UUID, operation_id: OperationId, ___: NodeOperation) -> OperationResult:
            await gateway.until_cancelled(operation_id)
            raise AssertionError

        gateway.answers[f"vm.{name}"] = hang
        under_way = await order(name)(machine)
        hung = await service.until_asked(f"vm.{name}")
        forced = await machine.ask(Machine.order, ADMINISTRATOR, Order.FORCE_STOP)
        assert (await service.ended(forced)).status is TaskStatus.SUCCEEDED
        superseded = await service.ended(under_way)
        assert superseded.status is TaskStatus.CANCELLED
        assert superseded.error_message == "Superseded: admin@example.com ordered the machine to be forced to stop."
        assert await service.status(vm_id) == "stopped"
        assert hung in gateway.cancelled


async def test_the_late_success_of_a_superseded_reboot_starts_nothing(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):
        release = trio.Event()

        async def slow(gateway: FakeGateway, _: UUID, __: OperationId, operation: NodeOperation) -> OperationResult:
            with trio.CancelScope(shield=True):
                await release.wait()
            return gateway.obey(operation)

        service.gateway.answers["vm.reboot"] = slow
        await order("reboot")(service.machine(vm_id))
        await service.until_asked("vm.reboot")
        forced = await service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, Order.FORCE_STOP)
        release.set()
        await service.ended(forced)
        assert await service.status(vm_id) == "stopped"


async def test_a_superseded_task_is_cancelled_on_the_node_also_after_a_restart(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):
        gateway = service.gateway
        stuck = trio.Event()

        async def hang(*_: object) -> OperationResult:
            await stuck.wait()
            raise AssertionError

        gateway.answers["vm.reboot"] = gateway.answers["vm.force_stop"] = hang
        reboot = await order("reboot")(service.machine(vm_id))
        await service.until_asked("vm.reboot")
        forced = await service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, Order.FORCE_STOP)
        await service.until_asked("vm.force_stop")
    gateway.cancelled.clear()
    del gateway.answers["vm.force_stop"]
    async with open_service(database, gateway) as service:
        assert (await service.ended(forced)).status is TaskStatus.SUCCEEDED
        assert OperationId(f"{reboot.id}:host") in gateway.cancelled
        assert await service.status(vm_id) == "stopped"
        assert gateway.domains[vm_id] is DomainState.STOPPED
