"""Copy a machine's disks to its store, and restore them from a copy.

A backup reads what was written since the previous copy, or the whole disk if that is not known. Each block is digested
on its way to the store. A restored disk must have the digest of all its blocks before the machine uses it.

Invariants: a copy is valid once all of its disks are stored, and no copy is made twice; old copies are removed only
after the new one is complete; a restoration changes nothing of the machine until every disk has been written as a whole
and has the right digest.

Rejected: trusting restic when it reports success. restic assumes that everything in its index is stored: after data was
lost at the target, each further backup was reported as complete, and could not be restored. So a backup examines the
target first (`_tidied`).
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError, Report
from svc_nodeagent.hypervisor import platform_state
from svc_nodeagent.hypervisor.acceleration import qemu_user
from svc_nodeagent.hypervisor.backups.bases import Base, DiskBase, key_of, read_base, remove_base, write_base
from svc_nodeagent.hypervisor.backups.blocks import BLOCK_BYTES
from svc_nodeagent.hypervisor.backups.chains import MOST_CHANGES, Snapshot, StoreListing
from svc_nodeagent.hypervisor.backups.copying import DiskCopy, ParentCopy
from svc_nodeagent.hypervisor.backups.nbd import connect_nbd
from svc_nodeagent.hypervisor.backups.reading import end_job, remove_scratch, serve_disk, socket_folder
from svc_nodeagent.hypervisor.backups.store import MachineStore, store_at
from svc_nodeagent.hypervisor.backups.streams import PIECE_BYTES, KeptDisk, OnProgress, name_of, progress, rebuild
from svc_nodeagent.hypervisor.backups.verification import share_of
from svc_nodeagent.hypervisor.definitions import Definitions
from svc_nodeagent.hypervisor.disks import make_disk
from svc_nodeagent.hypervisor.files import RECORD, Folders, MachineRecord, in_thread, put_in_place, read_record
from svc_nodeagent.hypervisor.freezing import thaw
from svc_nodeagent.hypervisor.guests import Guests, absent
from svc_nodeagent.hypervisor.images import ImageCache, require_room
from svc_nodeagent.hypervisor.platforms import require_platform
from svc_nodeagent.protocol import (
    PLAIN,
    BackupResult,
    CopiedDisk,
    DiskSpec,
    DomainResult,
    DomainState,
    FailureCode,
    Platform,
    VmBackup,
    VmBackupsForget,
    VmBackupsRemove,
    VmRestore,
)

log = structlog.get_logger(__name__)
_MIB: Final = 1024 * 1024
_REMOVE_SECONDS: Final = 30.0
Steps = Callable[[UUID], AbstractAsyncContextManager[None]]


class MachineBackups:
    """Backs up and restores machines. `steps` holds a machine's lock for the length of a block, so that other steps of
    the machine wait."""

    def __init__(
        self, guests: Guests, folders: Folders, images: ImageCache, definitions: Definitions, steps: Steps
    ) -> None:
        self._guests = guests
        self._folders = folders
        self._images = images
        self._definitions = definitions
        self._steps = steps
        self._under_way: set[UUID] = set()

    async def end_abandoned(self) -> None:
        """Clean up what a dead agent has left of backups: thaw guests, end backup jobs, and remove scratch files, which
        would grow."""
        for vm_id in await in_thread(self._folders.scratched):
            if vm_id not in self._under_way:
                await thaw(vm_id, self._guests)
            # Checked again after the thaw: it may have waited for the guest's silent agent, and the machine's next
            # backup may have started meanwhile.
            if vm_id not in self._under_way:
                await end_job(vm_id, self._guests)
                await in_thread(remove_scratch, self._folders, vm_id)
                log.info("backup.abandoned_ended", vm_id=str(vm_id))

    async def backup(self, operation: VmBackup, report: Report) -> BackupResult:
        self._under_way.add(operation.vm_id)
        try:
            return await self._backup(operation, report)
        finally:
            self._under_way.discard(operation.vm_id)

    async def _backup(self, operation: VmBackup, report: Report) -> BackupResult:
        vm_id, copy_id = operation.vm_id, operation.copy_id
        store = self._store(vm_id, operation)
        record = await self._record(vm_id)
        await store.prepare()
        # After a crash of the agent the order is repeated under the same copy's id. The first run may have stored some
        # disks from another snapshot than this run reads, and all disks of a copy must be from one snapshot. So the
        # stored disks are removed.
        there = await store.listing()
        if there.of(copy_id):
            await store.forget_copies({copy_id}, there)
        whole = await self._tidied(store, report)
        base = await in_thread(read_base, self._folders, vm_id) if whole else None
        # If the crash came after the copy was remembered as a base, the base is this copy itself. Its snapshots have
        # just been removed, so it cannot be used.
        if base is not None and base.copy_id == copy_id:
            base = None
        since = None if base is None else ParentCopy(base.copy_id, _to_stand_on(base, record, there))
        made = await DiskCopy(record, self._guests, self._folders, store, copy_id, since, report).run()
        if made.state is not None:
            async with store.writer(copy_id, platform_state.PACKED) as sink:
                await sink.send_all(made.state)
        kept = made.kept
        read, size = (sum(each) for each in zip(*((k.read, k.digests.size) for k in kept.values()), strict=True))
        await report(90, f"read {-(-read // _MIB)} MiB of {-(-size // _MIB)} MiB")
        # The new base is remembered before older copies are removed: if the agent crashes after this, the next backup
        # does not have to read more.
        await in_thread(self._remember, record, copy_id, made.marks, kept)
        await report(92, "removing expired copies")
        superseded = bool(operation.forget) and await store.forget_copies(operation.forget)
        fault_point("backup.forgotten")
        lost = (superseded or not whole) and not await store.prune()
        if lost:
            await report(95, "earlier backups need data that the target has lost, and may not be restored whole")
        return BackupResult(
            vm_id=vm_id,
            copy_id=copy_id,
            disks=tuple(
                CopiedDisk(
                    index=disk.index,
                    size_bytes=kept[disk.index].digests.size,
                    digest=kept[disk.index].digests.root(),
                    block_bytes=BLOCK_BYTES,
                    volume_id=disk.volume_id,
                )
                for disk in record.disks
            ),
            stored_bytes=sum(each.added for each in kept.values()),
            frozen=made.frozen,
            forgotten=operation.forget,
            lost=lost,
            state=_digest(made.state),
        )

    def _remember(self, record: MachineRecord, copy_id: UUID, marks: dict[int, str], kept: dict[int, KeptDisk]) -> None:
        disks = {
            key_of(disk): DiskBase(marks[disk.index], kept[disk.index].digests)
            for disk in record.disks
            if disk.index in marks
        }
        if disks:
            write_base(self._folders, record.vm_id, Base(copy_id, disks))
        else:
            remove_base(self._folders, record.vm_id)

    async def _tidied(self, store: MachineStore, report: Report) -> bool:
        """Prepare the store for a new copy. Removes what interrupted attempts have left, which may have filled the
        target, and removes from the store's index data that the target has lost. Returns False if the target has lost
        data; then the disks are read as a whole, so that the data that they still contain is stored again."""
        await report(0, "looking at what the target has")
        if await store.verify(share_of(datetime.now(UTC).date())) and await store.prune():
            return True
        await report(0, "the target has lost data of earlier backups; this one brings what the disk still has of it")
        await store.strike_off_lost()
        return False

    async def restore(self, operation: VmRestore, report: Report) -> DomainResult:
        vm_id = operation.vm_id
        store = self._store(operation.source_id or vm_id, operation)
        there = await store.listing()
        record = await self._record(vm_id)
        platform = operation.platform or record.platform
        await in_thread(require_platform, platform)
        await self._require_off(vm_id)
        packed = [each for each in there.of(operation.copy_id) if each.disk == platform_state.PACKED]
        state = await self._kept_state(store, packed[0] if packed else None)
        # Firmware and TPM are checked first: their state is small, so an unusable copy is refused before gigabytes are
        # read.
        if operation.state is not None and _digest(state) != operation.state:
            raise HostError(
                FailureCode.HOST,
                "The target returned other data of the machine's firmware and TPM than was backed up; nothing was "
                "changed.",
                "The target has lost or changed data: restore another copy, and check the target.",
            )
        if state is not None:
            await in_thread(platform_state.require_state, state)
        written = [self._folders.restored_disk(vm_id, disk.index) for disk in operation.disks]
        try:
            for place, (disk, path) in enumerate(zip(operation.disks, written, strict=True)):
                parts = there.chain(operation.copy_id, name_of(disk.index))
                if not parts:
                    raise HostError(
                        FailureCode.NOT_FOUND,
                        "The target no longer has this backup; nothing was changed.",
                        "Choose another backup, and check the target.",
                    )
                span = (90 * place // len(written), 90 * (place + 1) // len(written))
                await self._write(record, disk, path, store, parts, report, span)
            # The machine's turn is taken only here: writing may take hours, and the machine's other steps must not wait
            # for that. If the machine is running by now, the restore is refused and its disks are unchanged.
            async with self._steps(vm_id):
                await self._require_off(vm_id)
                await report(95, "putting the disks in their place")
                # From here on a cancellation has no effect: it would leave a disk of the copy next to a disk from
                # before.
                with trio.CancelScope(shield=True):
                    for disk, path in zip(operation.disks, written, strict=True):
                        disk_path, owner = self._folders.disk_of(vm_id, _now(record, disk)), qemu_user().owner
                        await in_thread(put_in_place, path, disk_path, mode=0o600, owner=owner)
                        fault_point(f"restore.disk{disk.index}.placed")
                    await self._be_as_then(vm_id, platform, state)
                    result = DomainResult(vm_id=vm_id, state=await self._guests.state(vm_id))
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _REMOVE_SECONDS):
                for path in written:
                    await in_thread(path.unlink, missing_ok=True)
        return result

    async def _kept_state(self, store: MachineStore, snapshot: Snapshot | None) -> bytes | None:
        if snapshot is None:
            return None
        content = bytearray()
        async with store.reader(snapshot) as source:
            async for piece in _pieces(source):
                content += piece
                if len(content) > platform_state.MOST_BYTES:
                    raise HostError(
                        FailureCode.HOST, "The target returned other data than was backed up; nothing was changed."
                    )
        return bytes(content)

    async def _be_as_then(self, vm_id: UUID, platform: Platform, state: bytes | None) -> None:
        """Put firmware and TPM back to their state in the copy. A copy of a machine with a BIOS has no such state, so
        the machine has none afterwards."""
        record = await self._record(vm_id)
        if state is not None:
            await in_thread(platform_state.restore_state, self._folders, vm_id, state)
        elif platform == PLAIN:
            await in_thread(platform_state.remove, self._folders, vm_id)
        if platform != record.platform:
            changed = record.model_copy(update={"platform": platform})
            await self._definitions.write(changed)
            await self._definitions.define(changed)

    async def forget(self, operation: VmBackupsForget) -> None:
        """Remove copies of a machine that has moved to another host, or has come back to this one."""
        store = self._store(operation.vm_id, operation)
        # NOT_FOUND means that the store is gone, and with it the copies to remove.
        await store.unlock()
        try:
            await store.forget_copies(operation.copies)
        except HostError as error:
            if error.code is not FailureCode.NOT_FOUND:
                raise
            return
        await store.prune()

    async def remove(self, operation: VmBackupsRemove) -> None:
        """Remove the store of a machine that is not on this host; an earlier removal may have removed a part of the
        store already."""
        if await trio.Path(self._folders.machine(operation.vm_id) / RECORD).exists():
            raise HostError(FailureCode.CONFLICT, "This node still has the machine, so its backups were not removed.")
        await self._store(operation.vm_id, operation).remove()

    def _store(self, vm_id: UUID, operation: VmBackup | VmRestore | VmBackupsForget | VmBackupsRemove) -> MachineStore:
        return store_at(self._folders.backups, vm_id, operation.password or "", operation.place)

    async def _write(
        self,
        record: MachineRecord,
        disk: CopiedDisk,
        path: Path,
        store: MachineStore,
        parts: Sequence[Snapshot],
        report: Report,
        span: tuple[int, int],
    ) -> None:
        """Write the copied content to a new file next to the disk, and verify its digest. Raises `HostError` if the
        digest differs from that of the copy, or if the copy is larger than the disk."""
        spec, gib = _now(record, disk), 1024**3
        if spec.size_gib * gib < disk.size_bytes:
            raise HostError(
                FailureCode.CONFLICT,
                f"Disk {disk.index} of the backup has {-(-disk.size_bytes // gib)} GiB, and the machine's disk is "
                "smaller; it was not changed.",
            )
        await make_disk(spec, self._images.base_of(record.base), path, qemu_user().owner)

        async def written(percent: int, message: str) -> None:
            await require_room(path.parent, f"disk {disk.index} of a copy")
            await report(percent, message)

        on_progress = progress(written, f"writing disk {disk.index}", span)
        await write_copied(record.vm_id, disk, path, store, parts, on_progress)

    async def _require_off(self, vm_id: UUID) -> None:
        if await self._guests.state(vm_id) not in (DomainState.STOPPED, DomainState.CRASHED):
            raise HostError(FailureCode.CONFLICT, "The machine is not off; it was not changed.", "Stop it first.")

    async def _record(self, vm_id: UUID) -> MachineRecord:
        try:
            return await in_thread(read_record, self._folders.machine(vm_id) / RECORD)
        except FileNotFoundError as error:
            raise absent(vm_id) from error


async def write_copied(
    whose: UUID, disk: CopiedDisk, path: Path, store: MachineStore, parts: Sequence[Snapshot], on_progress: OnProgress
) -> None:
    """Write a copied disk into an existing qcow2 file. `whose`: the machine under whose name the file is served; the
    caller makes sure that nothing else is done with that machine meanwhile. Raises `HostError` if the digest of what
    was written differs from that of the copy."""
    async with socket_folder(whose) as folder:
        options = ("--discard=unmap", "--detect-zeroes=unmap")
        async with serve_disk(path, folder / "nbd", *options), connect_nbd(folder / "nbd") as sink:
            digest = await rebuild(sink, store, parts, disk, on_progress)
    if digest != disk.digest:
        raise HostError(
            FailureCode.HOST,
            f"The target returned other data of disk {disk.index} than was backed up; nothing was changed.",
            "The target has lost or changed data: restore another copy, and check the target.",
        )


def _digest(state: bytes | None) -> str:
    """The digest of the state of firmware and TPM, as a copy's result has it."""
    return "none" if state is None else hashlib.sha256(state).hexdigest()


