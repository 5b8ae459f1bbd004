"""The target of a live migration: creates disks and taps, receives the guest, and resumes it once the controller's
record says that the machine is here.

Invariants:
- the machine has the mark of `arrivals` until the guest has arrived completely, so that the remains of a failure or a
  crash are removed; its taps pass no packets until `finish` applies the machine's network;
- the definition that the source sends can name only these files of this host: the machine's own, its image and the
  firmware.

Rejected: creating disks of the sizes that the source announces, since it may announce any. The disks are created here,
of the sizes that the controller ordered, and the free space is watched while they fill.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final
from uuid import UUID

import libvirt_qemu
import structlog
import trio
from pydantic import ValidationError

from svc_nodeagent.durable import write_whole
from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError, OpenStream, Report
from svc_nodeagent.hypervisor import arrivals, disks, volume_files
from svc_nodeagent.hypervisor.acceleration import qemu_user
from svc_nodeagent.hypervisor.definitions import Definitions
from svc_nodeagent.hypervisor.domains import BaseImage
from svc_nodeagent.hypervisor.files import RECORD, SECRET, FirstBoot, Folders, MachineRecord, in_thread, put_in_place
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.images import ImageCache, file_name, is_nearly_full, require_room
from svc_nodeagent.hypervisor.live_definition import ArrivingMachine
from svc_nodeagent.hypervisor.live_gate import Gate
from svc_nodeagent.hypervisor.live_guest import LOOK_SECONDS, call_domain, resume_migrated_guest
from svc_nodeagent.hypervisor.live_streams import SILENCE_SECONDS, SocketsOf, relay_on_dial
from svc_nodeagent.hypervisor.live_words import (
    READY_SECONDS,
    FirstBootData,
    Place,
    cut_short,
    dial_streams,
    exactly,
    line,
    unreadable,
)
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.platforms import require_platform
from svc_nodeagent.protocol import (
    DomainResult,
    DomainState,
    LivePlace,
    LiveResult,
    NetworkSpec,
    VmLiveFinish,
    VmLiveReceive,
)

ARRIVAL_SECONDS: Final = 20.0
"""How long libvirt may take, once its connection has ended, to keep the guest or to remove it."""
ROOM_SECONDS: Final = 1.0
"""Seconds between two checks of the free space while disks arrive."""
# Milliseconds, except for `rounds`: the values with which QEMU itself announces a guest after a migration.
_ANNOUNCE: Final = {"initial": 50, "max": 550, "rounds": 5, "step": 100}
log = structlog.get_logger(__name__)

Steps = Callable[[UUID], AbstractAsyncContextManager[None]]


class LiveReceiving:
    """`steps` and `remove` as of `Moves`; `libvirt_socket` says where libvirt is spoken to."""

    def __init__(
        self,
        *,
        guests: Guests,
        folders: Folders,
        naming: Naming,
        images: ImageCache,
        network: HostNetwork,
        definitions: Definitions,
        open_stream: OpenStream,
        steps: Steps,
        remove: arrivals.Remove,
        sockets: SocketsOf,
        libvirt_socket: Callable[[], Path],
    ) -> None:
        self._guests = guests
        self._folders = folders
        self._naming = naming
        self._images = images
        self._network = network
        self._definitions = definitions
        self._open_stream = open_stream
        self._steps = steps
        self._remove = remove
        self._sockets = sockets
        self._libvirt_socket = libvirt_socket

    async def receive(self, operation: VmLiveReceive, report: Report) -> LiveResult:
        vm_id = operation.vm_id
        await in_thread(require_platform, operation.machine.platform)

        async def fetching(percent: int, message: str) -> None:
            await report(percent // 10, message)

        # Fetched before the machine's turn is taken, because a download may last for minutes.
        await self._images.ensure(operation.image, fetching)
        async with self._steps(vm_id):
            volumes = arrivals.volumes_of(operation.machine.disks)
            await arrivals.require_nothing_of(self._guests, self._folders, vm_id, volumes)
            try:
                # The mark is written first: after a crash anywhere between here and `complete`, the next start removes
                # what the mark names.
                await in_thread(arrivals.start, self._folders, vm_id, volumes)
                fault_point("live.begun")
                await self._receive(operation, report)
                if not await self._has_arrived(vm_id):
                    raise cut_short("the guest has not arrived")
                fault_point("live.arrived")
                await in_thread(arrivals.complete, self._folders, vm_id)
            except BaseException:
                # Also after a cancellation. If the guest has already arrived completely, it is lost here and off at the
                # source; the controller then asks both nodes and has it started at the source.
                await arrivals.undo(self._folders, vm_id, volumes, self._remove)
                raise
        return LiveResult(vm_id=vm_id, place=LivePlace.ARRIVED, state=await self._guests.state(vm_id))

    async def look(self, vm_id: UUID) -> LiveResult:
        state = await self._guests.state(vm_id)
        arrived = state is not DomainState.ABSENT and await self._has_arrived(vm_id)
        # If the mark still exists, the guest is complete according to libvirt, but `receive` has not ended. A crash now
        # would remove the guest, so it must not be reported as arrived: the controller would give up the source's copy.
        marked = await in_thread(self._folders.abandonment(vm_id).exists)
        place = LivePlace.ARRIVED if arrived and not marked else LivePlace.ABSENT
        return LiveResult(vm_id=vm_id, place=place, state=state)

    async def finish(self, operation: VmLiveFinish) -> DomainResult:
        vm_id = operation.vm_id
        async with self._steps(vm_id):
            # The network is applied first: a guest that is resumed earlier would send without a network, and its
            # announcements would be lost.
            record = await self._definitions.with_network(vm_id, operation.network)
            await self._definitions.apply_network(record)
            fault_point("live.carried")
            if await call_domain(self._guests, vm_id, "virDomainResume", resume_migrated_guest) is LivePlace.HERE:
                await self._announce(vm_id)
            fault_point("live.gone_on")
            # The definition that came with the guest is used only while it runs; for the next start this host writes a
            # definition of its own. libvirt may take seconds for this, so it is done after the guest was resumed.
            await self._definitions.define(record)
            return DomainResult(vm_id=vm_id, state=await self._guests.state(vm_id))

    async def _receive(self, operation: VmLiveReceive, report: Report) -> None:
        vm_id, sockets = operation.vm_id, self._sockets(operation.vm_id)
        record = _record_of(operation)
        base = self._images.base_of(record.base)
        folder = self._folders.machine(vm_id)
        async with (
            sockets.opened(),
            dial_streams(self._open_stream, operation.streams) as (words, memory, disk_streams),
        ):
            place = Place(
                machine=folder, volumes=self._folders.volumes, base=base.path, domain=self._naming.domain(vm_id)
            )
            await words.send_all(place.model_dump_json().encode() + b"\n")
            await report(10, "making room for the guest")
            await self._take_luggage(record, words)
            await in_thread(write_whole, folder / RECORD, record.stored(), mode=0o600)
            await self._make_disks(record, base)
            await self._network.apply(vm_id, record.network)
            fault_point("live.ready")
            await words.send_all(b"ready\n")
            # From here on the stream carries libvirt's messages, and any client of libvirt's socket has root's rights:
            # so every message is checked by the gate.
            gate, short = Gate(self._moved(record, base)), trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_room, record, short, nursery.cancel_scope)
                nursery.start_soon(relay_on_dial, memory, sockets.memory)
                for each in disk_streams:
                    nursery.start_soon(relay_on_dial, each, sockets.disk)
                socket = await in_thread(self._libvirt_socket)
                # The source's libvirt connects at once, so two minutes of silence are a failure. QEMU connects for the
                # memory only once the disks are copied, which may take hours.
                await relay_on_dial(words, socket, gate.watch, within=READY_SECONDS, silence=SILENCE_SECONDS)
                nursery.cancel_scope.cancel()
            if short.is_set():
                # This raises an error with the figures. If room was freed since, it does not, and the move counts as
                # cut short.
                await require_room(folder, "a running machine")
                raise cut_short("this host ran short of disk space")

    async def _watch_room(self, record: MachineRecord, short: trio.Event, over: trio.CancelScope) -> None:
        """End the move before the file system is full. libvirt fills each disk up to its size, and a host's disks may
        be larger together than its file system: once that is full, the host's other guests would be paused."""
        folders = {self._folders.disk_of(record.vm_id, disk).parent for disk in record.disks}
        while True:
            for folder in folders:
                if await in_thread(is_nearly_full, folder):
                    short.set()
                    over.cancel()
                    return
            await trio.sleep(ROOM_SECONDS)

    def _moved(self, record: MachineRecord, base: BaseImage) -> ArrivingMachine:
        vm_id, folders = record.vm_id, self._folders
        return ArrivingMachine(
            vm_id=vm_id,
            domain=self._naming.domain(vm_id),
            disks=frozenset(folders.disk_of(vm_id, disk) for disk in record.disks),
            base=base,
            seed=folders.seed(vm_id),
            serial_log=folders.serial_log(vm_id),
            nvram=folders.nvram(vm_id),
            taps=frozenset(self._naming.tap(nic.nic_id) for nic in record.network.nics),
        )

    async def _make_disks(self, record: MachineRecord, base: BaseImage) -> None:
        """Make the disks, of their sizes and empty; libvirt fills them."""
        await disks.ensure_disks(record, base, self._folders, qemu_user().owner)
        for disk in record.disks:
            if disk.volume_id is not None:
                await volume_files.make(self._folders, disk.volume_id, disk.size_gib, qemu_user().owner)

    async def _take_luggage(self, record: MachineRecord, stream: trio.abc.Stream) -> None:
        vm_id = record.vm_id
        try:
            boot_data = FirstBootData.model_validate_json(await line(stream))
        except ValidationError as error:
            raise unreadable() from error
        seed = await exactly(stream, boot_data.seed_bytes)
        partial = self._folders.seed(vm_id).with_suffix(".partial")
        await in_thread(partial.write_bytes, seed)
        await in_thread(put_in_place, partial, self._folders.seed(vm_id), mode=0o400, owner=qemu_user().owner)
        if boot_data.password_hash is not None:
            first_boot = FirstBoot(password_hash=boot_data.password_hash).model_dump_json().encode()
            await in_thread(write_whole, self._folders.machine(vm_id) / SECRET, first_boot, mode=0o600)

    async def _has_arrived(self, vm_id: UUID) -> bool:
        """Whether the guest has arrived complete: libvirt makes such a guest persistent, and removes any other."""
        with trio.move_on_after(ARRIVAL_SECONDS):
            while True:
                found = await call_domain(
                    self._guests, vm_id, "virDomainIsPersistent", lambda domain: bool(domain.isPersistent())
                )
                # None: libvirt has removed the guest. False: the guest is still transient, so libvirt has not decided
                # yet.
                if found is not False:
                    return bool(found)
                await trio.sleep(LOOK_SECONDS)
        return False

    async def _announce(self, vm_id: UUID) -> None:
        """Have QEMU announce the guest's MAC addresses to its neighbours. If that fails, they learn the new place from
        the next packet that the guest sends."""
        command = json.dumps({"execute": "announce-self", "arguments": _ANNOUNCE})
        try:
            await call_domain(
                self._guests, vm_id, "announce-self", lambda domain: libvirt_qemu.qemuMonitorCommand(domain, command, 0)
            )
        except HostError as error:
            log.warning("live.not_announced", vm_id=str(vm_id), error=error.message)


def _record_of(operation: VmLiveReceive) -> MachineRecord:
    """The machine's record until `finish`. Its NICs have no addresses, and are isolated: until the guest is resumed
    here the source carries its addresses, and this host drops what the guest sends."""
    spec = operation.machine
    nics = tuple(nic.model_copy(update={"addresses": (), "nameservers": ()}) for nic in spec.network.nics)
    return MachineRecord(
        vm_id=spec.vm_id,
        name=spec.name,
        vcpus=spec.vcpus,
        memory_mib=spec.memory_mib,
        disks=tuple(sorted(spec.disks, key=lambda disk: disk.index)),
        base=file_name(operation.image),
        network=NetworkSpec(nics=nics, isolated=True),
        seed=spec.seed.model_copy(update={"account": spec.seed.account.model_copy(update={"password_hash": None})}),
        cpu_mode=operation.cpu_mode,
        platform=spec.platform,
    )
