"""A controller with its node and power watches, and nodes whose hosts are simulated and lose their power.

What a host sees goes to the controller as its agent would tell it: each change while it is connected, and an inventory
at every connect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast
from uuid import UUID, uuid4

import trio

from svc_actors.controller.gateway.authority import Authority
from svc_actors.controller.gateway.gateway import Gateway
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.states import Order
from svc_actors.controller.nodes.node import Node, NodeServices
from svc_actors.controller.reconcile.node_watch import NodeWatch, machine_deliverer
from svc_actors.controller.reconcile.power_watch import PowerWatch
from svc_actors.controller.tasks.runner import Task, TaskStatus
from svc_actors.store import Database, Record
from svc_nodeagent.protocol import DomainState, Hello, StateCause
from svc_nodeagent.simulated import SimulatedHost
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_service import SEALER, Fleet, Service, make_fleet, open_service
from tests.support.networking import Hosts

PATIENCE = 60.0


@dataclass
class PowerHarness:
    service: Service
    world: Fleet
    hosts: Hosts
    nodes: NodeWatch
    power: PowerWatch

    @property
    def database(self) -> Database:
        return self.service.database

    @property
    def host(self) -> SimulatedHost:
        return self.hosts.hosts[self.world.node_id]

    async def machine(self, name: str = "web", **changes: object) -> UUID:
        created = await self.service.create(self.world.machine(name, **changes))
        assert (await self.service.ended(created.task)).status is TaskStatus.SUCCEEDED
        await self.heard()
        return created.vm_id

    async def order(self, vm_id: UUID, order: Order) -> Task:
        task = await self.service.ended(await self.service.machine(vm_id).ask(Machine.order, ADMINISTRATOR, order))
        await self.heard()
        return task

    async def heard(self) -> None:
        """What hosts say of a task's end is recorded some milliseconds behind it: not to be taken for news of what a
        test does next, for which a real host needs seconds."""

        async def recorded() -> bool:
            return all(host.caught_up for host in self.hosts.hosts.values()) and self.nodes.heard

        await self.until(recorded)

    async def crash(self, vm_id: UUID) -> None:
        self.host.set_state(vm_id, DomainState.CRASHED, "its QEMU ended unexpectedly")
        await self.until_status(vm_id, "stopped")

    async def guest_shuts_down(self, vm_id: UUID) -> None:
        self.host.set_state(vm_id, DomainState.STOPPED, "the guest shut down", StateCause.GUEST)
        await self.until_status(vm_id, "stopped")

    async def power_cut(self) -> None:
        """Every guest of the host is off, its agent was started with it, and the controller has heard of it."""
        self.hosts.offline.add(self.world.node_id)
        self.nodes.hooks.disconnected(self.world.node_id)
        self.host.lose_power()
        self.hosts.offline.discard(self.world.node_id)
        self.nodes.hooks.connected(self.world.node_id, Hello(protocol=3, agent_version="1", boot_id=str(uuid4())))
        await self.nodes.inspect(self.world.node_id)

        async def recorded() -> bool:
            return not await self.database.fetchval("SELECT EXISTS (SELECT FROM vms WHERE status = 'running')")

        await self.until(recorded)
        await self.heard()

    async def look(self) -> None:
        """One round of the power watch, as if the machines had been heard of a while ago, and the tasks it began."""
        await self.database.execute("UPDATE vms SET observed_at = observed_at - interval '5 seconds'")
        await self.power.look()

    async def settled(self) -> None:
        """Rounds until no task is open and none is begun any more."""
        with trio.fail_after(PATIENCE):
            while True:
                begun = await self.tasks()
                for task in begun:
                    await self.service.ended(task["id"])
                await self.look()
                if len(await self.tasks()) == len(begun):
                    return

    async def tasks(self, vm_id: UUID | None = None) -> list[Record]:
        """Those that the service began by itself, oldest first."""
        return await self.database.fetch(
            """SELECT * FROM tasks WHERE caller->>'via' = 'system' AND ($1::uuid IS NULL OR resource_id = $1)
               ORDER BY created_at, id""",
            vm_id,
        )

    async def vm(self, vm_id: UUID) -> Record:
        return await self.service.vm(vm_id)

    async def alert(self, key: str) -> Record | None:
        return await self.database.fetchrow("SELECT * FROM alerts WHERE key = $1 AND closed_at IS NULL", key)

    async def pause_passes(self, vm_id: UUID) -> None:
        """The time has come at which the machine is tried again."""
        await self.database.execute("UPDATE vms SET restart_after = now() WHERE id = $1", vm_id)

    async def until_status(self, vm_id: UUID, status: str) -> None:
        async def reached() -> bool:
            return await self.service.status(vm_id) == status

        await self.until(reached)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        with trio.fail_after(PATIENCE):
            while not await condition():
                await trio.sleep(0.005)


@asynccontextmanager
async def open_power(
    database: Database, *, world: Fleet | None = None, hosts: Hosts | None = None
) -> AsyncIterator[PowerHarness]:
    """One life of a controller; opened again with the same world and hosts it is the next one."""
    hosts = hosts or Hosts()
    if world is None:
        world = await make_fleet(database)
        hosts.hosts[world.node_id] = SimulatedHost("alpha", uuid4())
    authority = await Authority.open(database, SEALER)
    async with open_service(database, hosts) as service, trio.open_nursery() as nursery:
        nodes = NodeWatch(service.actors, database, machine_deliverer(service.actors))
        nodes.watch(cast(Gateway, hosts))
        services = NodeServices(database, hosts, authority)
        service.actors.register(Node, lambda _: Node(services))
        nursery.start_soon(_tell, hosts, world.node_id, nodes)
        await nursery.start(nodes.run)
        yield PowerHarness(service, world, hosts, nodes, PowerWatch(database, service.actors))
        nursery.cancel_scope.cancel()


async def _tell(hosts: Hosts, node_id: UUID, nodes: NodeWatch) -> None:
    async for change in hosts.hosts[node_id].domain_changes():
        nodes.hooks.domain_changed(node_id, change.model_copy(update={"at": datetime.now(UTC)}))
