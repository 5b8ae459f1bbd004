"""Who is online is recorded of every node, whatever row of another node or machine is locked meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast
from uuid import UUID

import trio

from svc_actors.controller.gateway.authority import Authority
from svc_actors.controller.gateway.gateway import Gateway
from svc_actors.controller.nodes.node import Node, NodeServices
from svc_actors.controller.reconcile.node_watch import Intervals, NodeWatch, machine_deliverer
from svc_actors.store import Database
from svc_nodeagent.protocol import Capacity, DomainChanged, DomainState, Heartbeat
from tests.support.machine_records import record_machines
from tests.support.machine_service import FakeGateway, Service, make_fleet, make_node, open_service

LOOK_DEADLINE = 2.0
"""What the look at a locked node costs a test; the seven others need a tenth of it, on a machine at rest."""
PATIENCE = 60.0


@dataclass
class Presence:
    """A gateway that says who is connected, and what each said last."""

    connected: set[UUID] = field(default_factory=set)

    def is_online(self, node_id: UUID) -> bool:
        return node_id in self.connected

    def online(self) -> list[UUID]:
        return sorted(self.connected)

    def heartbeat(self, _: UUID) -> Heartbeat | None:
        capacity = Capacity(cpus=8, memory_mib=4096, memory_free_mib=1024, disk_gib=100, disk_free_gib=50, load_1m=0.5)
        return Heartbeat(at=datetime.now(UTC), capacity=capacity)


@dataclass
class Fleet:
    service: Service
    watch: NodeWatch
    presence: Presence
    nodes: list[UUID]
    vm_id: UUID
    """A machine that runs on the first node."""

    async def states(self) -> list[str]:
        rows = await self.service.database.fetch("SELECT id, state FROM nodes WHERE id = ANY($1)", self.nodes)
        by_id = {row["id"]: row["state"] for row in rows}
        return [by_id[node_id] for node_id in self.nodes]

    async def until_stopped(self) -> None:
        with trio.fail_after(PATIENCE):
            while await self.service.status(self.vm_id) != "stopped":
                await trio.sleep(0.01)

    def guest_stops(self, vm_id: UUID) -> None:
        change = DomainChanged(vm_id=vm_id, state=DomainState.STOPPED, reason="", at=datetime.now(UTC))
        self.watch.hooks.domain_changed(self.nodes[0], change)


@asynccontextmanager
async def open_fleet(database: Database, *, size: int = 8) -> AsyncIterator[Fleet]:
    world = await make_fleet(database)
    nodes = [world.node_id, *[await make_node(database, world.location_id, f"node-{n}") for n in range(1, size)]]
    vm_id = UUID(int=7)
    await record_machines(database, world.node_id, [vm_id])
    presence = Presence()
    async with open_service(database, FakeGateway()) as service:
        deliver = machine_deliverer(service.actors)
        watch = NodeWatch(service.actors, database, deliver, intervals=Intervals(look_deadline=LOOK_DEADLINE))
        watch.watch(cast(Gateway, presence))
        services = NodeServices(database, cast(Gateway, presence), cast(Authority, None))
        service.actors.register(Node, lambda _: Node(services))
        async with trio.open_nursery() as nursery:
            await nursery.start(watch.run)
            yield Fleet(service, watch, presence, nodes, vm_id)
            nursery.cancel_scope.cancel()


async def test_a_locked_machine_delays_the_presence_of_no_node(database: Database) -> None:
    async with open_fleet(database) as fleet:
        async with database.transaction() as tx:
            await tx.execute("SELECT FROM vms WHERE id = $1 FOR NO KEY UPDATE", fleet.vm_id)
            fleet.guest_stops(fleet.vm_id)

            with trio.fail_after(PATIENCE):
                await fleet.watch.look()

            assert await fleet.states() == ["offline"] * 8
        await fleet.until_stopped()


async def test_a_locked_node_delays_the_presence_of_no_other(database: Database) -> None:
    async with open_fleet(database) as fleet:
        async with database.transaction() as tx:
            await tx.execute("SELECT FROM nodes WHERE id = $1 FOR NO KEY UPDATE", fleet.nodes[0])

            with trio.fail_after(PATIENCE):
                await fleet.watch.look()

            assert await fleet.states() == ["online", *["offline"] * 7]


async def test_a_locked_node_delays_the_live_figures_of_no_other(database: Database) -> None:
    async with open_fleet(database, size=3) as fleet:
        fleet.presence.connected = set(fleet.nodes)
        async with database.transaction() as tx:
            await tx.execute("SELECT FROM nodes WHERE id = $1 FOR NO KEY UPDATE", fleet.nodes[0])

            with trio.fail_after(PATIENCE):
                await fleet.watch.record()

            rows = await database.fetch("SELECT id FROM nodes WHERE (capacity->>'load_1m')::float = 0.5")
            assert {row["id"] for row in rows} == set(fleet.nodes[1:])


async def test_a_locked_machine_delays_no_other_machine_of_its_node(database: Database) -> None:
    async with open_fleet(database) as fleet:
        other = UUID(int=8)
        await record_machines(database, fleet.nodes[0], [other])
        async with database.transaction() as tx:
            await tx.execute("SELECT FROM vms WHERE id = $1 FOR NO KEY UPDATE", fleet.vm_id)

            fleet.guest_stops(fleet.vm_id)
            fleet.guest_stops(other)

            with trio.fail_after(PATIENCE):
                while await fleet.service.status(other) != "stopped":
                    await trio.sleep(0.01)
