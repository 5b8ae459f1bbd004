"""What tests of outages do to a server of their own."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import trio

from svc_actors.store import embedded
from svc_actors.store.embedded import PROGRAMS
from svc_actors.store.server_folder import Folder
from svc_common.errors import ErrorCode, ServiceError

PATIENCE = 60.0
_MEMORY = "/dev/shm"
T = TypeVar("T")


@contextmanager
def server_folder() -> Iterator[Path]:
    """A new folder that a server can work in, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="svc-server-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
    try:
        yield folder / "postgresql"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def own_server() -> AsyncIterator[tuple[str, Path]]:
    """A server for one test, with its URL and its folder."""
    with server_folder() as folder:
        async with embedded(folder) as url:
            yield url, folder


def postmaster(folder: Path) -> int:
    """The pid that the server of a folder gives as its own; 0 while there is none."""
    try:
        return int((folder / "cluster" / "postmaster.pid").read_text().splitlines()[0])
    except (FileNotFoundError, IndexError):
        return 0


def kill_server(folder: Path) -> int:
    """kill -9 of the postmaster; its pid."""
    pid = postmaster(folder)
    os.kill(pid, signal.SIGKILL)
    return pid


def cut_power(folder: Path) -> None:
    """kill -9 of every process of the server of a folder, of which there may be none."""
    if folder.exists():
        for pid in Folder.prepare(folder, PROGRAMS).processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until `condition` holds."""
    with trio.fail_after(PATIENCE):
        while not await condition():
            await trio.sleep(0.01)


async def answered(call: Callable[[], Awaitable[T]]) -> T:
    """The answer of `call`, asked again while the database is unavailable."""
    with trio.fail_after(PATIENCE):
        while True:
            try:
                return await call()
            except ServiceError as error:
                if error.code is not ErrorCode.UNAVAILABLE:
                    raise
                await trio.sleep(0.01)
