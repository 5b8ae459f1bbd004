"""Disks with file systems in them, made without mounting any: e2fsprogs writes an ext4 into a file."""

from __future__ import annotations

import os
import struct
import subprocess
import zlib
from collections.abc import Mapping
from pathlib import Path

MIB = 1024 * 1024
SECTOR = 512


def ext4(file: Path, tree: Path, *, size_mib: int = 16, journal_left: bool = False) -> bytes:
    """With what is in `tree`. `journal_left`: as after a power cut, so that a mount has to write its journal back."""
    file.unlink(missing_ok=True)
    subprocess.run(["/usr/sbin/mkfs.ext4", "-q", "-F", "-d", str(tree), str(file), f"{size_mib}M"], check=True)
    if journal_left:
        request = ["/usr/sbin/debugfs", "-w", "-R", "feature needs_recovery", str(file)]
        subprocess.run(request, check=True, capture_output=True)
    return file.read_bytes()


def partitioned(*partitions: bytes) -> bytes:
    """A disk with these, by an MBR."""
    table, at = bytearray(SECTOR), MIB
    disk = bytearray(MIB)
    for number, content in enumerate(partitions):
        entry = struct.pack("<B3sB3sII", 0, bytes(3), 0x83, bytes(3), at // SECTOR, len(content) // SECTOR)
        table[446 + 16 * number : 462 + 16 * number] = entry
        disk += content
        at += len(content)
    table[510:] = b"\x55\xaa"
    disk[:SECTOR] = table
    return bytes(disk)


def luks(size_mib: int = 1) -> bytes:
    """As far as anybody sees without the key."""
    return (b"LUKS\xba\xbe" + struct.pack(">H", 1)).ljust(size_mib * MIB, b"\x7f")


def logical_volume(group: str, name: str, content: bytes) -> bytes:
    """A physical volume of LVM (format_text of LVM2) whose group has one volume, with this in it."""
    extent = 4 * MIB
    count = -(-len(content) // extent)
    ids = [letter * 32 for letter in "pgl"]
    parts = ("-".join((each[:6], *(each[at : at + 4] for at in range(6, 26, 4)), each[26:])) for each in ids)
    physical, whole, logical = parts
    text = (
        f"""{group} {{
id = "{whole}"
seqno = 1
format = "lvm2"
status = ["RESIZEABLE", "READ", "WRITE"]
flags = []
extent_size = {extent // SECTOR}
max_lv = 0
max_pv = 0
metadata_copies = 0
physical_volumes {{
pv0 {{
id = "{physical}"
device = "/dev/vda"
status = ["ALLOCATABLE"]
flags = []
dev_size = {(MIB + count * extent) // SECTOR}
pe_start = {MIB // SECTOR}
pe_count = {count}
}}
}}
logical_volumes {{
{name} {{
id = "{logical}"
status = ["READ", "WRITE", "VISIBLE"]
flags = []
segment_count = 1
segment1 {{
start_extent = 0
extent_count = {count}
type = "striped"
stripe_count = 1
stripes = ["pv0", 0]
}}
}}
}}
}}
contents = "Text Format Volume Group"
version = 1
""".encode()
        + b"\0"
    )
    at, area = 4096, MIB - 4096
    places = struct.pack("<QQQQQQ", MIB, 0, 0, 0, at, area) + bytes(16)
    header = ids[0].encode() + struct.pack("<Q", MIB + count * extent) + places
    label = (struct.pack("<I8s", 32, b"LVM2 001") + header).ljust(SECTOR - 20, b"\0")
    sector = b"LABELONE" + struct.pack("<QI", 1, _lvm_sum(label)) + label
    where = struct.pack("<QQII", SECTOR, len(text), _lvm_sum(text), 0) + bytes(24)
    told = (b" LVM2 x[5A%r0N*>" + struct.pack("<IQQ", 1, at, area) + where).ljust(SECTOR - 4, b"\0")
    start = bytearray(MIB)
    start[SECTOR : 2 * SECTOR] = sector
    start[at : at + SECTOR] = struct.pack("<I", _lvm_sum(told)) + told
    start[at + SECTOR : at + SECTOR + len(text)] = text
    return bytes(start) + content.ljust(count * extent, b"\0")


def _lvm_sum(content: bytes) -> int:
    """CRC-32 that begins with a number of LVM's own, and is not inverted at its end."""
    return zlib.crc32(content, 0xF597A6CF ^ 0xFFFFFFFF) ^ 0xFFFFFFFF


def damaged(content: bytes) -> bytes:
    """The same ext4 with its superblock in place, and its block groups gone."""
    return content[:2048] + bytes([0xFF]) * 65536 + content[2048 + 65536 :]


def grow_tree(root: Path, files: Mapping[bytes, bytes], links: Mapping[bytes, bytes]) -> None:
    """Files and links by their paths below `root`."""
    for name, content in files.items():
        path = root / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name, target in links.items():
        (root / os.fsdecode(name)).symlink_to(os.fsdecode(target))
