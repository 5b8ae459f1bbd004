"""A snapshot of a machine's disks, each as an NBD export on a Unix socket, while its guest keeps running.

If the guest runs, libvirt's backup job is used: QEMU saves the old content of blocks that the guest overwrites in a
scratch file, and exports the disks as they were. If the guest's agent answers, the guest's file systems are frozen
while the snapshot is taken. QEMU knows what was written since an earlier snapshot (`bitmaps`). If the guest is off,
qemu-nbd exports the disk, and its lock of the disk prevents the guest from starting meanwhile; what was written since
an earlier snapshot is not known.

The exports and the job end with the block. If the agent dies before, the next agent ends the job (`end_job`) and lets
the guest write again (`freezing.thaw`).

Rejected: an overlay that is merged back afterwards. If the host lost power meanwhile, the machine's newest data would
be in a second file.

Why: docs/decisions/0030-snapshots-and-backup-format.md.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
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
from svc_nodeagent.hypervisor.backups import bitmaps
from svc_nodeagent.hypervisor.backups.running import program
from svc_nodeagent.hypervisor.connection import ConnectionLost, LibvirtError
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
class DiskSnapshot:
    """A snapshot of a machine's disks; the mappings have the index of the disk as key. `exports`: the socket and the
    name of the export. `marks`: the bitmap that records writes from now on. `written`: the extents (offset, length)
    written since the given mark, if known."""

    exports: dict[int, tuple[Path, str]]
    frozen: bool
    marks: dict[int, str] = field(default_factory=dict)
    written: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


@asynccontextmanager
async def open_disk_snapshot(
    record: MachineRecord, guests: Guests, folders: Folders, since: Mapping[int, str], keep: Collection[str] = ()
) -> AsyncIterator[DiskSnapshot]:
    """The disks, to be read for the length of the block. `since`: the marks of an earlier snapshot, by the disk's
    index; `keep`: further marks that must stay. Raises `HostError`, also if the disks cannot be shown."""
    state = await guests.state(record.vm_id)
    async with socket_folder(record.vm_id) as sockets:
        if state in (DomainState.RUNNING, DomainState.PAUSED):
            opened = _of_running(record, guests, folders, sockets, since, keep)
        else:
            opened = _of_stopped(record, folders, sockets)
        async with opened as snapshot:
            yield snapshot


@asynccontextmanager
async def _of_stopped(record: MachineRecord, folders: Folders, sockets: Path) -> AsyncIterator[DiskSnapshot]:
    async with AsyncExitStack() as stack:
        exports = {}
        for disk in record.disks:
            address = sockets / str(disk.index)
            await stack.enter_async_context(serve_disk(folders.disk_of(record.vm_id, disk), address, "--read-only"))
            exports[disk.index] = (address, "")
        yield DiskSnapshot(exports, frozen=False)


@asynccontextmanager
async def serve_disk(disk: Path, address: Path, *options: str) -> AsyncIterator[None]:
    """Serve a qcow2 file by qemu-nbd at this socket for the length of the block."""
    # --persistent: otherwise the server would end with its first client, which is `_answers`.
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
            server.terminate()  # On SIGTERM the server flushes what was written and ends normally.


async def _answers(address: Path) -> bool:
    """Whether the server accepts connections. The existence of its socket is not enough: the server listens a moment
    later, and on a busy node a client was refused."""
    try:
        await (await trio.open_unix_socket(str(address))).aclose()
    except OSError:
        return False
    return True


@asynccontextmanager
async def _of_running(
    record: MachineRecord,
    guests: Guests,
    folders: Folders,
    sockets: Path,
    since: Mapping[int, str],
    keep: Collection[str] = (),
) -> AsyncIterator[DiskSnapshot]:
    vm_id, address = record.vm_id, sockets / "nbd"
    paths = {disk.index: folders.disk_of(vm_id, disk) for disk in record.disks}
    # A job that a dead agent has left is ended first, because libvirt allows one job at a time.
    await end_job(vm_id, guests)
    # New bitmaps are started before the snapshot: blocks written in between are in both, and are read twice. In the
    # other order they would be lost.
    marks = await start_marks(vm_id, guests, paths, {*since.values(), *keep})
    scratch = {disk.index: folders.scratch(vm_id, disk.index) for disk in record.disks}
    held = True
    try:
        # The scratch files are created here, with the disk's size and owned by QEMU's user, and libvirt reuses them
        # (`REUSE_EXTERNAL`): so the next agent knows their names.
        for index, path in scratch.items():
            size = (await inspect(paths[index], "qcow2")).virtual_bytes
            await run_program("qemu-img", "create", "-q", "-f", "qcow2", path, str(size))
            await in_thread(os.chown, path, *qemu_user().owner)
        xml = _job(record, scratch, address)
        # The guest is frozen only while the job is started; the disks are read while the guest writes again.
        was_frozen = await while_frozen(vm_id, guests, "virDomainBackupBegin", lambda domain: _begin(domain, xml))
        fault_point("backup.begun")
        held = not await thaw(vm_id, guests)
        exports = {index: (address, disk_target(index)) for index in scratch}
        written = await written_since(vm_id, guests, paths, address, since)
        yield DiskSnapshot(exports, was_frozen, marks, written)
    finally:
        # Also if the freeze failed: a silent agent in the guest may carry it out later, when nobody would thaw the
        # guest.
        if held:
            with trio.CancelScope(shield=True):
                await thaw(vm_id, guests, at_most=_END_SECONDS)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _END_SECONDS):
            try:
                await end_job(vm_id, guests)
            except HostError as error:
                log.warning("backup.job_not_ended", vm_id=str(vm_id), error=error.message)
            await in_thread(remove_scratch, folders, vm_id)


async def start_marks(vm_id: UUID, guests: Guests, paths: Mapping[int, Path], keep: Collection[str]) -> dict[int, str]:
    """Start bitmaps. Returns an empty result if QEMU refuses: then the next backup reads everything."""
    try:
        return await guests.on_domain(
            vm_id, "block-dirty-bitmap-add", lambda domain: bitmaps.start(domain, paths, keep)
        )
    except ConnectionLost:
        raise
    except HostError as error:
        log.warning("backup.not_marked", vm_id=str(vm_id), error=error.message)
        return {}


async def written_since(
    vm_id: UUID, guests: Guests, paths: Mapping[int, Path], address: Path, since: Mapping[int, str]
) -> dict[int, list[tuple[int, int]]]:
    """What was written since these marks, for each disk for which it is known."""
    found = {}
    for index, mark in since.items():

        def show(domain: Any, path: Path = paths[index], mark: str = mark) -> str | None:
            return bitmaps.show(domain, path, mark)

        try:
            shown = await guests.on_domain(vm_id, "block-export-add", show)
            if shown is not None:
                found[index] = await bitmaps.dirty_extents(address, shown)
        except ConnectionLost:
            raise
        except HostError as error:
            log.warning("backup.not_known_what_was_written", vm_id=str(vm_id), disk=index, error=error.message)
    return found


async def end_job(vm_id: UUID, guests: Guests) -> None:
    """End the domain's backup job, which may be of this backup or of an agent that died, and the server of its live
    disks. libvirt's call returns before the job has ended, so this waits for the end: until then QEMU holds the scratch
    files, and another job fails with 'Failed to get write lock'."""

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
        if not is_there:
            await guests.on_domain(vm_id, "nbd-server-stop", bitmaps.hide)
    except LibvirtError as error:
        # These errors mean that the machine no longer exists, or that its guest has ended: then the job has ended with
        # QEMU.
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
    """A folder for sockets, in which QEMU's user may create its own. In /run, since the path of a Unix socket has at
    most 107 bytes. A machine has one such folder at a time: one that a dead agent has left is removed."""
    folder = Path(f"/run/svc-backup-{vm_id}")
    await in_thread(shutil.rmtree, folder, ignore_errors=True)
    await in_thread(folder.mkdir, mode=0o700)
    try:
        await in_thread(os.chown, folder, *qemu_user().owner)
        yield folder
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _END_SECONDS):
            await in_thread(shutil.rmtree, folder, ignore_errors=True)
