"""Limits how much a copy may still write, checked while it grows: its source may change meanwhile, and a file may use
far less disk than its size (holes of a sparse file take none).

The standard library alone: helpers and programs that run as root use it.
"""

from __future__ import annotations

import errno
import os
from typing import Final

SPARE: Final = 256 << 20
_SHARE: Final = 50
"""On a small disk a fiftieth of the disk stays free instead of `SPARE` bytes, above all for the databases of all
sites."""
_BLOCK: Final = 1 << 20


class DiskBudget:
    """`folder` is a descriptor on the disk that is written to; `most`: how many bytes the plan still allows, None
    without a plan."""

    def __init__(self, folder: int, most: int | None = None) -> None:
        self._folder = folder
        self._left = most

    def take(self, size: int) -> None:
        """Call this before writing so many bytes. OSError EDQUOT if the plan does not allow them, ENOSPC if the disk
        has no room for them."""
        if self._left is not None:
            self._left -= size
            if self._left < 0:
                raise OSError(errno.EDQUOT, "the disk space of the plan is used up")
        space = os.fstatvfs(self._folder)
        if space.f_bavail * space.f_frsize < min(SPARE, space.f_blocks * space.f_frsize // _SHARE) + size:
            raise OSError(errno.ENOSPC, "the disk has no free space left for this")


def copy_content(source: int, target: int, room: DiskBudget) -> int:
    """Copy the content of a file into an empty one, preserving holes. Returns how many bytes were written; OSError as
    `DiskBudget.take`, and EFBIG if the size exceeds this process's limit."""
    written = at = 0
    # The size is set first, so that a file that is too large is refused before anything is written.
    os.ftruncate(target, os.fstat(source).st_size)
    while (begin := _next(source, at, os.SEEK_DATA)) is not None:
        hole = _next(source, begin, os.SEEK_HOLE)
        if hole is None:
            return written  # The file was truncated meanwhile.
        at = hole
        os.lseek(target, begin, os.SEEK_SET)
        while begin < at:
            size = min(_BLOCK, at - begin)
            room.take(size)
            sent = os.sendfile(target, source, begin, size)
            if not sent:
                return written  # The file was truncated meanwhile.
            begin += sent
            written += sent
    return written


def _next(file: int, at: int, what: int) -> int | None:
    """Where the next data or the next hole (`what`) starts, from this place on; None if there is none before the file's
    end."""
    try:
        return os.lseek(file, at, what)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None
