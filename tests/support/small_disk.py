"""A small file system of its own that a test fills: ext4 on a loop device, as an operator's separate partition is."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1024 * 1024


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    @property
    def free(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Take all space but `leave` bytes, as somebody else's file does."""
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            piece = 64 * MIB
            while piece >= 4096:
                size = os.fstat(descriptor).st_size
                if self.free - piece < leave:
                    piece //= 2
                    continue
                try:
                    os.posix_fallocate(descriptor, size, piece)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2
        finally:
            os.close(descriptor)

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """A file system of `mib` MiB at `folder`, which is made. The file behind it lies beside."""
    image = folder.with_name(folder.name + ".ext4")
    folder.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(mib * MIB)
    _run("mkfs.ext4", "-q", "-m", "0", str(image))
    _run("mount", "-o", "loop", str(image), str(folder))
    try:
        yield SmallDisk(folder)
    finally:
        # Lazily: a process that a failed test has left behind keeps it busy.
        _run("umount", "-l", str(folder))
        image.unlink()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
