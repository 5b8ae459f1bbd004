"""The copies that are open on this node. An open copy is restored into separate files, and its files can be read until
it is closed.

    copy-files/<copy_id>/disk-N.qcow2    the content of a copy's disk; no machine uses it

Invariants: at most `MOST_OPEN` copies are open. A copy is closed after `IDLE_SECONDS` without a request, and after
`LONGEST_SECONDS` in any case. After `KEPT_SECONDS` without a request it is closed if another copy needs its place. If
an owner has two copies open, one of them is closed at once if another owner needs a place. No file of a closed copy
stays, and the files that a dead agent has left are removed before the next agent accepts operations. A disk can be read
only once the digest of all of it was verified. Open copies never fill the node's disk.
"""

from __future__ import annotations

import base64
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError, Report
from svc_nodeagent.hypervisor.acceleration import Acceleration
from svc_nodeagent.hypervisor.backups.chains import Snapshot
from svc_nodeagent.hypervisor.backups.copies import write_copied
from svc_nodeagent.hypervisor.backups.store import MachineStore, store_at
from svc_nodeagent.hypervisor.backups.streams import name_of, progress
from svc_nodeagent.hypervisor.copy_files.reader import ServedVolumes, root_of, showing
from svc_nodeagent.hypervisor.copy_files.sftp import MOST_NAME_BYTES, Attributes
from svc_nodeagent.hypervisor.copy_files.trees import ResolvedPath, find
from svc_nodeagent.hypervisor.files import Folders, in_thread
from svc_nodeagent.hypervisor.images import ImageCache, file_name, is_nearly_full
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.hypervisor.rescued import unpack, unpacked
from svc_nodeagent.protocol import (
    MOST_LISTED,
    BackupPlace,
    CopiedDisk,
    CopiedFolder,
    CopiedPart,
    CopiedVolume,
    CopyEntry,
    CopyFilesOperation,
    CopyVolumeState,
    Done,
    EntryKind,
    FailureCode,
    OpenedCopy,
    OperationResult,
    VmFilesClose,
    VmFilesList,
    VmFilesOpen,
    VmFilesRead,
    path_bytes,
    shown_name,
)

MOST_OPEN: Final = 2
_LEFT_TO_OTHERS: Final = 2 * 1024**3
"""Bytes that must stay free in addition to the floor: the disks of an opened copy only serve browsing, so machines have
priority."""
MOST_ASKING: Final = 4
"""The most concurrent requests for one copy: with a slow file system, at most this many of the node's queries wait."""
QUESTION_SECONDS: Final = 120.0
"""The time for one whole request, so that a file system that answers slowly cannot make it last for ever. Less than the
controller's timeout."""
IDLE_SECONDS: Final = 900.0
KEPT_SECONDS: Final = 120.0
"""After this time without a request, a copy may be closed for another one: its user may only be reading a list or a
downloaded file."""
LONGEST_SECONDS: Final = 4 * 3600.0
MOST_ENTRIES: Final = 50_000
_REMOVE_SECONDS: Final = 60.0
_RESTORED_PERCENT: Final = 85
_UNREAD: Final = {
    CopyVolumeState.BROKEN: "its file system could not be mounted; it is damaged, or newer than the rescue system",
    CopyVolumeState.ENCRYPTED: "it is encrypted, and its key is the guest's alone",
    CopyVolumeState.RAID: "it is part of a RAID, which cannot be assembled here",
    CopyVolumeState.UNKNOWN: "its file system is of a type that cannot be read here",
}
FindStore = Callable[[Path, UUID, str, BackupPlace | None], MachineStore]
log = structlog.get_logger(__name__)


class _Open:
    """An open copy. Each request extends the deadline of its scope; `ended` is set once all files of the copy are
    removed."""

    def __init__(self, vm_id: UUID, owner_id: UUID | None, shown: ServedVolumes, scope: trio.CancelScope) -> None:
        self.vm_id = vm_id
        self.owner_id = owner_id
        self.shown = shown
        self.scope = scope
        self.ended = trio.Event()
        self.asking = 0
        self._ends = trio.current_time() + LONGEST_SECONDS
        self.touch()

    def touch(self) -> None:
        self._touched = trio.current_time()
        self.scope.deadline = min(self._ends, self._touched + IDLE_SECONDS)

    @property
    def idle_seconds(self) -> float:
        return trio.current_time() - self._touched

    async def close(self) -> None:
        self.scope.cancel()
        await self.ended.wait()


