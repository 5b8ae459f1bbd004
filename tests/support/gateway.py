"""A gateway and agents in one Trio process, over real mutual TLS on the loopback interface."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from uuid import UUID, uuid4

import trio

from svc_actors.controller.gateway.authority import Authority
from svc_actors.controller.gateway.gateway import Gateway, GatewayHooks
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_nodeagent.agent import Agent, Patience
from svc_nodeagent.config import AgentFolder, Enrolment
from svc_nodeagent.enrol import new_key, private_pem, signing_request
from svc_nodeagent.host import Host, OpenStream
from svc_nodeagent.journal import Journal
from svc_nodeagent.protocol import (
    SPOKEN,
    Account,
    DiskSpec,
    DomainChanged,
    GuestAddress,
    Hello,
    ImageFormat,
    ImageSpec,
    MachineSpec,
    NetworkSpec,
    NicSpec,
    SeedSpec,
    Topology,
    UrlSource,
    Versions,
    VmCreate,
)
from svc_nodeagent.simulated import Behaviour, SimulatedHost
from svc_nodeagent.upgrade import Upgrader

BRISK = Patience(first_pause=0.01, longest_pause=0.1, settled_after=5.0, stopping=1.0)
PATIENCE = 60.0
HEARTBEAT_SECONDS = 5.0
"""As in the service: a node that a busy machine keeps from speaking for a few seconds is not taken for lost."""


@dataclass
class Heard:
    """What the gateway's hooks were told."""

    connected: list[UUID] = field(default_factory=list)
    hellos: list[Hello] = field(default_factory=list)
    disconnected: list[UUID] = field(default_factory=list)
    changes: list[tuple[UUID, DomainChanged]] = field(default_factory=list)
    unauthorised: list[tuple[UUID, str]] = field(default_factory=list)
    refused: list[tuple[UUID, str]] = field(default_factory=list)

    def hooks(self) -> GatewayHooks:
        def connected(node_id: UUID, hello: Hello) -> None:
            self.connected.append(node_id)
            self.hellos.append(hello)

        return GatewayHooks(
            connected=connected,
            disconnected=self.disconnected.append,
            domain_changed=lambda node_id, change: self.changes.append((node_id, change)),
            refused=lambda node_id, reason: self.refused.append((node_id, reason)),
            unauthorised_report=lambda node_id, what: self.unauthorised.append((node_id, what)),
        )


@dataclass
class GatewayHarness:
    database: Database
    authority: Authority
    folder: Path
    nursery: trio.Nursery
    heartbeat_seconds: float
    heard: Heard = field(default_factory=Heard)
    port: int = 0
    gateway: Gateway = field(init=False)
    _gateway_scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _gateway_ended: trio.Event = field(default_factory=trio.Event)

    async def start_gateway(self, versions: Versions = SPOKEN) -> Gateway:
        """A first one, or after `stop_gateway` another one on the same port, as after a restart of the controller."""
        self.gateway = Gateway(
            self.authority,
            lambda: self.authority.server_certificate(self.folder, "localhost"),
            bind_host="127.0.0.1",
            port=self.port,
            heartbeat_seconds=self.heartbeat_seconds,
            hooks=self.heard.hooks(),
            find_file=lambda key: self.folder / "files" / key,
            versions=versions,
        )
        self._gateway_scope, self._gateway_ended = trio.CancelScope(), trio.Event()

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            try:
                with self._gateway_scope:
                    await self.gateway.run(task_status=task_status)
            finally:
                self._gateway_ended.set()

        await self.nursery.start(run)
        self.port = self.gateway.port
        return self.gateway

    async def stop_gateway(self) -> None:
        self._gateway_scope.cancel()
        await self._gateway_ended.wait()

    async def new_node(self) -> NodeOnDisk:
        """An enrolled node: its row, its certificate, its data folder."""
        node_id = uuid4()
        folder = AgentFolder(self.folder / f"node-{node_id}")
        folder.path.mkdir()
        key = new_key()
        async with self.database.transaction() as tx:
            location = await tx.fetchval(
                "INSERT INTO locations (name) VALUES ('default') ON CONFLICT (name) DO UPDATE SET name = 'default'"
                " RETURNING id"
            )
            await tx.execute(
                "INSERT INTO nodes (id, name, location_id, host_uuid) VALUES ($1, $2, $3, $4)",
                node_id,
                f"node-{node_id}",
                location,
                uuid4(),
            )
            signed = await self.authority.sign_node(tx, node_id, signing_request(key))
        folder.write(folder.authority, self.authority.certificate_pem.encode())
        folder.write(folder.identity, private_pem(key) + signed.pem.encode())
        enrolment = Enrolment(node_id=node_id, gateway_host="localhost", gateway_port=self.port)
        folder.write(folder.enrolment, enrolment.model_dump_json().encode())
        return NodeOnDisk(node_id, folder)

    async def until_online(self, *nodes: UUID) -> None:
        await until(lambda: all(self.gateway.is_online(node) for node in nodes))


