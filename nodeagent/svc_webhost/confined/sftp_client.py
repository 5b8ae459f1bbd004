"""Reads folders and files of another host by SFTP, in version 3, which all servers support
(draft-ietf-secsh-filexfer-02), over the two pipes of a process such as `ssh -s HOST sftp`.

Requests are pipelined: without that each file would take several round trips to the other host. The amount in flight is
limited: some files, and a MiB of their content.

Invariant: the other side is trusted for nothing beyond the request: it may send at most the requested bytes, and only
names of one folder's entries.
"""

from __future__ import annotations

import os
import select
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from svc_webhost.confined.other_host import FetchError, printable

_INIT, _VERSION, _OPEN, _CLOSE, _READ, _LSTAT = 1, 2, 3, 4, 5, 7
_OPENDIR, _READDIR, _STAT, _READLINK, _STATUS, _HANDLE, _DATA, _NAME, _ATTRS = 11, 12, 17, 19, 101, 102, 103, 104, 105
_SPOKEN: Final = 3
_END_OF_FILE, _NO_SUCH_FILE = 1, 2
_HAS_SIZE, _HAS_OWNER, _HAS_MODE, _HAS_TIMES, _HAS_MORE = 0x1, 0x2, 0x4, 0x8, 0x8000_0000
_TO_READ: Final = 0x1
_BLOCK: Final = 1 << 15
"""Bytes of a file per request; every server supports this many."""
_MOST_OF_AN_ANSWER: Final = 1 << 18
_BLOCKS_AHEAD: Final = 32
_FILES_AHEAD: Final = 32
_MOST_ENTRIES: Final = 1_000_000
"""The most entries of a folder."""


class EndedError(Exception):
    """The other side has closed the connection."""


