"""What is done to one machine on this host, step by step.

Invariants:

- every step finds what it would make, so an operation interrupted between any two steps converges when it is repeated;
- a creation that has failed, by an error of the host or because its time was over, leaves nothing of the machine;
- the record is written first and removed last; domain, seed and network are derived from it;
- steps of one machine do not overlap (a lock a machine), but nothing waits under the lock for a guest or a download: a
  forced stop or a deletion comes through at once, and what it supersedes notices (`_Order`) and ends as cancelled.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import UUID

import structlog
import trio

from svc_nodeagent.durable import write_whole
from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError, Report
from svc_nodeagent.hypervisor import disks, reinstallation
from svc_nodeagent.hypervisor.acceleration import Acceleration, qemu_user
from svc_nodeagent.hypervisor.connection import ConnectionLost
from svc_nodeagent.hypervisor.domains import disk_target, domain_xml
from svc_nodeagent.hypervisor.files import (
    GIB,
    RECORD,
    SECRET,
    FirstBoot,
    Folders,
    MachineRecord,
    in_thread,
    read_record,
)
from svc_nodeagent.hypervisor.guests import Guests, absent
from svc_nodeagent.hypervisor.images import ImageCache, file_name
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.network.plan import without
from svc_nodeagent.hypervisor.processors import cpu_element, with_processor
from svc_nodeagent.hypervisor.seeds import write_seed
from svc_nodeagent.protocol import (
    CpuMode,
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
    VmCpuSet,
    VmCreate,
    VmDelete,
    VmForceStop,
    VmNetApply,
    VmNetRelease,
    VmReboot,
    VmReinstall,
    VmReset,
    VmResize,
    VmSetPassword,
    VmShutdown,
    VmStart,
    VmUpdate,
)

POLL_SECONDS = 0.5
PRESS_AGAIN_SECONDS = 10.0
PUT_BACK_SECONDS = 10.0
FIRST_START_SECONDS = 45.0
"""For putting a new system in its place and starting it, which no end of the operation cuts short. What takes longer is
left to whoever starts machines that shall run; it is below the time that service managers give an agent to stop."""
UNDO_SECONDS = 20.0
"""For removing what a failed creation has made; a host that takes longer is told again when the machine is deleted."""
log = structlog.get_logger()

_OFF = (DomainState.STOPPED, DomainState.CRASHED)


@dataclass
class _Turn:
    """Of one machine: the lock of its steps, and how many orders it has had."""

    lock: trio.Lock = field(default_factory=trio.Lock)
    orders: int = 0


@dataclass(frozen=True)
class _Order:
    """What was last decided on a machine; a creation, an orderly stop or a restart gives way to any later order."""

    what: str
    turn: _Turn
    number: int

    @property
    def stands(self) -> bool:
        return self.turn.orders == self.number

    def check(self) -> None:
        """Raises `HostError(cancelled)` when a later order has come."""
        if not self.stands:
            raise HostError(FailureCode.CANCELLED, f"A later order for the machine took the place of {self.what}.")


class Machines:
    def __init__(
        self,
        *,
        guests: Guests,
        folders: Folders,
        naming: Naming,
        images: ImageCache,
        network: HostNetwork,
        acceleration: Acceleration,
    ) -> None:
        self._guests = guests
        self._folders = folders
        self._naming = naming
        self._images = images
        self._network = network
        self._acceleration = acceleration
        self._turns: dict[UUID, _Turn] = {}

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
            case VmDelete(destroy_disks=destroy_disks):
                return await self.delete(vm_id, destroy_disks=destroy_disks)
            case VmUpdate():
                return await self.update(operation)
            case VmResize():
                return await self.resize(operation, report)
            case VmCpuSet():
                return await self.set_processor(operation, report)
            case VmReinstall():
                return await self.reinstall(operation, report)
            case VmSetPassword(account=account, password_hash=password_hash):
                await self._guests.set_password(vm_id, account, password_hash)
                return Done()
            case VmNetApply(network=network):
                return await self.apply_network(vm_id, network)
            case VmNetRelease(addresses=addresses):
                return await self.release(vm_id, addresses)

    async def create(self, operation: VmCreate, report: Report) -> DomainResult:
        spec = operation.machine
        order = self._order(spec.vm_id, "the creation")
        record = MachineRecord(
            vm_id=spec.vm_id,
            name=spec.name,
            vcpus=spec.vcpus,
            memory_mib=spec.memory_mib,
            disks=tuple(sorted(spec.disks, key=lambda disk: disk.index)),
            base=file_name(operation.image),
            network=spec.network,
            seed=spec.seed.model_copy(update={"account": spec.seed.account.model_copy(update={"password_hash": None})}),
        )
        if record.disks[0].index != 0:
            raise HostError(FailureCode.INVALID, "A machine has a disk 0, which is made from its image.")

        async def fetched(percent: int, message: str) -> None:
            await report(percent * 6 // 10, message)

        await self._images.ensure(operation.image, fetched)
        fault_point("create.image")
        async with self.steps(spec.vm_id):
            order.check()
            try:
                await self._build(await self._not_older(record), operation, report)
                return await self._result(spec.vm_id)
            except ConnectionLost:
                raise  # The same creation goes on once libvirt is back.
            except BaseException:
                await self._undo(spec.vm_id)
                raise

    async def describe(self, vm_id: UUID) -> KeptMachine:
        record = await self._record(vm_id)
        digest = record.base.partition("-")[2].rpartition(".")[0]
        return KeptMachine(image_digest=digest, **record.model_dump(exclude={"base", "cpu_mode"}))

    async def start(self, vm_id: UUID, network: NetworkSpec) -> DomainResult:
        """The definition is written anew from the record, so that changes made while the machine ran take effect."""
        self._order(vm_id, "the start")
        async with self.steps(vm_id):
            record = await self._with_network(vm_id, network)
            await self._apply_network(record)
            if await self._guests.state(vm_id) in (DomainState.RUNNING, DomainState.SHUTTING_DOWN):
                await self._define_again(record)
                return await self._result(vm_id)
            fault_point("start.network")
            await self._write_seed(record)
            await self._define(record)
            fault_point("start.defined")
            await self._guests.start(vm_id)
            return await self._result(vm_id)

    async def shutdown(self, vm_id: UUID, seconds: float, report: Report) -> DomainResult:
        order = self._order(vm_id, "the shutdown")
        await self._wait_until_off(vm_id, seconds, order, report)
        return await self._result(vm_id)

    async def reboot(self, vm_id: UUID, seconds: float, report: Report) -> DomainResult:
        """A machine found off is started: it is where an interrupted reboot was."""
        order = self._order(vm_id, "the reboot")
        await self._wait_until_off(vm_id, seconds, order, report)
        fault_point("reboot.off")
        async with self.steps(vm_id):
            order.check()
            record = await self._record(vm_id)
            await self._apply_network(record)
            await self._write_seed(record)
            await self._define(record)
            await self._guests.start(vm_id)
            return await self._result(vm_id)

    async def force_stop(self, vm_id: UUID) -> DomainResult:
        self._order(vm_id, "the forced stop")
        async with self.steps(vm_id):
            if await self._guests.state(vm_id) is DomainState.ABSENT:
                raise absent(vm_id)
            await self._guests.destroy(vm_id)
            return await self._result(vm_id)

    async def reset(self, vm_id: UUID) -> DomainResult:
        self._order(vm_id, "the reset")
        async with self.steps(vm_id):
            await self._guests.on_domain(vm_id, "virDomainReset", lambda domain: domain.reset(0))
            return await self._result(vm_id)

    async def delete(self, vm_id: UUID, *, destroy_disks: bool) -> DeleteResult:
        self._order(vm_id, "the deletion")
        async with self.steps(vm_id):
            return await self._remove(vm_id, destroy_disks=destroy_disks)

    async def remove_abandoned(self) -> None:
        """What is left of creations that failed while libvirt did not answer."""
        for vm_id in await in_thread(self._folders.abandoned):
            async with self.steps(vm_id):
                if await in_thread(self._folders.abandonment(vm_id).exists):
                    await self._remove(vm_id, destroy_disks=True)
                    log.info("machine.remains_removed", vm_id=str(vm_id))

    async def update(self, operation: VmUpdate) -> DomainResult:
        async with self.steps(operation.vm_id):
            record = (await self._record(operation.vm_id)).model_copy(
                update={"name": operation.name, "vcpus": operation.vcpus, "memory_mib": operation.memory_mib}
            )
            await in_thread(self._write_record, record, None)
            await self._define(record)
            return await self._result(operation.vm_id)

    async def resize(self, operation: VmResize, report: Report) -> DomainResult:
        """The disk last: what it has grown by is there for good. What a failure puts back is what the operation says:
        an attempt before this one may have changed the record."""
        vm_id = operation.vm_id
        order = self._order(vm_id, "the resize") if operation.restart else None
        try:
            # A guest that has the size was started with it by an attempt before this one.
            restarts = order if await self._guests.size(vm_id) != (operation.vcpus, operation.memory_mib) else None
            if restarts is not None:
                await self._wait_until_off(vm_id, operation.timeout_seconds, restarts, report)
                fault_point("resize.off")
            async with self.steps(vm_id):
                if order is not None:
                    order.check()
                await self._resize(_resized(await self._record(vm_id), operation), start=restarts is not None)
        except ConnectionLost:
            raise  # The same resize goes on once libvirt is back.
        except BaseException:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + PUT_BACK_SECONDS):
                await self._put_back(operation, order)
            raise
        return await self._result(vm_id)

    async def set_processor(self, operation: VmCpuSet, report: Report) -> DomainResult:
        """A guest that is restarted is off before anything is written, so one that does not obey has changed nothing.
        A machine found off is started: it is where an interrupted restart was."""
        vm_id, wanted = operation.vm_id, operation.cpu_mode
        cpu_element(wanted, (await self._acceleration.verdict()).accelerator)
        order = self._order(vm_id, "the change of its processor") if operation.restart else None
        # Only an attempt before this one can have written it, and it had shut the guest down by then.
        resumed = wanted is not operation.before and (await self._record(vm_id)).cpu_mode is wanted
        if order is not None and not (resumed and await self._guests.state(vm_id) is DomainState.RUNNING):
            await self._wait_until_off(vm_id, operation.timeout_seconds, order, report)
            fault_point("processor.off")
        try:
            async with self.steps(vm_id):
                if order is not None:
                    order.check()
                await self._write_processor(vm_id, wanted)
                fault_point("processor.defined")
                if order is not None:
                    await self._start_again(await self._record(vm_id))
        except ConnectionLost:
            raise  # The same change goes on once libvirt is back.
        except BaseException:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + PUT_BACK_SECONDS):
                await self._put_processor_back(operation, order)
            raise
        return await self._result(vm_id)

    async def reinstall(self, operation: VmReinstall, report: Report) -> DomainResult:
        """The old guest runs on until the new disk is whole. From the decision on the machine is the new system, so
        nothing that fails afterwards, nor the end of the operation's time, is a failure of the reinstallation."""
        vm_id = operation.vm_id
        order = self._order(vm_id, "the reinstallation")

        async def fetched(percent: int, message: str) -> None:
            await report(percent * 6 // 10, message)

        if await self._instance(vm_id) != operation.seed.instance_id:
            await self._images.ensure(operation.image, fetched)
            async with self.steps(vm_id):
                order.check()
                record = await self._with_network(vm_id, operation.network)
                await self._apply_network(record)
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
        """What the death of an agent, or a libvirt that did not answer, has left decided and not complete."""
        for vm_id in await in_thread(reinstallation.decided, self._folders):
            async with self.steps(vm_id):
                log.info("machine.reinstallation_completed", vm_id=str(vm_id))

    async def apply_network(self, vm_id: UUID, network: NetworkSpec) -> NetworkResult:
        """On the host, in the seed, and at last in the guest: it may be slow to answer, and nothing waits for it."""
        async with self.steps(vm_id):
            record = await self._record(vm_id)
            if network.generation >= record.network.generation:
                await self._change_network(record, network)
            else:
                network = record.network
        told = await self._guests.tell_network(vm_id, network, record.network)
        return NetworkResult(vm_id=vm_id, generation=network.generation, told=told)

    async def release(self, vm_id: UUID, addresses: tuple[str, ...]) -> ReleaseResult:
        async with self.steps(vm_id):
            if not await in_thread(self._record_path(vm_id).exists):
                # A creation that still waits for its image would carry what is named as free here.
                self._order(vm_id, "the release")
            given_up = await self._give_up(vm_id, frozenset(addresses))
            removed = await self._network.absent(addresses, vm_id)
            fault_point("network.released")
        if given_up is not None:
            record, kept = given_up
            await self._guests.tell_network(vm_id, kept, record.network)
        return ReleaseResult(vm_id=vm_id, removed=removed)

    async def keep_defined(self, vm_id: UUID) -> None:
        """A machine of ours that runs without a definition (somebody undefined it) gets it back. One that is being
        deleted has no record by the time that its turn comes."""
        async with self.steps(vm_id):
            if await in_thread(self._record_path(vm_id).exists):
                await self._define_again(await self._record(vm_id))

    async def forget_first_boot(self, vm_id: UUID) -> None:
        """The guest has booted: its password's hash leaves the seed. The running guest keeps the file it has open."""
        if not await in_thread(self._record_path(vm_id).exists):
            return
        booted = (await self._record(vm_id)).seed.instance_id
        async with self.steps(vm_id):
            secret = self._folders.machine(vm_id) / SECRET
            if not await in_thread(secret.exists):
                return
            record = await self._record(vm_id)
            if record.seed.instance_id != booted:
                return  # It was reinstalled since, and its new system has not booted yet.
            await write_seed(record, None, self._folders.seed(vm_id), _owner())
            await in_thread(secret.unlink, missing_ok=True)

    @asynccontextmanager
    async def steps(self, vm_id: UUID) -> AsyncIterator[None]:
        """No other step of the machine is taken for the length of the block."""
        async with self._turns.setdefault(vm_id, _Turn()).lock:
            if await in_thread(reinstallation.is_decided, self._folders, vm_id):
                await self._complete_reinstallation(vm_id)
            yield

    def _order(self, vm_id: UUID, what: str) -> _Order:
        """Supersede what was ordered before."""
        turn = self._turns.setdefault(vm_id, _Turn())
        turn.orders += 1
        return _Order(what, turn, turn.orders)

    async def _wait_until_off(self, vm_id: UUID, seconds: float, order: _Order, report: Report) -> None:
        """Press the power button, again from time to time (a guest still booting does not hear it), until it is off."""
        began = trio.current_time()
        pressed = -PRESS_AGAIN_SECONDS
        while (state := await self._guests.state(vm_id)) not in _OFF:
            if state is DomainState.ABSENT:
                raise absent(vm_id)
            order.check()
            if state is DomainState.PAUSED:
                raise HostError(
                    FailureCode.CONFLICT,
                    "The guest is paused by its host and cannot shut down; it was left as it is.",
                    "A full disk on the node is the usual reason. Free space, or stop the machine by force.",
                )
            waited = trio.current_time() - began
            if waited > seconds:
                raise HostError(
                    FailureCode.TIMED_OUT,
                    f"The guest did not shut down within {seconds:g} s; it was left running.",
                    "Look at its console, or stop it by force.",
                )
            if waited - pressed >= PRESS_AGAIN_SECONDS and state is DomainState.RUNNING:
                pressed = waited
                await report(min(90, int(90 * waited / seconds)), "asking the guest to shut down")
                await self._guests.press_power_button(vm_id)
            await trio.sleep(POLL_SECONDS)

    async def _build(self, record: MachineRecord, operation: VmCreate, report: Report) -> None:
        await report(60, "making the disks, the first boot's seed and the network")
        await in_thread(self._folders.abandonment(record.vm_id).unlink, missing_ok=True)
        await in_thread(self._write_record, record, operation.machine.seed.account.password_hash)
        fault_point("create.record")
        await _together(partial(self._make_disks, record), partial(self._network.apply, record.vm_id, record.network))
        fault_point("create.network")
        await report(90, "defining the machine")
        await self._define(record)
        fault_point("create.defined")
        if operation.start:
            await report(95, "starting")
            await self._guests.start(record.vm_id)
            fault_point("create.started")

    async def _resize(self, record: MachineRecord, *, start: bool) -> None:
        await in_thread(self._write_record, record, None)
        fault_point("resize.recorded")
        await self._define(record)
        if start:
            await self._start_again(record)
        fault_point("resize.defined")
        vm_id, disk = record.vm_id, record.disks[0]
        if await self._guests.state(vm_id) in _OFF:
            await disks.grow(self._folders.disk(vm_id, disk.index), disk.size_gib)
        else:
            await self._guests.grow_disk(vm_id, disk_target(disk.index), disk.size_gib * GIB)

    async def _put_back(self, operation: VmResize, order: _Order | None) -> None:
        """What it was before a resize that has failed. A later order says what becomes of its guest."""
        vm_id = operation.vm_id
        try:
            async with self.steps(vm_id):
                if not await in_thread(self._record_path(vm_id).exists):
                    return
                record = _as_before(await self._record(vm_id), operation)
                await in_thread(self._write_record, record, None)
                await self._define(record)
                if order is not None and order.stands and await self._guests.state(vm_id) in _OFF:
                    await self._start_again(record)
        except (HostError, OSError) as error:
            log.error("machine.resize_not_put_back", vm_id=str(vm_id), error=str(error))

    async def _write_processor(self, vm_id: UUID, mode: CpuMode) -> None:
        element = cpu_element(mode, (await self._acceleration.verdict()).accelerator)
        changed = with_processor(await self._guests.definition(vm_id), element)
        record = (await self._record(vm_id)).model_copy(update={"cpu_mode": mode})
        await in_thread(self._write_record, record, None)
        fault_point("processor.recorded")
        await self._guests.define(changed)

    async def _put_processor_back(self, operation: VmCpuSet, order: _Order | None) -> None:
        """What it was before a change that has failed. A later order says what becomes of its guest."""
        vm_id = operation.vm_id
        try:
            async with self.steps(vm_id):
                if not await in_thread(self._record_path(vm_id).exists):
                    return
                await self._write_processor(vm_id, operation.before)
                if order is not None and order.stands and await self._guests.state(vm_id) in _OFF:
                    await self._start_again(await self._record(vm_id))
        except (HostError, OSError) as error:
            log.error("machine.processor_not_put_back", vm_id=str(vm_id), error=str(error))

    async def _start_again(self, record: MachineRecord) -> None:
        await self._apply_network(record)
        await self._write_seed(record)
        await self._guests.start(record.vm_id)

    async def _instance(self, vm_id: UUID) -> str:
        """Of the system that the machine is, or that is decided to take its place."""
        try:
            return (await in_thread(reinstallation.current, self._folders, vm_id)).seed.instance_id
        except FileNotFoundError as error:
            raise absent(vm_id) from error

    async def _decide_system(self, record: MachineRecord, operation: VmReinstall) -> None:
        """The new system is the machine from now on; or a failure, and the old one runs on."""
        vm_id, base = record.vm_id, file_name(operation.image)
        try:
            await reinstallation.prepare(record, self._images.base_of(base), self._folders, _owner())
        except BaseException:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_SECONDS):
                await in_thread(reinstallation.abandon, self._folders, vm_id)
            raise
        seed = operation.seed.model_copy(
            update={"account": operation.seed.account.model_copy(update={"password_hash": None})}
        )
        new = record.model_copy(update={"base": base, "seed": seed})
        with trio.CancelScope(shield=True):
            await in_thread(reinstallation.decide, new, operation.seed.account.password_hash, self._folders)

    async def _start_system(self, operation: VmReinstall, order: _Order) -> DomainState:
        """Put the new system in its place, which is done before any step of a machine, and start it."""
        vm_id = operation.vm_id
        async with self.steps(vm_id):
            order.check()
            record = await self._with_network(vm_id, operation.network)
            await self._apply_network(record)
            await self._write_seed(record)
            await self._define(record)
            fault_point("reinstall.defined")
            await self._guests.start(vm_id)
            return await self._guests.state(vm_id)

    async def _complete_reinstallation(self, vm_id: UUID) -> None:
        await self._guests.destroy(vm_id)
        await in_thread(reinstallation.complete, self._folders, vm_id)

    async def _undo(self, vm_id: UUID) -> None:
        """Leave nothing of a creation that has failed. What cannot be removed in time is after the next (re)connection
        to libvirt, or when the machine is deleted."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_SECONDS) as patience:
            try:
                if await in_thread(self._folders.machine(vm_id).exists):
                    await in_thread(self._folders.abandonment(vm_id).touch)
                await self._remove(vm_id, destroy_disks=True)
            except (HostError, OSError) as error:
                log.error("machine.creation_not_undone", vm_id=str(vm_id), error=str(error))
        if patience.cancelled_caught:
            log.error("machine.creation_not_undone", vm_id=str(vm_id), error=f"not within {UNDO_SECONDS:g} s")

    async def _remove(self, vm_id: UUID, *, destroy_disks: bool) -> DeleteResult:
        await self._guests.destroy(vm_id)
        fault_point("delete.stopped")
        await self._guests.undefine(vm_id)
        fault_point("delete.undefined")
        removed = await self._network.remove(vm_id)
        fault_point("delete.network")
        retained = () if destroy_disks else await in_thread(disks.retain, self._folders, vm_id)
        await in_thread(disks.destroy, self._folders, vm_id)
        fault_point("delete.removed")
        return DeleteResult(vm_id=vm_id, removed_addresses=removed, retained_disks=retained)

    async def _make_disks(self, record: MachineRecord) -> None:
        await disks.ensure_disks(record, self._images.base_of(record.base), self._folders, _owner())
        fault_point("create.disks")
        await self._write_seed(record)
        fault_point("create.seed")

    async def _define(self, record: MachineRecord) -> None:
        verdict = await self._acceleration.verdict()
        base = self._images.base_of(record.base)
        await in_thread(disks.require, record, base, self._folders)
        xml = domain_xml(record, base, self._folders, self._naming, verdict.accelerator)
        await self._guests.define(xml)

    async def _define_again(self, record: MachineRecord) -> None:
        if await self._guests.is_transient(record.vm_id):
            await self._define(record)
            log.warning("machine.defined_again", vm_id=str(record.vm_id))

    async def _apply_network(self, record: MachineRecord) -> None:
        """Written down first: after a crash between the two, the host is brought to the record. What the host could not
        be brought to does not stay in the record."""
        before = await self._record(record.vm_id)
        await in_thread(self._write_record, record, None)
        fault_point("network.recorded")
        try:
            await self._network.apply(record.vm_id, record.network)
        except BaseException:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + PUT_BACK_SECONDS):
                await in_thread(self._write_record, before, None)
            raise

    async def _with_network(self, vm_id: UUID, network: NetworkSpec) -> MachineRecord:
        return await self._not_older((await self._record(vm_id)).model_copy(update={"network": network}))

    async def _not_older(self, record: MachineRecord) -> MachineRecord:
        """With the network that the host was told last, where that is another."""
        if not await in_thread(self._record_path(record.vm_id).exists):
            return record
        known = await self._record(record.vm_id)
        if known.network.generation <= record.network.generation:
            return record
        return record.model_copy(update={"network": known.network})

    async def _give_up(self, vm_id: UUID, addresses: frozenset[str]) -> tuple[MachineRecord, NetworkSpec] | None:
        """The record before, and what it kept; None when there was nothing to give up."""
        if not await in_thread(self._record_path(vm_id).exists):
            return None
        record = await self._record(vm_id)
        kept = without(record.network, addresses)
        if kept == record.network:
            return None
        await self._change_network(record, kept)
        return record, kept

    async def _change_network(self, record: MachineRecord, network: NetworkSpec) -> None:
        changed = record.model_copy(update={"network": network})
        await self._apply_network(changed)
        fault_point("network.applied")
        await self._write_seed(changed)

    async def _write_seed(self, record: MachineRecord) -> None:
        secret = await in_thread(_read_secret, self._folders.machine(record.vm_id) / SECRET)
        await write_seed(record, secret, self._folders.seed(record.vm_id), _owner())

    async def _record(self, vm_id: UUID) -> MachineRecord:
        try:
            return await in_thread(read_record, self._record_path(vm_id))
        except FileNotFoundError as error:
            raise absent(vm_id) from error

    def _record_path(self, vm_id: UUID) -> Path:
        return self._folders.machine(vm_id) / RECORD

    def _write_record(self, record: MachineRecord, password_hash: str | None) -> None:
        folder = self._folders.machine(record.vm_id)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o711)
        if password_hash is not None and not (folder / RECORD).exists():
            first_boot = FirstBoot(password_hash=password_hash)
            write_whole(folder / SECRET, first_boot.model_dump_json().encode(), mode=0o600)
        write_whole(folder / RECORD, record.stored(), mode=0o600)

    async def _result(self, vm_id: UUID) -> DomainResult:
        return DomainResult(vm_id=vm_id, state=await self._guests.state(vm_id))


def _resized(record: MachineRecord, operation: VmResize) -> MachineRecord:
    first, *others = record.disks
    grown = first.model_copy(update={"size_gib": max(first.size_gib, operation.disk_gib)})
    sizes = {"vcpus": operation.vcpus, "memory_mib": operation.memory_mib, "disks": (grown, *others)}
    return record.model_copy(update=sizes)


def _as_before(record: MachineRecord, operation: VmResize) -> MachineRecord:
    """The machine's record without what an attempt at the resize may have made of it."""
    before = operation.before
    first, *others = record.disks
    if first.size_gib <= operation.disk_gib:  # else it was larger already, and no attempt has touched it
        first = first.model_copy(update={"size_gib": before.disk_gib})
    sizes = {"vcpus": before.vcpus, "memory_mib": before.memory_mib, "disks": (first, *others)}
    return record.model_copy(update=sizes)


async def _together(*works: Callable[[], Awaitable[None]]) -> None:
    """Run them side by side; the first failure ends the others and is raised as it is."""
    try:
        async with trio.open_nursery() as nursery:
            for work in works:
                nursery.start_soon(work)
    except BaseExceptionGroup as failures:
        failure: BaseException = failures
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise failure from failures


def _owner() -> tuple[int, int]:
    user = qemu_user()
    return user.uid, user.gid


def _read_secret(path: Path) -> str | None:
    try:
        return FirstBoot.model_validate_json(path.read_bytes()).password_hash
    except FileNotFoundError:
        return None
