"""Runs a program for the length of a block that writes its input or reads its output. If the block fails, the program
is killed; otherwise the end of the program is waited for.

`programs.run_program` is for other programs: it returns all output at once, and the output of these may be a whole
disk.
"""

from __future__ import annotations

import resource
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

import structlog
import trio

from svc_nodeagent.hypervisor.programs import ENVIRONMENT, ProgramFailed

QUIET: Final = ("nice", "-n", "10", "ionice", "-c", "2", "-n", "7")
"""Guests have priority over backups: these run at nice 10, and with the lowest of the best-effort priorities for the
disk."""
_MOST_ERROR_BYTES: Final = 4_096
_OUT_OF_MEMORY: Final = ("runtime: out of memory", "cannot allocate memory", "pthread_create failed", "MemoryError")
"""The first words that Go and Python print when they run out of memory. They are followed by a trace, which may be
long."""
_MOST_FILE_BYTES: Final = 1024**3
"""The most bytes that a program with a limit may write to one file, including its standard error."""
_LEAVE_SECONDS: Final = 3.0
"""How long to wait for the end of a killed program."""
log = structlog.get_logger(__name__)


class Errors:
    """The standard error of a program, which can also be read after the program was killed. It is a file and not a
    pipe, so that no reader is needed and a program that writes much does not block."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the block)

    def first(self) -> str:
        self.file.seek(0)
        return self.file.read(_MOST_ERROR_BYTES).decode(errors="replace")

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
    most_memory: int | None = None,
    name: str | None = None,
    quiet: bool = False,
    errors: Errors | None = None,
) -> AsyncIterator[trio.Process]:
    """Run a program for the length of the block, then wait for its end; a block that raises kills it. Raises
    `ProgramFailed` with the last part of its standard error if its status is not 0. `most_memory`: the bytes of data
    that it may have. `name`: its name in a failure, if that is not the command's first word."""
    with Errors() if errors is None else nullcontext(errors) as said:
        process = await trio.lowlevel.open_process(
            [*(QUIET if quiet else ()), *(str(argument) for argument in command)],
            stdin=stdin,
            stdout=stdout,
            stderr=said.file,
            env=environment,
        )
        if most_memory is not None:
            _bound(process, most_memory)
        try:
            yield process
            await process.wait()
        except BaseException:
            process.kill()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _LEAVE_SECONDS) as leaving:
                await process.wait()
            if leaving.cancelled_caught:
                # The process waits in the kernel for a file server that does not answer, and no signal reaches it
                # there. It ends when the server answers; waiting for that would block the agent.
                log.error("program.left_behind", program=str(command[0]), pid=process.pid)
            raise
        finally:
            with trio.CancelScope(shield=True):
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        await stream.aclose()
        if process.returncode != 0:
            error = said.last()
            if most_memory is not None and any(words in said.first() + error for words in _OUT_OF_MEMORY):
                error = f"it needed more memory than the {most_memory // 1024**2} MiB that it may have"
            raise ProgramFailed(name or str(command[0]), process.returncode or 0, error)


@asynccontextmanager
async def program_with_input(
    command: Sequence[str | Path],
    environment: dict[str, str] = ENVIRONMENT,
    *,
    stdout: int = subprocess.DEVNULL,
    most_memory: int | None = None,
    name: str | None = None,
    quiet: bool = False,
    errors: Errors | None = None,
) -> AsyncIterator[trio.abc.SendStream]:
    """As `program`, for a program whose input the block writes."""
    streams = {"stdin": subprocess.PIPE, "stdout": stdout}
    running = program(command, environment, **streams, most_memory=most_memory, name=name, quiet=quiet, errors=errors)
    async with running as process:
        assert process.stdin is not None
        try:
            yield process.stdin
        except trio.BrokenResourceError:
            # Not raised: `program` raises an error with the program's own status and output, which say why it ended.
            log.info("program.closed_its_input", program=str(command[0]))
        await process.stdin.aclose()


def _bound(process: trio.Process, most_memory: int) -> None:
    """Limit the size of its data, not of its address space: a program in Go reserves much more address space than it
    uses."""
    # Set from outside, right after the start: with a preexec function, Python code would run in the forked child.
    bounds = {resource.RLIMIT_DATA: most_memory, resource.RLIMIT_FSIZE: _MOST_FILE_BYTES, resource.RLIMIT_CORE: 0}
    with suppress(ProcessLookupError):
        for bound, most in bounds.items():
            resource.prlimit(process.pid, bound, (most, most))
