"""Pairs of hosts between which a guest moves live, in one process: all of the agents, the gateway and the controller is
real, libvirt and QEMU are in memory. At a named step of a move a link of it fails, for a while or for ever.

    source's agent == its link == gateway == its link == target's agent     (streams are joined in the gateway)
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Protocol, cast
from uuid import UUID, uuid4

import trio

from svc_nodeagent.host import OpenStream, Report
from svc_nodeagent.hypervisor import Naming, disks
from svc_nodeagent.hypervisor.acceleration import Acceleration
from svc_nodeagent.hypervisor.definitions import Definitions
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.images import ImageCache
from svc_nodeagent.hypervisor.live_moving import LiveMoves
from svc_nodeagent.hypervisor.live_streams import Sockets
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.protocol import (
    DeleteResult,
    DomainResult,
    DomainState,
    KeptMachine,
    MachineResult,
    NetworkSpec,
    NodeOperation,
    OperationResult,
    VmCreate,
    VmDelete,
    VmDescribe,
    VmLiveFinish,
    VmLiveLook,
    VmLiveReceive,
    VmLiveSend,
    VmLiveSettle,
    VmStart,
)
from svc_nodeagent.simulated import Behaviour
from tests.support.gateway import GatewayHarness, NodeOnDisk
from tests.support.live_libvirt import RUNNING, LibvirtInMemory
from tests.support.moves import DiskHost, Emulation, agent_of
from tests.support.tcp_proxy import Proxy, proxy_to

CASE: ContextVar[Case | None] = ContextVar("case", default=None)
"""Of whom the running code is: many cases share a process."""
DISK = bytes(range(64))


class Failure(StrEnum):
    BROKEN = "broken"
    """Connections end, and none can be made."""
    SILENT = "silent"
    """Nothing arrives, and nobody is told; what was sent arrives once the link is back."""


class Link(Protocol):
    def fail(self, how: Failure) -> None: ...

    def mend(self) -> None: ...


@dataclass
class NodeLink:
    """Everything between a node and the controller."""

    proxy: Proxy

    def fail(self, how: Failure) -> None:
        if how is Failure.BROKEN:
            self.proxy.refusing = True
            self.proxy.cut()
        else:
            self.proxy.passing = trio.Event()

    def mend(self) -> None:
        self.proxy.refusing = False
        if (passing := self.proxy.passing) is not None:
            self.proxy.passing = None
            passing.set()


@dataclass
class StreamsLink:
    """What the two agents say to each other, by the streams of the move."""

    nursery: trio.Nursery
    streams: list[trio.abc.Stream] = field(default_factory=list)
    broken: bool = False
    passing: trio.Event | None = None

    def fail(self, how: Failure) -> None:
        if how is Failure.BROKEN:
            self.broken = True
            for stream in self.streams:
                self.nursery.start_soon(trio.aclose_forcefully, stream)
        else:
            self.passing = trio.Event()

    def mend(self) -> None:
        self.broken = False
        if (passing := self.passing) is not None:
            self.passing = None
            passing.set()

    async def open(self, open_stream: OpenStream, token: str) -> trio.abc.Stream:
        if self.broken:
            raise ConnectionError("the link is cut")
        stream = await open_stream(token)
        self.streams.append(stream)
        return _Linked(stream, self)


class _Linked(trio.abc.Stream):
    def __init__(self, stream: trio.abc.Stream, link: StreamsLink) -> None:
        self._stream, self._link = stream, link

    async def _pass(self) -> None:
        if self._link.passing is not None:
            await self._link.passing.wait()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        await self._pass()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._pass()
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Network:
    """In the place of `HostNetwork`: what the host carries for each machine."""

    def __init__(self) -> None:
        self.carried: dict[UUID, NetworkSpec] = {}

    async def apply(self, vm_id: UUID, spec: NetworkSpec) -> None:
        await trio.lowlevel.checkpoint()
        self.carried[vm_id] = spec

    def addresses(self, vm_id: UUID) -> list[str]:
        spec = self.carried.get(vm_id)
        return [str(each.interface) for nic in spec.nics for each in nic.addresses] if spec is not None else []


@dataclass
class LiveHost(DiskHost):
    """A host with a libvirt in memory, and files of its own."""

    case: Case = field(kw_only=True)
    run_folder: Path = field(kw_only=True)
    is_off: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.run_folder.mkdir(parents=True)
        self.network = _Network()
        self.sockets = partial(Sockets, run_folder=self.run_folder)
        self.libvirt = LibvirtInMemory(self.run_folder, self.sockets, self.case.reach, self._is_told)
        self.definitions = Definitions(
            guests=cast(Guests, self.libvirt),
            folders=self.folders,
            naming=Naming(),
            images=cast(ImageCache, self.images_of),
            network=cast(HostNetwork, self.network),
            acceleration=cast(Acceleration, Emulation()),
        )

    def use(self, open_stream: OpenStream) -> None:
        async def opened(token: str) -> trio.abc.Stream:
            stream = await self.case.opened(self, open_stream, token)
            self.case.reach(f"{self.hostname}.dialled")
            return stream

        self.live_moves = LiveMoves(
            guests=cast(Guests, self.libvirt),
            folders=self.folders,
            naming=Naming(),
            images=cast(ImageCache, self.images_of),
            network=cast(HostNetwork, self.network),
            definitions=self.definitions,
            open_stream=opened,
            steps=self.steps,
            remove=self.remove,
            sockets=self.sockets,
            libvirt_socket=lambda: self.libvirt.socket,
        )

    def _is_told(self, vm_id: UUID, state: DomainState) -> None:
        self.case.look()
        self._tell(vm_id, state, "seen", None)

    async def remove(self, vm_id: UUID) -> None:
        self.libvirt.remove(vm_id)
        self.network.carried.pop(vm_id, None)
        await trio.to_thread.run_sync(disks.destroy, self.folders, vm_id)

    def has_whole(self, vm_id: UUID) -> bool:
        domain = self.libvirt.domains.get(vm_id)
        return domain is not None and domain.persistent and not self.folders.abandonment(vm_id).exists()

    def lose_power(self) -> None:
        self.is_off = True
        self.libvirt.lose_power()

    async def perform(self, operation: NodeOperation, report: Report) -> OperationResult:
        op = operation.op.removeprefix("vm.").removeprefix("live.")
        if isinstance(operation, VmLiveSettle | VmLiveLook | VmLiveFinish | VmDelete):
            self.case.reach(f"{self.hostname}.{op}.asked")
        result = await self._perform(operation, report)
        if isinstance(operation, VmLiveSettle | VmLiveLook | VmLiveFinish | VmDelete):
            self.case.reach(f"{self.hostname}.{op}.done")
        return result

    async def _perform(self, operation: NodeOperation, report: Report) -> OperationResult:
        match operation:
            case VmCreate(machine=spec, image=image):
                await self.make(spec, image)
                await self.network.apply(spec.vm_id, spec.network)
                self.folders.seed(spec.vm_id).write_bytes(b"seed")
                self.libvirt.put(spec.vm_id, Naming().domain(spec.vm_id), RUNNING, DISK)
                return DomainResult(vm_id=spec.vm_id, state=DomainState.RUNNING)
            case VmDescribe(vm_id=vm_id):
                record = await self.definitions.record(vm_id)
                digest = record.base.partition("-")[2].rpartition(".")[0]
                kept = KeptMachine(image_digest=digest, **record.model_dump(exclude={"base", "cpu_mode"}))
                return MachineResult(machine=kept)
            case VmLiveSend() | VmLiveReceive() | VmLiveSettle() | VmLiveLook() | VmLiveFinish():
                return await self.live_moves.perform(operation, report)
            case VmStart(vm_id=vm_id, network=network):
                async with self.steps(vm_id):
                    await self.definitions.apply_network(await self.definitions.with_network(vm_id, network))
                    self.libvirt.domains[vm_id].become(RUNNING)
                return DomainResult(vm_id=vm_id, state=DomainState.RUNNING)
            case VmDelete(vm_id=vm_id):
                async with self.steps(vm_id):
                    await self.remove(vm_id)
                return DeleteResult(vm_id=vm_id, removed_addresses=(), retained_disks=())
            case _:
                return await super().perform(operation, report)


@dataclass
class Case:
    """A machine that moves from `source` to `target`. `link` fails in the way of `how` when the move comes to `step`,
    and is mended `mended_after` seconds later, or never."""

    step: str
    link_name: str
    how: Failure
    mended_after: float | None
    nursery: trio.Nursery
    vm_id: UUID = field(default_factory=uuid4)
    came_to: list[str] = field(default_factory=list)
    failed: trio.Event = field(default_factory=trio.Event)
    ran_twice: bool = False
    links: dict[str, Link] = field(default_factory=dict)
    source: LiveHost = field(init=False)
    target: LiveHost = field(init=False)
    nodes: dict[str, UUID] = field(default_factory=dict)

    @property
    def hosts(self) -> dict[UUID, LiveHost]:
        return {self.nodes["source"]: self.source, self.nodes["target"]: self.target}

    def reach(self, step: str) -> None:
        self.came_to.append(step)
        if step == self.step and not self.failed.is_set():
            self.failed.set()
            self.links[self.link_name].fail(self.how)
            if self.mended_after is not None:
                self.nursery.start_soon(self._mend, self.mended_after)

    async def _mend(self, after: float) -> None:
        await trio.sleep(after)
        self.links[self.link_name].mend()

    async def opened(self, host: LiveHost, open_stream: OpenStream, token: str) -> trio.abc.Stream:
        if host is not self.source:
            return await open_stream(token)
        return await cast(StreamsLink, self.links["streams"]).open(open_stream, token)

    def look(self) -> None:
        """At every change of a guest."""
        self.ran_twice |= len(self.running()) > 1

    def running(self) -> list[str]:
        return [
            host.hostname
            for host in (self.source, self.target)
            if (domain := host.libvirt.domains.get(self.vm_id)) is not None and domain.as_it_is[0] == RUNNING[0]
        ]

    def has(self, host: LiveHost) -> bool:
        """Anything of the machine."""
        return (
            self.vm_id in host.libvirt.domains
            or host.folders.machine(self.vm_id).exists()
            or self.vm_id in host.network.carried
            or (host.run_folder / str(self.vm_id)).exists()
        )


def reached(step: str) -> None:
    """In the place of `fault_point`."""
    if (case := CASE.get()) is not None:
        case.reach(step)


@asynccontextmanager
async def a_case(rig: GatewayHarness, folder: Path, base: Path, case: Case) -> AsyncIterator[Case]:
    """Its two nodes, online."""
    CASE.set(case)
    case.links["streams"] = StreamsLink(case.nursery)
    async with AsyncExitStack() as stack:
        for name in ("source", "target"):
            node: NodeOnDisk = await rig.new_node()
            run_folder = folder / f"{node.node_id.hex[:8]}" / "live"
            host = LiveHost(
                name,
                uuid4(),
                Behaviour(seed=1),
                folder=run_folder.parent.with_suffix(".host"),
                image=base,
                case=case,
                run_folder=run_folder,
            )
            setattr(case, name, host)
            case.nodes[name] = node.node_id
            proxy = await stack.enter_async_context(proxy_to(rig.port))
            case.links[name] = NodeLink(proxy)
            node.dial_through(proxy.port)
            await stack.enter_async_context(host.libvirt.running())
            await stack.enter_async_context(agent_of(node, host))
        await rig.until_online(*case.nodes.values())
        yield case
