"""B5: how fast a console's bytes go from a node to a browser, beside a bare copy loop, and beside websockify.

Run as `python -m tools.benchmarks.console`. The relay under test has a process of its own; a second one produces bytes
as fast as they are taken, and this one takes them. Neither copies a byte (sendfile(2); MSG_TRUNC of tcp(7)), so that
what is measured is the relay, also on few cores. All of it is plain TCP on the loopback: ours is the whole path that a
browser takes (hypercorn, Quart-Trio, the websocket route, the relay). Turns alternate, and the median counts.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import cast
from uuid import UUID, uuid4

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart_trio import QuartTrio

from svc.cli.machine_consoles import MachineConsoles
from svc.controller.realm import REALM
from svc_actors.controller.machines.consoles import ConsoleOpen
from svc_actors.store import Database
from svc_console.routes import add_console_routes
from tools.benchmarks import Ratio

ROUNDS = 5
WARM_BYTES = 32 << 20
MEASURED_BYTES = 512 << 20
COPY_BYTES = 512 * 1024
PRODUCED_BYTES = 16 << 20
START_SECONDS = 20.0
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Row:
    """What the store would answer for a good ticket."""

    values: dict[str, object]

    def __getitem__(self, name: str) -> object:
        return self.values[name]


class GoodTickets:
    """In the database's place: every ticket is good, so that the relay alone is measured."""

    async def fetchrow(self, sql: str, *args: object) -> Row:
        if "console_tickets" in sql:
            return Row(
                {
                    "vm_id": uuid4(),
                    "kind": "vnc",
                    "user_id": uuid4(),
                    "session_id": None,
                    "token_id": uuid4(),
                    "fresh": True,
                }
            )
        return Row({"allowed": True, "deleted": False, "status": "running"})

    async def fetchval(self, sql: str, *args: object) -> UUID:
        return uuid4()


@dataclass(frozen=True)
class SourceAsGuest:
    """In the gateway's place: the guest's console is the process that produces bytes."""

    source: int

    def is_online(self, node_id: UUID) -> bool:
        return True

    async def open_stream(
        self, node_id: UUID, operation: Callable[[str], ConsoleOpen], *, timeout: float
    ) -> trio.abc.Stream:
        return await trio.open_tcp_stream("127.0.0.1", self.source)


async def relay_ours(port: int, source: int) -> None:
    app = QuartTrio(__name__)
    consoles = MachineConsoles(cast(Database, GoodTickets()), SourceAsGuest(source))
    add_console_routes(app, consoles, session_cookie=REALM.session_cookie, origins=("https://bench",))
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.accesslog = config.errorlog = None
    await serve(app, config)


async def relay_splice(port: int, source: int) -> None:
    async def copy(reader: trio.SocketStream) -> None:
        async with reader, await trio.open_tcp_stream("127.0.0.1", source) as producer:
            try:
                while data := await producer.receive_some(COPY_BYTES):
                    await reader.send_all(data)
            except trio.BrokenResourceError:
                return

    await trio.serve_tcp(copy, port, host="127.0.0.1")


def produce(port: int) -> None:
    """Send zeros to whoever connects, for as long as they are taken."""
    with open(os.memfd_create("zeros"), "wb") as zeros, socket.create_server(("127.0.0.1", port)) as server:
        zeros.truncate(PRODUCED_BYTES)
        while True:
            taker, _ = server.accept()
            with taker:
                try:
                    while True:
                        os.sendfile(taker.fileno(), zeros.fileno(), 0, PRODUCED_BYTES)
                except ConnectionError:
                    continue


def bytes_a_second(port: int, path: str | None) -> float:
    """Connect (as a websocket when there is a path), let it warm up, and time what follows."""
    buffer = bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as reader:
        if path is not None:
            shake_hands(reader, path)
        _read(reader, buffer, WARM_BYTES)
        began = perf_counter()
        count = _read(reader, buffer, MEASURED_BYTES)
        return count / (perf_counter() - began)


def shake_hands(reader: socket.socket, path: str) -> None:
    reader.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: binary\r\n\r\n".encode()
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += reader.recv(1)
    if b" 101 " not in answer.splitlines()[0]:
        raise RuntimeError(f"no websocket: {answer!r}")


def measure() -> list[Ratio]:
    source, ours, splice, peer = _free_ports(4)
    with _program("produce", source), _program("ours", ours, source), _program("splice", splice, source):
        websockify = [sys.executable, "-m", "websockify", f"127.0.0.1:{peer}", f"127.0.0.1:{source}"]
        with _running(websockify, peer):
            turns = [
                (
                    bytes_a_second(ours, "/api/v1/console/ws/benchmark"),
                    bytes_a_second(splice, None),
                    bytes_a_second(peer, "/websockify"),
                )
                for _ in range(ROUNDS)
            ]
    mine, bare, other = (median(turn[index] for turn in turns) / 1e6 for index in range(3))
    return [
        Ratio("B5 console : bare copy loop", mine, bare, "MB/s", goal=0.4, higher_is_better=True),
        Ratio("B5 console : websockify", mine, other, "MB/s", goal=1.5, higher_is_better=True),
    ]


def _read(reader: socket.socket, buffer: bytearray, least: int) -> int:
    count = 0
    while count < least:
        received = reader.recv_into(buffer, 0, socket.MSG_TRUNC)
        if not received:
            raise RuntimeError("the relay ended the stream")
        count += received
    return count


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [taken.getsockname()[1] for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports


def _program(role: str, port: int, *more: int) -> AbstractContextManager[None]:
    command = [sys.executable, "-m", "tools.benchmarks.console", role, str(port), *map(str, more)]
    return _running(command, port)


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_until_listening(process, port)
        yield
    finally:
        process.terminate()
        process.wait()


def _wait_until_listening(process: subprocess.Popen[bytes], port: int) -> None:
    began = perf_counter()
    while perf_counter() - began < START_SECONDS:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with code {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            trio.run(trio.sleep, 0.05)
        else:
            return
    raise RuntimeError(f"{process.args!r} does not listen")


def main(arguments: list[str]) -> None:
    match arguments:
        case ["produce", port]:
            produce(int(port))
        case ["ours", port, source]:
            trio.run(relay_ours, int(port), int(source))
        case ["splice", port, source]:
            trio.run(relay_splice, int(port), int(source))
        case _:
            for row in measure():
                print(f"{row.name}: {row.ours:,.0f} : {row.peer:,.0f} {row.unit} = {row.ratio:.2f} (goal {row.goal})")


if __name__ == "__main__":
    main(sys.argv[1:])
