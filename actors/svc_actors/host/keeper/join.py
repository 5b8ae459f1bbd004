"""Become a process of a group that the keeper bounds, and execute a program: what runs under the core for a site.

    python -I -S keeper/join.py SOCKET '{"request": "join", "group": ..., "limits": ...}' PROGRAM ARGUMENT...

Started as root; the process stays the same one, so that its starter watches and ends the program. The keeper moves the
process that asks, which it knows by the connection: no process id is sent that could be another's by then. A program is
never executed outside its group: without an answer this process ends.

It stands alone, and needs the standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

_WITHIN = 15.0
"""Seconds: a keeper that ended is followed by the next one within a second."""
_LOOK_AGAIN = 0.05
_LARGEST = 65_536
_FAILED = 126


def main(arguments: list[str]) -> int:
    path, request, *command = arguments
    until = time.monotonic() + _WITHIN
    while True:
        try:
            answer = _asked(path, request, until)
            break
        except OSError as error:
            if time.monotonic() >= until:
                print(f"{command[0]} was not started: the keeper at {path} does not answer: {error}", file=sys.stderr)
                return _FAILED
            time.sleep(_LOOK_AGAIN)
    if "error" in answer:
        print(f"{command[0]} was not started within the limits of its site: {answer['error']}", file=sys.stderr)
        return _FAILED
    try:
        os.execv(command[0], command)  # noqa: S606 - an argument list, and no shell is what is wanted
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
