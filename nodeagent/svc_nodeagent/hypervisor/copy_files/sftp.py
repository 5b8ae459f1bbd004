"""A read-only client of SFTP (version 3), which asks the rescue system's server for a copy's files.

The server has read data that a guest has written, so a guest may have taken it over. Invariants: an answer has a
deadline and a maximum length; an answer that does not fit its request ends the connection, and nothing is requested
after that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import EntryKind, FailureCode

ANSWER_SECONDS: Final = 60.0
MOST_NAME_BYTES: Final = 255
MOST_PATH_BYTES: Final = 4_095
_MOST_MESSAGE_BYTES: Final = 300 * 1024
_PIECE_BYTES: Final = 128 * 1024
_VERSION: Final = 3
_KINDS: Final = {0o100000: EntryKind.FILE, 0o040000: EntryKind.FOLDER, 0o120000: EntryKind.LINK}


class _Kind(IntEnum):
    INIT, VERSION, OPEN, CLOSE, READ, LSTAT = 1, 2, 3, 4, 5, 7
    OPENDIR, READDIR, READLINK = 11, 12, 19
    STATUS, HANDLE, DATA, NAME, ATTRS = 101, 102, 103, 104, 105


class _Status(IntEnum):
    END, NO_SUCH_FILE = 1, 2


@dataclass(frozen=True)
class Attributes:
    """`modified`: seconds since 1970."""

    kind: EntryKind
    mode: int
    size: int
    modified: int


class Sftp:
    """The client. It sends one request at a time; further requests wait."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._kept = bytearray()
        self._number = 0
        self._asking = trio.Lock()
        self._broken = False

    async def greet(self) -> None:
        """Wait for the server; the caller sets the deadline. Raises `HostError` if the server ends before it
        answers."""
        try:
            await self._stream.send_all(struct.pack(">IBI", 5, _Kind.INIT, _VERSION))
            kind, body = await self._message()
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError) as error:
            raise _gone() from error
        if kind != _Kind.VERSION or _Answer(body, self._misunderstood).number() != _VERSION:
            raise _gone()

    async def attributes(self, path: bytes) -> Attributes:
        """The attributes of the path itself: a link is not followed."""
        answer = await self._ask(_Kind.LSTAT, _text(path), _Kind.ATTRS)
        return answer.attributes()

    async def target(self, path: bytes) -> bytes:
        """The target of a link."""
        answer = await self._ask(_Kind.READLINK, _text(path), _Kind.NAME)
        if answer.number() != 1:
            raise self._misunderstood()
        return answer.text()

    async def entries(self, path: bytes, most: int) -> tuple[list[tuple[bytes, Attributes]], bool]:
        """The entries of a folder, in no order; and whether there are more than `most`."""
        found: list[tuple[bytes, Attributes]] = []
        handle = (await self._ask(_Kind.OPENDIR, _text(path), _Kind.HANDLE)).text()
        try:
            seen = 0
            while seen <= most + 2 and (answer := await self._more(_Kind.READDIR, _text(handle), _Kind.NAME)):
                count = answer.number()
                if count == 0:
                    raise self._misunderstood()
                for _ in range(count):
                    seen += 1
                    name, _, attributes = answer.text(), answer.text(), answer.attributes()
                    if name not in (b".", b"..") and b"/" not in name and len(name) <= MOST_NAME_BYTES:
                        found.append((name, attributes))
        finally:
            await self._close(handle)
        return found[:most], len(found) > most

    async def read(self, path: bytes, offset: int, length: int) -> bytes:
        """Read a part of a regular file; the result is shorter than `length` only at the end of the file. A file of
        another kind might block the server."""
        handle = (await self._ask(_Kind.OPEN, _text(path) + struct.pack(">II", 1, 0), _Kind.HANDLE)).text()
        data = bytearray()
        try:
            while len(data) < length:
                wanted = min(_PIECE_BYTES, length - len(data))
                asked = _text(handle) + struct.pack(">QI", offset + len(data), wanted)
                answer = await self._more(_Kind.READ, asked, _Kind.DATA)
                if answer is None:
                    break
                piece = answer.text()
                if not 0 < len(piece) <= wanted:
                    raise self._misunderstood()
                data += piece
        finally:
            await self._close(handle)
        return bytes(data)

    async def _close(self, handle: bytes) -> None:
        """Close a handle, even if the caller is cancelled: the server has a limited number of handles."""
        with trio.CancelScope(shield=True):
            if not self._broken:
                await self._ask(_Kind.CLOSE, _text(handle), _Kind.STATUS)

    async def _more(self, kind: _Kind, body: bytes, wanted: _Kind) -> _Answer | None:
        """The next part of a file or folder; None at its end."""
        try:
            return await self._ask(kind, body, wanted)
        except _Ended:
            return None

    async def _ask(self, kind: _Kind, body: bytes, wanted: _Kind) -> _Answer:
        """Send a request, and wait for its answer even if the caller is cancelled: an incomplete request would break
        those that follow."""
        async with self._asking:
            if self._broken:
                raise _gone()
            self._number += 1
            with trio.CancelScope(shield=True, deadline=trio.current_time() + ANSWER_SECONDS) as scope:
                try:
                    head = struct.pack(">IBI", 5 + len(body), kind, self._number)
                    await self._stream.send_all(head + body)
                    came, told = await self._message()
                except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError) as error:
                    self._broken = True
                    raise _gone() from error
            if scope.cancelled_caught:
                self._broken = True
                raise HostError(
                    FailureCode.TIMED_OUT,
                    f"The backup's file system did not answer within {ANSWER_SECONDS:g} s; it may be damaged.",
                    "Open another backup, or create a new machine from this one.",
                )
        answer = _Answer(told, self._misunderstood)
        if answer.number() != self._number:
            raise self._misunderstood()
        if came == _Kind.STATUS != wanted:
            raise _refused(answer.number())
        if came != wanted:
            raise self._misunderstood()
        return answer

    async def _message(self) -> tuple[int, bytes]:
        while len(self._kept) < 5 or len(self._kept) < 4 + struct.unpack_from(">I", self._kept)[0]:
            if len(self._kept) >= 4 and not 1 <= struct.unpack_from(">I", self._kept)[0] <= _MOST_MESSAGE_BYTES:
                raise EOFError("no message is so long")
            piece = await self._stream.receive_some(_PIECE_BYTES)
            if not piece:
                raise EOFError("it has closed the connection")
            self._kept += piece
        end = 4 + struct.unpack_from(">I", self._kept)[0]
        kind, body = self._kept[4], bytes(self._kept[5:end])
        del self._kept[:end]
        return kind, body

    def _misunderstood(self) -> HostError:
        self._broken = True
        return _gone()


