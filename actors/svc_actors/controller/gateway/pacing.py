"""A node's share of the controller's processor for reading its frames, and the stream that keeps to it.

A message is charged with the time that it took to parse. Fragments of a message that never ends, and pings, are never
parsed as messages. They still cost processor time in the WebSocket's own reader, which handles at once everything that
was read. So frames are counted by their headers before the reader gets them, each is charged, and little is read at a
time.

Rejected: a limit on frames or on bytes a second. Frames would slow a restored file of a thousand parts; bytes would let
many small frames through. When frames were not counted, 64 KiB of empty fragments held all requests up for a quarter of
a second.

Why: docs/decisions/0023-what-a-node-says-is-bounded.md.
"""

from __future__ import annotations

from typing import Final

import trio

from svc_nodeagent.wrapped_stream import WrappedStream

_FRAME_SECONDS: Final = 25e-6
"""The least that a frame is charged: 12 microseconds of parsing in wsproto, and as much for handling it."""
_READ_BYTES: Final = 16 * 1024
"""Bytes read at a time. These may be 2,700 empty frames, which block everything else for 0.07 s. The size is that of a
TLS record."""
_END_OF_REQUEST: Final = b"\r\n\r\n"
_LENGTH_BYTES: Final = {126: 2, 127: 8}
_MASK_BYTES: Final = 4


class ReadQuota:
    """A node's share of the processor for reading its frames: a tenth of the time, and up to half a second at once. The
    share belongs to the node and not to a connection, so a new connection brings no new share. It is measured by what
    frames cost, not by their number or size: a part of a file of one megabyte takes 3 ms, but a frame with 18,000
    domains blocks the whole API for 0.1 s."""

    SHARE = 0.1
    AT_ONCE = 0.5

    def __init__(self) -> None:
        self._left = self.AT_ONCE
        self._at = trio.current_time()

    def pause(self) -> float:
        """How long the next frame has to wait, in seconds. The share refills with time, up to `AT_ONCE`, and may be
        overdrawn by one frame: what a frame costs is known only afterwards."""
        now = trio.current_time()
        self._left = min(self.AT_ONCE, self._left + (now - self._at) * self.SHARE)
        self._at = now
        return max(0.0, -self._left / self.SHARE)

    def spend(self, seconds: float) -> None:
        """Charge the cost of a frame."""
        self._left -= seconds


class PacedStream(WrappedStream):
    """A node's stream below its WebSocket, read as fast as the node's share allows."""

    def __init__(self, stream: trio.abc.Stream, share: ReadQuota) -> None:
        super().__init__(stream)
        self._share = share
        self._frames = FrameCount()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if (pause := self._share.pause()) > 0:
            await trio.sleep(pause)
        data = await self._stream.receive_some(_READ_BYTES)
        self._share.spend(self._frames.count(data) * _FRAME_SECONDS)
        return data


class FrameCount:
    """Counts the frames of a WebSocket by their headers (RFC 6455, section 5.2), from the end of the HTTP request that
    opens it."""

    def __init__(self) -> None:
        self._request: bytes | None = b""
        """The last bytes of the HTTP request that were read so far; None once the request is complete."""
        self._header = bytearray()
        self._payload_left = 0

    def count(self, data: bytes | bytearray) -> int:
        """How many frames have started in this piece of the stream, by their complete headers."""
        # A piece of data may end in the middle of a frame's header, so headers are read byte by byte; payloads are
        # skipped at once.
        at, frames = self._behind_the_request(data), 0
        while at < len(data):
            if self._payload_left:
                passed = min(self._payload_left, len(data) - at)
                self._payload_left -= passed
                at += passed
                continue
            self._header.append(data[at])
            at += 1
            if len(self._header) > 1 and len(self._header) == _header_bytes(self._header[1]):
                self._payload_left = _payload_bytes(self._header)
                self._header.clear()
                frames += 1
        return frames

    def _behind_the_request(self, data: bytes | bytearray) -> int:
        if self._request is None:
            return 0
        seen = self._request + data
        # The last three bytes of each piece are carried over to the next: the blank line that ends the request may be
        # split between two.
        end = seen.find(_END_OF_REQUEST)
        if end < 0:
            self._request = seen[1 - len(_END_OF_REQUEST) :]
            return len(data)
        at = end + len(_END_OF_REQUEST) - len(self._request)
        self._request = None
        return at


def _header_bytes(second: int) -> int:
    return 2 + _LENGTH_BYTES.get(second & 0x7F, 0) + (_MASK_BYTES if second & 0x80 else 0)


def _payload_bytes(header: bytearray) -> int:
    short = header[1] & 0x7F
    return int.from_bytes(header[2 : 2 + _LENGTH_BYTES[short]]) if short in _LENGTH_BYTES else short
