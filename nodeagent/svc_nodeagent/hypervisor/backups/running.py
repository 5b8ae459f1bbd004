"""Programs that a block feeds or reads: killed where the block fails, waited for where it ends."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Final

import structlog
import trio

from svc_nodeagent.hypervisor.programs import ENVIRONMENT, ProgramFailed

QUIET: Final = ("nice", "-n", "10", "ionice", "-c", "2", "-n", "7")
"""Guests go before backups."""
_MOST_ERROR_BYTES: Final = 4_096
log = structlog.get_logger(__name__)


class Errors:
    """What a program writes on its standard error: a file rather than a pipe, so that nobody has to read it, and a
    program that says much does not wait for that. Of one that is killed too."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the block)

    def last(self) -> str:
        self.file.seek(max(0, self.file.seek(0, 2) - _MOST_ERROR_BYTES))
        return self.file.read().decode(errors="replace")

    def __enter__(self) -> Errors:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


@asynccontextmanager
async def program(
    command: Sequence[str | Path],
    environment: dict[str, str] = ENVIRONMENT,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    quiet: bool = False,
    errors: Errors | None = None,
) -> AsyncIterator[trio.Process]:
    """Run a program for the length of the block, then wait for its end; a block that raises kills it. Raises
    `ProgramFailed` when it ends with another status than 0, with the last of what it said."""
    with Errors() if errors is None else nullcontext(errors) as said:
        process = await trio.lowlevel.open_process(
            [*(QUIET if quiet else ()), *(str(argument) for argument in command)],
            stdin=stdin,
            stdout=stdout,
            stderr=said.file,
            env=environment,
            pass_fds=pass_fds,
        )
        try:
            yield process
            await process.wait()
        except BaseException:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            raise
        finally:
            with trio.CancelScope(shield=True):
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        await stream.aclose()
        if process.returncode != 0:
            raise ProgramFailed(str(command[0]), process.returncode or 0, said.last())


@asynccontextmanager
async def fed(
    command: Sequence[str | Path],
    environment: dict[str, str] = ENVIRONMENT,
    *,
    stdout: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    quiet: bool = False,
    errors: Errors | None = None,
) -> AsyncIterator[trio.abc.SendStream]:
    """As `program`, of one that reads what the block writes. One that ends too early says why itself."""
    streams = {"stdin": subprocess.PIPE, "stdout": stdout}
    async with program(command, environment, **streams, pass_fds=pass_fds, quiet=quiet, errors=errors) as process:
        assert process.stdin is not None
        try:
            yield process.stdin
        except trio.BrokenResourceError:
            log.info("program.closed_its_input", program=str(command[0]))
        await process.stdin.aclose()
