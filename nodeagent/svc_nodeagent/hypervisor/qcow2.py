"""Reads the header of a downloaded qcow2 file before any program of the host reads the file (QEMU's
docs/interop/qcow2).

A header of a few bytes can name other files of this host, or tables that keep qemu-img busy for seconds as root. So an
image is refused here, after reading 80 bytes, if its header has features that a plain image does not need.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

_HEADER: Final = struct.Struct(">4sIQIIQIIQQIIQQQQ")
"""magic, version, backing file's offset and length, cluster bits, virtual size, encryption, entries and offset of the
L1 table, offset and clusters of the refcount table, snapshots and their offset; and from version 3 on the incompatible,
compatible and autoclear features. Big-endian."""
_VERSION_2_BYTES: Final = 72
_DIRTY: Final = 1
_CORRUPT: Final = 2
_DATA_FILE: Final = 4
_COMPRESSION_TYPE: Final = 8
_MOST_L1_BYTES: Final = 32 * 1024 * 1024
"""QEMU's own limit."""
_MOST_SNAPSHOTS: Final = 256
"""A machine has at most 50 snapshots (`most_snapshots`), and interrupted steps leave few more. qemu-img takes half a
minute to read 65,535 of them."""
_MOST_VIRTUAL_BYTES: Final = 16 * 1024**4


def is_unfit_disk(path: Path) -> bool:
    """Whether the file is refused as a machine's disk from another host (such a disk may be based on an image): because
    it is no qcow2, or has its content in another file, or has more snapshots than a machine can have, each of which
    qemu-img would read."""
    with path.open("rb") as file:
        data = file.read(_HEADER.size)
    if len(data) < _VERSION_2_BYTES or data[:4] != b"QFI\xfb":
        return True
    _, version, *_, snapshots, _, features, _, _ = _HEADER.unpack(data.ljust(_HEADER.size, b"\0"))
    return snapshots > _MOST_SNAPSHOTS or (version != 2 and bool(features & _DATA_FILE))


def image_fault(path: Path) -> str | None:
    """Why a file is no plain qcow2 image; None if it is one."""
    with path.open("rb") as file:
        data = file.read(_HEADER.size)
    if len(data) < _VERSION_2_BYTES or data[:4] != b"QFI\xfb":
        return "it is not qcow2"
    (_, version, backing, _, bits, virtual, encryption, l1_entries, _, _, _, snapshots, _, features, *_) = (
        _HEADER.unpack(data.ljust(_HEADER.size, b"\0"))
    )
    if version not in (2, 3):
        return f"it is of version {version}, which is not known"
    if version == 2:
        features = 0
    faults = {
        "it refers to other files": backing != 0 or bool(features & _DATA_FILE),
        "it is encrypted": encryption != 0,
        "it has snapshots": snapshots != 0,
        "its clusters have an impossible size": not 9 <= bits <= 21,
        "it is larger than any machine's disk": virtual > _MOST_VIRTUAL_BYTES or l1_entries * 8 > _MOST_L1_BYTES,
        "it was not closed in order, or is damaged": bool(features & (_DIRTY | _CORRUPT)),
        "it needs features that are not known": bool(features & ~(_DIRTY | _CORRUPT | _DATA_FILE | _COMPRESSION_TYPE)),
    }
    return next((fault for fault, found in faults.items() if found), None)


def virtual_bytes(path: Path) -> int:
    """The size of the disk in the file, by its header; 0 for a file that is no qcow2, or is gone."""
    try:
        with path.open("rb") as file:
            data = file.read(_VERSION_2_BYTES)
    except FileNotFoundError:
        return 0
    if len(data) < _VERSION_2_BYTES or data[:4] != b"QFI\xfb":
        return 0
    return int(_HEADER.unpack(data.ljust(_HEADER.size, b"\0"))[5])
