"""The messages of sites' mail: a file each, named by its id, as the relay gets it.

Invariants:
- a file has its name only once it is whole and on disk, before the rows are written that name it;
- a file without a queued row is removed: by the delivery at once, else by the sweep;
- the room that unfinished writes may still need counts as used, so that all of them together leave `LEAST_FREE`;
- the folder is root's alone; the core copies bytes and reads nothing in them.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Final, TypeVar, TypeVarTuple, Unpack
from uuid import UUID

import trio

from svc_actors.disk_space import MIB, Space
from svc_common.durable import sync_folder

LEAST_FREE: Final = 512 * MIB
"""Mail is refused while less is free: the database and the sites need the rest more."""
_PIECE: Final = 1 * MIB
_FRESH_SECONDS: Final = 900.0
"""Files younger than this may have rows that are not committed yet."""
_PART: Final = ".part"

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
Receive = Callable[[int], Awaitable[bytes]]


class SpoolError(Exception):
    """A message cannot be stored; the text is the server's error."""


class SpoolFullError(SpoolError):
    """There is no room for the message."""


class Spool:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._threads = trio.CapacityLimiter(8)
        self._unwritten: dict[Path, int] = {}
        """Bytes that open writes have not written yet, by their files."""

    def prepare(self) -> None:
        """Create the folder, or remove what an earlier process has not finished there. Blocks."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        _removed(list(self._folder.glob(f"*{_PART}")))

    def has_room(self, size: int = 0) -> bool:
        try:
            return Space.of(self._folder).free - sum(self._unwritten.values()) - size >= LEAST_FREE
        except OSError:
            return False

    async def write(self, message: UUID, size: int, receive: Receive) -> None:
        """Store `size` bytes; `receive` returns at most as many as its argument says. Raises `SpoolError`, and what
        `receive` raises. `receive` must not raise an `OSError`, which would become a `SpoolError`."""
        if not self.has_room(size):
            raise SpoolFullError("the disk is nearly full")
        part = self._path(message).with_suffix(f".{token_hex(8)}{_PART}")
        self._unwritten[part] = size
        try:
            await self._fill(part, self._path(message), receive)
        except OSError as error:
            raise _failed(error) from error
        finally:
            del self._unwritten[part]

    async def _fill(self, part: Path, path: Path, receive: Receive) -> None:
        descriptor = await self._run(_created, part)
        try:
            while left := self._unwritten[part]:
                pieces: list[bytes] = []
                while left and sum(map(len, pieces)) < _PIECE:
                    pieces.append(await receive(min(left, _PIECE)))
                    left -= len(pieces[-1])
                await self._run(_write, descriptor, b"".join(pieces))
                self._unwritten[part] = left
            await self._run(_finish, descriptor, part, path)
        except BaseException:
            await self._give_up(part)
            raise
        finally:
            os.close(descriptor)

    async def read(self, message: UUID) -> bytes:
        """Raises `FileNotFoundError`, also for what is no plain file."""
        return await self._run(_whole, self._path(message))

    async def remove(self, messages: Collection[UUID]) -> None:
        await self._run(_removed, [self._path(message) for message in messages])

    async def old_messages(self) -> list[UUID]:
        """The messages whose rows must be committed by now; what was left unfinished is removed."""
        return await self._run(self._look)

    async def _give_up(self, part: Path) -> None:
        with trio.CancelScope(shield=True):
            await self._run(_removed, [part])

    def _look(self) -> list[UUID]:
        found, before = [], time.time() - _FRESH_SECONDS
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_mtime >= before:
                        continue
                    if entry.name.endswith(_PART):
                        os.unlink(entry.path)
                    elif (message := _id(entry.name)) is not None:
                        found.append(message)
        return found

    def _path(self, message: UUID) -> Path:
        return self._folder / message.hex

    async def _run(self, work: Callable[[Unpack[Arguments]], T], *arguments: *Arguments) -> T:
        return await trio.to_thread.run_sync(work, *arguments, limiter=self._threads)


def _failed(error: OSError) -> SpoolError:
    return SpoolFullError(str(error)) if error.errno in (errno.ENOSPC, errno.EDQUOT) else SpoolError(str(error))


def _created(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _write(descriptor: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(descriptor, view) :]


def _finish(descriptor: int, part: Path, path: Path) -> None:
    os.fsync(descriptor)
    part.rename(path)
    sync_folder(path.parent)


def _whole(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError(errno.ENOENT, "not a plain file", str(path)) from None
        raise
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def _removed(paths: Collection[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _id(name: str) -> UUID | None:
    try:
        return UUID(hex=name)
    except ValueError:
        return None
