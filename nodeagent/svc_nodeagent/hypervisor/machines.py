"""The operations on one machine of this host, step by step.

Invariants:

- every step detects whether it was done already, so an operation that was interrupted between any two steps is
  completed by repeating it;
- a creation that failed, by an error of the host or by a timeout, leaves nothing of the machine;
- the record is written first and removed last (`definitions`);
- an operation that a later order supersedes notices this, and ends as cancelled (`turns`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

import structlog
import trio

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError, Report
from svc_nodeagent.hypervisor import disks, platform_state, volume_files
from svc_nodeagent.hypervisor.acceleration import qemu_user
from svc_nodeagent.hypervisor.connection import ConnectionLost
from svc_nodeagent.hypervisor.definitions import Definitions
from svc_nodeagent.hypervisor.files import SECRET, Folders, MachineRecord, in_thread
from svc_nodeagent.hypervisor.guests import Guests, absent
from svc_nodeagent.hypervisor.images import ImageCache, file_name
from svc_nodeagent.hypervisor.media import installer, write_inserted
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.network.plan import without
from svc_nodeagent.hypervisor.platforms import require_platform
from svc_nodeagent.hypervisor.seeds import write_seed
from svc_nodeagent.hypervisor.shutdown import wait_until_off
from svc_nodeagent.hypervisor.turns import Turns
from svc_nodeagent.protocol import (
    DeleteResult,
    DomainResult,
    DomainState,
    Done,
    FailureCode,
    KeptMachine,
    MachineOperation,
    NetworkResult,
    NetworkSpec,
    OperationResult,
    ReleaseResult,
    VmCreate,
    VmDelete,
    VmForceStop,
    VmNetApply,
    VmNetRelease,
    VmReboot,
    VmReset,
    VmSetPassword,
    VmShutdown,
    VmStart,
    VmUpdate,
)

UNDO_SECONDS = 20.0
"""Seconds for removing what a failed creation has left. If the host takes longer, the deletion of the machine removes
the rest."""
log = structlog.get_logger()


class Machines:
    def __init__(
        self,
        *,
        guests: Guests,
        folders: Folders,
        images: ImageCache,
        network: HostNetwork,
        definitions: Definitions,
        turns: Turns,
    ) -> None:
        self._guests = guests
        self._folders = folders
        self._images = images
        self._network = network
        self._definitions = definitions
        self._turns = turns

    async def perform(self, operation: MachineOperation, report: Report) -> OperationResult:
        vm_id = operation.machine.vm_id if isinstance(operation, VmCreate) else operation.vm_id
        match operation:
            case VmCreate():
                return await self.create(operation, report)
            case VmStart(network=network):
                return await self.start(vm_id, network)
            case VmShutdown(timeout_seconds=seconds):
                return await self.shutdown(vm_id, seconds, report)
            case VmReboot(timeout_seconds=seconds):
                return await self.reboot(vm_id, seconds, report)
            case VmForceStop():
                return await self.force_stop(vm_id)
            case VmReset():
                return await self.reset(vm_id)
            case VmDelete(destroy_disks=destroy_disks, destroy_volumes=destroy_volumes):
                return await self.delete(vm_id, destroy_disks=destroy_disks, destroy_volumes=destroy_volumes)
            case VmUpdate():
                return await self.update(operation)
            case VmSetPassword(account=account, password_hash=password_hash):
                await self._guests.set_password(vm_id, account, password_hash)
                return Done()
            case VmNetApply(network=network):
                return await self.apply_network(vm_id, network)
            case VmNetRelease(addresses=addresses):
                return await self.release(vm_id, addresses)

    async def create(self, operation: VmCreate, report: Report) -> DomainResult:
        spec = operation.machine
        order = self._turns.order(spec.vm_id, "the creation")
        record = MachineRecord(
            vm_id=spec.vm_id,
            name=spec.name,
            vcpus=spec.vcpus,
            memory_mib=spec.memory_mib,
            disks=tuple(sorted(spec.disks, key=lambda disk: disk.index)),
            base=file_name(operation.image),
            network=spec.network,
            seed=spec.seed.model_copy(update={"account": spec.seed.account.model_copy(update={"password_hash": None})}),
            platform=spec.platform,
        )
        await in_thread(require_platform, record.platform)
        if record.disks[0].index != 0:
            raise HostError(FailureCode.INVALID, "A machine has a disk 0, which is made from its image.")

        async def fetched(percent: int, message: str) -> None:
            await report(percent * 6 // 10, message)

        if operation.iso is not None:
            await self._images.ensure(operation.iso, fetched)
        await self._images.ensure(operation.image, fetched)
        fault_point("create.image")
        async with self._turns.steps(spec.vm_id):
            order.check()
            try:
                await self._build(await self._definitions.not_older(record), operation, report)
                return await self._result(spec.vm_id)
            except ConnectionLost:
                raise  # the same creation continues once libvirt is back
            except BaseException:
                await self._undo(spec.vm_id)
                raise

    async def describe(self, vm_id: UUID) -> KeptMachine:
        record = await self._definitions.record(vm_id)
        digest = record.base.partition("-")[2].rpartition(".")[0]
        return KeptMachine(image_digest=digest, **record.model_dump(exclude={"base", "cpu_mode"}))

    async def start(self, vm_id: UUID, network: NetworkSpec) -> DomainResult:
        """The definition is written anew from the record, so that changes made while the machine ran take effect."""
        self._turns.order(vm_id, "the start")
        async with self._turns.steps(vm_id):
            record = await self._definitions.with_network(vm_id, network)
            await self._definitions.apply_network(record)
            if await self._guests.state(vm_id) in (DomainState.RUNNING, DomainState.SHUTTING_DOWN):
                await self._definitions.define_again(record)
                return await self._result(vm_id)
            fault_point("start.network")
            await self._definitions.write_seed(record)
            await self._definitions.define(record)
            fault_point("start.defined")
            await self._guests.start(vm_id)
            return await self._result(vm_id)

    async def shutdown(self, vm_id: UUID, seconds: float, report: Report) -> DomainResult:
        order = self._turns.order(vm_id, "the shutdown")
        await wait_until_off(self._guests, vm_id, seconds, order, report)
        return await self._result(vm_id)

    async def reboot(self, vm_id: UUID, seconds: float, report: Report) -> DomainResult:
        """Reboot the machine. If it is off, it is started: an interrupted reboot has left it off."""
        order = self._turns.order(vm_id, "the reboot")
        await wait_until_off(self._guests, vm_id, seconds, order, report)
        fault_point("reboot.off")
        async with self._turns.steps(vm_id):
            order.check()
            record = await self._definitions.record(vm_id)
            await self._definitions.apply_network(record)
            await self._definitions.write_seed(record)
            await self._definitions.define(record)
            await self._guests.start(vm_id)
            return await self._result(vm_id)

    async def force_stop(self, vm_id: UUID) -> DomainResult:
        self._turns.order(vm_id, "the forced stop")
        async with self._turns.steps(vm_id):
            if await self._guests.state(vm_id) is DomainState.ABSENT:
                raise absent(vm_id)
            await self._guests.destroy(vm_id)
            return await self._result(vm_id)

    async def reset(self, vm_id: UUID) -> DomainResult:
        self._turns.order(vm_id, "the reset")
        async with self._turns.steps(vm_id):
            await self._guests.on_domain(vm_id, "virDomainReset", lambda domain: domain.reset(0))
            return await self._result(vm_id)

    async def delete(self, vm_id: UUID, *, destroy_disks: bool, destroy_volumes: tuple[UUID, ...] = ()) -> DeleteResult:
        self._turns.order(vm_id, "the deletion")
        async with self._turns.steps(vm_id):
            return await self._remove(vm_id, destroy_disks=destroy_disks, destroy_volumes=destroy_volumes)

    async def remove_within(self, vm_id: UUID) -> None:
        """Remove the machine and its disks, within a block of its `steps`."""
        await self._remove(vm_id, destroy_disks=True)

    async def remove_abandoned(self) -> None:
        """Remove the remains of creations that failed while libvirt did not answer."""
        for vm_id in await in_thread(self._folders.abandoned):
            async with self._turns.steps(vm_id):
                if await in_thread(self._folders.abandonment(vm_id).exists):
                    await self._remove(vm_id, destroy_disks=True)
                    log.info("machine.remains_removed", vm_id=str(vm_id))

    async def update(self, operation: VmUpdate) -> DomainResult:
        async with self._turns.steps(operation.vm_id):
            record = (await self._definitions.record(operation.vm_id)).model_copy(
                update={"name": operation.name, "vcpus": operation.vcpus, "memory_mib": operation.memory_mib}
            )
            await self._definitions.write(record)
            await self._definitions.define(record)
            return await self._result(operation.vm_id)

    async def apply_network(self, vm_id: UUID, network: NetworkSpec) -> NetworkResult:
        """Apply the network on the host, in the seed, and finally in the guest. The guest may be slow to answer;
        nothing waits for it."""
        async with self._turns.steps(vm_id):
            record = await self._definitions.record(vm_id)
            if network.generation >= record.network.generation:
                await self._change_network(record, network)
            else:
                network = record.network
        told = await self._guests.tell_network(vm_id, network, record.network)
        return NetworkResult(vm_id=vm_id, generation=network.generation, told=told)

    async def release(self, vm_id: UUID, addresses: tuple[str, ...]) -> ReleaseResult:
        async with self._turns.steps(vm_id):
            if not await self._definitions.exists(vm_id):
                # A creation that still waits for its image is given up: otherwise the machine would later get the
                # addresses that are reported as free here.
                self._turns.order(vm_id, "the release")
            given_up = await self._give_up(vm_id, frozenset(addresses))
            removed = await self._network.absent(addresses, vm_id)
            fault_point("network.released")
        if given_up is not None:
            record, kept = given_up
            await self._guests.tell_network(vm_id, kept, record.network)
        return ReleaseResult(vm_id=vm_id, removed=removed)

    async def keep_defined(self, vm_id: UUID) -> None:
        """Define a running machine of ours again if somebody undefined it. If the machine is being deleted, it has no
        record by the time of this step, and nothing is done."""
        async with self._turns.steps(vm_id):
            if await self._definitions.exists(vm_id):
                await self._definitions.define_again(await self._definitions.record(vm_id))

    async def forget_first_boot(self, vm_id: UUID) -> None:
        """The guest has booted: remove its password's hash from the seed. The running guest keeps the file it has
        open."""
        if not await self._definitions.exists(vm_id) or await in_thread(self._folders.in_rescue, vm_id):
            return
        booted = (await self._definitions.record(vm_id)).seed.instance_id
        async with self._turns.steps(vm_id):
            secret = self._folders.machine(vm_id) / SECRET
            if not await in_thread(secret.exists):
                return
            record = await self._definitions.record(vm_id)
            if record.seed.instance_id != booted:
                return  # the machine was reinstalled since, and the new system has not booted yet
            await write_seed(record, None, self._folders.seed(vm_id), qemu_user().owner)
            await in_thread(secret.unlink, missing_ok=True)

    async def _build(self, record: MachineRecord, operation: VmCreate, report: Report) -> None:
        await report(60, "making the disks, the first boot's seed and the network")
        await in_thread(self._folders.abandonment(record.vm_id).unlink, missing_ok=True)
        await self._definitions.write(record, operation.machine.seed.account.password_hash)
        if operation.iso is not None:
            await in_thread(write_inserted, self._folders, record.vm_id, installer(operation.iso))
        fault_point("create.record")
        await _together(partial(self._make_disks, record), partial(self._network.apply, record.vm_id, record.network))
        fault_point("create.network")
        await report(90, "defining the machine")
        await self._definitions.define(record)
        fault_point("create.defined")
        if operation.start:
            await report(95, "starting")
            await self._guests.start(record.vm_id)
            fault_point("create.started")

    async def undo_creation(self, vm_id: UUID) -> None:
        """Remove everything of a machine whose creation failed later than in `create`."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 2 * UNDO_SECONDS):
            self._turns.order(vm_id, "the end of its creation")
            async with self._turns.steps(vm_id):
                await self._undo(vm_id)

    async def _undo(self, vm_id: UUID) -> None:
        """Remove everything of a creation that failed. What cannot be removed in time is removed after the next
        (re)connection to libvirt, or when the machine is deleted."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_SECONDS) as patience:
            try:
                if await in_thread(self._folders.machine(vm_id).exists):
                    await in_thread(self._folders.abandonment(vm_id).touch)
                await self._remove(vm_id, destroy_disks=True)
            except (HostError, OSError) as error:
                log.error("machine.creation_not_undone", vm_id=str(vm_id), error=str(error))
        if patience.cancelled_caught:
            log.error("machine.creation_not_undone", vm_id=str(vm_id), error=f"not within {UNDO_SECONDS:g} s")

    async def _remove(
        self, vm_id: UUID, *, destroy_disks: bool, destroy_volumes: tuple[UUID, ...] = ()
    ) -> DeleteResult:
        await self._guests.destroy(vm_id)
        fault_point("delete.stopped")
        await self._guests.undefine(vm_id)
        fault_point("delete.undefined")
        removed = await self._network.remove(vm_id)
        fault_point("delete.network")
        await volume_files.release_volumes(self._folders, vm_id, destroy_volumes)
        retained = () if destroy_disks else await in_thread(disks.retain, self._folders, vm_id)
        await in_thread(platform_state.remove_tpm, vm_id)
        await in_thread(disks.destroy, self._folders, vm_id)
        fault_point("delete.removed")
        return DeleteResult(vm_id=vm_id, removed_addresses=removed, retained_disks=retained)

    async def _make_disks(self, record: MachineRecord) -> None:
        await disks.ensure_disks(record, self._images.base_of(record.base), self._folders, qemu_user().owner)
        fault_point("create.disks")
        await self._definitions.write_seed(record)
        fault_point("create.seed")

    async def _give_up(self, vm_id: UUID, addresses: frozenset[str]) -> tuple[MachineRecord, NetworkSpec] | None:
        """The previous record, and the network that remains once these addresses are given up; None if the machine has
        none of them."""
        if not await self._definitions.exists(vm_id):
            return None
        record = await self._definitions.record(vm_id)
        kept = without(record.network, addresses)
        if kept == record.network:
            return None
        await self._change_network(record, kept)
        return record, kept

    async def _change_network(self, record: MachineRecord, network: NetworkSpec) -> None:
        changed = record.model_copy(update={"network": network})
        await self._definitions.apply_network(changed)
        fault_point("network.applied")
        await self._definitions.write_seed(changed)

    async def _result(self, vm_id: UUID) -> DomainResult:
        return DomainResult(vm_id=vm_id, state=await self._guests.state(vm_id))


async def _together(*works: Callable[[], Awaitable[None]]) -> None:
    """Run these concurrently. The first failure cancels the others and is raised as itself, not in an exception
    group."""
    try:
        async with trio.open_nursery() as nursery:
            for work in works:
                nursery.start_soon(work)
    except BaseExceptionGroup as failures:
        failure: BaseException = failures
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise failure from failures
