"""Limits the processor time that reading one node's frames may take, by pacing its stream.

A complete message is charged with the time it took to process its frame. Fragments of an endless message, and pings,
never get that far: their cost arises in the WebSocket's own reader, which handles everything that was read at once. So
frames are counted by their headers before they reach that reader, each frame is charged, and little is read at a time.
"""

from __future__ import annotations

from typing import Final

import trio

from svc_nodeagent.wrapped_stream import WrappedStream

_FRAME_SECONDS: Final = 25e-6
"""The cost of an empty frame: 12 microseconds in wsproto, and as much in its handling."""
_READ_BYTES: Final = 16 * 1024
"""Bytes per read, the size of a TLS record: 2,700 empty frames, which block everything else for 0.07 s."""
_END_OF_REQUEST: Final = b"\r\n\r\n"
_LENGTH_BYTES: Final = {126: 2, 127: 8}
_MASK_BYTES: Final = 4


class ReadingShare:
    """A node's share of the processor for reading its frames: a tenth, and at most half a second at once. It belongs to
    the node and not to a connection, so that a new connection brings no new share. It counts processing time and not
    frames or bytes: a part of a file of 1 MB takes 3 ms, and 18,000 domains block the whole API for 0.1 s."""

    SHARE = 0.1
    AT_ONCE = 0.5

    def __init__(self) -> None:
        self._left = self.AT_ONCE
        self._at = trio.current_time()

    def pause(self) -> float:
        """How long the next frame has to wait, in seconds."""
        now = trio.current_time()
        self._left = min(self.AT_ONCE, self._left + (now - self._at) * self.SHARE)
        self._at = now
        return max(0.0, -self._left / self.SHARE)

    def spend(self, seconds: float) -> None:
        """Charge the cost of a frame."""
        self._left -= seconds


class PacedStream(WrappedStream):
    """A node's stream below its WebSocket, read only as fast as the node's share allows."""

    def __init__(self, stream: trio.abc.Stream, share: ReadingShare) -> None:
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
    """Counts the frames of a WebSocket by their headers (RFC 6455, section 5.2), after the request that opens it."""

    def __init__(self) -> None:
        self._request: bytes | None = b""
        """The last bytes received of the request; None once it is complete."""
        self._header = bytearray()
        self._payload_left = 0

    def count(self, data: bytes | bytearray) -> int:
        """How many frames start in this piece of the stream."""
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
