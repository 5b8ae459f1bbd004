"""Logs that have grown large get another name, and the oldest go: `access.log`, `access.log.1`, ... `access.log.4`.

nginx goes on in the renamed file until it is reloaded, so no line is lost. The other programs of a site append to a
file that they were given open and never open anew: their logs are copied and emptied, where a line that is written in
the same moment may be lost. What a site can fill with its logs is
bounded by what it is logged between two looks, and (`KEPT` + 1) x `LARGEST` a log.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LARGEST: Final = 32 * 1024 * 1024
"""Bytes: some 200,000 requests."""
KEPT: Final = 4
_BLOCK: Final = 1 << 20
_OF_NGINX: Final = frozenset({"access.log", "error.log"})


def rotate(logs: Path) -> int:
    """Rename what is large in this folder. Gives how many logs, for which nginx has to be reloaded: also those that
    were renamed before, and not begun anew since. Blocks."""
    try:
        for path in sorted(logs.glob("*.log")):
            if path.stat().st_size >= LARGEST:
                _make_room(path)
                if path.name in _OF_NGINX:
                    path.replace(_numbered(path, 1))
                else:
                    _copy_and_empty(path)
        return sum(not older.with_suffix("").exists() for older in logs.glob("*.log.1"))
    except FileNotFoundError:
        return 0  # The site was deleted meanwhile; were it not, the next call would find what is to be done.


def _make_room(path: Path) -> None:
    # From the oldest on, each takes the place of the next one: a crash in the midst loses no more than the oldest.
    for number in range(KEPT - 1, 0, -1):
        older = _numbered(path, number)
        if older.exists():
            older.replace(_numbered(path, number + 1))


def _copy_and_empty(path: Path) -> None:
    """Of one that has grown larger still, say by a program that never stops writing, the end is kept; where there is no
    room for that either, nothing is: the room is needed more."""
    try:
        with path.open("rb") as log, _numbered(path, 1).open("wb") as kept:
            log.seek(max(0, path.stat().st_size - LARGEST))
            left = LARGEST
            while left and (block := log.read(min(left, _BLOCK))):
                kept.write(block)
                left -= len(block)
    except FileNotFoundError:
        raise
    except OSError:
        _numbered(path, 1).unlink(missing_ok=True)
    os.truncate(path, 0)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
