"""Hosts that move machines with real disks, in one process: all of the agent but libvirt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from uuid import UUID, uuid4

import trio

from svc_nodeagent.agent import Agent
from svc_nodeagent.host import OpenStream, Report
from svc_nodeagent.hypervisor import Naming, disks
from svc_nodeagent.hypervisor.acceleration import Acceleration, Verdict, qemu_user
from svc_nodeagent.hypervisor.domains import BaseImage
from svc_nodeagent.hypervisor.files import Folders, MachineRecord, read_record
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.images import ImageCache, file_name
from svc_nodeagent.hypervisor.moving import Moves
from svc_nodeagent.hypervisor.processors import Accelerator
from svc_nodeagent.journal import Journal
from svc_nodeagent.protocol import (
    DomainState,
    ImageSpec,
    MachineSpec,
    NodeOperation,
    OperationResult,
    VmCreate,
    VmDelete,
    VmMigrate,
    VmSend,
)
from svc_nodeagent.simulated import Behaviour, SimulatedHost
from tests.support.gateway import BRISK, NodeOnDisk


class _Defined:
    """In the place of `Guests`: which machines are defined, all of them off."""

    def __init__(self) -> None:
        self.domains: dict[UUID, str] = {}

    async def state(self, vm_id: UUID) -> DomainState:
        await trio.lowlevel.checkpoint()
        return DomainState.STOPPED if vm_id in self.domains else DomainState.ABSENT

    async def define(self, xml: str) -> None:
        await trio.lowlevel.checkpoint()
        self.domains[UUID(xml.partition("<uuid>")[2].partition("</uuid>")[0])] = xml


class Emulation:
    async def verdict(self) -> Verdict:
        await trio.lowlevel.checkpoint()
        return Verdict(boot_id="", device="", guest="", accelerator=Accelerator.TCG, reason="")


class _Images:
    """A cache that every image is in."""

    def __init__(self, folders: Folders, content: Path) -> None:
        self._folders, self._content = folders, content

    async def ensure(self, spec: ImageSpec, _: Report) -> None:
        path = trio.Path(self._folders.images / file_name(spec))
        await path.write_bytes(await trio.Path(self._content).read_bytes())

    def base_of(self, name: str) -> BaseImage:
        return BaseImage(self._folders.images / name, "qcow2")


@dataclass
class DiskHost(SimulatedHost):
    """A simulated host whose machines' disks are real: they are sent and taken in as by libvirt's host."""

    folder: Path = field(kw_only=True)
    image: Path = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.folder.mkdir()
        self.folders = Folders(self.folder)
        self.folders.create()
        self.life = trio.CancelScope()
        self.guests = _Defined()
        self.locks: dict[UUID, trio.Lock] = {}
        self.images_of = _Images(self.folders, self.image)

    def use(self, open_stream: OpenStream) -> None:
        self.moves = Moves(
            guests=cast(Guests, self.guests),
            folders=self.folders,
            naming=Naming(),
            images=cast(ImageCache, self.images_of),
            acceleration=cast(Acceleration, Emulation()),
            open_stream=open_stream,
            steps=self.steps,
            remove=self.remove,
        )

    @asynccontextmanager
    async def steps(self, vm_id: UUID) -> AsyncIterator[None]:
        async with self.locks.setdefault(vm_id, trio.Lock()):
            yield

    async def remove(self, vm_id: UUID) -> None:
        if self.life.cancel_called:
            raise OSError("The agent is dead.")
        self.guests.domains.pop(vm_id, None)
        await trio.to_thread.run_sync(disks.destroy, self.folders, vm_id)

    async def make(self, spec: MachineSpec, image: ImageSpec) -> Path:
        """A machine that is off; gives its disk."""
        await self.images_of.ensure(image, _silent)
        record = MachineRecord(base=file_name(image), **dict(spec))
        folder = self.folders.machine(spec.vm_id)
        folder.mkdir()
        (folder / "machine.json").write_bytes(record.stored())
        user = qemu_user()
        await disks.ensure_disks(record, self.images_of.base_of(record.base), self.folders, (user.uid, user.gid))
        self.guests.domains[spec.vm_id] = ""
        return self.folders.disk(spec.vm_id, 0)

    def record(self, vm_id: UUID) -> MachineRecord:
        return read_record(self.folders.machine(vm_id) / "machine.json")

    async def perform(self, operation: NodeOperation, report: Report) -> OperationResult:
        match operation:
            case VmCreate(machine=spec, image=image):
                await self.make(spec, image)
                return await super().perform(operation, report)
            case VmMigrate():
                taken = await self.moves.take_in(operation, report)
                await super().perform(operation, report)
                return taken
            case VmSend(vm_id=vm_id):
                return await self.moves.send(operation, report)
            case VmDelete(vm_id=vm_id):
                async with self.steps(vm_id):
                    await self.remove(vm_id)
                return await super().perform(operation, report)
            case _:
                return await super().perform(operation, report)


async def keep_alive(node: NodeOnDisk, host: DiskHost, *, task_status: trio.TaskStatus[None]) -> None:
    """The host's agent, started anew whenever `host.life` is cancelled: then it does not tidy up."""
    while True:
        with trio.CancelScope() as host.life:
            async with agent_of(node, host):
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                await trio.sleep_forever()


@asynccontextmanager
async def agent_of(node: NodeOnDisk, host: DiskHost) -> AsyncIterator[Agent]:
    """An agent process of that host; leaving the block kills it, without a goodbye."""
    journal = Journal.open(node.folder.journal)
    agent = Agent(node.folder, journal, patience=BRISK, seed=1)

    @asynccontextmanager
    async def open_host(open_stream: OpenStream) -> AsyncIterator[DiskHost]:
        host.use(open_stream)
        host.locks.clear()
        yield host

    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(agent.run, open_host)
            yield agent
            nursery.cancel_scope.cancel()
    finally:
        journal.close()


def disk_host(name: str, folder: Path, image: Path) -> DiskHost:
    return DiskHost(name, uuid4(), Behaviour(seed=1), folder=folder / name, image=image)


async def _silent(*_: object) -> None:
    await trio.lowlevel.checkpoint()
