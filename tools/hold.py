"""Holds ports for a program, as a socket unit of systemd does, on machines without systemd: for `tools/run`.

    python hold.py NAME=ADDRESS:PORT... -- PROGRAM ARGUMENT...

The sockets are bound before the program starts and for as long as this process runs, on all addresses of a family if
ADDRESS is a wildcard. The program gets them as in sd_listen_fds(3). If it ends by itself it is started again; SIGTERM
ends it, and then this process.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from types import FrameType

_BACKLOG = 1024
_AGAIN_SECONDS = 1.0
_ENDING = (signal.SIGTERM, signal.SIGINT)


def main(arguments: list[str]) -> int:
    divide = arguments.index("--")
    command = arguments[divide + 1 :]
    names, held = [], []
    for wanted in arguments[:divide]:
        name, _, address = wanted.partition("=")
        names.append(name)
        held.append(_bound(address))
    running, stopping = 0, False

    def stop(*_: int | FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        if running:
            os.kill(running, signal.SIGTERM)

    for number in _ENDING:
        signal.signal(number, stop)
    while not stopping:
        started = time.monotonic()
        # Signals in between are for the program as well.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        running = os.fork()
        if running == 0:
            _become(command, names, held)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        _, status = os.waitpid(running, 0)
        running = 0
        # A program that cannot start is not restarted without a pause.
        while not stopping and time.monotonic() - started < _AGAIN_SECONDS:
            time.sleep(0.05)
    return os.waitstatus_to_exitcode(status) if stopping else 0


def _bound(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if ":" in host:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listening.bind((host, int(port)))
    listening.listen(_BACKLOG)
    return listening


def _become(command: list[str], names: list[str], held: list[socket.socket]) -> None:
    """Replace this process by the program, with the sockets as its descriptors from 3 on."""
    try:
        for number in (*_ENDING, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        # First move them away from the numbers that they get.
        high = [os.dup2(each.fileno(), 100 + number, inheritable=False) for number, each in enumerate(held)]
        for number, descriptor in enumerate(high, 3):
            os.dup2(descriptor, number, inheritable=True)
        passed = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(held)), "LISTEN_FDNAMES": ":".join(names)}
        os.execve(command[0], command, os.environ | passed)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
