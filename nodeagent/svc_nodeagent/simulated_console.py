"""Consoles of simulated machines: a serial line that echoes, and a still screen in RFB 3.8 (RFC 6143)."""

from __future__ import annotations

import struct
from collections import deque
from typing import Final

import trio

from svc_nodeagent.protocol import ConsoleKind

_WIDTH: Final = 64
_HEIGHT: Final = 48
_PIXEL_FORMAT: Final = struct.pack(">BBBBHHHBBBxxx", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0)
_MESSAGE_LENGTHS: Final = {0: 20, 3: 10, 4: 8, 5: 6}
"""Client messages of fixed length: SetPixelFormat, FramebufferUpdateRequest, KeyEvent, PointerEvent."""
_SET_ENCODINGS: Final = 2
_CUT_TEXT: Final = 6
_UPDATE_REQUEST: Final = 3


def open_console(name: str, kind: ConsoleKind) -> trio.abc.Stream:
    return _Serial(name) if kind is ConsoleKind.SERIAL else _Screen(name)


class _Simulated(trio.abc.Stream):
    """A stream whose other end computes its output from its input."""

    def __init__(self, greeting: bytes) -> None:
        self._outgoing: deque[bytes] = deque([greeting])
        self._ready = trio.Event()
        self._closed = False

    def say(self, data: bytes) -> None:
        self._outgoing.append(data)
        self._ready.set()

    def heard(self, data: bytes) -> None:
        raise NotImplementedError

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._outgoing and not self._closed:
            self._ready = trio.Event()
            await self._ready.wait()
        if not self._outgoing:
            return b""
        data = self._outgoing.popleft()
        if max_bytes is not None and len(data) > max_bytes:
            self._outgoing.appendleft(data[max_bytes:])
        return data[:max_bytes]

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise trio.ClosedResourceError
        self.heard(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._closed = True
        self._ready.set()
        await trio.lowlevel.checkpoint()


class _Serial(_Simulated):
    def __init__(self, name: str) -> None:
        super().__init__(f"\r\n{name} login: ".encode())

    def heard(self, data: bytes) -> None:
        self.say(data.replace(b"\r", b"\r\n"))


class _Screen(_Simulated):
    """No authentication: the caller was authenticated before."""

    def __init__(self, name: str) -> None:
        super().__init__(b"RFB 003.008\n")
        self._name = name.encode()
        self._buffer = bytearray()
        self._step = 0

    def heard(self, data: bytes) -> None:
        self._buffer += data
        while self._advance():
            pass

    def _advance(self) -> bool:
        if self._step == 0:
            return self._answer(12, b"\x01\x01")
        if self._step == 1:
            return self._answer(1, b"\x00\x00\x00\x00")
        if self._step == 2:
            opening = struct.pack(">HH", _WIDTH, _HEIGHT) + _PIXEL_FORMAT
            return self._answer(1, opening + struct.pack(">I", len(self._name)) + self._name)
        return self._message()

    def _answer(self, length: int, answer: bytes) -> bool:
        if len(self._buffer) < length:
            return False
        del self._buffer[:length]
        self._step += 1
        self.say(answer)
        return True

    def _message(self) -> bool:
        if not self._buffer:
            return False
        kind = self._buffer[0]
        length = _MESSAGE_LENGTHS.get(kind, 1)
        if kind == _SET_ENCODINGS and len(self._buffer) >= 4:
            length = 4 + 4 * int(struct.unpack(">H", self._buffer[2:4])[0])
        elif kind == _CUT_TEXT and len(self._buffer) >= 8:
            length = 8 + int(struct.unpack(">I", self._buffer[4:8])[0])
        elif kind in (_SET_ENCODINGS, _CUT_TEXT):
            return False
        if len(self._buffer) < length:
            return False
        incremental = kind == _UPDATE_REQUEST and self._buffer[1]
        del self._buffer[:length]
        if kind == _UPDATE_REQUEST and not incremental:
            pixels = b"\x20\x20\x20\x00" * (_WIDTH * _HEIGHT)
            self.say(struct.pack(">BxHHHHHi", 0, 1, 0, 0, _WIDTH, _HEIGHT, 0) + pixels)
        return True