@dataclass
class NodeOnDisk:
    """What outlives an agent's process: the folder, and the host with its machines."""

    node_id: UUID
    folder: AgentFolder
    host: SimulatedHost = field(init=False)

    def __post_init__(self) -> None:
        self.host = SimulatedHost("simulated", uuid4(), Behaviour(seed=1))

    def dial_through(self, port: int) -> None:
        """Reach the gateway by another port: a proxy's."""
        enrolment = self.folder.read_enrolment().model_copy(update={"gateway_port": port})
        self.folder.write(self.folder.enrolment, enrolment.model_dump_json().encode())

    @asynccontextmanager
    async def running(
        self, patience: Patience = BRISK, versions: Versions = SPOKEN, upgrader: Upgrader | None = None
    ) -> AsyncIterator[Agent]:
        """An agent process; leaving the block kills it, without a goodbye."""
        journal = Journal.open(self.folder.journal)
        agent = Agent(self.folder, journal, patience=patience, seed=1, versions=versions, upgrader=upgrader)

        def open_host(_: OpenStream) -> AbstractAsyncContextManager[Host]:
            return _shared(self.host)

        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(agent.run, open_host)
                yield agent
                nursery.cancel_scope.cancel()
        finally:
            journal.close()


@asynccontextmanager
async def _shared(host: SimulatedHost) -> AsyncIterator[Host]:
    yield host


@asynccontextmanager
async def open_rig(
    database: Database, folder: Path, *, heartbeat_seconds: float = HEARTBEAT_SECONDS
) -> AsyncIterator[GatewayHarness]:
    authority = await Authority.open(database, Sealer(b"k" * 32))
    (folder / "files").mkdir()
    with trio.fail_after(PATIENCE * 3):
        async with trio.open_nursery() as nursery:
            rig = GatewayHarness(database, authority, folder, nursery, heartbeat_seconds)
            await rig.start_gateway()
            yield rig
            nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds; the test fails when that takes too long."""
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.005)


def image(name: str = "demo") -> ImageSpec:
    return ImageSpec(
        image_id=UUID(int=7),
        name=name,
        format=ImageFormat.QCOW2,
        source=UrlSource.model_validate({"url": "https://images.example/demo.qcow2"}),
        digest="0" * 64,
    )


def create(vm_id: UUID | None = None, *, start: bool = True) -> VmCreate:
    vm_id = vm_id or uuid4()
    address = GuestAddress(
        interface=IPv4Interface("10.0.0.5/32"),
        network=IPv4Network("10.0.0.5/32"),
        gateway="10.0.0.1",
        on_link=True,
        topology=Topology.NAT,
        primary=True,
    )
    nic = NicSpec(
        nic_id=uuid4(),
        mac="52:54:00:00:00:01",
        addresses=(address,),
    )
    return VmCreate(
        machine=MachineSpec(
            vm_id=vm_id,
            name="web",
            vcpus=1,
            memory_mib=256,
            disks=(DiskSpec(index=0, size_gib=1),),
            network=NetworkSpec(nics=(nic,)),
            seed=SeedSpec(
                instance_id=str(vm_id),
                hostname="web",
                account=Account(name="root", sudo=False),
                ssh_password_login=False,
            ),
        ),
        image=image(),
        start=start,
    )
