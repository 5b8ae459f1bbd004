"""Volumes of machines: created, attached, detached, grown and deleted, while their guests run or are off.

The machine's record says which volumes it has. An attachment writes the record first, as every change of a machine
does; a detachment writes it last, once the guest has released the disk. So a running guest never has a disk that is not
in the record.

Invariants: steps of one volume do not overlap; a volume is in one record at most; if a guest does not release a volume,
the volume stays attached and in the record; every step detects whether it was done already, so repeating an interrupted
operation completes it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final
from uuid import UUID

import libvirt
import structlog
import trio

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import volume_files
from svc_nodeagent.hypervisor.acceleration import qemu_user
from svc_nodeagent.hypervisor.connection import ConnectionLost, LibvirtError
from svc_nodeagent.hypervisor.definitions import PUT_BACK_SECONDS, Definitions
from svc_nodeagent.hypervisor.disks import grow
from svc_nodeagent.hypervisor.domains import disk_target, plugged_volumes, volume_xml
from svc_nodeagent.hypervisor.files import GIB, Folders, MachineRecord, in_thread
from svc_nodeagent.hypervisor.guests import Guests, absent
from svc_nodeagent.protocol import (
    DiskSpec,
    DomainResult,
    DomainState,
    Done,
    FailureCode,
    OperationResult,
    VolumeAttach,
    VolumeCreate,
    VolumeDelete,
    VolumeDetach,
    VolumeGrow,
    VolumeOperation,
    volume_serial,
)

_LOOK_SECONDS: Final = 0.2
_ASK_AGAIN_SECONDS: Final = 10.0
log = structlog.get_logger(__name__)
Steps = Callable[[UUID], AbstractAsyncContextManager[None]]


class Volumes:
    """Carries out the operations on volumes. Inside a block of `steps(vm_id)`, no other step of that machine runs."""

    def __init__(self, guests: Guests, folders: Folders, definitions: Definitions, steps: Steps) -> None:
        self._guests = guests
        self._folders = folders
        self._definitions = definitions
        self._steps = steps
        self._locks: dict[UUID, trio.Lock] = {}

    async def perform(self, operation: VolumeOperation) -> OperationResult:
        async with self._locks.setdefault(operation.volume_id, trio.Lock()):
            match operation:
                case VolumeCreate():
                    await volume_files.make(self._folders, operation.volume_id, operation.size_gib, qemu_user().owner)
                case VolumeAttach():
                    return await self._attach(operation)
                case VolumeDetach():
                    return await self._detach(operation)
                case VolumeGrow():
                    await self._grow(operation)
                case VolumeDelete():
                    await in_thread(volume_files.remove, self._folders, operation.volume_id, operation.kept)
        return Done()

    async def _attach(self, operation: VolumeAttach) -> DomainResult:
        vm_id, volume_id = operation.vm_id, operation.volume_id
        await volume_files.take_over(self._folders, volume_id, operation.kept, qemu_user().owner)
        # The size is the one in the record: a kept disk may have been recorded with a larger size than it has.
        wanted = DiskSpec(index=operation.index, size_gib=operation.size_gib, volume_id=volume_id)
        async with self._steps(vm_id):
            held = await in_thread(volume_files.holder, self._folders, volume_id)
            if held not in (None, vm_id):
                raise HostError(
                    FailureCode.CONFLICT, "Another machine has the volume; nothing was changed.", "Detach it there."
                )
            before = await self._definitions.record(vm_id)
            taken = {disk.index: disk.volume_id for disk in before.disks}
            if taken.get(operation.index, volume_id) != volume_id:
                raise HostError(FailureCode.CONFLICT, f"The machine has a disk {operation.index} already.")
            others = tuple(disk for disk in before.disks if disk.volume_id != volume_id)
            disks = tuple(sorted((*others, wanted), key=lambda disk: disk.index))
            try:
                await self._write(before.model_copy(update={"disks": disks}))
                await self._plug(vm_id, volume_id, operation.index)
            except ConnectionLost:
                raise  # the same attachment continues once libvirt is back
            except BaseException:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + PUT_BACK_SECONDS):
                    await self._put_back(before.model_copy(update={"disks": others}), volume_id)
                raise
            fault_point("volume.plugged")
            return await self._result(vm_id)

    async def _detach(self, operation: VolumeDetach) -> DomainResult:
        """Detach the volume. The wait for the guest is outside of the machine's steps, so that the guest can be stopped
        by force meanwhile."""
        vm_id, volume_id = operation.vm_id, operation.volume_id
        await self._until_unplugged(vm_id, volume_id, operation.timeout_seconds)
        fault_point("volume.unplugged")
        async with self._steps(vm_id):
            record = await self._definitions.record(vm_id)
            left = tuple(disk for disk in record.disks if disk.volume_id != volume_id)
            if await self._plugged(vm_id, volume_id) is not None:
                raise _not_let_go(0)
            # Also if the record no longer has the volume: an interrupted attempt may have left it in the definition.
            await self._write(record.model_copy(update={"disks": left}))
            path = self._folders.volume(volume_id)
            if await in_thread(path.exists):
                await volume_files.drop_snapshots(path)
            return await self._result(vm_id)

    async def _grow(self, operation: VolumeGrow) -> None:
        volume_id, vm_id, size_gib = operation.volume_id, operation.vm_id, operation.size_gib
        path = await volume_files.take_over(self._folders, volume_id, operation.kept, qemu_user().owner)
        if vm_id is None:
            if await in_thread(volume_files.holder, self._folders, volume_id) is not None:
                raise HostError(FailureCode.CONFLICT, "A machine has the volume; nothing was changed.")
            await grow(path, size_gib)
            return
        async with self._steps(vm_id):
            record = await self._definitions.record(vm_id)
            disk = next((each for each in record.disks if each.volume_id == volume_id), None)
            if disk is None:
                raise HostError(FailureCode.CONFLICT, "The machine does not have the volume; nothing was changed.")
            if await self._plugged(vm_id, volume_id) is None:
                await grow(path, size_gib)
            else:
                await self._guests.grow_disk(vm_id, disk_target(disk.index), size_gib * GIB)
            fault_point("volume.grown")
            grown = disk.model_copy(update={"size_gib": max(disk.size_gib, size_gib)})
            disks = tuple(grown if each is disk else each for each in record.disks)
            await self._definitions.write(record.model_copy(update={"disks": disks}))

    async def _write(self, record: MachineRecord) -> None:
        await self._definitions.write(record)
        fault_point("volume.recorded")
        await self._definitions.define(record)
        fault_point("volume.defined")

    async def _plug(self, vm_id: UUID, volume_id: UUID, index: int) -> None:
        if await self._plugged(vm_id, volume_id) is not None:
            return
        xml = volume_xml(volume_id, index, self._folders)

        def plug(domain: Any) -> None:
            if domain.isActive():
                domain.attachDeviceFlags(xml, libvirt.VIR_DOMAIN_AFFECT_LIVE)

        try:
            await self._guests.on_domain(vm_id, "virDomainAttachDeviceFlags", plug)
        except LibvirtError as error:
            if "no more available pci slots" in error.message.lower():
                raise HostError(
                    FailureCode.CONFLICT,
                    "The guest has no free slot for another disk, since it was started by an earlier release;"
                    " nothing was changed.",
                    "Shut the machine down and start it, or attach the volume while it is off.",
                ) from error
            raise

    async def _put_back(self, record: MachineRecord, volume_id: UUID) -> None:
        """After a failed attachment: remove the volume from the record, unless the guest has the volume after all."""
        try:
            if await self._plugged(record.vm_id, volume_id) is None:
                await self._write(record)
        except (HostError, OSError) as error:
            log.error("volume.not_put_back", vm_id=str(record.vm_id), volume_id=str(volume_id), error=str(error))

    async def _until_unplugged(self, vm_id: UUID, volume_id: UUID, seconds: float) -> None:
        """Wait until the device is gone. libvirt removes it from the domain when QEMU reports that the guest has
        released it (DEVICE_DELETED)."""
        began, asked = trio.current_time(), -_ASK_AGAIN_SECONDS
        while (device := await self._plugged(vm_id, volume_id)) is not None:
            if (now := trio.current_time()) - began >= seconds:
                raise _not_let_go(seconds)
            if now - asked >= _ASK_AGAIN_SECONDS:  # a guest that is still booting ignores the first request
                asked = now
                await self._ask_to_let_go(vm_id, device)
                fault_point("volume.unplugging")
            await trio.sleep(_LOOK_SECONDS)

    async def _ask_to_let_go(self, vm_id: UUID, device: str) -> None:
        def unplug(domain: Any) -> None:
            if domain.isActive():
                domain.detachDeviceFlags(device, libvirt.VIR_DOMAIN_AFFECT_LIVE)

        try:
            await self._guests.on_domain(vm_id, "virDomainDetachDeviceFlags", unplug)
        except ConnectionLost:
            raise
        except LibvirtError as error:
            # The guest may be about to answer, or may have released the device by now: only whether the device is still
            # there counts.
            log.info("volume.asked_again", vm_id=str(vm_id), error=error.message)

    async def _plugged(self, vm_id: UUID, volume_id: UUID) -> str | None:
        """The volume's device in the running guest; None if the guest does not have it, or does not run."""

        def look(domain: Any) -> str:
            return str(domain.XMLDesc()) if domain.isActive() else "<domain/>"

        try:
            xml = await self._guests.on_domain(vm_id, "virDomainGetXMLDesc", look)
        except LibvirtError as error:
            if error.number == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise
        return plugged_volumes(xml).get(volume_serial(volume_id))

    async def _result(self, vm_id: UUID) -> DomainResult:
        state = await self._guests.state(vm_id)
        if state is DomainState.ABSENT:
            raise absent(vm_id)
        return DomainResult(vm_id=vm_id, state=state)


def _not_let_go(seconds: float) -> HostError:
    waited = f" within {seconds:g} s" if seconds else ""
    return HostError(
        FailureCode.TIMED_OUT,
        f"The guest did not release the volume{waited}; it is still attached.",
        "Check that the guest has booted and does not use the volume, then detach it again; or shut the machine down "
        "first.",
    )
