"""Reads a tar archive, including the archives nested in it that belong to its format (such as a home's tar within a
backup's tar), in one pass over one stream.

gzip, bzip2, xz and zstd are detected by content. A stream is read once, forwards; nothing of it is stored. A nested
archive appears as a folder of its name. All nested archives share the budget of the outer one, so that nested
compression cannot exceed its limits.
"""

from __future__ import annotations

import bz2
import ctypes
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import BinaryIO, Final

from svc_webhost.confined.archive_formats import Budget, Kind, Member, Stream, is_tar, members, tar_members
from svc_webhost.confined.protocol import Failed, FileError

_INPUT: Final = 1 << 18
_OUTPUT: Final = 1 << 20
_MOST_WINDOW: Final = 25
"""The largest window of zstd, as a power of two: 32 MiB. Only `zstd --ultra --long` uses a larger one."""
_ZSTD_D_WINDOW_LOG_MAX: Final = 100
ZSTD: Final = b"\x28\xb5\x2f\xfd"
_MAGIC: Final = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", ZSTD: "zstd"}


class PeekableStream:
    """A stream whose start can be read in advance."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._begin = b""

    def peek(self, size: int) -> bytes:
        while len(self._begin) < size and (more := self._stream.read(size - len(self._begin))):
            self._begin += more
        return self._begin[:size]

    def read(self, size: int, /) -> bytes:
        if not self._begin:
            return self._stream.read(size)
        found, self._begin = self._begin[:size], self._begin[size:]
        return found


class Content:
    """The content of an entry as a stream."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._rest = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return b""
            self._rest = memoryview(block)
        found = bytes(self._rest[:size])
        self._rest = self._rest[size:]
        return found


class _Unpacked:
    """The output of a decompressor, buffered, so that small reads are cheap."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._out = memoryview(b"")
        self._in = b""

    def read(self, size: int, /) -> bytes:
        if not self._out:
            self._out = memoryview(self._more())
        found = bytes(self._out[:size])
        self._out = self._out[size:]
        return found

    def _more(self) -> bytes:
        raise NotImplementedError

    def _input(self) -> bytes:
        return self._stream.read(_INPUT)


class Inflating(_Unpacked):
    """gzip, with checksums verified by zlib; concatenated members are one stream."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self._inflate = zlib.decompressobj(31)
        self._began = False

    def _more(self) -> bytes:
        while True:
            if self._inflate.eof:
                rest = self._inflate.unused_data.lstrip(b"\0") or self._input().lstrip(b"\0")
                if not rest.startswith(b"\x1f"):
                    return b""
                self._inflate, self._in = zlib.decompressobj(31), rest
            elif not self._in:
                self._in = self._input()
                if not self._in:
                    raise EOFError("it ends early")
            out = self._inflate.decompress(self._in, _OUTPUT)
            self._in = self._inflate.unconsumed_tail
            if out:
                return out


class _Stepwise(_Unpacked):
    """bzip2 and xz; concatenated streams are one stream."""

    def __init__(self, stream: Stream, make: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]) -> None:
        super().__init__(stream)
        self._make = make
        self._one = make()

    def _more(self) -> bytes:
        while True:
            data = b""
            if self._one.eof:
                data = self._one.unused_data or self._input()
                if not data.strip(b"\0"):
                    return b""
                self._one = self._make()
            elif self._one.needs_input:
                data = self._input()
                if not data:
                    raise EOFError("it ends early")
            out = self._one.decompress(data, _OUTPUT)
            if out:
                return out


class _Buffer(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("position", ctypes.c_size_t))


