"""A client of NBD on a Unix socket: a disk read and written block by block, with several requests under way at once.

Implements only what backups need of the protocol: the fixed newstyle handshake with NBD_OPT_GO, and simple replies.
Invariants: every answer has a deadline, data included; if a server ends, refuses or stalls, the request raises
`HostError`, so the end of the server is never mistaken for the end of the disk.

Rejected: nbdcopy into a pipe, as it was at first. nbdcopy reads the whole disk and cannot read only the changes; and
when QEMU ended in the middle of a block, its output looked like the end of the disk.
"""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import FailureCode

_CONNECT_SECONDS: Final = 15.0
_ANSWER_SECONDS: Final = 300.0
_UNDER_WAY: Final = 4  # Blocks of 1 MiB: enough to keep a disk busy, and at most 4 MiB in memory.
_MOST_ZEROES: Final = 256 * 1024 * 1024
# The magic numbers, options and commands are defined in the protocol's document (NBD, doc/proto.md).
_HELLO, _OPTION, _REPLY = b"NBDMAGICIHAVEOPT", b"IHAVEOPT", 0x3E889045565A9
_GO, _INFO, _ACK, _ERROR = 7, 3, 1, 1 << 31
_REQUEST, _ANSWER = 0x25609513, 0x67446698
_READ, _WRITE, _CLOSE, _FLUSH, _ZERO = 0, 1, 2, 3, 6
_IS_ZERO: Final = 2
"""NBD_STATE_ZERO of base:allocation."""


class NbdDisk:
    """Created by `connect_nbd`."""

    def __init__(self, stream: trio.SocketStream, size: int) -> None:
        self._stream = stream
        self._received = _Received(stream)
        self._cookie = 0
        self._unwritten: dict[int, tuple[int, int]] = {}
        self.size = size

    async def pieces(self, spans: Iterable[tuple[int, int]]) -> AsyncIterator[tuple[int, bytes]]:
        """The content at each (offset, length), in this order."""
        # Answers arrive in any order; early ones wait in `answered` for their turn.
        waiting: dict[int, tuple[int, int]] = {}
        answered: dict[int, bytes] = {}
        left = iter(spans)
        while True:
            while len(waiting) < _UNDER_WAY and (span := next(left, None)) is not None:
                waiting[await self._ask(_READ, *span)] = span
            if not waiting:
                return
            first = next(iter(waiting))
            while first not in answered:
                cookie, data = await self._answer(waiting)
                answered[cookie] = data
            offset, _ = waiting.pop(first)
            yield offset, answered.pop(first)

    async def write(self, offset: int, data: bytes) -> None:
        """Send a block. Only `flush` confirms that it is written."""
        await self._change(_WRITE, offset, len(data), data)

    async def zero(self, offset: int, length: int) -> None:
        while length > 0:
            part = min(length, _MOST_ZEROES)
            await self._change(_ZERO, offset, part)
            offset, length = offset + part, length - part

    async def flush(self) -> None:
        while self._unwritten:
            await self._written()
        await self._ask(_FLUSH, 0, 0)
        await self._answer()

    async def _change(self, what: int, offset: int, length: int, data: bytes = b"") -> None:
        """Send a request that changes the disk. The server may carry out requests in any order, so a request that
        overlaps an earlier one waits for the answer to that one. This happens: a copy of a disk that was read live has
        some blocks twice, and the last one counts."""
        while len(self._unwritten) >= _UNDER_WAY or any(
            offset < begin + long and begin < offset + length for begin, long in self._unwritten.values()
        ):
            await self._written()
        self._unwritten[await self._ask(what, offset, length, data)] = (offset, length)

    async def _written(self) -> None:
        cookie, _ = await self._answer()
        if self._unwritten.pop(cookie, None) is None:
            raise HostError(FailureCode.HOST, "QEMU sent an unexpected answer.")

    async def close(self) -> None:
        await self._ask(_CLOSE, 0, 0)

    async def _ask(self, what: int, offset: int, length: int, data: bytes = b"") -> int:
        self._cookie += 1
        with _told_by_server(_ANSWER_SECONDS):
            await self._stream.send_all(struct.pack(">IHHQQI", _REQUEST, 0, what, self._cookie, offset, length))
            if data:
                await self._stream.send_all(data)
        return self._cookie

    async def _answer(self, reading: Mapping[int, tuple[int, int]] | None = None) -> tuple[int, bytes]:
        """The next answer: its request, and the data of a read."""
        with _told_by_server(_ANSWER_SECONDS):
            magic, error, cookie = struct.unpack(">IIQ", await self._received.exactly(16))
            # This is a simple reply. It has no length, because the client knows how much it has requested.
            if magic != _ANSWER or error:
                raise HostError(FailureCode.HOST, f"QEMU could not read or write the disk (error {error}).")
            if reading is None:
                return cookie, b""
            if cookie not in reading:
                raise EOFError("it sent an unexpected answer")
            return cookie, bytes(await self._received.exactly(reading[cookie][1]))


