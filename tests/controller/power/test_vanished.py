"""A host has lost a machine's domain: it is defined again where the machine's files are there."""

from __future__ import annotations

import pytest

from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.power import power_alert
from svc_actors.controller.machines.states import Order
from svc_actors.controller.tasks.runner import TaskStatus
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent.protocol import DomainState, FailureCode
from tests.support.callers import ADMINISTRATOR
from tests.support.networking import failing
from tests.support.power import open_power


async def test_a_machine_that_ran_is_defined_again_and_started(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()

        stage.host.undefine(vm_id)
        await stage.until_status(vm_id, "failed")
        await stage.settled()

        vm = await stage.vm(vm_id)
        assert (vm["status"], vm["status_reason"]) == ("running", None)
        assert stage.host.machines[vm_id].state is DomainState.RUNNING


async def test_a_machine_that_was_off_is_defined_again_and_stays_off(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        await stage.order(vm_id, Order.SHUTDOWN)

        stage.host.undefine(vm_id)
        await stage.until_status(vm_id, "failed")
        await stage.settled()

        assert await stage.service.status(vm_id) == "stopped"
        assert stage.host.machines[vm_id].defined
        assert [task["op"] for task in await stage.tasks(vm_id)] == ["vm.update"]


async def test_all_machines_of_a_host_that_lost_its_definitions_come_back(database: Database) -> None:
    async with open_power(database) as stage:
        machines = [await stage.machine(f"m-{number}") for number in range(5)]
        for vm_id in machines:
            stage.host.undefine(vm_id)

        await stage.power_cut()
        await stage.settled()

        assert {await stage.service.status(vm_id) for vm_id in machines} == {"running"}


async def test_a_machine_whose_files_are_gone_says_so_and_is_not_tried_again(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()

        stage.host.lose_files(vm_id)
        await stage.until_status(vm_id, "failed")
        await stage.settled()
        await stage.settled()

        vm = await stage.vm(vm_id)
        assert vm["status"] == "failed"
        assert vm["status_reason"] == f"The last task failed: This host has no machine {vm_id}."
        assert len(await stage.tasks(vm_id)) == 1
        alert = await stage.alert(power_alert(vm_id))
        assert alert is not None
        assert alert["severity"] == "critical"


async def test_an_order_to_start_defines_a_lost_machine_again(database: Database) -> None:
    async with open_power(database) as stage:
        vm_id = await stage.machine()
        stage.host.undefine(vm_id)
        await stage.until_status(vm_id, "failed")

        task = await stage.order(vm_id, Order.START)

        assert task.status is TaskStatus.SUCCEEDED
        assert await stage.service.status(vm_id) == "running"


async def test_a_machine_that_was_never_built_cannot_be_started(database: Database) -> None:
    async with open_power(database) as stage:
        stage.hosts.plays["vm.create"] = failing("no space", FailureCode.CAPACITY)
        created = await stage.service.create(stage.world.machine())
        await stage.service.ended(created.task)

        with pytest.raises(ServiceError) as refused:
            await stage.service.machine(created.vm_id).ask(Machine.order, ADMINISTRATOR, Order.START)
        await stage.settled()

        assert refused.value.code is ErrorCode.CONFLICT
        assert await stage.tasks(created.vm_id) == []