class _Answer:
    """The parts of an answer, in their order. If the answer ends too early, the error that `misunderstood` returns is
    raised."""

    def __init__(self, body: bytes, misunderstood: Callable[[], HostError]) -> None:
        self._body = body
        self._misunderstood = misunderstood
        self._at = 0

    def number(self) -> int:
        return int(self._take(">I")[0])

    def text(self) -> bytes:
        length = self.number()
        if self._at + length > len(self._body):
            raise self._misunderstood()
        self._at += length
        return self._body[self._at - length : self._at]

    def attributes(self) -> Attributes:
        flags = self.number()
        size = self._take(">Q")[0] if flags & 1 else 0
        if flags & 2:
            self._take(">II")
        mode = self.number() if flags & 4 else 0
        modified = self._take(">II")[1] if flags & 8 else 0
        if flags & 0x80000000:
            for _ in range(2 * self.number()):
                self.text()
        return Attributes(_KINDS.get(mode & 0o170000, EntryKind.OTHER), mode & 0o7777, min(size, 2**63 - 1), modified)

    def _take(self, form: str) -> tuple[int, ...]:
        if self._at + struct.calcsize(form) > len(self._body):
            raise self._misunderstood()
        found = struct.unpack_from(form, self._body, self._at)
        self._at += struct.calcsize(form)
        return found


class _Ended(HostError):  # noqa: N818 - named for what it says
    """The end of a file or folder."""


def _refused(status: int) -> HostError:
    if status == _Status.END:
        return _Ended(FailureCode.HOST, "The file ends there.")
    if status == _Status.NO_SUCH_FILE:
        return HostError(FailureCode.NOT_FOUND, "The backup has no such file or folder.")
    return HostError(
        FailureCode.CONFLICT,
        "The backup's file system cannot read that file or folder: it is damaged there, or of an unknown type.",
        "Try another backup, or create a new machine from this one.",
    )


def _gone() -> HostError:
    return HostError(
        FailureCode.INTERRUPTED,
        "The system that reads the backup's files has stopped.",
        "Open the backup's files again, then retry.",
    )


def _text(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value
