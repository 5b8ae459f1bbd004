"""Runs programs of the host with argument lists, and reports their failures in one way.

Invariants: no shell; standard input is empty unless given; every run has a deadline, after which the program is killed;
its standard error is in the error that is raised; its output is bounded, and so is the memory of a program that reads
files made by others. Input and standard error are held in memory: a host whose disk is full can still set its filters
and routes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

import structlog
import trio

from svc_nodeagent.calls import host_call
from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import FailureCode

DEFAULT_TIMEOUT_SECONDS = 30.0
MOST_OUTPUT: Final = 64 * 1024 * 1024
_SHOWN_ERROR_CHARACTERS = 400
_MOST_ERROR_BYTES: Final = 64 * 1024
"""How many bytes are read from the end of a program's standard error."""
_MOST_COMPLAINTS: Final = 1024 * 1024
"""The most bytes that a program may write on its standard error; the kernel refuses more."""
_TERMINATE_SECONDS: Final = 5.0
_MOST_MEMORY: Final = {"qemu-img": 2 * 1024**3}
"""The most bytes of memory of a program that reads files made by others. A check of the largest disk takes 0.5 GiB."""
log = structlog.get_logger(__name__)


class ProgramFailed(HostError):  # noqa: N818 - named for what it says
    """A program ended with another status than 0 (`status`; negative for a signal)."""

    def __init__(self, program: str, status: int, error: str) -> None:
        said = " ".join(error.split())[-_SHOWN_ERROR_CHARACTERS:] or f"status {status}, and no message"
        full = "No space left on device" in error
        super().__init__(
            FailureCode.CAPACITY if full else FailureCode.HOST,
            f"{program} failed: {said}",
            "Free disk space on the node, then try again." if full else None,
        )
        self.program = program
        self.status = status
        self.error = error


@dataclass(frozen=True)
class RunAs:
    uid: int
    gid: int
    groups: tuple[int, ...]

    @property
    def owner(self) -> tuple[int, int]:
        """The owner and group for files of this account."""
        return self.uid, self.gid


async def run_program(
    *arguments: str | Path,
    stdin: bytes | None = None,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    run_as: RunAs | None = None,
) -> bytes:
    """Run to the end and return its output. Raises `ProgramFailed`; `HostError(timed_out)` after `timeout` seconds."""
    status, output, error = await try_program(*arguments, stdin=stdin, timeout=timeout, run_as=run_as)
    if status != 0:
        raise ProgramFailed(str(arguments[0]), status, error)
    return output


async def try_program(
    *arguments: str | Path,
    stdin: bytes | None = None,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    run_as: RunAs | None = None,
) -> tuple[int, bytes, str]:
    """As `run_program`, for a program whose status is an answer: (status, output, error)."""
    program = str(arguments[0])
    with host_call(f"run {Path(program).name}"):
        return await _try_program(program, [str(argument) for argument in arguments], stdin, timeout, run_as)


async def _try_program(
    program: str, command: Sequence[str], stdin: bytes | None, timeout: float, run_as: RunAs | None
) -> tuple[int, bytes, str]:
    bound = _MOST_MEMORY.get(program)
    if bound is not None and shutil.which(program, path=ENVIRONMENT["PATH"]) is not None:
        command = [*_prlimit(bound), *command]
    output = bytearray()
    with _in_memory(stdin or b"") as given, _in_memory(b"", most=_MOST_COMPLAINTS) as errors:
        with trio.move_on_after(timeout) as deadline:
            try:
                process = await trio.lowlevel.open_process(
                    command,
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=ENVIRONMENT,
                    user=None if run_as is None else run_as.uid,
                    group=None if run_as is None else run_as.gid,
                    extra_groups=None if run_as is None else run_as.groups,
                )
            except FileNotFoundError as error:
                raise HostError(
                    FailureCode.HOST, f"{program} is not installed on this node.", "Reinstall the node's packages."
                ) from error
            async with _ended(process):
                assert process.stdout is not None
                async for piece in process.stdout:
                    output += piece
                    if len(output) > MOST_OUTPUT:
                        raise HostError(
                            FailureCode.HOST,
                            f"{program} printed more than {MOST_OUTPUT // 1024**2} MiB and was stopped.",
                            "Check the file or service that it was reading.",
                        )
            written = errors.tell()  # the file's position is shared with the program
            said = os.pread(errors.fileno(), _MOST_ERROR_BYTES, max(0, written - _MOST_ERROR_BYTES))
            return process.returncode or 0, bytes(output), said.rstrip(b"\0").decode(errors="replace")
    assert deadline.cancelled_caught
    raise HostError(FailureCode.TIMED_OUT, f"{program} did not end within {timeout:g} s and was stopped.")


@contextmanager
def _in_memory(content: bytes, *, most: int | None = None) -> Iterator[FileIO]:
    """A file that needs no file system, positioned at its start. `most`: the most bytes it accepts."""
    with FileIO(os.memfd_create("svc-program", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+") as file:
        left = memoryview(content)
        while left:
            left = left[file.write(left) :]
        file.seek(0)
        if most is not None:
            file.truncate(most)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        yield file


def _prlimit(most_memory: int) -> tuple[str, ...]:
    return ("prlimit", f"--data={most_memory}", "--core=0", "--")


@asynccontextmanager
async def _ended(process: trio.Process) -> AsyncIterator[None]:
    """Wait for the program's end after the block; a block that raises ends the program."""
    try:
        yield
        await process.wait()
    except BaseException:
        process.terminate()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(_TERMINATE_SECONDS):
                await process.wait()
            process.kill()
            with trio.move_on_after(_TERMINATE_SECONDS):
                await process.wait()
        raise
    finally:
        if process.stdout is not None:
            with trio.CancelScope(shield=True):
                await process.stdout.aclose()


async def host_is_stopping() -> bool:
    """Whether the host is shutting down. False if systemd is not PID 1, or does not say."""
    if not await trio.Path("/run/systemd/system").exists():
        return False
    try:
        _, output, _ = await try_program("systemctl", "is-system-running", timeout=5.0)
    except HostError as error:
        log.warning("host.state_unknown", error=error.message)
        return False
    return output.strip() == b"stopping"


ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
