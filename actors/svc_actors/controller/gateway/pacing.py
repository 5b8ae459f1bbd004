"""What reading one node's frames may take of the controller's processor, and the stream that keeps to it.

A message is paid for by the time that its frame took to be understood. Fragments of a message without end, and pings,
never come that far: they cost the WebSocket's own reader, which handles all that was read at once. So frames are
counted by their headers before they come to it, each is paid for by itself, and little is read at a time.
"""

from __future__ import annotations

from typing import Final

import trio

from svc_nodeagent.wrapped_stream import WrappedStream

_FRAME_SECONDS: Final = 25e-6
"""What a frame costs however little is in it: 12 microseconds in wsproto, and as much where it is handled."""
_READ_BYTES: Final = 16 * 1024
"""At a time: 2,700 empty frames, which hold up everything else for 0.07 s. As much as a record of TLS has."""
_END_OF_REQUEST: Final = b"\r\n\r\n"
_LENGTH_BYTES: Final = {126: 2, 127: 8}
_MASK_BYTES: Final = 4


class ReadingShare:
    """What reading one node's frames may take of the processor: a tenth of it, and half a second at once. A node's
    rather than a connection's, so that a new connection brings no new share. By what frames cost rather than by their
    number or size: a megabyte's part of a file takes 3 ms, and 18,000 domains are 0.1 s of the whole API."""

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
        """Take what a frame has cost."""
        self._left -= seconds


class PacedStream(WrappedStream):
    """A node's stream below its WebSocket: what it sends is read as fast as its share allows."""

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
    """Counts the frames of a WebSocket by their headers (RFC 6455, section 5.2), behind the request that opens it."""

    def __init__(self) -> None:
        self._request: bytes | None = b""
        """The end of what has come of the request; None behind it."""
        self._header = bytearray()
        self._payload_left = 0

    def count(self, data: bytes | bytearray) -> int:
        """How many frames have begun in this piece of the stream."""
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
