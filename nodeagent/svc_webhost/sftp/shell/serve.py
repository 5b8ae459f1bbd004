"""The service of one login: starts the programs of its sessions, in its own control group, as the site's account.

    python -I -S serve.py UID COMMAND...

It listens on the descriptor that `SVC_LISTENING` names. `UID` is the account's, and `COMMAND` the command that runs a
program with its arguments, appended to it, as the account in its view of the server (`confined/enter_site.py`). Each
session is a child process, which starts the program with the descriptors that it received, passes signals on to it, and
answers with the program's status or signal as JSON: `{"status": 1}` or `{"signal": 15}`.

Invariants:
- only the account is served, according to the kernel's credentials of the connection;
- a terminal must belong to the account, or the session is refused;
- when this process ends by itself, none of its descendants is left: it is their subreaper (prctl(2)).

Run as root; this module is standalone, and uses the standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import re
import select
import signal
import socket
import struct
import sys
import termios
from contextlib import suppress
from typing import Any, Final

LISTENING: Final = "SVC_LISTENING"
_PR_SET_CHILD_SUBREAPER: Final = 36
_LENGTH: Final = 4
_LARGEST: Final = 256 * 1024
"""More than the kernel's limit for one argument (MAX_ARG_STRLEN)."""
_ASKED_WITHIN: Final = 10.0
_MOST: Final = 64
"""The most concurrent sessions, which limits a login that has no limit of processes."""
_SHELL: Final = "/bin/bash"
_TOLD: Final = re.compile(r"TERM|LANG|LC_[A-Z]+|SSH_CLIENT|SSH_CONNECTION|SSH_TTY")
_VALUE: Final = re.compile(r"[ -~]{0,256}")
_REFUSED: Final = 255


def main(arguments: list[str]) -> int:
    uid, *command = arguments
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    listening = socket.socket(fileno=int(os.environ.pop(LISTENING)))
    listening.set_inheritable(False)
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake)
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    sessions: set[int] = set()
    while not ending:
        watched: list[Any] = [woken, listening] if len(sessions) < _MOST else [woken]
        ready, _, _ = select.select(watched, [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(sessions)
        if listening in ready:
            connection, _ = listening.accept()
            with connection:
                _begin(connection, listening, int(uid), command, sessions)
    _kill_descendants()
    return 0


def _begin(
    connection: socket.socket, listening: socket.socket, uid: int, command: list[str], sessions: set[int]
) -> None:
    try:
        pid = os.fork()
    except OSError as error:
        # The fork failed because the login has reached its limit of processes.
        _answer(connection, {"status": _REFUSED, "error": f"No further session can be started: {error.strerror}."})
        return
    if pid:
        sessions.add(pid)
        return
    try:
        listening.close()
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        _answer(connection, _session(connection, uid, command))
    finally:
        os._exit(0)


def _session(connection: socket.socket, uid: int, command: list[str]) -> dict[str, Any]:
    try:
        given, wanted = _asked(connection, uid)
        terminal = os.isatty(given[0])
        if terminal and os.fstat(given[0]).st_uid != uid:
            raise PermissionError("the terminal is not the account's")
        words = ["-c", wanted["command"]] if wanted["command"] is not None else ["-l"]
        program = _started([*command, _SHELL, *words], os.environ | wanted["environment"], given, terminal=terminal)
    except (OSError, ValueError) as error:
        return {"status": _REFUSED, "error": f"The session cannot be started: {error}."}
    for descriptor in given:
        os.close(descriptor)
    return _ended(connection, program)


def _asked(connection: socket.socket, uid: int) -> tuple[list[int], dict[str, Any]]:
    """The descriptors for the program's standard streams, and the request."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    if struct.unpack("3i", peer)[1] != uid:
        raise PermissionError("this is the shell of somebody else")
    connection.settimeout(_ASKED_WITHIN)
    head, given, _, _ = socket.recv_fds(connection, _LENGTH, 3)
    length = int.from_bytes(head, "big")
    if len(head) != _LENGTH or len(given) != 3 or length > _LARGEST:
        raise ValueError("three descriptors and a request are expected")
    text = b""
    while len(text) < length and (chunk := connection.recv(length - len(text))):
        text += chunk
    connection.settimeout(None)
    asked = json.loads(text)
    command, environment = asked["command"], asked["environment"]
    if not (command is None or isinstance(command, str)) or not isinstance(environment, dict):
        raise ValueError("a command and an environment are expected")
    told = {name: value for name, value in environment.items() if _TOLD.fullmatch(name) and _VALUE.fullmatch(value)}
    return given, {"command": command, "environment": told | {"SHELL": _SHELL}}


def _started(command: list[str], environment: dict[str, str], given: list[int], *, terminal: bool) -> int:
    program = os.fork()
    if program:
        return program
    try:
        os.setsid()
        if terminal:
            # Until here the terminal belongs to the session that sshd has created: only root can take it away
            # (tty_ioctl(4)).
            fcntl.ioctl(given[0], termios.TIOCSCTTY, 1)
        # Moved to higher numbers first, away from those that are needed below.
        for number, descriptor in enumerate([fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in given]):
            os.dup2(descriptor, number)
        for descriptor in given:
            os.close(descriptor)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(ignored, signal.SIG_DFL)
        os.execve(command[0], command, environment)  # noqa: S606 - an argument list; the account has its own shell
    except OSError as error:
        os.write(2, f"The session cannot be started: {error}.\n".encode())
    finally:
        os._exit(_REFUSED)


def _ended(connection: socket.socket, program: int) -> dict[str, Any]:
    """How the program ended; until then, passes on the signals that the other side sends as bytes."""
    watched = os.pidfd_open(program)
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.register(connection, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == watched:
                code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
                return {"status": code} if code >= 0 else {"signal": -code}
            named = _received(connection)
            if not named:
                # sshd has closed the other end: the kernel hangs up a terminal; pipes are closed here.
                poll.unregister(connection)
            for number in named:
                with suppress(OSError):
                    os.killpg(program, number)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(64)
    except OSError:
        return b""


def _answer(connection: socket.socket, answer: dict[str, Any]) -> None:
    with suppress(OSError):
        connection.sendall(json.dumps(answer).encode())


def _reap(sessions: set[int]) -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        sessions.discard(pid)


def _kill_descendants() -> None:
    """Kill the children, and descendants that thereby become children, until none is left."""
    while True:
        for child in _children():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except OSError as error:
            if error.errno == errno.ECHILD:
                return
            raise


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
