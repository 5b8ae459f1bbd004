"""Disks with file systems in them, made without mounting any: e2fsprogs writes an ext4 into a file."""

from __future__ import annotations

import os
import struct
import subprocess
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
