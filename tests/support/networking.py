"""A controller with its network watch, and nodes whose hosts are simulated: each test plays what goes wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address
from uuid import UUID, uuid4

import trio

from svc.registry.principal import Role
from svc_actors.controller.gateway.authority import Authority
from svc_actors.controller.gateway.gateway import NodeUnavailable, OperationFailed
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.network_attachment import NewAddress
from svc_actors.controller.networking.networks import NewPool, create_pool
from svc_actors.controller.nodes.node import Node, NodeServices
from svc_actors.controller.reconcile.network_probe import NetworkProbe
from svc_actors.controller.reconcile.network_watch import NetworkRhythm, NetworkWatch
from svc_actors.controller.tasks.runner import TaskStatus
from svc_actors.store import Database, Record
from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import FailureCode, NodeOperation, OperationId, OperationResult
from svc_nodeagent.simulated import SimulatedHost
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_api import Api, person
from tests.support.machine_service import (
    SEALER,
    FakeGateway,
    Fleet,
    OnProgress,
    Service,
    make_fleet,
    make_node,
    open_service,
)

PATIENCE = 60.0
BRISK = NetworkRhythm(round=0.2, gather=0.0, first_pause=0.02, longest_pause=0.1, between_retries=0.01, operation=2.0)
Play = Callable[[NodeOperation], Awaitable[None]]


@dataclass
class Hosts(FakeGateway):
    """A gateway whose nodes are simulated hosts, and that outlives controllers. `plays` runs before an operation of
    that name reaches its host, and may raise `OperationFailed` or wait."""

    hosts: dict[UUID, SimulatedHost] = field(default_factory=dict)
    offline: set[UUID] = field(default_factory=set)
    plays: dict[str, Play] = field(default_factory=dict)
    at_once: int = 0
    most_at_once: int = 0

    def is_online(self, node_id: UUID) -> bool:
        return node_id in self.hosts and node_id not in self.offline

    def online(self) -> list[UUID]:
        return [node_id for node_id in self.hosts if self.is_online(node_id)]

    def drop(self, node_id: UUID, reason: str) -> None:
        self.hosts.pop(node_id, None)

    async def perform(
        self,
        node_id: UUID,
        operation_id: OperationId,
        operation: NodeOperation,
        *,
        timeout: float,
        on_progress: OnProgress | None = None,
    ) -> OperationResult:
        self.asked.append(operation)
        self.asked_ids.append(operation_id)
        self.told.tell()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            with trio.move_on_after(timeout):
                if not self.is_online(node_id):
                    await trio.sleep_forever()
                if operation_id not in self.journal:
                    if operation.op in self.plays:
                        await self.plays[operation.op](operation)
                    self.journal[operation_id] = await self.hosts[node_id].perform(operation, unheard)
                found = self.journal[operation_id]
                if isinstance(found, OperationFailed):
                    raise found
                return found
        except HostError as error:
            raise OperationFailed(error.code, error.message, error.hint) from error
        finally:
            self.at_once -= 1
        raise NodeUnavailable("The node gave no answer.")

    async def query(self, node_id: UUID, operation: NodeOperation, *, timeout: float) -> OperationResult:
        if not self.is_online(node_id):
            raise NodeUnavailable("The node is offline.")
        return await self.perform(node_id, OperationId(f"query:{uuid4()}"), operation, timeout=timeout)

    def asked_for(self, op: str) -> list[NodeOperation]:
        return [operation for operation in self.asked if operation.op == op]

    def carried(self, vm_id: UUID) -> set[str]:
        """What every host together carries for a machine."""
        return {
            address
            for host in self.hosts.values()
            if vm_id in host.networks.networks
            for address in host.networks.networks[vm_id].carried
        }


async def unheard(_: int, __: str) -> None:
    await trio.lowlevel.checkpoint()


def failing(message: str = "nft: no such device", code: FailureCode = FailureCode.HOST) -> Play:
    async def fail(_: NodeOperation) -> None:
        await trio.lowlevel.checkpoint()
        raise OperationFailed(code, message)

    return fail


@dataclass
class Held:
    """A play that holds each operation until it is let go."""

    reached: trio.Event = field(default_factory=trio.Event)
    released: trio.Event = field(default_factory=trio.Event)

    async def __call__(self, _: NodeOperation) -> None:
        self.reached.set()
        await self.released.wait()

    async def until_reached(self) -> None:
        with trio.fail_after(PATIENCE):
            await self.reached.wait()


@dataclass
class NetworkHarness:
    service: Service
    world: Fleet
    hosts: Hosts
    watch: NetworkWatch
    probe: NetworkProbe
    rechecked: list[UUID]

    @property
    def database(self) -> Database:
        return self.service.database

    @property
    def host(self) -> SimulatedHost:
        return self.hosts.hosts[self.world.node_id]

    async def machine(self, name: str = "web", **changes: object) -> UUID:
        """A machine that runs, with its network applied."""
        created = await self.service.create(self.world.machine(name, **changes))
        assert (await self.service.ended(created.task)).status is TaskStatus.SUCCEEDED
        await self.until_applied(created.vm_id)
        return created.vm_id

    async def pool(self, cidr: str, *, name: str | None = None, topology: str = "nat", **changes: object) -> UUID:
        network = IPv6Network(cidr) if ":" in cidr else IPv4Network(cidr)
        new = NewPool(
            name=name or cidr,
            location_id=self.world.location_id,
            cidr=network,
            topology=topology,
            **changes,  # type: ignore[arg-type]
        )
        async with self.database.transaction() as tx:
            pool_id: UUID = (await create_pool(tx, self.world.network_id, new))["id"]
        return pool_id

    async def attach(self, vm_id: UUID, **wanted: object) -> str:
        values = {"bounded": False} | wanted
        return await self.service.machine(vm_id).ask(
            Machine.attach_address,
            ADMINISTRATOR,
            NewAddress(**values),  # type: ignore[arg-type]
        )

    async def detach(self, vm_id: UUID, ip: str) -> None:
        await self.service.machine(vm_id).ask(Machine.detach_address, ADMINISTRATOR, ip_address(ip.split("/")[0]))

    async def vm(self, vm_id: UUID) -> Record:
        return await self.service.vm(vm_id)

    async def held(self, vm_id: UUID) -> dict[str, str]:
        rows = await self.database.fetch(
            "SELECT address_text(ip) AS text, state FROM allocations WHERE vm_id = $1", vm_id
        )
        return {row["text"]: row["state"] for row in rows}

    async def until_applied(self, vm_id: UUID) -> None:
        async def applied() -> bool:
            vm = await self.vm(vm_id)
            return bool(vm["net_applied"] >= vm["net_wanted"])

        await self.until(applied)

    async def until_held(self, vm_id: UUID, expected: dict[str, str]) -> None:
        async def held() -> bool:
            return await self.held(vm_id) == expected

        await self.until(held)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        with trio.fail_after(PATIENCE):
            while not await condition():
                await trio.sleep(0.005)

    async def alerts(self, prefix: str) -> list[str]:
        rows = await self.database.fetch(
            "SELECT message FROM alerts WHERE closed_at IS NULL AND starts_with(key, $1) ORDER BY key", prefix
        )
        return [row["message"] for row in rows]

    async def until_alerts(self, prefix: str, count: int) -> None:
        async def there() -> bool:
            return len(await self.alerts(prefix)) == count

        await self.until(there)

    async def api(self, role: Role, *projects: UUID) -> Api:
        return Api(self.service, await person(self.database, role, projects=projects))

    async def mode(self, mode: str) -> None:
        await self.database.execute("UPDATE nodes SET mode = $2 WHERE id = $1", self.world.node_id, mode)


@asynccontextmanager
async def open_stage(
    database: Database,
    *,
    world: Fleet | None = None,
    hosts: Hosts | None = None,
    intervals: NetworkRhythm = BRISK,
) -> AsyncIterator[NetworkHarness]:
    """One life of a controller; opened again with the same world and hosts it is the next one."""
    hosts = hosts or Hosts()
    if world is None:
        world = await make_fleet(database)
        hosts.hosts[world.node_id] = SimulatedHost("alpha", uuid4())
    authority = await Authority.open(database, SEALER)
    rechecked: list[UUID] = []
    async with open_service(database, hosts) as service, trio.open_nursery() as nursery:
        services = NodeServices(database, hosts, authority)
        service.actors.register(Node, lambda _: Node(services))
        watch = NetworkWatch(database, hosts, intervals=intervals)
        probe = NetworkProbe(database, hosts, service.actors, rechecked.append)
        await nursery.start(watch.run)
        yield NetworkHarness(service, world, hosts, watch, probe, rechecked)
        nursery.cancel_scope.cancel()


async def another_node(stage: NetworkHarness, name: str) -> UUID:
    node_id = await make_node(stage.database, stage.world.location_id, name)
    stage.hosts.hosts[node_id] = SimulatedHost(name, uuid4())
    return node_id
