"""A machine whose node is away: every order is refused alike, and a deletion is recorded and carried out later."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import pytest
import trio

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.changes import Changes
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.remaking import NewSystem
from svc_actors.controller.machines.states import Order
from svc_actors.controller.networking.addresses import force_free
from svc_actors.controller.networking.pool_arithmetic import IPAddress
from svc_actors.controller.tasks.runner import Task
from svc_actors.runtime.actor import Ref
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent.protocol import FailureCode, OperationResult
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_service import FakeGateway, Fleet, Service, make_fleet, open_service


@dataclass
class Site:
    """One machine that runs, on a node that can go and come back."""

    service: Service
    world: Fleet
    vm_id: UUID
    address: IPAddress

    async def node_leaves(self) -> None:
        self.service.gateway.leave(self.world.node_id)
        await self._record_node("offline")

    async def node_comes_back(self) -> None:
        await self._record_node("online")
        self.service.gateway.come_back(self.world.node_id)

    async def node_is_lost(self) -> None:
        await self.service.database.execute("UPDATE nodes SET lost_at = now()")
        self.service.gateway.mark_lost(self.world.node_id)

    async def delete(self) -> Task:
        return await self.service.machine(self.vm_id).ask(Machine.delete, ADMINISTRATOR, destroy_disks=True)

    async def address_state(self) -> str | None:
        state: str | None = await self.service.database.fetchval(
            "SELECT state FROM allocations WHERE ip = $1", self.address
        )
        return state

    async def _record_node(self, state: str) -> None:
        await self.service.database.execute("UPDATE nodes SET state = $1", state)


async def never(*_: object) -> OperationResult:
    await trio.sleep_forever()


@asynccontextmanager
async def open_site(database: Database) -> AsyncIterator[Site]:
    world = await make_fleet(database)
    async with open_service(database, FakeGateway()) as service:
        created = await service.create(world.machine())
        await service.ended(created.task)
        yield Site(service, world, created.vm_id, created.address)


@pytest.mark.parametrize("status", ["running", "stopped"])
@pytest.mark.parametrize("name", ["start", "shutdown", "reboot", "force_stop", "reset", "update", "set_password"])
async def test_every_order_to_a_machine_shown_as_unknown_is_unavailable(
    database: Database, name: str, status: str
) -> None:
    def give(machine: Ref[Machine]) -> Awaitable[Task | None]:
        match name:
            case "update":
                return machine.ask(Machine.update, ADMINISTRATOR, Changes(name="other"))
            case "set_password":
                return machine.ask(Machine.set_password, ADMINISTRATOR, "$6$hash")
            case _:
                return machine.ask(Machine.order, ADMINISTRATOR, Order(name))

    async with open_site(database) as site:
        await database.execute("UPDATE vms SET status = $1", status)
        await site.node_leaves()

        with pytest.raises(ServiceError) as refusal:
            await give(site.service.machine(site.vm_id))

        assert refusal.value.code is ErrorCode.UNAVAILABLE
        assert "Try again once" in (refusal.value.hint or "")
        assert await site.service.status(site.vm_id) == status


async def test_a_machine_that_was_never_built_says_so_although_its_node_is_away(database: Database) -> None:
    async with open_site(database) as site:
        await database.execute("UPDATE vms SET status = 'failed', status_reason = 'no space', built_at = NULL")
        await site.node_leaves()

        with pytest.raises(ServiceError) as refusal:
            await site.service.machine(site.vm_id).ask(Machine.order, ADMINISTRATOR, Order.START)

        assert refusal.value.code is ErrorCode.CONFLICT


async def test_a_deletion_is_recorded_while_the_node_is_away_and_done_when_it_is_back(database: Database) -> None:
    async with open_site(database) as site:
        await site.node_leaves()

        task = await site.delete()

        await site.service.until_asked("vm.create")
        assert await site.service.status(site.vm_id) == "deleting"
        assert await site.address_state() == "releasing"
        assert (task.deadline_at, task.status) == (None, "queued")
        assert "vm.delete" not in [operation.op for operation in site.service.gateway.asked]

        await site.node_comes_back()

        assert (await site.service.ended(task)).status == "succeeded"
        assert await site.service.status(site.vm_id) == "deleted"
        assert await site.address_state() is None


async def test_a_deletion_that_waits_is_taken_up_by_the_next_controller(database: Database) -> None:
    gateway = FakeGateway()
    world = await make_fleet(database)
    async with open_service(database, gateway) as service:
        created = await service.create(world.machine())
        await service.ended(created.task)
        gateway.leave(world.node_id)
        await database.execute("UPDATE nodes SET state = 'offline'")
        task = await service.machine(created.vm_id).ask(Machine.delete, ADMINISTRATOR, destroy_disks=True)

    async with open_service(database, gateway) as service:
        gateway.come_back(world.node_id)

        assert (await service.ended(task)).status == "succeeded"
        assert await service.status(created.vm_id) == "deleted"


async def test_what_waits_for_a_node_ends_when_the_node_is_lost(database: Database) -> None:
    async with open_site(database) as site:
        other = await site.service.create(site.world.machine("other"))
        await site.service.ended(other.task)
        new = NewSystem(site.world.image_id, "root_password", (), None, None)
        site.service.gateway.answers["vm.reinstall"] = never
        reinstallation, _ = await site.service.machine(other.vm_id).ask(Machine.reinstall, ADMINISTRATOR, new)
        await site.service.until_asked("vm.reinstall")
        await site.node_leaves()
        deletion = await site.delete()

        await site.node_is_lost()

        assert (await site.service.ended(deletion)).status == "succeeded"
        assert await site.service.status(site.vm_id) == "deleted"
        assert await site.address_state() == "releasing"
        failed = await site.service.ended(reinstallation)
        assert (failed.status, "declared lost" in (failed.error_message or "")) == ("failed", True)
        with pytest.raises(ServiceError, match="is lost") as refusal:
            await site.service.machine(other.vm_id).ask(Machine.order, ADMINISTRATOR, Order.START)
        assert refusal.value.code is ErrorCode.CONFLICT


async def test_the_address_of_a_dead_node_is_freed_by_force(database: Database) -> None:
    async with open_site(database) as site:
        await site.node_leaves()
        await site.delete()

        async with database.transaction() as tx:
            await force_free(tx, site.world.pool_id, site.address)

        assert await site.address_state() is None


async def test_a_machine_that_its_host_refuses_to_delete_keeps_its_address(database: Database) -> None:
    async def refuse(*_: object) -> OperationResult:
        raise OperationFailed(FailureCode.HOST, "the disk is busy", None)

    async with open_site(database) as site:
        site.service.gateway.answers["vm.delete"] = refuse
        generation = (await site.service.vm(site.vm_id))["net_wanted"]

        task = await site.service.ended(await site.delete())

        assert task.status == "failed"
        assert await site.service.status(site.vm_id) == "running"
        assert await site.address_state() == "allocated"
        assert (await site.service.vm(site.vm_id))["net_wanted"] > generation


async def test_an_attempt_that_was_given_up_before_a_restart_is_made_again(database: Database) -> None:
    async def given_up(gateway: FakeGateway, *_: object) -> OperationResult:
        del gateway.answers["vm.delete"]
        raise OperationFailed(FailureCode.CANCELLED, "given up", None)

    async with open_site(database) as site:
        site.service.gateway.answers["vm.delete"] = given_up

        task = await site.service.ended(await site.delete())

        assert task.status == "succeeded"
        assert await site.service.status(site.vm_id) == "deleted"
