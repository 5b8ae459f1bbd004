"""A machine's disks as they were in one moment, each as an NBD export on a Unix socket, while its guest goes on.

A guest that runs: libvirt's backup job. QEMU keeps what the guest overwrites from then on in a scratch file, and shows
the disks as they were. Where the guest's agent answers, its file systems are frozen for that moment. A guest that is
off: qemu-nbd reads the disk, and its lock keeps the guest from starting meanwhile.

Nothing of it is left when the block ends; where the agent dies before, the next one ends the job (`end_job`) and lets
the guest write again (`freezing.thaw`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID
from xml.etree import ElementTree

import libvirt
import structlog
import trio

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.acceleration import qemu_user
from svc_nodeagent.hypervisor.backups.running import program
from svc_nodeagent.hypervisor.connection import LibvirtError
from svc_nodeagent.hypervisor.disks import inspect
from svc_nodeagent.hypervisor.domains import disk_target
from svc_nodeagent.hypervisor.files import Folders, MachineRecord, in_thread
from svc_nodeagent.hypervisor.freezing import thaw, while_frozen
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import DomainState, FailureCode

_APPEAR_SECONDS: Final = 15.0
_END_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.1
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Moment:
    """`exports`: the address of each disk, by its index."""

    exports: dict[int, str]
    frozen: bool


@asynccontextmanager
async def moment_of(record: MachineRecord, guests: Guests, folders: Folders) -> AsyncIterator[Moment]:
    """The disks, to be read for the length of the block. Raises `HostError`, also where they cannot be shown."""
    state = await guests.state(record.vm_id)
    opened = _of_running if state in (DomainState.RUNNING, DomainState.PAUSED) else _of_stopped
    async with socket_folder(record.vm_id) as sockets, opened(record, guests, folders, sockets) as moment:
        yield moment


@asynccontextmanager
async def _of_stopped(record: MachineRecord, guests: Guests, folders: Folders, sockets: Path) -> AsyncIterator[Moment]:
    async with AsyncExitStack() as stack:
        exports = {}
        for disk in record.disks:
            address = sockets / str(disk.index)
            await stack.enter_async_context(served(folders.disk_of(record.vm_id, disk), address, "--read-only"))
            exports[disk.index] = f"nbd+unix:///?socket={address}"
        yield Moment(exports, frozen=False)


@asynccontextmanager
async def served(disk: Path, address: Path, *options: str) -> AsyncIterator[None]:
    """A qcow2 file by qemu-nbd at this socket, with a client or without, for the length of the block."""
    command: list[str | Path] = ["qemu-nbd", "--persistent", "--format=qcow2", f"--socket={address}", *options, disk]
    async with program(command) as server:
        answers = False
        with trio.move_on_after(_APPEAR_SECONDS):
            while server.poll() is None and not (answers := await _answers(address)):  # noqa: ASYNC110  (another's)
                await trio.sleep(0.02)
        if server.poll() is None:
            if not answers:
                raise HostError(FailureCode.TIMED_OUT, f"qemu-nbd did not open {disk.name}.")
            yield
            server.terminate()  # which it takes for its orderly end, with what it has written on the disk


async def _answers(address: Path) -> bool:
    """Whether somebody listens: the socket is there a moment before that."""
    try:
        await (await trio.open_unix_socket(str(address))).aclose()
    except OSError:
        return False
    return True


@asynccontextmanager
async def _of_running(record: MachineRecord, guests: Guests, folders: Folders, sockets: Path) -> AsyncIterator[Moment]:
    vm_id, address = record.vm_id, sockets / "nbd"
    await end_job(vm_id, guests)
    scratch = {disk.index: folders.scratch(vm_id, disk.index) for disk in record.disks}
    held = True
    try:
        for disk in record.disks:
            path = scratch[disk.index]
            size = (await inspect(folders.disk_of(vm_id, disk), "qcow2")).virtual_bytes
            await run_program("qemu-img", "create", "-q", "-f", "qcow2", path, str(size))
            await in_thread(os.chown, path, *qemu_user().owner)
        xml = _job(record, scratch, address)
        was_frozen = await while_frozen(vm_id, guests, "virDomainBackupBegin", lambda domain: _begin(domain, xml))
        fault_point("backup.begun")
        held = not await thaw(vm_id, guests)
        exports = {index: f"nbd+unix:///{disk_target(index)}?socket={address}" for index in scratch}
        yield Moment(exports, frozen=was_frozen)
    finally:
        if held:
            with trio.CancelScope(shield=True):
                await thaw(vm_id, guests, at_most=_END_SECONDS)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _END_SECONDS):
            try:
                await end_job(vm_id, guests)
            except HostError as error:
                log.warning("backup.job_not_ended", vm_id=str(vm_id), error=error.message)
            await in_thread(remove_scratch, folders, vm_id)


async def end_job(vm_id: UUID, guests: Guests) -> None:
    """End the backup job that the domain has, ours of now or of an agent that died. libvirt only begins to end it, so
    it is waited for: until then QEMU holds what the guest overwrites, and no other job begins."""

    def end(domain: Any) -> bool:
        is_there = _backs_up(domain)
        if is_there:
            domain.abortJob()
        return is_there

    try:
        is_there = await guests.on_domain(vm_id, "virDomainAbortJob", end)
        with trio.move_on_after(_END_SECONDS):
            while is_there:
                await trio.sleep(_LOOK_SECONDS)
                is_there = await guests.on_domain(vm_id, "virDomainGetJobStats", _backs_up)
    except LibvirtError as error:
        if error.number not in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID):
            raise


def _backs_up(domain: Any) -> bool:
    return bool(domain.isActive() and domain.jobStats().get("operation") == libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP)


def _begin(domain: Any, xml: str) -> None:
    fault_point("backup.frozen")
    domain.backupBegin(xml, None, libvirt.VIR_DOMAIN_BACKUP_BEGIN_REUSE_EXTERNAL)


def _job(record: MachineRecord, scratch: dict[int, Path], address: Path) -> str:
    job = ElementTree.Element("domainbackup", mode="pull")
    ElementTree.SubElement(job, "server", transport="unix", socket=str(address))
    disks = ElementTree.SubElement(job, "disks")
    for index, path in scratch.items():
        disk = ElementTree.SubElement(disks, "disk", name=disk_target(index), backup="yes", type="file")
        ElementTree.SubElement(disk, "driver", type="qcow2")
        ElementTree.SubElement(disk, "scratch", file=str(path))
    return ElementTree.tostring(job, encoding="unicode")


def remove_scratch(folders: Folders, vm_id: UUID) -> None:
    for path in folders.machine(vm_id).glob("backup-*.qcow2"):
        path.unlink(missing_ok=True)


@asynccontextmanager
async def socket_folder(vm_id: UUID) -> AsyncIterator[Path]:
    """Short of name, since a socket's is bounded; QEMU's user makes its socket in it. A machine has one at a time: what
    an agent that died has left of it is removed."""
    folder = Path(f"/run/svc-backup-{vm_id}")
    await in_thread(shutil.rmtree, folder, ignore_errors=True)
    await in_thread(folder.mkdir, mode=0o700)
    try:
        await in_thread(os.chown, folder, *qemu_user().owner)
        yield folder
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _END_SECONDS):
            await in_thread(shutil.rmtree, folder, ignore_errors=True)
