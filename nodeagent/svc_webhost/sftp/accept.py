"""The port of SFTP: accepts connections, and starts an sshd for each.

    python -I -S accept.py PROGRAM ARGUMENT...

SVC_PORTS names the descriptors of the listening sockets as `3;4;`. The launcher holds them, so that no program of a
site can take the port while this one is replaced or after it was killed. sshd cannot inherit a listening socket, and
frees a port that it binds itself as soon as it ends; so it is started as by inetd(8), with the connection as its
standard input and output.

sshd limits connections that have not signed in only if it accepts them itself (MaxStartups). Here a connection counts
as new for `LOGIN_SECONDS`, or until a check finds that it has signed in: then one of its processes runs as the account
of a site. Processes are checked only while many connections are new.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv6Network
from typing import Final

LOGIN_SECONDS: Final = 30
"""sshd's LoginGraceTime."""
MOST_OF_ONE: Final = 20
"""The most new connections from one IPv4 address or one IPv6 /64, which is the least that a subscriber has."""
_CROWD: Final = 20
_MOST: Final = 100
"""From the first number of new connections on, half of the next ones are refused; from the second on, all."""
_LOOK_SECONDS: Final = 0.25
"""The pause between two checks, so that their cost does not grow with a flood of connections."""
_VARIABLE: Final = "SVC_PORTS"
_BUSY_SECONDS: Final = 0.1
_OWN: Final = ("root", "sshd")


class Arrivals:
    """Connections that may not have signed in: by the pid of their sshd, the time and the source of each."""

    def __init__(self, signed_in: Callable[[int], bool]) -> None:
        self._signed_in = signed_in
        self._held: dict[int, tuple[float, str]] = {}
        self._looked = 0.0

    def admits(self, source: str, now: float) -> bool:
        """Whether to serve a new connection from `source`; `now` is monotonic."""
        new = self._new(now)
        if len(new) >= _CROWD and now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            for pid in filter(self._signed_in, list(self._held)):
                self.remove(pid)
            new = self._new(now)
        if new.count(source) >= MOST_OF_ONE:
            return False
        refused = 0.5 + 0.5 * (len(new) - _CROWD) / (_MOST - _CROWD) if len(new) >= _CROWD else 0.0
        return random.random() >= refused  # noqa: S311 - which connection is refused needs no secrecy

    def _new(self, now: float) -> list[str]:
        return [whence for came, whence in self._held.values() if now - came < LOGIN_SECONDS]

    def add(self, pid: int, source: str, now: float) -> None:
        self._held[pid] = now, source

    def remove(self, pid: int) -> None:
        self._held.pop(pid, None)


def source_of(address: str) -> str:
    """The source that an address counts for: an IPv4 address itself, the /64 of an IPv6 address."""
    address = address.partition("%")[0]
    return str(IPv6Network((address, 64), strict=False)) if ":" in address else address


def has_signed_in(sshd: int, strangers: frozenset[int]) -> bool:
    """Whether the login of this sshd has signed in. Until then its children run as one of the users `strangers`."""
    # Processes may end while they are looked at.
    with suppress(OSError):
        with open(f"/proc/{sshd}/task/{sshd}/children") as file:
            children = file.read().split()
        for child in children:
            with suppress(OSError), open(f"/proc/{child}/status") as file:
                # The uid is read from the file's content: since sshd cannot be traced, root owns its files in /proc.
                words = next(line for line in file if line.startswith("Uid:")).split()
                if int(words[1]) not in strangers:
                    return True
    return False


def main(command: list[str]) -> None:
    listening = [socket.socket(fileno=int(each)) for each in os.environ[_VARIABLE].split(";") if each]
    arrivals, selector = Arrivals(lambda pid: has_signed_in(pid, _strangers())), selectors.DefaultSelector()
    for each in listening:
        each.set_inheritable(False)
        selector.register(each, selectors.EVENT_READ)
    # When a child ends, a byte is written to this socket, which ends the wait below.
    ended, wake = socket.socketpair()
    for each in (ended, wake):
        each.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    selector.register(ended, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            ready = key.fileobj
            assert isinstance(ready, socket.socket), "nothing else was registered"
            if ready is ended:
                ended.recv(4096)
                _reap(arrivals)
            else:
                _accept(ready, command, arrivals)


def _reap(arrivals: Arrivals) -> None:
    try:
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            arrivals.remove(pid)
    except ChildProcessError:
        return


def _accept(listening: socket.socket, command: list[str], arrivals: Arrivals) -> None:
    try:
        connection, (address, *_) = listening.accept()
    except (BlockingIOError, ConnectionAbortedError):
        return
    except OSError as error:
        # Memory or descriptors have run out: the connection waits, and so does this loop.
        print(f"a connection cannot be accepted yet: {error}", file=sys.stderr, flush=True)
        time.sleep(_BUSY_SECONDS)
        return
    with connection:
        source, now = source_of(address), time.monotonic()
        both = [(os.POSIX_SPAWN_DUP2, connection.fileno(), number) for number in (0, 1)]
        environment = {name: value for name, value in os.environ.items() if name != _VARIABLE}
        try:
            if not _somebody_may_sign_in() or not arrivals.admits(source, now):
                return
            # SIGPIPE is restored, because Python ignores it and the program would inherit that.
            pid = os.posix_spawn(command[0], command, environment, file_actions=both, setsigdef=[signal.SIGPIPE])
        except OSError as error:
            print(f"sshd cannot be started for {address}: {error}", file=sys.stderr, flush=True)
            return
        arrivals.add(pid, source, now)


def _somebody_may_sign_in() -> bool:
    """Whether /etc/passwd of this view has accounts besides root and sshd; if not, no sshd is started."""
    return any(name not in _OWN for name, _ in _accounts())


def _strangers() -> frozenset[int]:
    """Users of sshd's processes before a login has signed in."""
    return frozenset(uid for name, uid in _accounts() if name in _OWN)


def _accounts() -> list[tuple[str, int]]:
    with open("/etc/passwd") as file:
        return [(words[0], int(words[2])) for words in (line.split(":") for line in file)]


if __name__ == "__main__":
    main(sys.argv[1:])
