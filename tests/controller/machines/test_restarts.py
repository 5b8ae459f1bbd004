"""The controller dies at any point: every machine ends running or failed with a cause, none is built twice."""

from __future__ import annotations

import random
from uuid import UUID

import pytest
import trio

from svc_actors.controller.machines.creation import create_machine
from svc_actors.controller.tasks.runner import Ending, Task, TaskRunner, TaskStatus
from svc_actors.store import Database
from svc_nodeagent.protocol import NodeOperation, OperationId, OperationResult
from tests.controller.machines.test_machine_life import order
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_service import SEALER, FakeGateway, make_fleet, open_service


@pytest.mark.parametrize("point", ["before the work", "image.pull", "vm.create", "after the outcome"])
async def test_a_creation_survives_the_controllers_death(database: Database, point: str) -> None:
    world, gateway = await make_fleet(database), FakeGateway()
    created = await create_machine(database, SEALER, ADMINISTRATOR, world.machine())
    reported = trio.Event()

    async def lose(_: Task, __: Ending) -> None:
        reported.set()
        await trio.sleep_forever()

    def lose_the_end(tasks: TaskRunner) -> None:
        tasks.handles("vm.create", tasks._handlers["vm.create"].work, end=lose)

    if point in ("image.pull", "vm.create"):
        finish = gateway.hold(point)
        async with open_service(database, gateway) as service:
            await service.until_asked(point)
        finish.set()
    elif point == "after the outcome":
        # The host has done it and said so, and the controller dies before it has stored the word.
        async with open_service(database, gateway, prepare=lose_the_end):
            await reported.wait()
    async with open_service(database, gateway) as service:
        assert (await service.ended(created.task)).status is TaskStatus.SUCCEEDED
        assert await service.status(created.vm_id) == "running"
    assert [done for done in gateway.done if done.endswith(":host")] == [f"{created.task.id}:host"]


@pytest.mark.parametrize("seed", range(5))
async def test_whenever_the_controller_dies_each_machine_is_built_once_and_ends(database: Database, seed: int) -> None:
    chance = random.Random(seed)
    world, gateway = await make_fleet(database), FakeGateway()

    async def sometimes_slow(
        gateway: FakeGateway, _: UUID, __: OperationId, operation: NodeOperation
    ) -> OperationResult:
        await trio.sleep(chance.random() * 0.03)
        return gateway.obey(operation)

    gateway.answers["vm.create"] = gateway.answers["image.pull"] = sometimes_slow
    tasks = [
        (await create_machine(database, SEALER, ADMINISTRATOR, world.machine(f"m{number}"))).task
        for number in range(10)
    ]
    for _ in range(6):
        with trio.move_on_after(chance.random() * 0.08):
            async with open_service(database, gateway):
                await trio.sleep_forever()
    async with open_service(database, gateway) as service:
        for task in tasks:
            await service.ended(task)
    assert {str(row["status"]) for row in await database.fetch("SELECT status FROM vms")} == {"running"}
    built = [done for done in gateway.done if done.endswith(":host")]
    assert sorted(built) == sorted(f"{task.id}:host" for task in tasks)
    assert await database.fetchval("SELECT count(DISTINCT ip) FROM allocations WHERE state = 'allocated'") == 10


@pytest.mark.parametrize("name", ["shutdown", "reboot", "force_stop", "delete"])
async def test_an_order_survives_the_controllers_death(database: Database, name: str) -> None:
    world, gateway = await make_fleet(database), FakeGateway()
    dead = gateway.hold(f"vm.{name}")
    async with open_service(database, gateway) as service:
        created = await service.create(world.machine())
        await service.ended(created.task)
        task = await order(name)(service.machine(created.vm_id))
        await service.until_asked(f"vm.{name}")
    dead.set()
    async with open_service(database, gateway) as service:
        assert (await service.ended(task)).status is TaskStatus.SUCCEEDED
    assert len(gateway.asked_ids) - len(set(gateway.asked_ids)) == 1
