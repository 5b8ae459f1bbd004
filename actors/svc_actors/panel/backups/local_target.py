"""Local backup targets, which are folders of this server: whether the disk is mounted, and whether it has room.

If a disk is not mounted, its mount point is an empty folder of the root disk. A marker file, written to the disk when
the target is added, distinguishes the disk from its mount point: without the marker nothing is written there.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import trio

from svc_actors.panel.backups.places import SPARE_BYTES, free_bytes_of
from svc_actors.panel.backups.targets import LocalSettings, TargetRow, write_marked
from svc_actors.store import Database
from svc_common.errors import capacity, unavailable

MARKER: Final = ".svc-target-"


def marker_of(target_id: UUID, folder: str) -> Path:
    return Path(folder) / f"{MARKER}{target_id}"


async def require_mounted(database: Database, target: TargetRow) -> None:
    """Raises `unavailable` if the disk of a local target is not mounted; other kinds of targets always pass."""
    if not isinstance(target.settings, LocalSettings):
        return
    path, marker = target.settings.path, marker_of(target.id, target.settings.path)
    if await trio.to_thread.run_sync(marker.is_file):
        return
    if target.settings.marked or not await _is_of_before(database, target.id, path):
        raise unavailable(
            f"{path} is not mounted: {marker.name} is missing there. Nothing was written.",
            hint=f"Mount the disk. If {path} is the right folder of a disk that is mounted, run: touch {marker}",
        )
    try:
        await trio.to_thread.run_sync(marker.touch)
    except OSError as error:
        raise unavailable(f"{path} cannot be written to: {error.strerror}. Nothing was copied.") from error
    await database.transact(partial(write_marked, target_id=target.id))


async def _is_of_before(database: Database, target_id: UUID, path: str) -> bool:
    """Whether the folder may belong to a target from before markers existed: it holds repositories, or the target never
    held any."""
    if await trio.to_thread.run_sync(_holds_repositories, Path(path)):
        return True
    return not await database.fetchval(
        "SELECT EXISTS (SELECT FROM backup_copies WHERE target_id = $1 AND error IS NULL)", target_id
    ) and await trio.to_thread.run_sync(Path(path).is_dir)


def _holds_repositories(folder: Path) -> bool:
    return any(folder.glob("*-*-*-*-*/config"))


async def require_room_at(target: TargetRow, repository: Path, copy: Path, added: int) -> None:
    """Raises `capacity` if the target's disk has no room for the data that its copy of a repository lacks. This is at
    least what the new backup has added."""
    if not isinstance(target.settings, LocalSettings):
        return
    path = target.settings.path
    lacking = await trio.to_thread.run_sync(lambda: bytes_below(repository) - bytes_below(copy))
    needed = max(lacking, added) + SPARE_BYTES
    free = await trio.to_thread.run_sync(free_bytes_of, Path(path))
    if needed > free:
        raise capacity(
            f"The copy may need {needed:,} bytes, and {free:,} are free in {path}; nothing was copied.",
            hint="Free some space there, or keep fewer backups.",
        )


def bytes_below(folder: Path) -> int:
    """The sizes of all files below a folder."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue  # The file is gone, for example a lock file that restic has removed meanwhile.
    return size
