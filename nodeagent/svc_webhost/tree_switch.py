"""Exchanges a site's files for others next to its home, such that each top-level entry changes in one step.

Before anything is moved, the journal records where everything was. So the next start undoes an interrupted switch, and
the site is as before; a finished switch renames its journal.

All operations are relative to descriptors of two opened folders: the home, in which the site may swap anything for a
link at any moment, and the staging folder, which is root's. Names are moved, never followed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from svc_common.durable import sync_folder
from svc_webhost.confined import kernel

JOURNAL: Final = "switch.json"
DONE: Final = "switched.json"
OLD: Final = "old"


@dataclass(frozen=True)
class _Move:
    """`new` and `old` are the inodes of the new and the old entry, None if there is none."""

    name: str
    new: int | None
    old: int | None


def switch(home: Path, uid: int, staging: Path, new: Path, exclude: Collection[str]) -> None:
    """Move the content of `new` into `home`, and the previous content to `staging`/old. `exclude` are names in the home
    that stay as they are. Raises OSError; then everything is as it was."""
    (staging / OLD).mkdir(mode=0o700)
    with _folder(home, uid) as target, _folder(new) as source, _folder(staging / OLD) as old:
        names = sorted({*os.listdir(source), *os.listdir(target)} - set(exclude))
        moves = [_Move(name, _inode(source, name), _inode(target, name)) for name in names]
        journal = {"home": str(home), "new": str(new), "uid": uid, "moves": [vars(move) for move in moves]}
        written = staging / f"{JOURNAL}.new"
        written.write_text(json.dumps(journal))
        written.rename(staging / JOURNAL)
        sync_folder(staging)
        try:
            for move in moves:
                _forth(move, source, target, old)
        except OSError:
            undo(staging)
            raise
        os.fsync(target)
    (staging / JOURNAL).rename(staging / DONE)
    sync_folder(staging)


def switched(staging: Path) -> bool:
    """Whether a switch with this staging folder has finished, so that it is not undone."""
    return (staging / DONE).exists()


def undo(staging: Path) -> bool:
    """Put back what an interrupted switch has moved; returns whether there was one. May be repeated."""
    try:
        journal = json.loads((staging / JOURNAL).read_text())
    except FileNotFoundError:
        return False
    with (
        _folder(Path(journal["home"]), journal["uid"]) as target,
        _folder(Path(journal["new"])) as source,
        _folder(staging / OLD) as old,
    ):
        for told in journal["moves"]:
            move = _Move(**told)
            if move.new is not None and _inode(target, move.name) == move.new:
                if _inode(source, move.name) is None:
                    kernel.rename(target, _raw(move), source, _raw(move), replace=False)
                else:
                    kernel.exchange(target, _raw(move), source, _raw(move))
            if move.new is None and _inode(old, move.name) == move.old:
                kernel.rename(old, _raw(move), target, _raw(move), replace=False)
        os.fsync(target)
    (staging / JOURNAL).unlink()
    return True


def revert_switch(staging: Path) -> bool:
    """As `undo`, also for a finished switch: the current content of the home is then in its `new` folder. May be
    repeated."""
    try:
        (staging / DONE).rename(staging / JOURNAL)
    except FileNotFoundError:
        return undo(staging)
    sync_folder(staging)
    return undo(staging)


def move_restored(home: Path, uid: int, restored: Path, temporary: str, name: str) -> None:
    """Move one restored entry into the site's folder for unfinished work, from where the site's own account moves it
    into place."""
    with _folder(home, uid) as root:
        opened = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
        try:
            if os.fstat(opened).st_uid != uid:
                raise PermissionError(f"{temporary} is not the site's")
            os.rename(restored, name, dst_dir_fd=opened)
        finally:
            os.close(opened)


def _forth(move: _Move, source: int, target: int, old: int) -> None:
    name = _raw(move)
    if move.new is None:
        with suppress(FileNotFoundError):  # The site has removed the entry.
            kernel.rename(target, name, old, name, replace=False)
    elif move.old is None:
        kernel.rename(source, name, target, name, replace=False)
    else:
        kernel.exchange(source, name, target, name)


def _raw(move: _Move) -> bytes:
    return os.fsencode(move.name)


def _inode(folder: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return None


@contextmanager
def _folder(path: Path, uid: int | None = None) -> Iterator[int]:
    """Open a folder, which must not be a link; and must belong to this account, if given."""
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(opened)
        if uid is not None and (found.st_uid != uid or not stat.S_ISDIR(found.st_mode)):
            raise PermissionError(f"{path} is not the site's")
        yield opened
    finally:
        os.close(opened)
