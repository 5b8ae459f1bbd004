"""What the node remembers of a machine's newest copy, so that the next backup reads only what was written since: the
copy's id, and for each disk the bitmap that records writes since the copy (`bitmaps`) and the digests of the disk's
blocks.

Invariants: the file is written once all of the copy is stored; a disk is identified by its volume's id, or by its index
if it is not a volume; a file that has changed since it was written is ignored, and the next backup reads everything.

Why the file has a checksum: an increment based on wrong digests would be stored without an error, and fail only when it
is restored.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from svc_nodeagent.durable import PARTIAL_SUFFIX
from svc_nodeagent.hypervisor.backups.blocks import Digests
from svc_nodeagent.hypervisor.files import Folders, put_in_place
from svc_nodeagent.protocol import DiskSpec

_NAME: Final = "copied"
_CHECKSUM_BYTES: Final = 32


@dataclass(frozen=True)
class DiskBase:
    """`mark`: the name of the bitmap in the guest's QEMU that records writes since the copy."""

    mark: str
    digests: Digests


@dataclass(frozen=True)
class Base:
    """`disks`: by `key_of`."""

    copy_id: UUID
    disks: dict[str, DiskBase]


def key_of(disk: DiskSpec) -> str:
    return f"disk {disk.index}" if disk.volume_id is None else f"volume {disk.volume_id}"


def read_base(folders: Folders, vm_id: UUID) -> Base | None:
    try:
        stored = _path(folders, vm_id).read_bytes()
    except FileNotFoundError:
        return None
    # The checksum detects a file that a power cut or a bad sector has damaged.
    checksum, content = stored[:_CHECKSUM_BYTES], stored[_CHECKSUM_BYTES:]
    if hashlib.sha256(content).digest() != checksum:
        return None
    # The file is a line of JSON, followed by the digests of all disks, one after the other; in JSON the digests would
    # be twice as long.
    head, _, rest = content.partition(b"\n")
    disks, place = {}, 0
    try:
        told = json.loads(head)
        for key, mark, size, length in told["disks"]:
            disks[str(key)] = DiskBase(str(mark), Digests(size, rest[place : place + length]))
            place += length
        return Base(UUID(told["copy_id"]), disks)
    # Written by another release, in another format: the next backup reads everything.
    except (ValueError, KeyError, TypeError):
        return None


def write_base(folders: Folders, vm_id: UUID, base: Base) -> None:
    disks = [[key, each.mark, each.digests.size, len(each.digests.known)] for key, each in base.disks.items()]
    head = json.dumps({"copy_id": str(base.copy_id), "disks": disks}).encode()
    content = b"".join([head, b"\n", *(each.digests.known for each in base.disks.values())])
    # Written under another name first, so that the earlier base stays complete if the agent is killed here.
    path = _path(folders, vm_id)
    temporary = path.with_name(_NAME + PARTIAL_SUFFIX)
    with temporary.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(hashlib.sha256(content).digest() + content)
    put_in_place(temporary, path, mode=0o600)


def remove_base(folders: Folders, vm_id: UUID) -> None:
    _path(folders, vm_id).unlink(missing_ok=True)


def _path(folders: Folders, vm_id: UUID) -> Path:
    return folders.machine(vm_id) / _NAME
