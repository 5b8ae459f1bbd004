"""The files of volumes: created atomically, found wherever they are, and removed only if no machine has them.

A volume is `volumes/<id>.qcow2`, and is based on no other file. A volume that was the disk of a deleted machine is in
`retained/` at first, based on that machine's image: `take_over` copies the parts of the image that the disk needs into
the disk, and moves it. A repeat of an interrupted take-over continues it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from uuid import UUID

from svc_nodeagent.durable import PARTIAL_SUFFIX, sync_folder
from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.disks import inspect
from svc_nodeagent.hypervisor.files import RECORD, Folders, in_thread, put_in_place, read_record
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.hypervisor.qcow2 import virtual_bytes
from svc_nodeagent.protocol import FailureCode, KeptDisk, ObservedVolume

_COPY_SECONDS: Final = 3_000.0
_SNAPSHOT_SECONDS: Final = 1_200.0
_KEPT: Final = re.compile(r"retained/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/disk-\d{1,2}\.qcow2")


async def make(folders: Folders, volume_id: UUID, size_gib: int, owner: tuple[int, int]) -> None:
    path = folders.volume(volume_id)
    if await in_thread(path.exists):
        return
    temporary = path.with_name(path.name + PARTIAL_SUFFIX)
    try:
        await run_program("qemu-img", "create", "-q", "-f", "qcow2", temporary, f"{size_gib}G")
        fault_point("volume.made")
        await in_thread(put_in_place, temporary, path, mode=0o600, owner=owner)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


async def take_over(folders: Folders, volume_id: UUID, kept_disk: str | None, owner: tuple[int, int]) -> Path:
    """The volume's file; a kept disk of a deleted machine is converted to one. Raises `HostError(not_found)`."""
    path, source = folders.volume(volume_id), _kept_file(folders, kept_disk)
    if await in_thread(path.exists):
        if source is not None and await in_thread(source.parent.exists):
            await in_thread(_tidy, source.parent)
        return path
    if source is None or not await in_thread(source.exists):
        raise HostError(
            FailureCode.NOT_FOUND,
            "The volume's file is no longer on its node; nothing was changed.",
            "Bring the file back (a file system that is not mounted?), or delete the volume.",
        )
    await drop_snapshots(source)
    if (await inspect(source, "qcow2")).refers_to:
        await run_program("qemu-img", "rebase", "-q", "-f", "qcow2", "-b", "", source, timeout=_COPY_SECONDS)
    fault_point("volume.copied")
    await in_thread(put_in_place, source, path, mode=0o600, owner=owner)
    fault_point("volume.taken_over")
    await in_thread(_tidy, source.parent)
    return path


async def drop_snapshots(path: Path) -> None:
    """Drop a volume's snapshots of a machine that no longer has the volume: these snapshots include the machine's other
    disks, and nobody can restore them."""
    for tag in (await inspect(path, "qcow2")).snapshots:
        await run_program("qemu-img", "snapshot", "-d", tag, path, timeout=_SNAPSHOT_SECONDS)


async def release_volumes(folders: Folders, vm_id: UUID, destroy: tuple[UUID, ...]) -> None:
    """Called when a machine is removed. The volumes in `destroy` are removed with it, and so are the volumes that came
    with an abandoned arrival; its other volumes stay."""
    mark = folders.abandonment(vm_id)
    came = tuple(UUID(line) for line in mark.read_text().split()) if mark.exists() else ()
    for volume_id in (*destroy, *came):
        path = folders.volume(volume_id)
        await in_thread(path.unlink, missing_ok=True)
        await in_thread(path.with_name(path.name + PARTIAL_SUFFIX).unlink, missing_ok=True)
        fault_point("delete.volume_removed")
    record = folders.machine(vm_id) / RECORD
    if await in_thread(record.exists):
        for disk in (await in_thread(read_record, record)).disks:
            if disk.volume_id is not None and folders.volume(disk.volume_id).exists():
                await drop_snapshots(folders.volume(disk.volume_id))


def remove(folders: Folders, volume_id: UUID, kept_disk: str | None) -> None:
    """Remove a volume. Raises `HostError(conflict)` while a machine has it."""
    if holder(folders, volume_id) is not None:
        raise HostError(
            FailureCode.CONFLICT, "A machine has the volume; nothing was changed.", "Detach it, then delete it."
        )
    folders.volume(volume_id).unlink(missing_ok=True)
    sync_folder(folders.volumes)
    fault_point("volume.removed")
    source = _kept_file(folders, kept_disk)
    if source is not None and source.parent.exists():
        source.unlink(missing_ok=True)
        _tidy(source.parent)


def holder(folders: Folders, volume_id: UUID) -> UUID | None:
    """The machine that has the volume."""
    for vm_id, record in folders.records().items():
        if any(disk.volume_id == volume_id for disk in record.disks):
            return vm_id
    return None


def observed_volumes(folders: Folders) -> tuple[ObservedVolume, ...]:
    """Every volume with a file on this host, and those that a machine has without a file (with no size)."""
    held = {
        disk.volume_id: (vm_id, disk.index)
        for vm_id, record in folders.records().items()
        for disk in record.disks
        if disk.volume_id is not None
    }
    found = {UUID(path.stem): virtual_bytes(path) for path in folders.volumes.glob("*.qcow2")}
    observed = []
    for volume_id in sorted(found.keys() | held.keys()):
        vm_id, index = held.get(volume_id, (None, None))
        size_bytes = found.get(volume_id, 0)
        observed.append(ObservedVolume(volume_id=volume_id, vm_id=vm_id, index=index, size_bytes=size_bytes))
    return tuple(observed)


def kept_disks(folders: Folders) -> tuple[KeptDisk, ...]:
    kept = []
    for path in sorted(folders.retained.glob("*/disk-*.qcow2")):
        record = path.parent / RECORD
        kept.append(
            KeptDisk(
                name=f"retained/{path.parent.name}/{path.name}",
                vm_id=UUID(path.parent.name),
                vm_name=read_record(record).name if record.exists() else "",
                size_bytes=virtual_bytes(path),
            )
        )
    return tuple(kept)


def _kept_file(folders: Folders, kept_disk: str | None) -> Path | None:
    """The file of a kept disk. Raises `HostError(invalid)` if the name is not that of a kept disk."""
    if kept_disk is None:
        return None
    if _KEPT.fullmatch(kept_disk) is None:
        raise HostError(FailureCode.INVALID, "That is not the name of a retained disk.")
    return folders.root / kept_disk


def _tidy(folder: Path) -> None:
    """Remove the record of a deleted machine with the last of its disks."""
    if not any(folder.glob("disk-*.qcow2")):
        (folder / RECORD).unlink(missing_ok=True)
        folder.rmdir()
        sync_folder(folder.parent)