def _now(record: MachineRecord, copied: CopiedDisk) -> DiskSpec:
    """The machine's present disk that corresponds to a copied disk. A volume is found by its id, whatever its index is
    now."""
    # A volume is never identified by its index: it may have been detached since and belong to another machine, and
    # another volume may have its index.
    for disk in record.disks:
        same = disk.index == copied.index if copied.volume_id is None else True
        if same and disk.volume_id == copied.volume_id:
            return disk
    raise HostError(
        FailureCode.CONFLICT,
        f"The machine no longer has disk {copied.index} of the backup; it was not changed.",
        "Attach the volume that was this disk, or restore another backup.",
    )


def _to_stand_on(base: Base, record: MachineRecord, there: StoreListing) -> dict[int, DiskBase]:
    """The disks of which only the changes need to be copied, with what the node remembers of them: the target still has
    everything that their newest copy consists of."""
    found = {}
    for disk in record.disks:
        remembered = base.disks.get(key_of(disk))
        parts = there.chain(base.copy_id, name_of(disk.index))
        # `by_blocks`: copies of the first releases have no digests of blocks, so a copy cannot be based on them.
        if remembered is not None and 0 < len(parts) <= MOST_CHANGES and parts[0].by_blocks:
            found[disk.index] = remembered
    return found


async def _pieces(stream: trio.abc.ReceiveStream) -> AsyncIterator[bytes]:
    while piece := await stream.receive_some(PIECE_BYTES):
        yield bytes(piece)
