"""Measures the disk use of a folder with du(1), in blocks, at low priority."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import trio

LONGEST_SECONDS: Final = 1800.0
_COMMAND: Final = ("/usr/bin/nice", "-n", "19", "/usr/bin/ionice", "-c", "3", "/usr/bin/du")


async def disk_use(folder: Path) -> int | None:
    """Bytes of all files below, hard links once and links not followed; None if that fails. Changes made meanwhile may
    be counted or not."""
    if not await trio.to_thread.run_sync(folder.is_dir):
        return None
    with trio.move_on_after(LONGEST_SECONDS):
        ran = await trio.run_process(
            [*_COMMAND, "--summarize", "--one-file-system", "--block-size=1", "--", str(folder)],
            capture_stdout=True,
            stderr=subprocess.DEVNULL,
            env={"LC_ALL": "C"},
            check=False,
        )
        said = ran.stdout.split(b"\t", 1)[0]
        return int(said) if said.isdigit() else None
    return None
