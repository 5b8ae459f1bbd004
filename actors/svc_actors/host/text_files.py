"""Files that are root's and hold settings for others to read."""

from __future__ import annotations

import os
from pathlib import Path


def hold(path: Path, text: str) -> None:
    """The file has this text, and everybody may read it; it is the old one or the new one, whenever the power fails.
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
