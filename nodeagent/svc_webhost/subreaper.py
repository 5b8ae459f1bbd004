"""Runs one program so that nothing of it outlives the core: `python -I -S subreaper.py DESCRIPTOR PROGRAM ARGUMENT...`

The descriptor is the end of a pipe whose other end only the core holds. A byte in it requests the program to stop
(SIGTERM); its end, which the kernel also causes when the core is killed, kills the program and all of its descendants
at once. Descendants that left the program's process group, or lost their parent, are included: this process is their
subreaper (prctl(2)). If it is killed itself, the kernel sends SIGKILL to the program.

Invariant: when this process ends by itself, none of its descendants is left. Its exit status is the program's, or 128
plus the number of the signal that ended it. This module is standalone, and uses the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CANNOT_RUN = 127


def main() -> None:
    line, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    own = os.getpid()
    program = os.fork()
    if program == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == own:
            _become(line, command)
        os._exit(CANNOT_RUN)
    status = _attend(line, program)
    _kill_descendants()
    os._exit(status if status is not None else 128 + signal.SIGKILL)


def _become(line: int, command: list[str]) -> None:
    os.close(line)
    # The program gets a process group of its own, so that SIGTERM reaches all of its processes, but not this one.
    os.setpgid(0, 0)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and the program would inherit that.
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - an argument list, and no shell is what is wanted
    except OSError as error:
        os.write(2, f"{command[0]} cannot be run: {error.strerror}\n".encode())


def _attend(line: int, program: int) -> int | None:
    """The exit status of the program; None if the core hung up."""
    ended = os.pidfd_open(program)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(line, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if ended in ready:
            code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
            return code if code >= 0 else 128 - code
        if not os.read(line, 1):
            return None
        try:
            os.killpg(program, signal.SIGTERM)
        except ProcessLookupError:  # The program has not created its group yet.
            os.kill(program, signal.SIGTERM)


def _kill_descendants() -> None:
    """Kill the children, and descendants that thereby become children, until none is left."""
    while True:
        for child in _children():
            try:
                os.kill(child, signal.SIGKILL)  # Not reaped yet, so its pid cannot be reused.
            except ProcessLookupError:
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    own, found = os.getpid(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_bytes()
            except OSError:
                continue  # The process has ended meanwhile.
            # The state and the parent's id follow after the name, which may contain any character.
            if int(stat[stat.rindex(b")") + 2 :].split()[1]) == own:
                found.append(int(entry.name))
    return found


if __name__ == "__main__":
    main()
