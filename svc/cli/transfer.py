"""Files to and from the service: streamed, whatever their size, with a progress bar on a terminal."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncclick as click
import trio

from svc.cli.failures import Exit, Failure

if TYPE_CHECKING:
    from rich.progress import Progress

    from svc.cli.client import Client

_CHUNK = 1 << 20


async def upload(client: Client, method: str, path: str, file: Path) -> Any:
    """Send a file as the body and return the answer. The length is declared in advance, so a truncated file is
    noticed."""
    try:
        status = await trio.Path(file).stat()
        if not stat.S_ISREG(status.st_mode):
            raise Failure(Exit.INVALID, f"{file} is not a file")
        size = status.st_size
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        with Bar(f"uploading {file.name}", size) as bar:
            return await client.call(method, path, content=_chunks(file, bar), headers=headers)
    except OSError as error:
        raise Failure(Exit.INVALID, f"{file} cannot be read: {error.strerror}") from error


async def download(client: Client, path: str, query: Mapping[str, Any], to: Path | None) -> None:
    """Write a file of the service to `to` atomically, or to standard output."""
    if to is None:
        if sys.stdout.isatty():
            raise Failure(
                Exit.INVALID, "the file would be written to the terminal; nothing was written", "give --to FILE"
            )
        async for chunk in client.download(path, query):
            click.echo(chunk, nl=False)
        return
    partial = to.with_name(f"{to.name}.part")
    try:
        async with await trio.open_file(partial, "wb") as file:
            async for chunk in client.download(path, query):
                await file.write(chunk)
        os.replace(partial, to)
    except OSError as error:
        raise Failure(Exit.FAILED, f"{to} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


class Bar:
    """A progress bar on stderr; nothing if that is no terminal."""

    def __init__(self, what: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress: Progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(what, total=total)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, count: int) -> None:
        self._progress.advance(self._task, count)


async def _chunks(file: Path, bar: Bar) -> AsyncIterator[bytes]:
    async with await trio.open_file(file, "rb") as opened:
        while chunk := await opened.read(_CHUNK):
            yield chunk
            bar.advance(len(chunk))
