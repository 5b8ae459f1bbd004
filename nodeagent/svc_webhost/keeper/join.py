"""Join a limit group of the keeper, then execute a program: commands that the core runs for a site start so.

    python -I -S keeper/join.py SOCKET '{"request": "join", "group": ..., "limits": ...}' PROGRAM ARGUMENT...

Started as root. The process stays the same, so the core that started it watches and ends the program. The keeper moves
the process at the other end of the connection, as the kernel names it. No process id is sent: it could be another
process's by the time it is read. A program never runs outside its group: without an answer this process ends.

It imports no module of ours, and the standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

_WITHIN = 15.0
"""Seconds. The core starts a new keeper within a second after one has ended."""
_LOOK_AGAIN = 0.05
# Bytes of an answer. It names at most the three controllers that the server does not have.
_LARGEST = 65_536
# The exit status that a shell uses for a program that cannot be executed.
_FAILED = 126


def main(arguments: list[str]) -> int:
    path, request, *command = arguments
    until = time.monotonic() + _WITHIN
    while True:
        try:
            answer = _asked(path, request, until)
            break
        except OSError as error:
            # No keeper is running at the moment, or it ended before it answered. Trying again is safe: joining twice
            # has the same effect as joining once.
            if time.monotonic() >= until:
                print(f"{command[0]} was not started: the keeper at {path} does not answer: {error}", file=sys.stderr)
                return _FAILED
            time.sleep(_LOOK_AGAIN)
    if "error" in answer:
        print(f"{command[0]} was not started within the limits of its site: {answer['error']}", file=sys.stderr)
        return _FAILED
    try:
        os.execv(command[0], command)  # noqa: S606 - an argument list; a shell is not wanted
    except OSError as error:
        print(f"{command[0]} cannot be run: {error.strerror}", file=sys.stderr)
    return _FAILED


def _asked(path: str, request: str, until: float) -> dict[str, object]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(max(until - time.monotonic(), _LOOK_AGAIN))
        connection.connect(path)
        connection.sendall(request.encode() + b"\n")
        received = b""
        while not received.endswith(b"\n"):
            chunk = connection.recv(_LARGEST)
            if not chunk or len(received) > _LARGEST:
                raise ConnectionError("it hung up")
            received += chunk
    answer: dict[str, object] = json.loads(received)
    return answer


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
