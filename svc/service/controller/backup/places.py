"""Where archives are stored: a folder, or a folder of another host by SFTP.

An archive is written under a name that ends in `.partial`, flushed to disk, and only then renamed: an archive found
under its own name is complete, even after a power failure. The next backup removes any `.partial` that an interrupted
backup left.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePath, PurePosixPath
from typing import Final, TypeAlias
from urllib.parse import unquote, urlsplit

import trio

from svc_common.durable import put_in_place

PREFIX, SUFFIX, PARTIAL = "svc-controller-", ".age", ".partial"
_SFTP_TIMEOUT: Final = 3600.0


class PlaceError(Exception):
    """The place cannot be read or written; the message says why."""


class Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def spool(self) -> Path | None:
        return self._path

    async def names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._path) if is_archive(name))
        except OSError as error:
            raise PlaceError(f"{self._path} cannot be read: {error.strerror}") from error

    @asynccontextmanager
    async def fetched(self, name: str) -> AsyncIterator[Path]:
        yield self._path / name

    async def store(self, name: str, finished: Path) -> None:
        await trio.to_thread.run_sync(put_in_place, finished, self._path / name)

    async def remove(self, name: str) -> None:
        (self._path / name).unlink()

    async def clear(self) -> None:
        for left in self._path.glob(f"{PREFIX}*{SUFFIX}{PARTIAL}"):
            left.unlink()


class Sftp:
    """A folder of another host, reached by the system's `sftp` with this account's keys, known hosts and configuration
    (~/.ssh). It never prompts."""

    def __init__(self, user: str | None, host: str, port: int | None, folder: PurePosixPath) -> None:
        self._address = f"{user}@{host}" if user else host
        self._options = ["-P", str(port)] if port else []
        self._folder = folder

    @property
    def spool(self) -> Path | None:
        return None

    async def names(self) -> list[str]:
        listed = await self._run(f"ls -1 {_quoted(self._folder)}")
        return sorted(filter(is_archive, (PurePosixPath(line.strip()).name for line in listed.splitlines())))

    @asynccontextmanager
    async def fetched(self, name: str) -> AsyncIterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            await self._run(f"get {_quoted(self._folder / name)} {_quoted(path)}")
            yield path

    async def store(self, name: str, finished: Path) -> None:
        # -f: the file is flushed to the other host's disk before it is renamed.
        partial = _quoted(self._folder / f"{name}{PARTIAL}")
        await self._run(f"put -f {_quoted(finished)} {partial}", f"rename {partial} {_quoted(self._folder / name)}")

    async def remove(self, name: str) -> None:
        await self._run(f"rm {_quoted(self._folder / name)}")

    async def clear(self) -> None:
        # With the leading dash it is no error if no file matches.
        await self._run(f"-rm {_quoted(self._folder)}/{PREFIX}*{SUFFIX}{PARTIAL}")

    async def _run(self, *commands: str) -> str:
        with trio.move_on_after(_SFTP_TIMEOUT):
            done = await trio.run_process(
                ["sftp", "-q", "-b", "-", *self._options, self._address],
                stdin="\n".join(commands).encode() + b"\n",
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                check=False,
            )
            said = done.stdout.decode(errors="replace")
            if done.returncode != 0:
                raise PlaceError(f"sftp to {self._address} failed: {said.strip()[-500:]}")
            return "\n".join(line for line in said.splitlines() if not line.startswith("sftp> "))
        raise PlaceError(f"sftp to {self._address} did not finish within {_SFTP_TIMEOUT:.0f} s.")


Place: TypeAlias = Folder | Sftp
"""Where archives are stored. `names` lists complete archives, the oldest first; `fetched` gives a path from which an
archive can be read; `store` stores a finished archive, which was written in the folder `spool` (None: anywhere on this
machine); `clear` removes the remains of interrupted backups."""


def parse_place(where: str) -> Place:
    """The place that an operator has written as a folder, or as `sftp://USER@HOST[:PORT]/FOLDER`. Raises PlaceError for
    any other URL, and for one that has a password or no folder."""
    if not where.startswith("sftp://"):
        if "://" in where:
            raise PlaceError(f"{where} is neither a folder nor sftp://USER@HOST/FOLDER.")
        return Folder(Path(where))
    parts = urlsplit(where)
    if parts.netloc.startswith("-") or not parts.hostname or not parts.path.strip("/") or parts.password:
        raise PlaceError(
            f"{parts.hostname or where}: write sftp://USER@HOST/FOLDER without a password; a key signs in."
        )
    return Sftp(parts.username, parts.hostname, parts.port, PurePosixPath(unquote(parts.path)))


def is_archive(name: str) -> bool:
    return name.startswith(PREFIX) and name.endswith(SUFFIX)


def _quoted(path: PurePath) -> str:
    """The path quoted for a batch of sftp: with sftp's escapes, and so that no character is a pattern."""
    return '"' + "".join(f"\\{each}" if each in '\\"*?[' else each for each in str(path)) + '"'
