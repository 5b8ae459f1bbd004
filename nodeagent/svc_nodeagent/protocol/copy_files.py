"""Operations on the files in a copy of a machine: the copy is opened once, then its folders and files are requested.

A path is text, its names between slashes. A byte that is not part of printable UTF-8 text becomes `%` and two
hexadecimal digits, and so does `%` itself: every name that a guest can give a file has one path, and every path one
name.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal
from uuid import UUID

from pydantic import Field

from svc_nodeagent.protocol.backup_places import BackupPlace
from svc_nodeagent.protocol.facts import Facts, Lane, query
from svc_nodeagent.protocol.machines import CopiedDisk, ImageSpec
from svc_nodeagent.protocol.values import AnyText, Name, Secret, Size, Wire

__all__ = [
    "MOST_LISTED",
    "MOST_PART_BYTES",
    "CopiedFolder",
    "CopiedPart",
    "CopiedVolume",
    "CopyEntry",
    "CopyFilesOperation",
    "CopyVolumeState",
    "EntryKind",
    "OpenedCopy",
    "VmFilesClose",
    "VmFilesList",
    "VmFilesOpen",
    "VmFilesRead",
    "path_bytes",
    "shown_name",
]

MOST_LISTED: Final = 1_000
MOST_PART_BYTES: Final = 1024 * 1024
_MOST_VOLUMES: Final = 64
_BYTE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")

_BASE64: Final = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

CopyPath = Annotated[AnyText, Field(max_length=12_288)]


class CopyVolumeState(StrEnum):
    """`unknown`: a file system that cannot be read."""

    MOUNTED = "mounted"
    BROKEN = "broken"
    ENCRYPTED = "encrypted"
    RAID = "raid"
    UNKNOWN = "unknown"


class EntryKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


class VmFilesOpen(Wire):
    """Open a copy: restore its disks apart from the machine, which stays as it is, and have the rescue system `system`
    show their files. It stays open until `VmFilesClose`, or until nobody asks for its files any longer. Fields are as
    in `VmRestore`. A copy that is open already stays open. `owner_id`: the machine's project, so that one customer's
    copies do not take the places of others. Result: `OpenedCopy`."""

    facts: ClassVar[Facts] = Facts(
        Lane.BACKUPS,
        "opened_copy",
        task_seconds=6 * 3600.0,
        yields_to_force_stop=True,
        since=5,
        last_in_lane=True,
    )
    op: Literal["vm.files.open"] = "vm.files.open"
    vm_id: UUID
    copy_id: UUID
    password: Secret = Field(repr=False)
    disks: Annotated[tuple[CopiedDisk, ...], Field(min_length=1, max_length=16)]
    place: BackupPlace | None = None
    system: ImageSpec
    owner_id: UUID | None = None


class VmFilesList(Wire):
    """List a folder: up to `MOST_LISTED` entries, sorted by name, from `offset` on. `volume`: its number; 0 is the
    volume of the guest's system. Fails with `interrupted` if the copy is not open, or no longer. Result:
    `CopiedFolder`."""

    facts: ClassVar[Facts] = query("copied_folder", since=5)
    op: Literal["vm.files.list"] = "vm.files.list"
    vm_id: UUID
    copy_id: UUID
    volume: int = Field(ge=0, le=_MOST_VOLUMES)
    path: CopyPath
    offset: int = Field(ge=0, le=1_000_000)


class VmFilesRead(Wire):
    """Read a part of a file. Otherwise as `VmFilesList`. Result: `CopiedPart`."""

    facts: ClassVar[Facts] = query("copied_part", since=5)
    op: Literal["vm.files.read"] = "vm.files.read"
    vm_id: UUID
    copy_id: UUID
    volume: int = Field(ge=0, le=_MOST_VOLUMES)
    path: CopyPath
    offset: Size
    length: int = Field(ge=1, le=MOST_PART_BYTES)


class VmFilesClose(Wire):
    """Close a copy; one that is not open is success. Result: `Done`."""

    facts: ClassVar[Facts] = query("done", since=5)
    op: Literal["vm.files.close"] = "vm.files.close"
    vm_id: UUID
    copy_id: UUID


CopyFilesOperation = VmFilesOpen | VmFilesList | VmFilesRead | VmFilesClose


class CopiedVolume(Wire):
    """A file system in a copy: of a partition, a logical volume, or a whole disk. `device`: its name in the rescue
    system. `system`: it contains a guest's operating system."""

    number: int = Field(ge=1, le=_MOST_VOLUMES)
    device: Name
    type: Name
    size_bytes: Size
    state: CopyVolumeState
    system: bool


class OpenedCopy(Wire):
    kind: Literal["opened_copy"] = "opened_copy"
    vm_id: UUID
    copy_id: UUID
    volumes: Annotated[tuple[CopiedVolume, ...], Field(max_length=_MOST_VOLUMES)]


class CopyEntry(Wire):
    """`modified`: seconds since 1970. `target`: the first 255 bytes of a symbolic link's target."""

    name: Annotated[AnyText, Field(max_length=1_024)]
    kind: EntryKind
    size_bytes: int = Field(ge=0, le=2**63 - 1)
    modified: int = Field(ge=0, le=2**32 - 1)
    mode: int = Field(ge=0, le=0o7777)
    target: Annotated[AnyText, Field(max_length=1_024)] | None = None


class CopiedFolder(Wire):
    """`path`: the folder's own path, after links within the volume were followed. `total`: the number of its entries;
    if `cut`, the folder has more, which are not listed."""

    kind: Literal["copied_folder"] = "copied_folder"
    volumes: Annotated[tuple[CopiedVolume, ...], Field(max_length=_MOST_VOLUMES)]
    volume: int = Field(ge=1, le=_MOST_VOLUMES)
    path: CopyPath
    entries: Annotated[tuple[CopyEntry, ...], Field(max_length=MOST_LISTED)]
    total: Size
    cut: bool


class CopiedPart(Wire):
    """`data` is in Base64. `path` as in `CopiedFolder`."""

    kind: Literal["copied_part"] = "copied_part"
    volume: int = Field(ge=1, le=_MOST_VOLUMES)
    path: CopyPath
    size_bytes: Size
    modified: int = Field(ge=0, le=2**32 - 1)
    data: Annotated[AnyText, Field(max_length=MOST_PART_BYTES * 4 // 3 + 4, pattern=_BASE64, repr=False)]


def shown_name(name: bytes) -> str:
    """A file's name, or a path, in the form that operations use."""
    return "".join(
        "".join(f"%{byte:02X}" for byte in each.encode(errors="surrogateescape"))
        if each == "%" or not each.isprintable()
        else each
        for each in name.decode(errors="surrogateescape")
    )


def path_bytes(path: str) -> bytes:
    """The bytes that `shown_name` was given. Raises `ValueError` for a path with a `%` without two digits after it, or
    with a zero byte."""
    plain = path.encode()
    if plain.count(b"%") != len(_BYTE.findall(plain)):
        raise ValueError("% stands for a byte and has two hexadecimal digits after it")
    found = _BYTE.sub(lambda match: bytes.fromhex(match[1].decode()), plain)
    if b"\0" in found:
        raise ValueError("no name has a zero byte")
    return found
