"""A copy of the whole database, taken in one snapshot while others write, and put into an empty one.

By PostgreSQL's own programs, which the service brings: they read every server that is not newer. The password of a URL
is given in the environment, where other accounts of the machine do not see it.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import IO, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import trio

from svc_actors.store.database import Database
from svc_actors.store.embedded import PROGRAMS

_PIECE: Final = 1024 * 1024
_SHOWN: Final = 2000


class DumpError(RuntimeError):
    """PostgreSQL's program failed; the message is its own."""


async def dump(url: str, take: Callable[[bytes], None], *, without: Sequence[str] = ()) -> None:
    """Give the database of `url` to `take` as `pg_dump --format=custom` writes it, in pieces of up to a mebibyte.
    `take` runs in a thread: it may compute and write. Of the tables `without` the rows are left out."""
    arguments = ["--format=custom", *(f"--exclude-table-data=public.{table}" for table in without)]
    with tempfile.TemporaryFile() as errors:
        process = await _open("pg_dump", arguments, url, errors, stdout=subprocess.PIPE)
        async with _killed_after(process):
            assert process.stdout is not None
            gathered = bytearray()
            while piece := await process.stdout.receive_some(_PIECE):
                gathered += piece
                if len(gathered) >= _PIECE:
                    await trio.to_thread.run_sync(take, bytes(gathered))
                    gathered.clear()
            await _succeeded(process, errors)
        await trio.to_thread.run_sync(take, bytes(gathered))


async def load(url: str, pieces: Iterator[bytes]) -> None:
    """Put a dump into the empty database of `url`, all of it or nothing; what is made belongs to the role of `url`.
    `pieces` is read in a thread."""
    arguments = ["--single-transaction", "--exit-on-error", "--no-owner", "--no-privileges"]
    with tempfile.TemporaryFile() as errors:
        process = await _open("pg_restore", arguments, url, errors, stdin=subprocess.PIPE)
        async with _killed_after(process):
            assert process.stdin is not None
            try:
                while (piece := await trio.to_thread.run_sync(next, pieces, None)) is not None:
                    await process.stdin.send_all(piece)
            except trio.BrokenResourceError:
                # It has ended early, and says why itself.
                await process.wait()
            await process.stdin.aclose()
            await _succeeded(process, errors)


async def is_empty(database: Database) -> bool:
    """Whether nobody has a table in the database."""
    return not await database.fetchval("SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = 'public')")


@asynccontextmanager
async def _killed_after(process: trio.Process) -> AsyncIterator[None]:
    """A program that has not ended by the end of the block is killed."""
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                process.kill()
            await process.wait()


async def _open(
    program: str,
    arguments: list[str],
    url: str,
    errors: IO[bytes],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
) -> trio.Process:
    parts = urlsplit(url)
    user, _, place = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    address = urlunsplit(parts._replace(netloc=f"{name}@{place}" if user else place))
    secret = {"PGPASSWORD": unquote(password)} if password else {}
    return await trio.lowlevel.open_process(
        [str(PROGRAMS / program), *arguments, "--no-password", "--dbname", address],
        stdin=stdin,
        stdout=stdout,
        stderr=errors,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", **secret},
    )


async def _succeeded(process: trio.Process, errors: IO[bytes]) -> None:
    if await process.wait() != 0:
        errors.seek(0)
        raise DumpError(errors.read(_SHOWN).decode(errors="replace").strip())
