"""Whether the target still has what it was given: a seventh of a store's files a day is read and digested.

restic takes what its index names for kept, whatever has become of the file: a backup after a loss is told as complete
and cannot be read. It names each file of data by the SHA-256 of its content, so no key is needed to tell.

Invariant: nothing is destroyed; a file that is not what it was is put beside the repository's data, where restic does
not look, so that the next copy brings again what of it the disk still has.
"""

from __future__ import annotations

import hashlib
from datetime import date
from pathlib import Path

from svc_nodeagent.hypervisor.files import in_thread

SHARES = 7
_NAME_LENGTH = 64
_READ_BYTES = 1024 * 1024


def share_of(day: date) -> int:
    """Another one each day, and on the same weekday of another week: each comes within a fortnight of daily runs, and
    within seven weekly ones."""
    ordinal = day.toordinal()
    return (ordinal + ordinal // SHARES) % SHARES


async def set_aside_damaged(repository: Path, share: int) -> list[str]:
    """Move the data files of this share that are not what their names say into `damaged`, and give their names."""
    damaged = []
    for path in await in_thread(_of_share, repository, share):
        # One file at a time, so that whoever cancels waits for no more than that.
        if await in_thread(_digest, path) != path.name:
            await in_thread(_set_aside, repository, path)
            damaged.append(path.name)
    return damaged


def _of_share(repository: Path, share: int) -> list[Path]:
    """Without what a program that died has left under a name for the time, which is longer."""
    files = [path for path in sorted((repository / "data").glob("*/*")) if len(path.name) == _NAME_LENGTH]
    return [path for path in files if int(path.name[:8], 16) % SHARES == share]


def _set_aside(repository: Path, path: Path) -> None:
    aside = repository / "damaged"
    aside.mkdir(mode=0o700, exist_ok=True)
    path.rename(aside / path.name)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()
