"""Atomic file writes: after a crash at any point, a file has its old content or the new, never a part.

The agent has its own version (svc_nodeagent.durable), since it depends on nothing but the standard library.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

NEW: Final = ".new"
"""Suffix of the name of an incomplete file."""


def write_whole(path: Path, content: bytes, *, mode: int) -> None:
    """Write `content` to `path` atomically; it is on disk on return."""
    new = path.with_name(path.name + NEW)
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    put_in_place(new, path)


def put_in_place(new: Path, path: Path) -> None:
    """Rename a complete file, which is on disk, to its final name; the name is on disk on return."""
    new.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names created, changed or removed in this folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hold(path: Path, text: str) -> None:
    """Make the file have this text, readable for everybody; after a power failure it is either the old or the new one.
    Blocks. Raises `OSError`."""
    if path.exists() and path.read_text() == text:
        return
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