class Zstd(_Unpacked):
    """Uses the library that dpkg itself needs, so every server has it; loaded before this process is confined."""

    _library: ctypes.CDLL | None = None

    @classmethod
    def load(cls) -> None:
        try:
            library = ctypes.CDLL("libzstd.so.1")
        except OSError:
            return
        library.ZSTD_createDStream.restype = ctypes.c_void_p
        for name in ("ZSTD_decompressStream", "ZSTD_DCtx_setParameter"):
            getattr(library, name).restype = ctypes.c_size_t
        library.ZSTD_getErrorName.restype = ctypes.c_char_p
        cls._library = library

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        if self._library is None:
            raise FileError(Failed.INVALID, "This server cannot read what zstd has packed: it has no libzstd.")
        self._zstd = self._library
        self._context = ctypes.c_void_p(self._zstd.ZSTD_createDStream())
        self._zstd.ZSTD_DCtx_setParameter(self._context, _ZSTD_D_WINDOW_LOG_MAX, _MOST_WINDOW)
        self._space = ctypes.create_string_buffer(_OUTPUT)
        self._whole = False

    def __del__(self) -> None:
        if hasattr(self, "_context"):
            self._zstd.ZSTD_freeDStream(self._context)

    def _more(self) -> bytes:
        while True:
            if not self._in:
                self._in = self._input()
                if not self._in:
                    if self._whole:
                        return b""
                    raise EOFError("it ends early")
            source = ctypes.create_string_buffer(self._in, len(self._in))
            given = _Buffer(ctypes.cast(source, ctypes.c_void_p), len(self._in), 0)
            taken = _Buffer(ctypes.cast(self._space, ctypes.c_void_p), _OUTPUT, 0)
            hint = self._zstd.ZSTD_decompressStream(self._context, ctypes.byref(taken), ctypes.byref(given))
            if self._zstd.ZSTD_isError(ctypes.c_size_t(hint)):
                why = self._zstd.ZSTD_getErrorName(ctypes.c_size_t(hint)).decode()
                raise FileError(Failed.INVALID, f"The archive is damaged, or of an unsupported format: {why}.")
            self._whole = hint == 0
            self._in = self._in[given.position :]
            if taken.position:
                return self._space.raw[: taken.position]
            if not given.position and self._in:
                raise FileError(Failed.INVALID, "The archive is damaged: its compressed data cannot be read further.")


def unpacked(stream: Stream) -> PeekableStream:
    """The stream, decompressed if its content is compressed."""
    peeking = PeekableStream(stream)
    start = peeking.peek(6)
    name = next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)
    match name:
        case "gzip":
            return PeekableStream(Inflating(peeking))
        case "bzip2":
            return PeekableStream(_Stepwise(peeking, bz2.BZ2Decompressor))
        case "xz":
            return PeekableStream(_Stepwise(peeking, lambda: lzma.LZMADecompressor(memlimit=64 << 20)))
        case "zstd":
            return PeekableStream(Zstd(peeking))
    return peeking


def entries(archive: BinaryIO, budget: Budget, nested: Callable[[bytes], bool]) -> Iterator[Member]:
    """Entries of the archive, and of archives within it whose names satisfy `nested`. Paths have no leading `./`."""
    start = archive.read(4)
    archive.seek(0)
    outer = members(archive, ask=False) if start.startswith(b"PK") else _tar(archive, budget)
    for member in outer:
        member = replace(member, name=_plain(member.name), target=member.target)
        if member.kind is Kind.FILE and nested(member.name):
            inside = unpacked(Content(member.content))
            yield Member(member.name, Kind.FOLDER, 0o755, member.modified)
            for inner in _tar_within(inside, budget, member.name):
                name = _plain(inner.name)
                if not name:
                    continue
                target = inner.target
                if inner.kind is Kind.HARD_LINK:
                    target = member.name + b"/" + _plain(target)
                yield replace(inner, name=member.name + b"/" + name, target=target)
        elif member.name:
            if member.kind is Kind.HARD_LINK:
                member = replace(member, target=_plain(member.target))
            yield member


def _tar(archive: BinaryIO, budget: Budget) -> Iterator[Member]:
    stream = unpacked(archive)
    if not is_tar(stream.peek(512)):
        raise FileError(
            Failed.INVALID,
            "This is not a supported archive: zip, and tar, plain or packed by gzip, bzip2, xz or zstd, are.",
        )
    return tar_members(stream, budget)


def _tar_within(stream: PeekableStream, budget: Budget, name: bytes) -> Iterator[Member]:
    """A dump that is compressed by itself, outside of an archive, counts as a file with the name that it would have
    uncompressed."""
    if is_tar(stream.peek(512)):
        yield from tar_members(stream, budget)
        return

    def content() -> Iterator[bytes]:
        while block := stream.read(_OUTPUT):
            budget.spend(len(block))
            yield block

    budget.entry()
    yield Member(b"content.sql", Kind.FILE, 0o600, 0, content())


def _plain(name: bytes) -> bytes:
    while name.startswith(b"./"):
        name = name[2:].lstrip(b"/")
    return b"" if name == b"." else name.rstrip(b"/")
