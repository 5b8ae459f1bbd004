"""Processes: recorded before their program is executed, watched by pidfd, recognised by their start time.

`subprocess` does not do: it executes the program before its caller knows the process id. A keeper killed in between
would leave a program that no state file names, and its successor would start a second one. Here the child waits for a
byte from the keeper, which sends it once the record is on disk.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import NamedTuple

from svc_webhost.keeper.definition import Definition, RefusedError, accounts
from svc_webhost.keeper.groups import Group, stat_fields

_FIRST = 3
"""The first descriptor that is passed to the program, as in sd_listen_fds(3)."""
_EXECUTED_WITHIN = 10.0
"""Seconds. The keeper's loop waits for the execution, so a single disk that hangs stops the other services for at most
this long."""
_DESCRIPTORS = 1024
"""The soft limit of open files, as under systemd. The hard limit stays the keeper's, so a program may raise the soft
one."""
_PIDFD_GETFD = 438
"""The number of the system call, which is the same on every architecture. It exists since Linux 5.6; Python has no
function for it."""

_libc = ctypes.CDLL(None, use_errno=True)


class Process(NamedTuple):
    pid: int
    started: int
    """The start time in clock ticks since the boot. Together with `pid` it identifies this process and no later one."""
    descriptor: int
    """A pidfd(2), which becomes readable when the process has ended."""

    def signal(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self.descriptor, number)
        except ProcessLookupError:
            return

    def ended(self) -> str:
        """Reap the process and say how it ended."""
        os.close(self.descriptor)
        try:
            _, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            # The process was started by an earlier keeper, and only a process's parent learns its exit status.
            return "ended, its exit status is not known"
        code = os.waitstatus_to_exitcode(status)
        return f"exit status {code}" if code >= 0 else f"signal {-code}"


def start(
    definition: Definition, group: Group, listening: list[socket.socket], record: Callable[[Process], None]
) -> Process:
    """Start the program. `record` is called with the process before the program is executed. `RefusedError` if the
    program cannot be executed."""
    uid, gid = accounts(definition.user, definition.group)
    groups = os.getgrouplist(definition.user, gid)
    handed: dict[str, str] = {}
    for number, one in enumerate(definition.listening, _FIRST):
        handed[one.variable] = handed.get(one.variable, "") + one.form.replace("{descriptor}", str(number))
    environment = definition.environment | handed
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            control = theirs.fileno()
            try:
                os.setsid()
                ours.close()
                # If no byte arrives, the keeper has died before it sent one. Then no state file names this process, so
                # it ends. `ours` is closed above because otherwise the child's own copy would keep the socket open.
                if theirs.recv(1) != b"g":
                    os._exit(0)
                control = _descriptors(definition, listening, theirs)
                highest = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
                resource.setrlimit(resource.RLIMIT_NOFILE, (min(_DESCRIPTORS, highest), highest))
                for limit, value in group.rlimits.items():
                    resource.setrlimit(limit, (value, value))
                # The user is changed last, because this takes away the right to change the groups.
                os.setgroups(groups)
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
                os.umask(definition.umask)
                os.chdir("/")
                # These signals are restored because the program would inherit their handling: Python ignores SIGPIPE
                # and SIGXFSZ, and the keeper's starter may have ignored or blocked others.
                for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT):
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
                os.execve(definition.command[0], definition.command, environment)  # noqa: S606 - a shell is not wanted
            except (OSError, ValueError) as error:
                os.write(control, str(error).encode())
            finally:
                os._exit(127)
        theirs.close()
        try:
            # The child still waits for its byte, so it is in its group before it executes anything that could fork.
            group.join(pid)
            fields = stat_fields(pid)
            assert fields is not None, "a child that is not reaped is there"
            process = Process(pid, int(fields[19]), os.pidfd_open(pid))
            record(process)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise RefusedError(f"{definition.name} could not be started: {error}.") from error
        ours.settimeout(_EXECUTED_WITHIN)
        try:
            ours.sendall(b"g")
            # When the program is executed, the child's end of the socket is closed: an end of file means that the
            # program runs.
            failure = ours.recv(4096).decode()
        except OSError as error:
            failure = str(error)
    if failure:
        process.signal(signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(process.descriptor)
        raise RefusedError(f"{definition.name} could not be started: {failure}.")
    return process


def _descriptors(definition: Definition, listening: list[socket.socket], control: socket.socket) -> int:
    """Standard streams, then the sockets, then `control` until the program is executed. All other descriptors are
    closed by the execution: the keeper started without an inherited one (`__main__.py`), and made none inheritable.

    Returns the descriptor of `control`."""
    nothing = os.open(os.devnull, os.O_RDWR)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    written = nothing if definition.log is None else os.open(definition.log, flags, 0o640)
    after = _FIRST + len(listening)
    # The descriptors are first moved to higher numbers: dup2(2) would close a descriptor that still has the target
    # number.
    high = [_above(fd, after + 1) for fd in (nothing, written, written, *[one.fileno() for one in listening])]
    kept = _above(control.fileno(), after + 1)
    for number, descriptor in enumerate(high):
        os.dup2(descriptor, number)
    os.dup2(kept, after, inheritable=False)
    return after


def _above(descriptor: int, lowest: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)


def find_process(pid: int, started: int) -> Process | None:
    """The process that an earlier keeper started, if it still runs."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    # Read after the pidfd was opened: if it was read before, the number could pass to another process between the two
    # calls.
    fields = stat_fields(pid)
    if fields is None or fields[0] in ("Z", "X") or int(fields[19]) != started:
        os.close(descriptor)
        return None
    return Process(pid, started, descriptor)


def duplicated_socket(pid: int, inode: int) -> socket.socket | None:
    """A descriptor of our own for a socket that the process holds, found by its inode."""
    try:
        holder = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                if os.readlink(f"/proc/{pid}/fd/{name}") != f"socket:[{inode}]":
                    continue
            except FileNotFoundError:
                # The program is running meanwhile, and has closed this descriptor since the listing.
                continue
            descriptor = _libc.syscall(_PIDFD_GETFD, holder, int(name), 0)
            if descriptor >= 0:
                os.set_inheritable(descriptor, False)
                return socket.socket(fileno=descriptor)
    except (FileNotFoundError, ProcessLookupError):
        return None
    finally:
        os.close(holder)
    return None