class RefusedError(Exception):
    """The server refuses a request."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(printable(said) or f"status {code}")
        self.gone = code == _NO_SUCH_FILE
        self.ended = code == _END_OF_FILE


class Entry(NamedTuple):
    """`size`: in bytes. `modified`: seconds since 1970."""

    path: bytes
    mode: int
    size: int
    modified: int


class SftpClient:
    """`requests` and `answers` are descriptors. `stalled`: seconds within which an answer must come. Every method
    raises FetchError for violations of the protocol, and EndedError."""

    def __init__(self, requests: int, answers: int, stalled: float) -> None:
        self._requests = requests
        self._source = answers
        self._poll = select.poll()
        self._poll.register(answers, select.POLLIN)
        self._stalled = stalled
        self._received = bytearray()
        self._number = 0
        self._early: dict[int, tuple[int, bytes]] = {}
        """Answers that arrived before their turn: to later requests than the awaited one."""
        self._awaited: set[int] = set()
        self._unwanted: set[int] = set()

    def handshake(self) -> None:
        self._send(struct.pack(">BI", _INIT, _SPOKEN))
        kind, content = self._packet()
        if kind != _VERSION or _Reader(content).number() < _SPOKEN:
            raise FetchError("The other host's SFTP version is not supported.")

    def entries(self, folder: bytes) -> list[Entry]:
        """Raises RefusedError."""
        handle = self._handle(self._ask(_OPENDIR, _text(folder)))
        found: list[Entry] = []
        try:
            while True:
                names = _Reader(self._answer(self._ask(_READDIR, _text(handle)), _NAME))
                for _ in range(names.number()):
                    name = names.text()
                    names.text()  # Skip the long form of the name, which looks like a line of `ls -l`.
                    found += self._entry(folder, name, names)
                if len(found) > _MOST_ENTRIES:
                    raise FetchError(f"{printable(os.fsdecode(folder))} has more than {_MOST_ENTRIES:,} entries.")
        except RefusedError as refused:
            if not refused.ended:
                raise
        self._leave(handle)
        return found

    def folder(self, path: bytes) -> Entry:
        """The folder, or the target of a link of that name. Raises RefusedError."""
        return self._look(_STAT, path)

    def target(self, link: bytes) -> bytes:
        """The link's target. Raises RefusedError."""
        answer = _Reader(self._answer(self._ask(_READLINK, _text(link)), _NAME))
        answer.number()
        return answer.text()

    def contents(self, files: Iterable[Entry]) -> Iterator[tuple[Entry, Iterator[bytes] | RefusedError]]:
        """The content of each file, block by block, at most its `size`; less if it was truncated meanwhile. Take all
        blocks of one file before the next."""
        ahead: deque[_File] = deque()
        for entry in files:
            ahead.append(_File(self, entry))
            if len(ahead) > _FILES_AHEAD // 2:
                # The request to open this file was sent as many files ago.
                ahead[-_FILES_AHEAD // 2].begin()
            if len(ahead) == _FILES_AHEAD:
                yield from ahead.popleft().content()
        while ahead:
            yield from ahead.popleft().content()

    def _entry(self, folder: bytes, name: bytes, attributes: _Reader) -> Iterator[Entry]:
        size, mode, modified = attributes.attributes()
        if name in (b".", b".."):
            return
        if not name or b"/" in name or b"\0" in name:
            raise FetchError("The other host sent a file name that is not valid.")
        path = folder.rstrip(b"/") + b"/" + name
        if mode is not None:
            yield Entry(path, mode, size, modified)
            return
        try:
            yield self._look(_LSTAT, path)
        except RefusedError as refused:
            if not refused.gone:
                raise

    def _look(self, how: int, path: bytes) -> Entry:
        size, mode, modified = _Reader(self._answer(self._ask(how, _text(path)), _ATTRS)).attributes()
        if mode is None:
            raise FetchError("The other host does not say which entries are files and which are folders.")
        return Entry(path, mode, size, modified)

    def _handle(self, number: int) -> bytes:
        return _Reader(self._answer(number, _HANDLE)).text()

    def _leave(self, handle: bytes) -> None:
        self._forget(self._ask(_CLOSE, _text(handle)))

    def _ask(self, kind: int, content: bytes) -> int:
        self._number = (self._number + 1) % (1 << 32)
        self._send(struct.pack(">BI", kind, self._number) + content)
        self._awaited.add(self._number)
        return self._number

    def _forget(self, number: int) -> None:
        """Drop the answer to this request."""
        if self._early.pop(number, None) is None:
            self._unwanted.add(number)

    def _answer(self, number: int, wanted: int) -> bytes:
        """Raises RefusedError."""
        while number not in self._early:
            kind, content = self._packet()
            reader = _Reader(content)
            answered = reader.number()
            if answered not in self._awaited:
                raise FetchError("The other host sent an unexpected answer.")
            self._awaited.discard(answered)
            if answered in self._unwanted:
                self._unwanted.discard(answered)
            else:
                self._early[answered] = kind, reader.rest()
        kind, content = self._early.pop(number)
        if kind == _STATUS:
            reader = _Reader(content)
            code = reader.number()
            raise RefusedError(code, reader.text().decode(errors="replace") if reader.rest() else "")
        if kind != wanted:
            raise FetchError("The other host sent an answer of an unexpected kind.")
        return content

    def _send(self, content: bytes) -> None:
        left = memoryview(struct.pack(">I", len(content)) + content)
        try:
            while left:
                left = left[os.write(self._requests, left) :]
        except BrokenPipeError as error:
            raise EndedError from error

    def _packet(self) -> tuple[int, bytes]:
        [length] = struct.unpack(">I", self._bytes(4))
        if not 1 <= length <= _MOST_OF_AN_ANSWER:
            raise FetchError("The other host does not answer as an SFTP server.")
        packet = self._bytes(length)
        return packet[0], packet[1:]

    def _bytes(self, wanted: int) -> bytes:
        while len(self._received) < wanted:
            if not self._poll.poll(self._stalled * 1000):
                raise FetchError(f"The other host has sent nothing for {self._stalled:g} seconds.")
            block = os.read(self._source, 1 << 18)
            if not block:
                raise EndedError
            self._received += block
        found = bytes(self._received[:wanted])
        del self._received[:wanted]
        return found


class _File:
    """A file that is opened and read in advance, while earlier files are still being taken."""

    def __init__(self, client: SftpClient, entry: Entry) -> None:
        self._client = client
        self._entry = entry
        self._opening = client._ask(_OPEN, _text(entry.path) + struct.pack(">II", _TO_READ, 0))
        self._handle: bytes | None = None
        self._refused: RefusedError | None = None
        self._asked: deque[tuple[int, int, int]] = deque()
        """The blocks in flight, in order: the number of the request, offset and length."""
        self._next = 0

    def begin(self) -> None:
        if self._handle is not None or self._refused is not None:
            return
        try:
            self._handle = self._client._handle(self._opening)
        except RefusedError as refused:
            self._refused = refused
        else:
            self._ask_on(1)

    def content(self) -> Iterator[tuple[Entry, Iterator[bytes] | RefusedError]]:
        self.begin()
        yield self._entry, self._refused or self._blocks()

    def _blocks(self) -> Iterator[bytes]:
        """Raises RefusedError."""
        assert self._handle is not None
        try:
            while self._asked:
                number, begin, wanted = self._asked.popleft()
                block = _Reader(self._client._answer(number, _DATA)).text()
                if not 0 < len(block) <= wanted:
                    raise FetchError("The other host sent other bytes of a file than were requested.")
                if len(block) < wanted:
                    self._asked.appendleft(self._request(begin + len(block), wanted - len(block)))
                yield block
                self._ask_on(_BLOCKS_AHEAD)
        except RefusedError as refused:
            if not refused.ended:
                raise
        for number, _, _ in self._asked:
            self._client._forget(number)
        self._client._leave(self._handle)

    def _ask_on(self, most: int) -> None:
        while self._next < self._entry.size and len(self._asked) < most:
            wanted = min(_BLOCK, self._entry.size - self._next)
            self._asked.append(self._request(self._next, wanted))
            self._next += wanted

    def _request(self, begin: int, wanted: int) -> tuple[int, int, int]:
        assert self._handle is not None
        return self._client._ask(_READ, _text(self._handle) + struct.pack(">QI", begin, wanted)), begin, wanted


class _Reader:
    """Reads the fields of an answer in order. Raises FetchError if it ends too early."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def number(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def text(self) -> bytes:
        return self._take(self.number())

    def rest(self) -> bytes:
        return self._content[self._at :]

    def attributes(self) -> tuple[int, int | None, int]:
        """Size, mode and time; a server may omit any of them."""
        said = self.number()
        size = int.from_bytes(self._take(8), "big") if said & _HAS_SIZE else 0
        if said & _HAS_OWNER:
            self._take(8)
        mode = self.number() if said & _HAS_MODE else None
        modified = 0
        if said & _HAS_TIMES:
            self._take(4)
            modified = self.number()
        if said & _HAS_MORE:
            for _ in range(self.number()):
                self.text()
                self.text()
        return size, mode, modified

    def _take(self, size: int) -> bytes:
        found = self._content[self._at : self._at + size]
        if len(found) < size:
            raise FetchError("The other host does not answer as an SFTP server.")
        self._at += size
        return found


def _text(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content
