"""Replacing a part of a machine: another size, another processor, another system.

Invariants: a resize or a change of processor that fails leaves the machine as it was before its first attempt; if the
connection to libvirt is lost, the operation continues once libvirt is back. A reinstallation that was decided is never
undone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import structlog
import trio

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError, Report
from svc_nodeagent.hypervisor import disks, reinstallation
from svc_nodeagent.hypervisor.acceleration import Acceleration, qemu_user
from svc_nodeagent.hypervisor.connection import ConnectionLost
from svc_nodeagent.hypervisor.definitions import PUT_BACK_SECONDS, Definitions
from svc_nodeagent.hypervisor.domains import disk_target
from svc_nodeagent.hypervisor.files import GIB, Folders, MachineRecord, in_thread
from svc_nodeagent.hypervisor.guests import Guests, absent
from svc_nodeagent.hypervisor.images import ImageCache, file_name
from svc_nodeagent.hypervisor.media import installer
from svc_nodeagent.hypervisor.platforms import require_platform
from svc_nodeagent.hypervisor.processors import cpu_element, with_processor
from svc_nodeagent.hypervisor.shutdown import OFF, wait_until_off
from svc_nodeagent.hypervisor.turns import Order, Turns
from svc_nodeagent.protocol import (
    CpuMode,
    DomainResult,
    DomainState,
    RemakingOperation,
    VmCpuSet,
    VmReinstall,
    VmResize,
)

FIRST_START_SECONDS = 45.0
"""Seconds for installing a new system and starting it, even if the operation ends meanwhile. If it takes longer, the
controller takes over: it starts machines that should run. Less than the time that service managers give an agent to
stop."""
ABANDON_SECONDS = 20.0
"""Seconds for removing the disk of a reinstallation that was not decided; a disk that stays is removed by the next
reinstallation."""
log = structlog.get_logger()


class Remaking:
    def __init__(
        self,
        *,
        guests: Guests,
        folders: Folders,
        images: ImageCache,
        acceleration: Acceleration,
        definitions: Definitions,
        turns: Turns,
    ) -> None:
        self._guests = guests
        self._folders = folders
        self._images = images
        self._acceleration = acceleration
        self._definitions = definitions
        self._turns = turns

    async def perform(self, operation: RemakingOperation, report: Report) -> DomainResult:
        match operation:
            case VmResize():
                return await self.resize(operation, report)
            case VmCpuSet():
                return await self.set_processor(operation, report)
            case VmReinstall():
                return await self.reinstall(operation, report)

    async def resize(self, operation: VmResize, report: Report) -> DomainResult:
        """The disk is grown last, since this cannot be undone. After a failure the values that the operation names as
        the previous ones are restored, not those of the record: an earlier attempt may have changed the record."""
        vm_id = operation.vm_id
        order = self._turns.order(vm_id, "the resize") if operation.restart else None
        async with self._or_put_back(operation, order):
            # If the guest has the new size already, an earlier attempt has started it with that size, so no restart is
            # needed.
            restarts = order if await self._guests.size(vm_id) != (operation.vcpus, operation.memory_mib) else None
            if restarts is not None:
                await wait_until_off(self._guests, vm_id, operation.timeout_seconds, restarts, report)
                fault_point("resize.off")
            async with self._turns.steps(vm_id):
                if order is not None:
                    order.check()
                await self._resize(
                    _resized(await self._definitions.record(vm_id), operation), start=restarts is not None
                )
        return DomainResult(vm_id=vm_id, state=await self._guests.state(vm_id))

    async def set_processor(self, operation: VmCpuSet, report: Report) -> DomainResult:
        """If the guest is to be restarted, it goes off before anything is written; so if it does not shut down, nothing
        is changed. A machine found off is started: an interrupted restart has left it off."""
        vm_id, wanted = operation.vm_id, operation.cpu_mode
        cpu_element(wanted, (await self._acceleration.verdict()).accelerator)
        order = self._turns.order(vm_id, "the change of its processor") if operation.restart else None
        # If the record has the new processor, an earlier attempt has written it, after it had shut the guest down.
        resumed = wanted is not operation.before and (await self._definitions.record(vm_id)).cpu_mode is wanted
        if order is not None and not (resumed and await self._guests.state(vm_id) is DomainState.RUNNING):
            await wait_until_off(self._guests, vm_id, operation.timeout_seconds, order, report)
            fault_point("processor.off")
        async with self._or_put_back(operation, order), self._turns.steps(vm_id):
            if order is not None:
                order.check()
            await self._write_processor(vm_id, wanted)
            fault_point("processor.defined")
            if order is not None:
                await self._start_again(await self._definitions.record(vm_id))
        return DomainResult(vm_id=vm_id, state=await self._guests.state(vm_id))

    async def reinstall(self, operation: VmReinstall, report: Report) -> DomainResult:
        """The old guest continues to run until the new disk is complete. Once the reinstallation is decided, the
        machine is the new system, and a later failure or timeout does not make the reinstallation fail."""
        vm_id = operation.vm_id
        order = self._turns.order(vm_id, "the reinstallation")

        async def fetched(percent: int, message: str) -> None:
            await report(percent * 6 // 10, message)

        if await self._instance(vm_id) != operation.seed.instance_id:
            await in_thread(require_platform, operation.platform)
            if operation.iso is not None:
                await self._images.ensure(operation.iso, fetched)
            await self._images.ensure(operation.image, fetched)
            async with self._turns.steps(vm_id):
                order.check()
                record = await self._definitions.with_network(vm_id, operation.network)
                await self._definitions.apply_network(record)
                await report(60, "making the new disk")
                await self._decide_system(record, operation)
        state = DomainState.STOPPED
        with trio.CancelScope(shield=True, deadline=trio.current_time() + FIRST_START_SECONDS) as patience:
            try:
                await report(90, "starting")
                state = await self._start_system(operation, order)
            except (HostError, OSError, ValueError) as error:
                log.error("machine.reinstalled_not_started", vm_id=str(vm_id), error=str(error))
        if patience.cancelled_caught:
            why = f"not within {FIRST_START_SECONDS:g} s"
            log.error("machine.reinstalled_not_started", vm_id=str(vm_id), error=why)
        return DomainResult(vm_id=vm_id, state=state)

    async def complete_reinstallations(self) -> None:
        """Complete the decided reinstallations that the death of an agent, or an unresponsive libvirt, has left
        incomplete."""
        for vm_id in await in_thread(reinstallation.decided, self._folders):
            async with self._turns.steps(vm_id):
                log.info("machine.reinstallation_completed", vm_id=str(vm_id))

    @asynccontextmanager
    async def _or_put_back(self, operation: VmResize | VmCpuSet, order: Order | None) -> AsyncIterator[None]:
        """If the block fails, restore the state that the machine had before the operation."""
        try:
            yield
        except ConnectionLost:
            raise  # the same operation continues once libvirt is back
        except BaseException:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + PUT_BACK_SECONDS):
                await self._put_back(operation, order)
            raise

    async def _put_back(self, operation: VmResize | VmCpuSet, order: Order | None) -> None:
        """Restore the machine's size or processor. A guest that is off is started again, unless there is a later order:
        then that order decides about the guest."""
        vm_id = operation.vm_id
        try:
            async with self._turns.steps(vm_id):
                if not await self._definitions.exists(vm_id):
                    return
                match operation:
                    case VmResize():
                        await self._write_size(_as_before(await self._definitions.record(vm_id), operation))
                    case VmCpuSet(before=mode):
                        await self._write_processor(vm_id, mode)
                if order is not None and order.stands and await self._guests.state(vm_id) in OFF:
                    await self._start_again(await self._definitions.record(vm_id))
        except (HostError, OSError) as error:
            log.error("machine.not_put_back", operation=operation.op, vm_id=str(vm_id), error=str(error))

    async def _resize(self, record: MachineRecord, *, start: bool) -> None:
        await self._write_size(record)
        if start:
            await self._start_again(record)
        fault_point("resize.defined")
        vm_id, disk = record.vm_id, record.disks[0]
        if await self._guests.state(vm_id) in OFF:
            await disks.grow(self._folders.disk(vm_id, disk.index), disk.size_gib)
        else:
            await self._guests.grow_disk(vm_id, disk_target(disk.index), disk.size_gib * GIB)

    async def _write_size(self, record: MachineRecord) -> None:
        await self._definitions.write(record)
        fault_point("resize.recorded")
        await self._definitions.define(record)

    async def _write_processor(self, vm_id: UUID, mode: CpuMode) -> None:
        element = cpu_element(mode, (await self._acceleration.verdict()).accelerator)
        changed = with_processor(await self._guests.definition(vm_id), element)
        record = (await self._definitions.record(vm_id)).model_copy(update={"cpu_mode": mode})
        await self._definitions.write(record)
        fault_point("processor.recorded")
        await self._guests.define(changed)

    async def _start_again(self, record: MachineRecord) -> None:
        await self._definitions.apply_network(record)
        await self._definitions.write_seed(record)
        await self._guests.start(record.vm_id)

    async def _instance(self, vm_id: UUID) -> str:
        """The instance id of the machine's system, or of the new system once the reinstallation is decided."""
        try:
            return (await in_thread(reinstallation.current, self._folders, vm_id)).seed.instance_id
        except FileNotFoundError as error:
            raise absent(vm_id) from error

    async def _decide_system(self, record: MachineRecord, operation: VmReinstall) -> None:
        """Make the new system the machine's from now on; if that fails, the old system continues to run."""
        vm_id, base = record.vm_id, file_name(operation.image)
        try:
            await reinstallation.prepare(record, self._images.base_of(base), self._folders, qemu_user().owner)
        except BaseException:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + ABANDON_SECONDS):
                await in_thread(reinstallation.abandon, self._folders, vm_id)
            raise
        seed = operation.seed.model_copy(
            update={"account": operation.seed.account.model_copy(update={"password_hash": None})}
        )
        new = record.model_copy(update={"base": base, "seed": seed, "platform": operation.platform})
        medium = None if operation.iso is None else installer(operation.iso)
        with trio.CancelScope(shield=True):
            await in_thread(reinstallation.decide, new, operation.seed.account.password_hash, medium, self._folders)

    async def _start_system(self, operation: VmReinstall, order: Order) -> DomainState:
        """Complete the replacement, as any step of a machine does first, and start the new system."""
        vm_id = operation.vm_id
        async with self._turns.steps(vm_id):
            order.check()
            record = await self._definitions.with_network(vm_id, operation.network)
            await self._definitions.apply_network(record)
            await self._definitions.write_seed(record)
            await self._definitions.define(record)
            fault_point("reinstall.defined")
            await self._guests.start(vm_id)
            return await self._guests.state(vm_id)


def _resized(record: MachineRecord, operation: VmResize) -> MachineRecord:
    first, *others = record.disks
    grown = first.model_copy(update={"size_gib": max(first.size_gib, operation.disk_gib)})
    sizes = {"vcpus": operation.vcpus, "memory_mib": operation.memory_mib, "disks": (grown, *others)}
    return record.model_copy(update=sizes)


def _as_before(record: MachineRecord, operation: VmResize) -> MachineRecord:
    """The machine's record without the changes of an earlier attempt at the resize."""
    before = operation.before
    first, *others = record.disks
    if first.size_gib <= operation.disk_gib:  # otherwise the disk was larger already, and no attempt has changed it
        first = first.model_copy(update={"size_gib": before.disk_gib})
    sizes = {"vcpus": before.vcpus, "memory_mib": before.memory_mib, "disks": (first, *others)}
    return record.model_copy(update=sizes)
