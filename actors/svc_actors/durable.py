"""Files that are whole whenever they are there: after a crash at any point, a name means the old content or the new.

The agent has its own (svc_nodeagent.durable): it stands alone, and needs the standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

NEW: Final = ".new"
"""Ends the name of what is not whole yet."""


def write_whole(path: Path, content: bytes, *, mode: int) -> None:
    """Put `content` at `path`, whole or not at all, and on disk when this returns."""
    new = path.with_name(path.name + NEW)
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    put_in_place(new, path)


def put_in_place(new: Path, path: Path) -> None:
    """Give a finished file, which is on disk, its own name, for good when this returns."""
    new.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make what was named, renamed or removed in this folder outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