class CopyFiles:
    """Opens and closes copies, and answers requests for their files. `run` must be running."""

    def __init__(
        self, folders: Folders, images: ImageCache, acceleration: Acceleration, find_store: FindStore = store_at
    ) -> None:
        self._folders = folders
        self._find_store = find_store
        self._images = images
        self._acceleration = acceleration
        self._open: dict[UUID, _Open] = {}
        self._opening: set[UUID] = set()
        self._nursery: trio.Nursery

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Reports as started once the remains of an earlier agent are removed."""
        await in_thread(shutil.rmtree, self._folders.copy_files, ignore_errors=True)
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def perform(self, operation: CopyFilesOperation, report: Report) -> OperationResult:
        match operation:
            case VmFilesOpen():
                return await self._opened(operation, report)
            case VmFilesList():
                with self._asking(operation) as there:
                    return await self._list(operation, there)
            case VmFilesRead():
                with self._asking(operation) as there:
                    return await self._read(operation, there)
            case VmFilesClose():
                closed = self._open.get(operation.copy_id)
                if closed is not None and closed.vm_id == operation.vm_id:
                    await closed.close()
                return Done()

    async def _opened(self, operation: VmFilesOpen, report: Report) -> OpenedCopy:
        vm_id, copy_id = operation.vm_id, operation.copy_id
        closing = self._open.get(copy_id)
        if closing is not None and closing.scope.cancel_called:
            await closing.ended.wait()
        if copy_id not in self._open:
            if copy_id in self._opening:
                raise HostError(FailureCode.CONFLICT, "The backup is already being opened.", "Wait until it is open.")
            self._opening.add(copy_id)
            try:
                await self._make_way(operation.owner_id)
                await self._nursery.start(self._hold, operation, report)
            finally:
                self._opening.discard(copy_id)
        volumes = self._asked(vm_id, copy_id).shown.volumes
        return OpenedCopy(vm_id=vm_id, copy_id=copy_id, volumes=volumes)

    async def _make_way(self, owner_id: UUID | None) -> None:
        """Make room for the copy in `_opening`: close the copy whose last request is longest ago. A copy that is in use
        may be closed too, if its owner has another one open: otherwise an owner who sometimes uses two copies would
        exclude all others for hours."""
        taken = {copy_id: there for copy_id, there in self._open.items() if not there.scope.cancel_called}
        if len(taken.keys() | self._opening) <= MOST_OPEN:
            return
        owners = Counter(each.owner_id for each in taken.values())
        idle = [each for each in taken.values() if not each.asking and each.idle_seconds >= KEPT_SECONDS]
        second = [
            each for each in taken.values() if each.owner_id not in (None, owner_id) and owners[each.owner_id] > 1
        ]
        giving_way = idle or second
        if not giving_way:
            raise HostError(
                FailureCode.CAPACITY,
                f"The files of {MOST_OPEN} backups are open on this node, which is the limit; no other was opened.",
                f"Close one, or try again: a backup unused for {KEPT_SECONDS / 60:g} minutes is closed for another.",
            )
        await max(giving_way, key=lambda each: (not each.asking, each.idle_seconds)).close()

    async def _hold(
        self, operation: VmFilesOpen, report: Report, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Open one copy and keep it open until its scope ends. A failure before the copy is open is raised to the
        waiting caller; a later failure is logged, and closes the copy."""
        copy_id, folder = operation.copy_id, self._folders.copy_files / str(operation.copy_id)
        started = False
        try:
            disks = await self._restored(operation, folder, report)

            async def fetched(percent: int, message: str) -> None:
                await report(_RESTORED_PERCENT + percent * 5 // 100, message)

            await self._images.ensure(operation.system, fetched)
            file = self._folders.images / file_name(operation.system)
            await in_thread(unpack, file)
            await report(90, "starting the system that reads the files")
            accelerator = (await self._acceleration.verdict()).accelerator
            async with showing(disks, unpacked(file), accelerator) as shown:
                with trio.CancelScope() as scope:
                    self._open[copy_id] = _Open(operation.vm_id, operation.owner_id, shown, scope)
                    log.info("copy_files.opened", vm_id=str(operation.vm_id), copy_id=str(copy_id))
                    fault_point("copy_files.opened")
                    task_status.started()
                    started = True
                    await shown.process.wait()
        except (HostError, OSError, ValueError) as error:
            if not started:
                raise
            log.warning("copy_files.failed", copy_id=str(copy_id), error=str(error))
        finally:
            closing = self._open.get(copy_id)
            if closing is not None:
                # Also cancelled if its QEMU has ended: no request may use the copy while it is removed.
                closing.scope.cancel()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _REMOVE_SECONDS):
                await in_thread(shutil.rmtree, folder, ignore_errors=True)
            if closing is not None:
                del self._open[copy_id]
                closing.ended.set()
        log.info("copy_files.closed", vm_id=str(operation.vm_id), copy_id=str(copy_id))

    async def _restored(self, operation: VmFilesOpen, folder: Path, report: Report) -> list[Path]:
        store = self._find_store(self._folders.backups, operation.vm_id, operation.password, operation.place)
        there = await store.listing()
        await self._require_room()
        await in_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        written = []
        for place, disk in enumerate(operation.disks):
            parts = there.chain(operation.copy_id, name_of(disk.index))
            if not parts:
                raise HostError(
                    FailureCode.NOT_FOUND,
                    "The target no longer has this backup.",
                    "Choose another backup, and check the target.",
                )
            span = tuple(_RESTORED_PERCENT * each // len(operation.disks) for each in (place, place + 1))
            path = folder / f"disk-{disk.index}.qcow2"
            await self._write(operation.copy_id, disk, path, store, parts, report, (span[0], span[1]))
            written.append(path)
        return written

    async def _write(
        self,
        copy_id: UUID,
        disk: CopiedDisk,
        path: Path,
        store: MachineStore,
        parts: Sequence[Snapshot],
        report: Report,
        span: tuple[int, int],
    ) -> None:
        async def report_with_room(percent: int, message: str) -> None:
            await self._require_room()
            await report(percent, message)

        await run_program("qemu-img", "create", "-q", "-f", "qcow2", path, str(disk.size_bytes))
        await write_copied(
            copy_id, disk, path, store, parts, progress(report_with_room, f"reading disk {disk.index}", span)
        )

    async def _require_room(self) -> None:
        """Raise `HostError` unless there is enough free space. Called after every percent that is written: the size of
        a restored disk is known only at the end."""
        if await in_thread(is_nearly_full, self._folders.root, _LEFT_TO_OTHERS):
            raise HostError(
                FailureCode.CAPACITY,
                "The node has too little disk space to open the backup; nothing was kept of it.",
                "Make a new machine from the backup on another node, or have your provider free space on this one.",
            )

    @contextmanager
    def _asking(self, operation: VmFilesList | VmFilesRead) -> Iterator[_Open]:
        there = self._asked(operation.vm_id, operation.copy_id)
        if there.asking >= MOST_ASKING:
            raise HostError(
                FailureCode.CAPACITY,
                "Too many requests for this backup at once.",
                "Try again in a moment, one at a time.",
            )
        there.asking += 1
        try:
            with trio.fail_after(QUESTION_SECONDS):
                yield there
        except trio.TooSlowError as error:
            raise HostError(
                FailureCode.TIMED_OUT,
                f"The backup's file system did not answer within {QUESTION_SECONDS:g} s; it may be damaged.",
                "Request less at once, open another backup, or create a new machine from this one.",
            ) from error
        finally:
            there.asking -= 1
            there.touch()

    async def _list(self, operation: VmFilesList, there: _Open) -> CopiedFolder:
        volume, found = await self._found(there, operation.volume, operation.path)
        if found.attributes.kind is not EntryKind.FOLDER:
            raise HostError(FailureCode.CONFLICT, "That is a file and not a folder.", "Download it.")
        entries, cut = await there.shown.server.entries(found.place, MOST_ENTRIES)
        entries.sort(key=lambda entry: (entry[1].kind is not EntryKind.FOLDER, entry[0]))
        listed = []
        for name, attributes in entries[operation.offset : operation.offset + MOST_LISTED]:
            target = None
            if attributes.kind is EntryKind.LINK:
                target = shown_name((await there.shown.server.target(found.place + b"/" + name))[:MOST_NAME_BYTES])
            listed.append(_entry(name, attributes, target))
        return CopiedFolder(
            volumes=there.shown.volumes,
            volume=volume.number,
            path=shown_name(found.path),
            entries=tuple(listed),
            total=len(entries),
            cut=cut,
        )

    async def _read(self, operation: VmFilesRead, there: _Open) -> CopiedPart:
        volume, found = await self._found(there, operation.volume, operation.path)
        if found.attributes.kind is EntryKind.FOLDER:
            raise HostError(FailureCode.CONFLICT, "That is a folder and not a file.", "List it.")
        if found.attributes.kind is not EntryKind.FILE:
            raise HostError(FailureCode.CONFLICT, "That is not a regular file, so it cannot be downloaded.")
        left = max(0, found.attributes.size - operation.offset)
        data = b""
        if left:
            data = await there.shown.server.read(found.place, operation.offset, min(operation.length, left))
            if not data:
                raise HostError(FailureCode.CONFLICT, "The file is shorter than its size: its file system is damaged.")
        return CopiedPart(
            volume=volume.number,
            path=shown_name(found.path),
            size_bytes=found.attributes.size,
            modified=found.attributes.modified,
            data=base64.b64encode(data).decode(),
        )

    async def _found(self, there: _Open, number: int, path: str) -> tuple[CopiedVolume, ResolvedPath]:
        try:
            plain = path_bytes(path)
        except ValueError as error:
            raise HostError(FailureCode.INVALID, f"The path is invalid: {error}.") from error
        volume = _volume(there.shown.volumes, number)
        return volume, await find(there.shown.server, root_of(volume), plain)

    def _asked(self, vm_id: UUID, copy_id: UUID) -> _Open:
        there = self._open.get(copy_id)
        if there is None or there.vm_id != vm_id or there.scope.cancel_called:
            raise HostError(FailureCode.INTERRUPTED, NOT_OPEN, "Open them first; that takes as long as a restore.")
        there.touch()
        return there


NOT_OPEN: Final = "The backup's files are not open on the machine's node."


def _volume(volumes: Sequence[CopiedVolume], number: int) -> CopiedVolume:
    """The named volume. If no volume is named: the volume of the guest's system, or else the first volume that is
    readable. Raises `HostError`."""
    if number == 0:
        readable = [each for each in volumes if each.state is CopyVolumeState.MOUNTED]
        chosen = next((each for each in readable if each.system), readable[0] if readable else None)
        if chosen is None:
            why = "; ".join(f"{each.device} ({each.type}): {_UNREAD[each.state]}" for each in volumes)
            raise HostError(
                FailureCode.CONFLICT,
                f"The backup has no file system that can be read here. {why or 'There is none on its disks'}.",
                "Make a new machine from the backup.",
            )
        return chosen
    for volume in volumes:
        if volume.number == number:
            if volume.state is not CopyVolumeState.MOUNTED:
                raise HostError(
                    FailureCode.CONFLICT,
                    f"Volume {number} ({volume.device}, {volume.type}) cannot be read: {_UNREAD[volume.state]}.",
                    "Make a new machine from the backup.",
                )
            return volume
    raise HostError(FailureCode.NOT_FOUND, f"The backup has no volume {number}.")


def _entry(name: bytes, attributes: Attributes, target: str | None) -> CopyEntry:
    return CopyEntry(
        name=shown_name(name),
        kind=attributes.kind,
        size_bytes=attributes.size,
        modified=attributes.modified,
        mode=attributes.mode,
        target=target,
    )
