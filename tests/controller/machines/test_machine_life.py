"""A machine from its creation to its removal, and what moves it in between."""

from __future__ import annotations

from svc_actors.controller.machine import Machine
from svc_actors.store import Database
from svc_nodeagent.protocol import VmCreate
from tests.controller.machines.service import ADMINISTRATOR, FakeGateway, make_world, open_service


async def test_a_machine_is_built_and_runs_once_its_host_says_so(database: Database) -> None:
    world, gateway = await make_world(database), FakeGateway()
    async with open_service(database, gateway) as service:
        created = await service.create(world.machine())
        task = await service.ended(created.task)
        assert (task.status, task.progress) == ("succeeded", 100)
        assert await service.status(created.vm_id) == "running"
        [asked] = [operation for operation in gateway.asked if isinstance(operation, VmCreate)]
        [nic] = asked.machine.network.nics
        assert str(nic.addresses[0].interface) == f"{created.address}/32"
        assert nic.mac.startswith("52:54:00:")


async def test_a_deleted_machine_leaves_no_address_behind(database: Database) -> None:
    world, gateway = await make_world(database), FakeGateway()
    async with open_service(database, gateway) as service:
        created = await service.create(world.machine())
        await service.ended(created.task)
        task = await service.machine(created.vm_id).ask(Machine.delete, ADMINISTRATOR, destroy_disks=True)
        assert (await service.ended(task)).status == "succeeded"
        assert (await service.vm(created.vm_id))["deleted_at"] is not None
        assert await database.fetchval("SELECT count(*) FROM allocations WHERE vm_id IS NOT NULL") == 0
