"""What a program of a site sends over its connection to the intake: a line, and then the bytes of a message.

Bytes are counted and copied here, never parsed.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

import trio

_LONGEST_LINE: Final = 512 * 1024
"""The most recipients with the longest addresses, and a signature's headers."""


class EndedError(Exception):
    """The program has closed its connection."""


class LineEndsError(Exception):
    """The message has a CR or LF that is no part of a line end, or a NUL."""


class LineEnds:
    """Checks a message piece by piece."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._cr = b""

    async def checked(self, receiving: Awaitable[bytes]) -> bytes:
        """Raises `LineEndsError`. A CR at the end of a piece is judged with the next one."""
        piece = await receiving
        self._left -= len(piece)
        text = self._cr + piece
        self._cr = b"\r" if self._left and piece.endswith(b"\r") else b""
        # If the numbers are equal, each CR and each LF is a part of a line end. Counting takes a tenth of the time of a
        # regular expression.
        text = text.removesuffix(self._cr)
        if not text.count(b"\r\n") == text.count(b"\r") == text.count(b"\n") or b"\0" in text:
            raise LineEndsError
        return piece


class Received:
    """What the program sends: a line, and then bytes."""

    def __init__(self, connection: trio.socket.SocketType) -> None:
        self._connection = connection
        self._held = b""

    async def line(self) -> bytes:
        """Raises `EndedError` if no line comes, or one that is too long."""
        pieces, size = [], 0
        while size <= _LONGEST_LINE:
            piece = await self._more(65536)
            before, end, after = piece.partition(b"\n")
            pieces.append(before)
            size += len(before)
            if end:
                self._held = after
                return b"".join(pieces)
        raise EndedError

    async def some(self, most: int) -> bytes:
        """Receive at least one byte, and at most `most`."""
        if self._held:
            piece, self._held = self._held[:most], self._held[most:]
            return piece
        return await self._more(most)

    async def _more(self, most: int) -> bytes:
        try:
            piece = await self._connection.recv(min(most, 65536))
        except OSError:
            piece = b""
        if not piece:
            raise EndedError
        return piece
