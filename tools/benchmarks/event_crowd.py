"""The readers of B15: connections to the event stream in a process of their own, so that what reading costs them slows
neither the changes nor the other requests that are measured.

Run as `python -m tools.benchmarks.event_crowd PORT TOKEN READERS EVENTS`. It writes `open` when all read, goes on until
each has so many events, and writes what came as JSON. Plain sockets and epoll: a tenth of what tasks would cost.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import ssl
import sys
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Final

_MADE_AT: Final = re.compile(rb'"made_at":([\d.]+)')
_CHUNK: Final = 1 << 16
_JOIN_AT_ONCE: Final = 20


@dataclass(frozen=True)
class Delivered:
    """Events that came, in all; seconds from the beginning of the change to its reading; the readers' processor
    time."""

    events: int
    chunks: int
    median: float
    p99: float
    longest: float
    processor: float


@dataclass
class _Reader:
    stream: ssl.SSLSocket
    tail: bytes = b""


def main(port: int, token: str, readers: int, events: int) -> None:
    with ThreadPoolExecutor(_JOIN_AT_ONCE) as threads:
        opened = [_Reader(stream) for stream in threads.map(lambda _: _join(port, token), range(readers))]
    print("open", flush=True)
    print(json.dumps(asdict(_read(opened, readers * events))), flush=True)


def _join(port: int, token: str) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    stream = context.wrap_socket(socket.create_connection(("127.0.0.1", port)))
    stream.sendall(f"GET /api/v1/events HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    received = b""
    while b"retry: " not in received:
        received += stream.recv(_CHUNK)
    stream.setblocking(False)
    return stream


def _read(readers: list[_Reader], events: int) -> Delivered:
    took, chunks, began = array("d"), 0, time.process_time()
    with selectors.EpollSelector() as selector:
        for reader in readers:
            selector.register(reader.stream, selectors.EVENT_READ, reader)
        while len(took) < events:
            for key, _ in selector.select():
                chunks += 1
                _take(key.data, took)
    times = sorted(took)
    return Delivered(
        events=len(times),
        chunks=chunks,
        median=times[len(times) // 2],
        p99=times[len(times) * 99 // 100],
        longest=times[-1],
        processor=time.process_time() - began,
    )


def _take(reader: _Reader, took: array[float]) -> None:
    data = reader.tail
    try:
        while more := reader.stream.recv(_CHUNK):
            data += more
        raise SystemExit("the service has closed an event stream")
    except ssl.SSLWantReadError:
        pass
    now = time.monotonic()
    whole, end, reader.tail = data.rpartition(b"\n\n")
    took.extend(now - float(made) for made in _MADE_AT.findall(whole + end))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
