"""Names of a zip archive as the people who made it read them.

The format knows two encodings: UTF-8, with a flag, and code page 437 of DOS. Programs that write UTF-8 without the flag
(Finder's "Compress") or backslashes between folders (PowerShell 5's Compress-Archive, .NET before 4.6.1) are common,
and other unpackers read both as they were meant: unzip, 7z and Nautilus.

Names in another code page, such as GBK, cannot be recognised with certainty, and are read as code page 437.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from zipfile import ZipInfo

_IS_UTF_8 = 0x800
_UNIX = 3
_RESOURCES = b"__MACOSX"
"""The folder in which Finder packs what only macOS has of a file, such as its icon."""


def names_of(entries: Sequence[ZipInfo]) -> list[bytes | None]:
    """The name of each entry, in the order of the archive; None: it is left out."""
    are_utf_8 = all(_could_be_utf_8(entry) for entry in entries)
    return [_without_resources(_name(entry, are_utf_8=are_utf_8)) for entry in entries]


def _could_be_utf_8(entry: ZipInfo) -> bool:
    """For a single entry this proves little; if it holds for all entries of an archive, it is sufficient."""
    try:
        _raw(entry).decode()
    except UnicodeDecodeError:
        return False
    return True


def _name(entry: ZipInfo, *, are_utf_8: bool) -> bytes:
    name = _raw(entry) if are_utf_8 else os.fsencode(entry.filename)
    # On Windows no name has a backslash; on Unix one may.
    return name if entry.create_system == _UNIX else name.replace(b"\\", b"/")


def _raw(entry: ZipInfo) -> bytes:
    """The bytes of the name in the archive, which the standard library has decoded."""
    if entry.flag_bits & _IS_UTF_8:
        return os.fsencode(entry.filename)
    try:
        return entry.filename.encode("cp437")
    except UnicodeEncodeError:
        # The name is of the extra field 0x7075, which is UTF-8.
        return os.fsencode(entry.filename)


def _without_resources(name: bytes) -> bytes | None:
    return None if name.split(b"/", 1)[0] == _RESOURCES else name