@asynccontextmanager
async def connect_nbd(socket: Path, export: str = "") -> AsyncIterator[NbdDisk]:
    """A connection to an export. Raises `HostError` if QEMU does not serve the disk, or stops doing so."""
    with _told_by_server(_CONNECT_SECONDS):
        stream = await trio.open_unix_socket(str(socket))
    async with stream:
        with _told_by_server(_CONNECT_SECONDS):
            disk = NbdDisk(stream, await _greet(stream, export))
        yield disk
        await disk.close()


async def extents(socket: Path, export: str, context: str) -> list[tuple[int, int, int]]:
    """What the server says about the disk in this metadata context, as (offset, length, flags)."""
    # Asked with nbdinfo: block status needs structured replies, which the client in this module does not support.
    address = f"nbd+unix:///{export}?socket={socket}"
    told = await run_program("nbdinfo", "--json", f"--map={context}", address, timeout=_ANSWER_SECONDS)
    return [(int(each["offset"]), int(each["length"]), int(each["type"])) for each in json.loads(told)]


async def content(socket: Path, export: str) -> list[tuple[int, int]]:
    """The parts of the disk that are not known to be zeros, as (offset, length)."""
    told = await extents(socket, export, "base:allocation")
    return [(offset, length) for offset, length, flags in told if not flags & _IS_ZERO]


@contextmanager
def _told_by_server(seconds: float) -> Iterator[None]:
    try:
        with trio.fail_after(seconds):
            yield
    except (OSError, trio.BrokenResourceError, trio.TooSlowError, EOFError) as error:
        raise HostError(FailureCode.HOST, f"QEMU no longer shows the disk ({error or 'no answer'}).") from error


async def _greet(stream: trio.SocketStream, export: str) -> int:
    received = _Received(stream)
    hello = await received.exactly(18)
    if hello[:16] != _HELLO:
        raise EOFError("not an NBD server")
    name = export.encode()
    # The flags 3 stand for fixed newstyle negotiation, and for no zeros after the export's size.
    told = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
    await stream.send_all(struct.pack(">I", 3) + _OPTION + struct.pack(">II", _GO, len(told)) + told)
    size = 0
    while True:
        magic, _, kind, length = struct.unpack(">QIII", await received.exactly(20))
        data = await received.exactly(length)
        if magic != _REPLY or kind & _ERROR:
            raise EOFError(data.decode(errors="replace") or f"refused ({kind})")
        if kind == _INFO and data[:2] == b"\0\0":
            (size,) = struct.unpack(">Q", data[2:10])
        if kind == _ACK:
            # `NbdDisk` reads with a buffer of its own, so no byte may be left in this one.
            received.require_empty()
            return int(size)


class _Received:
    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._kept = bytearray()

    async def exactly(self, number: int) -> bytearray:
        while len(self._kept) < number:
            piece = await self._stream.receive_some(max(65536, number - len(self._kept)))
            if not piece:
                raise EOFError("it has closed the connection")
            self._kept += piece
        taken = self._kept[:number]
        del self._kept[:number]
        return taken

    def require_empty(self) -> None:
        if self._kept:
            raise EOFError("it sent more than it was asked for")
