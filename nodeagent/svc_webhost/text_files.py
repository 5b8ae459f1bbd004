"""Files of settings, owned by root and readable for everybody."""

from __future__ import annotations

import os
from pathlib import Path


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
