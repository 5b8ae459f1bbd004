"""The processes of this machine, of which those of other tests come and go while they are looked at."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def command_lines() -> dict[int, bytes]:
    """How each was started, by its id: words that end with a zero byte. They need not be text."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found[int(process.name)] = (process / "cmdline").read_bytes()
    return found
