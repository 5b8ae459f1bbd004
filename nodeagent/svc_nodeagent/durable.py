"""Atomic file writes: after a crash at any point, a file has its complete old content or its complete new content."""

from __future__ import annotations

import os
from pathlib import Path

PARTIAL_SUFFIX = ".partial"
"""The suffix of a file that is not complete yet."""


def write_whole(path: Path, content: bytes, *, mode: int) -> None:
    """Write `content` to `path` atomically; the content is on disk when this returns."""
    temporary = path.with_name(path.name + PARTIAL_SUFFIX)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        os.fchmod(descriptor, mode)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
