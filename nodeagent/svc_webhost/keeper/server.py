"""The keeper's socket and its loop: JSON lines from uid 0, ends of processes, and time.

A request is `{"request": "ensure", "service": {...}}`; "reload", "rest", "restart", "stop" or "status" with a "name";
"limit" with a "group" and its "limits"; "join" with these, which moves the calling process into the group; or "list".
The reply is `{"answer": ...}` with the service's status, of "list" `{"services": {name: status}, "pid": ...,
"joins": true}`; or `{"error": "what happened"}`.

One thread and one loop, without asyncio: requests and ends of processes are handled one after the other, and no lock is
needed. What blocks (a start until its program is executed, an answer to a slow reader) has a short bound.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any

from svc_webhost.keeper import sockets
from svc_webhost.keeper.definition import Limits, RefusedError, checked_name, owned_by_root, parse, parse_limits
from svc_webhost.keeper.groups import Hierarchies
from svc_webhost.keeper.service import Answer, ManagedService

# The most bytes of an incomplete request. Only root can send requests, so this limits mistakes and not attacks.
_LARGEST = 1 << 20
_TAKEN_WITHIN = 5.0
"""Seconds after which a client that does not read its answer is dropped. All services wait meanwhile, because the loop
does."""
_NOBODY: dict[str, Any] = {
    "running": False,
    "pid": None,
    "since": None,
    "restarts": 0,
    "last_exit": None,
    "weaker_limits": [],
}


class AnotherKeeperError(Exception):
    """Another keeper holds the services of this folder."""


class Keeper:
    def __init__(self, data: str) -> None:
        self._run = os.path.join(data, "run")
        os.makedirs(self._run, mode=0o711, exist_ok=True)
        owned_by_root(self._run)
        self._lock = os.open(os.path.join(self._run, "keeper.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AnotherKeeperError(f"Another keeper holds the services of {data}.") from error
        self._states = os.path.join(self._run, "keeper")
        os.makedirs(self._states, mode=0o700, exist_ok=True)
        self._selector = selectors.DefaultSelector()
        self._hierarchies = Hierarchies(str(os.stat(data).st_ino))
        self._held: dict[str, ManagedService] = {}

    def run(self) -> None:
        for entry in sorted(os.listdir(self._states)):
            name, _, kind = entry.rpartition(".")
            if kind == "json":
                self._adopt(name)
        # The keeper listens only from here on, so its first answer comes after it has adopted everything.
        listening = sockets.bind(os.path.join(self._run, "keeper.sock"), 0o600, 0, 0)
        self._selector.register(listening, selectors.EVENT_READ, partial(self._accept, listening))
        while True:
            now = time.monotonic()
            for held in [held for held in self._held.values() if held.due <= now]:
                held.act()
            self._held = {name: held for name, held in self._held.items() if not held.gone}
            due = min((held.due for held in self._held.values()), default=float("inf"))
            timeout = None if due == float("inf") else max(0.0, due - time.monotonic())
            for key, _ in self._selector.select(timeout):
                # One request of this round may wake a service whose socket is ready in the same round.
                # `ManagedService._demanded` checks the phase, so a call that comes too late does nothing.
                key.data()

    def _adopt(self, name: str) -> None:
        held = ManagedService(name, self._states, self._hierarchies, self._selector)
        try:
            held.adopt()
        except (RefusedError, ValueError, KeyError) as error:
            # The file is left on the disk and not deleted: its process may still run, and an operator may want to know
            # of it.
            print(f"keeper: {name}.json is left as it is, it cannot be read: {error}", file=sys.stderr, flush=True)
        else:
            self._held[name] = held

    def _accept(self, listening: socket.socket) -> None:
        connection, _ = listening.accept()
        pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        # The socket's mode (0600) already keeps others out, unless somebody changes it.
        if uid != 0:
            connection.close()
            return
        connection.settimeout(_TAKEN_WITHIN)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._receive, connection, bytearray(), pid))

    def _receive(self, connection: socket.socket, received: bytearray, pid: int) -> None:
        try:
            read = connection.recv(65536)
        except OSError:
            read = b""
        received += read
        if not read or len(received) > _LARGEST:
            self._selector.unregister(connection)
            connection.close()
            return
        while (end := received.find(b"\n")) >= 0:
            line = bytes(received[:end])
            del received[: end + 1]
            self._obey(line, pid, partial(_reply, connection))

    def _obey(self, line: bytes, pid: int, answer: Answer) -> None:
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise RefusedError("A request is an object.")
            match request.get("request"):
                case "ensure":
                    definition = parse(request.get("service"))
                    held = self._held.get(definition.name)
                    if held is None:
                        held = ManagedService(definition.name, self._states, self._hierarchies, self._selector)
                        self._held[definition.name] = held
                    held.ensure(definition, answer)
                case "list":
                    services = {name: held.status() for name, held in self._held.items()}
                    answer({"services": services, "pid": os.getpid(), "joins": True})
                case "limit":
                    self._limit(checked_name(request.get("group")), parse_limits(request.get("limits")))
                    answer({})
                case "join":
                    limits = None if request.get("limits") is None else parse_limits(request["limits"])
                    # The caller waits for this answer, so its process id cannot have passed to another process.
                    answer({"missing": self._hierarchies.join(checked_name(request.get("group")), limits, pid)})
                case "reload" | "rest" | "restart" | "stop" | "status" as asked:
                    self._of_one(asked, checked_name(request.get("name")), answer)
                case _:
                    raise RefusedError("There is no such request.")
        except (RefusedError, ValueError, OSError) as error:
            answer(error if isinstance(error, RefusedError) else RefusedError(str(error)))

    def _limit(self, group: str, limits: Limits) -> None:
        for held in self._held.values():
            held.limit(group, limits)
        self._hierarchies.limit(group, limits)

    def _of_one(self, asked: str, name: str, answer: Answer) -> None:
        held = self._held.get(name)
        if held is None:
            if asked == "reload":
                raise RefusedError(f"{name} does not run.")
            # Stopping a service that does not exist succeeds: a stop may be sent again after its answer was lost.
            answer(_NOBODY)
        elif asked == "stop":
            held.stop(answer)
        elif asked == "rest":
            held.rest(answer)
        elif asked == "restart":
            held.restart(answer)
        else:
            if asked == "reload":
                held.signal(signal.SIGHUP)
            answer(held.status())


def _reply(connection: socket.socket, result: dict[str, Any] | RefusedError) -> None:
    reply = {"error": str(result)} if isinstance(result, RefusedError) else {"answer": result}
    try:
        connection.sendall(json.dumps(reply).encode() + b"\n")
    except OSError:
        # If the client wants to know the result, it asks again. The connection is ended, because half a line must not
        # be followed by another line.
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
