"""A single request to a FastCGI server (FastCGI 1.0, responder role), to test whether it answers."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio

_HEADER: Final = struct.Struct(">BBHHBx")
"""Version, type, request id, length of the content, and length of the padding."""
_VERSION: Final = 1
_BEGIN, _END, _PARAMS, _STDIN, _STDOUT = 1, 3, 4, 5, 6
_RESPONDER: Final = 1
_REQUEST: Final = 1
_LARGEST: Final = 1 << 20


async def ask(socket: Path, parameters: Mapping[str, str]) -> bytes:
    """The answer to a GET request, head and body. Raises OSError if nothing listens or the answer is cut off."""
    async with await trio.open_unix_socket(str(socket)) as stream:
        try:
            await stream.send_all(_request(parameters))
            return await _answer(stream)
        except trio.BrokenResourceError as error:
            raise ConnectionResetError("the connection was reset") from error


def _request(parameters: Mapping[str, str]) -> bytes:
    pairs = b"".join(_pair(name.encode(), value.encode()) for name, value in parameters.items())
    begin = struct.pack(">HB5x", _RESPONDER, 0)
    return b"".join((_record(_BEGIN, begin), _record(_PARAMS, pairs), _record(_PARAMS, b""), _record(_STDIN, b"")))


def _pair(name: bytes, value: bytes) -> bytes:
    return _length(name) + _length(value) + name + value


def _length(text: bytes) -> bytes:
    return bytes([len(text)]) if len(text) < 128 else struct.pack(">I", len(text) | 1 << 31)


def _record(kind: int, content: bytes) -> bytes:
    return _HEADER.pack(_VERSION, kind, _REQUEST, len(content), 0) + content


async def _answer(stream: trio.SocketStream) -> bytes:
    received, output = bytearray(), bytearray()
    while True:
        while len(received) >= _HEADER.size:
            _, kind, _, length, padding = _HEADER.unpack_from(received)
            whole = _HEADER.size + length + padding
            if len(received) < whole:
                break
            if kind == _STDOUT:
                output += received[_HEADER.size : _HEADER.size + length]
            del received[:whole]
            if kind == _END:
                return bytes(output)
        chunk = await stream.receive_some(65536)
        if not chunk or len(output) > _LARGEST:
            raise ConnectionResetError("the answer was cut off")
        received += chunk
