"""Dumps the whole database in one snapshot while others write, and loads a dump into an empty database.

It runs the pg_dump and pg_restore that come with the service: they read every server that is not newer than they are.
The password of a URL is passed in the environment, which other accounts of the machine cannot see.
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
    """Pass the output of `pg_dump --format=custom` of the database of `url` to `take`, in pieces of up to 1 MiB.
    `take` runs in a thread: it may compute and write. The rows of the tables `without` are left out."""
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
    """Load a dump into the empty database of `url`, all of it or nothing; the role of `url` owns what it creates.
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
                # The program has ended early, and reports the reason itself.
                await process.wait()
            await process.stdin.aclose()
            await _succeeded(process, errors)


async def is_empty(database: Database) -> bool:
    """Whether the database has no table of any role."""
    return not await database.fetchval("SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = 'public')")


@asynccontextmanager
async def _killed_after(process: trio.Process) -> AsyncIterator[None]:
    """Kill a program that has not ended by the end of the block."""
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
