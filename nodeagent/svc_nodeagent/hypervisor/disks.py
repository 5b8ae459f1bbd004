"""Disks of machines: qcow2 files created by qemu-img, under temporary names until they are complete.

Invariants: a disk that exists is complete and is never created again, so its content survives every repeat; disk 0 is
based on a verified image by absolute path and named format.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from svc_nodeagent.durable import PARTIAL_SUFFIX, sync_folder, write_whole
from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.domains import BaseImage
from svc_nodeagent.hypervisor.files import (
    ABANDONED,
    GIB,
    RECORD,
    Folders,
    MachineRecord,
    in_thread,
    put_in_place,
    read_record,
)
from svc_nodeagent.hypervisor.platform_state import PACKED, packed
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import PLAIN, DiskSpec, FailureCode


@dataclass(frozen=True)
class DiskInfo:
    """qemu-img's information about a file. `refers_to`: other files that its header names, which no downloaded image
    may do."""

    format: str
    virtual_bytes: int
    refers_to: tuple[str, ...]
    encrypted: bool
    snapshots: tuple[str, ...]


_CONFINED = ("prlimit", "--cpu=10", f"--as={GIB}", "--")
"""qemu-img runs as root and reads files that others have made, so it is limited: ten seconds of processor time and a
GiB of memory are ten times what the largest image of a publisher needs."""


async def inspect(path: Path, format: str | None = None) -> DiskInfo:
    named = [] if format is None else ["-f", format]
    command: list[str | Path] = [*_CONFINED, "qemu-img", "info", "--output=json", "-U", *named, path]
    told = json.loads(await run_program(*command, timeout=60))
    data = told.get("format-specific", {}).get("data", {})
    referred = [told.get("backing-filename"), told.get("full-backing-filename"), data.get("data-file")]
    return DiskInfo(
        format=told["format"],
        virtual_bytes=int(told["virtual-size"]),
        refers_to=tuple(str(name) for name in referred if name),
        snapshots=tuple(str(each["name"]) for each in told.get("snapshots", ())),
        encrypted=bool(told.get("encrypted")) or "encrypt" in data,
    )


async def ensure_disks(record: MachineRecord, base: BaseImage, folders: Folders, owner: tuple[int, int]) -> None:
    """Create the disks that do not exist yet, except volumes, which are created separately before. Raises
    `HostError(invalid)` if disk 0 is smaller than its image."""
    for disk in record.disks:
        path = folders.disk_of(record.vm_id, disk)
        if disk.volume_id is None and not await in_thread(path.exists):
            await make_disk(disk, base, path, owner)


async def make_disk(disk: DiskSpec, base: BaseImage, path: Path, owner: tuple[int, int]) -> None:
    """Create one disk. Raises `HostError(invalid)` if disk 0 is smaller than its image."""
    temporary = path.with_name(path.name + PARTIAL_SUFFIX)
    on_image: list[str | Path] = []
    if disk.index == 0:
        needed = (await inspect(base.path, base.format)).virtual_bytes
        if needed > disk.size_gib * GIB:
            raise HostError(
                FailureCode.INVALID,
                f"The image needs a disk of {-(-needed // GIB)} GiB; {disk.size_gib} GiB were asked for.",
                "Choose a larger disk.",
            )
        on_image = ["-b", base.path, "-F", base.format]
    await run_program("qemu-img", "create", "-q", "-f", "qcow2", *on_image, temporary, f"{disk.size_gib}G")
    fault_point(f"create.disk{disk.index}.made")
    await in_thread(put_in_place, temporary, path, mode=0o600, owner=owner)


async def grow(path: Path, size_gib: int) -> None:
    """Grow the disk of a guest that is off; a disk that is large enough stays as it is."""
    if (await inspect(path, "qcow2")).virtual_bytes < size_gib * GIB:
        await run_program("qemu-img", "resize", "-q", "-f", "qcow2", path, f"{size_gib}G")


def require(record: MachineRecord, base: BaseImage, folders: Folders) -> None:
    """Raise `HostError(not_found)` if a file that the machine needs is missing; the error names the first one."""
    needed = {folders.disk_of(record.vm_id, disk): "its disk" for disk in record.disks}
    for path, what in (needed | {base.path: "the image that its disk stands on"}).items():
        if not path.exists():
            raise HostError(
                FailureCode.NOT_FOUND,
                f"The machine cannot be defined: {what} is no longer on its node ({path.name}).",
                "Bring the file back (a file system that is not mounted?), or delete the machine.",
            )


def destroy(folders: Folders, vm_id: UUID) -> None:
    """Remove the machine's folder. The record and the mark of an abandoned creation are removed last: while they exist,
    an interrupted removal is continued."""
    folder = folders.machine(vm_id)
    if not folder.exists():
        return
    for path in sorted(folder.iterdir(), key=lambda path: (path.name == ABANDONED, path.name == RECORD)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        fault_point(f"delete.removed.{path.name}")
    folder.rmdir()
    sync_folder(folder.parent)


def retain(folders: Folders, vm_id: UUID) -> tuple[str, ...]:
    """Move the disks to retained/, together with a record that names their image, and with the state of firmware and
    TPM, without which a disk that is sealed to the TPM cannot be opened. Returns the names of the disks below the data
    folder."""
    kept = folders.retained / str(vm_id)
    folder = folders.machine(vm_id)
    record = folder / RECORD
    if record.exists():
        kept.mkdir(exist_ok=True)
        # The record is copied first: without its record, a disk in retained/ would lose the image on which it is based.
        shutil.copyfile(record, kept / (RECORD + PARTIAL_SUFFIX))
        put_in_place(kept / (RECORD + PARTIAL_SUFFIX), kept / RECORD, mode=0o600)
        fault_point("delete.record_retained")
        for disk in sorted(folder.glob("disk-*.qcow2")):
            disk.rename(kept / disk.name)
            fault_point(f"delete.retained.{disk.name}")
        if not (kept / PACKED).exists() and read_record(record).platform != PLAIN:
            write_whole(kept / PACKED, packed(folders, vm_id), mode=0o600)
        sync_folder(kept)
    return tuple(f"retained/{vm_id}/{path.name}" for path in sorted(kept.glob("disk-*.qcow2")))
