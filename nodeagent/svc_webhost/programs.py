"""Runs programs to their end; they never outlive the core.

Each runs under a supervising process (`svc_webhost.subreaper`), which ends it with all of its descendants when it
is cancelled and when the core dies in any way. If that process is killed as well, the next core finds the remaining
processes by an environment variable (`end_marked`).

A program gets an argument list, never a shell, and an explicit environment instead of the core's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from svc_common.errors import ErrorCode, ServiceError
from svc_webhost import subreaper

STOP_SECONDS: Final = 5.0
"""Seconds between SIGTERM and SIGKILL."""
KILL_SECONDS: Final = 10.0
"""How long the kernel may take to end killed processes."""
ENVIRONMENT: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_LOOK: Final = 0.02
_CHUNK: Final = 65_536
_LONGEST_LINE: Final = 16_384
"""If a program writes no line breaks, this many characters count as a line."""


class ExitedError(ServiceError):
    """A program exited with a status other than 0: 128 plus the number of a signal that ended it, which is a shell's
    convention."""

    def __init__(self, status: int, message: str, hint: str | None = None) -> None:
        super().__init__(ErrorCode.UNAVAILABLE, message, hint=hint)
        self.status = status


class LeftBehindError(Exception):
    """Processes were killed and still exist."""


@dataclass(frozen=True)
class Program:
    """`command` is the program and its arguments. `environment` is added to a PATH and a UTF-8 locale. `stdin` is its
    standard input, by default empty. `descriptors` of the core are inherited under the same numbers."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    stdin: Path | None = None
    descriptors: tuple[int, ...] = ()


async def run_program(program: Program, take: Callable[[list[str]], Awaitable[None]]) -> int:
    """Run the program to its end. `take` gets its output and errors, in lines, several at a time.

    Returns the exit status, or 128 plus the number of the signal that ended the program; 127 if it cannot be run, with
    the reason in the last line. If this is cancelled, or `take` raises, the program has ended before this returns.
    """
    end, line = os.pipe()
    try:
        process = await _start(program, end)
    except BaseException:
        os.close(line)
        raise
    finally:
        os.close(end)
    try:
        assert process.stdout is not None
        async for lines in _lines(process.stdout):
            await take(lines)
        return await process.wait()
    finally:
        with trio.CancelScope(shield=True):
            try:
                await _stop(process, line)
            finally:
                os.close(line)
            with trio.move_on_after(KILL_SECONDS):
                await process.wait()
            assert process.stdout is not None
            await process.stdout.aclose()


@contextmanager
def memory_file(content: Mapping[str, Any]) -> Iterator[Path]:
    """A file with JSON for a program to read, in this process's memory: so the data is neither on a disk nor in an
    argument list."""
    descriptor = os.memfd_create("svc-order", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, json.dumps(content).encode())
        yield Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    finally:
        os.close(descriptor)


async def end_marked(variable: str, prefix: str) -> int:
    """Kill every process whose environment has `variable` with this prefix of its value; returns how many there were,
    once all have ended. Raises LeftBehindError if they do not end."""
    return await trio.to_thread.run_sync(partial(_end_marked, f"{variable}={prefix}".encode()))


async def _start(program: Program, end: int) -> trio.Process:
    stdin = await trio.to_thread.run_sync(os.open, program.stdin or os.devnull, os.O_RDONLY)
    try:
        return await trio.lowlevel.open_process(
            [sys.executable, "-I", "-S", subreaper.__file__, str(end), *program.command],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**ENVIRONMENT, **program.environment},
            cwd=program.folder,
            start_new_session=True,
            pass_fds=(end, *program.descriptors),
        )
    finally:
        os.close(stdin)


async def _stop(process: trio.Process, line: int) -> None:
    """Send SIGTERM, and wait a little. Closing the line kills the remaining processes."""
    if process.poll() is not None:
        return
    os.write(line, b"\0")
    with trio.move_on_after(STOP_SECONDS):
        await process.wait()


async def _lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[list[str]]:
    rest = b""
    while chunk := await stream.receive_some(_CHUNK):
        *whole, rest = (rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            whole, rest = [*whole, rest], b""
        if whole:
            yield [_text(line) for line in whole]
    if rest:
        yield [_text(rest)]


def _text(line: bytes) -> str:
    # A progress bar overwrites its line: only its last state is kept.
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


def _end_marked(mark: bytes) -> int:
    killed: set[int] = set()
    until = time.monotonic() + KILL_SECONDS
    while True:
        found = [pid for pid in _pids() if _kill_if_marked(pid, mark)]
        if not found:
            return len(killed)
        killed.update(found)
        if time.monotonic() > until:
            raise LeftBehindError(f"The processes {found} of jobs of an earlier core do not end.")
        time.sleep(_LOOK)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _kill_if_marked(pid: int, mark: bytes) -> bool:
    """Kill the process if it has the mark; returns whether it existed with the mark. A descriptor of it is opened
    before the check, so that no other process is killed if the pid was reused."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # A zombie's environment is empty, so it is not found.
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if not any(variable.startswith(mark) for variable in variables):
            return False
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except OSError:
        return False  # The process has ended meanwhile, or belongs to another user; processes of jobs run as ours.
    finally:
        os.close(process)
    return True
