"""Reads archives member by member: zip, and tar plain or compressed by gzip, bzip2 or xz.

The format is detected by content, never by name. An archive is a stranger's data: sizes are counted while they are
read, headers are limited before they are stored, and unreadable input is a `FileError`.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import BinaryIO, Final, Protocol

from svc_webhost.confined.protocol import Failed, FileError
from svc_webhost.confined.sparse import Layout, SparseRecords, expanded, old_layout
from svc_webhost.confined.tree import BLOCK
from svc_webhost.confined.zip_names import names_of

MAX_ENTRIES: Final = 250_000
MAX_BYTES: Final = 64 << 30
MAX_RATIO: Final = 200
"""The content may be this many times as large as its archive. Text reaches 20 to 60; deflate's maximum is 1,032."""
ALWAYS_ALLOWED: Final = 64 << 20
"""Bytes that the content of a small archive may have at any ratio."""
MAX_NAME_RECORD: Final = 64 << 10
"""The most bytes of a pax or GNU record; such records contain names that are too long for a header."""
MAX_DIRECTORY: Final = 48 << 20
"""The most bytes of a zip file's directory, which is read as a whole."""
MAX_TARGET: Final = 4096

_TAR_BLOCK: Final = 512
_ZIP_END: Final = struct.Struct("<4s4H2LH")
_ZIP_COMMENT: Final = 0xFFFF
_ZIP_STARTS: Final = (b"PK\x03\x04", b"PK\x05\x06", b"PK00PK\x03\x04")
"""How a zip archive may start: with a file, with the end record of an empty archive, or with the mark of an archive
that was to be split but fits into one part."""
_ZIP_SPLIT: Final = b"PK\x07\x08"
_BROKEN: Final = (
    zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError, struct.error,
    NotImplementedError, RuntimeError, UnicodeError, ValueError, OverflowError, IndexError,
)  # fmt: skip
"""Exceptions of the standard library's readers for damaged or hostile input."""


class Stream(Protocol):
    """Source of members, read once and forwards."""

    def read(self, size: int, /) -> bytes: ...


class Kind(Enum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    HARD_LINK = "hard link"


@dataclass(frozen=True)
class Member:
    """Read `content` before requesting the next member. `target`: where a link leads; for a hard link, the name of the
    member that has the content."""

    name: bytes
    kind: Kind
    mode: int
    modified: int
    content: Iterable[bytes] = ()
    target: bytes = b""


class Budget:
    """Limits of one archive."""

    def __init__(self, archive_bytes: int) -> None:
        self._bytes = min(MAX_BYTES, max(ALWAYS_ALLOWED, archive_bytes * MAX_RATIO))
        self._entries = MAX_ENTRIES

    def entry(self) -> None:
        self._entries -= 1
        if self._entries < 0:
            raise FileError(Failed.REFUSED, f"The archive has more than {MAX_ENTRIES:,} entries.")

    def spend(self, count: int) -> None:
        self._bytes -= count
        if self._bytes < 0:
            raise FileError(
                Failed.REFUSED,
                f"The archive would unpack to more than {MAX_RATIO} times its size or {MAX_BYTES >> 30} GiB.",
            )


@contextmanager
def understood() -> Iterator[None]:
    """Turns exceptions of the readers about damaged or hostile input into `FileError`, both while members are listed
    and while their contents are read."""
    try:
        yield
    except MemoryError:
        raise FileError(Failed.REFUSED, "Unpacking the archive would need too much memory.") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise FileError(Failed.INVALID, f"The archive is damaged: {error}.") from error
    except _BROKEN as error:
        raise FileError(Failed.INVALID, f"The archive is damaged, or of an unsupported format: {error}.") from error


def members(archive: BinaryIO, encoding: str | None = None, *, ask: bool = True) -> Iterator[Member]:
    """The members in the order of the archive; read them within `understood`. `encoding` and `ask`: as in `zip_names`,
    for names in a zip archive."""
    budget = Budget(os.fstat(archive.fileno()).st_size)
    start = archive.read(_TAR_BLOCK)
    archive.seek(0)
    if start.startswith(_ZIP_STARTS):
        yield from _zip_members(archive, budget, encoding, ask=ask)
    elif start.startswith(_ZIP_SPLIT):
        raise _one_of_several()
    elif start.startswith(b"\x1f\x8b"):
        yield from tar_members(_Gzip(gzip.GzipFile(fileobj=archive, mode="rb")), budget)
    elif start.startswith(b"BZh"):
        yield from tar_members(bz2.BZ2File(archive), budget)
    elif start.startswith(b"\xfd7zXZ\x00"):
        with lzma.LZMAFile(archive) as unpacked:
            yield from tar_members(unpacked, budget)
    elif is_tar(start):
        yield from tar_members(archive, budget)
    else:
        if _is_last_part(archive):
            raise _one_of_several()
        raise FileError(Failed.INVALID, "This is not a supported archive: zip, tar, tar.gz, tar.bz2 and tar.xz are.")


def is_tar(start: bytes) -> bool:
    """Whether these are the first bytes of a tar archive. The format of Unix version 7 has no magic number; it is
    recognised by the checksum of its header."""
    if start[257:262] == b"ustar":
        return True
    try:
        return bool(tarfile.TarInfo.frombuf(start[:_TAR_BLOCK], "utf-8", "surrogateescape").name)
    except (*_BROKEN, tarfile.HeaderError):
        return False


class _Gzip:
    """Reads gzip and, like gzip(1), ignores trailing data that is not compressed, such as a signature."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self._has_read = False

    def read(self, size: int, /) -> bytes:
        try:
            found = self._file.read(size)
        except gzip.BadGzipFile as error:
            # A wrong checksum is reported with another message.
            if self._has_read and str(error).startswith("Not a gzipped file"):
                return b""
            raise
        self._has_read = True
        return found


def _zip_members(archive: BinaryIO, budget: Budget, encoding: str | None, *, ask: bool) -> Iterator[Member]:
    _check_directory(archive)
    with zipfile.ZipFile(archive) as opened:
        infos = opened.infolist()
        for _ in infos:
            budget.entry()
        for info, name in zip(infos, names_of(infos, encoding, ask=ask), strict=True):
            if name is None:
                continue
            mode = info.external_attr >> 16 if info.create_system == 3 else 0
            modified = _zip_time(info)
            if stat.S_ISLNK(mode):
                target = b"".join(_zip_content(opened, info, budget, most=MAX_TARGET))
                yield Member(name, Kind.LINK, 0o777, modified, target=target)
            elif name.endswith(b"/"):
                yield Member(name, Kind.FOLDER, mode & 0o777 or 0o755, modified)
            elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise _special(name)
            else:
                yield Member(name, Kind.FILE, mode & 0o777 or 0o644, modified, _zip_content(opened, info, budget))


def _is_last_part(archive: BinaryIO) -> bool:
    """Whether this ends as the last part of a split zip archive does, which has the directory."""
    size = archive.seek(0, os.SEEK_END)
    archive.seek(max(0, size - _ZIP_END.size - _ZIP_COMMENT))
    tail = archive.read()
    found = tail.rfind(b"PK\x05\x06")
    return 0 <= found <= len(tail) - _ZIP_END.size and _ZIP_END.unpack_from(tail, found)[1] != 0


def _check_directory(archive: BinaryIO) -> None:
    """`ZipFile` reads the whole directory and creates an object per entry before their number can be checked. For a
    directory of more than 4 GiB or 65,535 entries (zip64) the end record does not have the real numbers, so the check
    uses only where the directory starts: it extends from there to the end of the file."""
    size = archive.seek(0, os.SEEK_END)
    tail_at = archive.seek(max(0, size - _ZIP_END.size - _ZIP_COMMENT))
    tail = archive.read()
    found = tail.rfind(b"PK\x05\x06")
    if found < 0 or len(tail) - found < _ZIP_END.size:
        raise FileError(Failed.INVALID, "The archive is incomplete: it ends early.")
    disk, first_disk, _, _, length, start = _ZIP_END.unpack_from(tail, found)[1:7]
    if (disk, first_disk) not in ((0, 0), (0xFFFF, 0xFFFF)):
        raise _one_of_several()
    if start == 0xFFFFFFFF or length == 0xFFFFFFFF:
        locator = tail.rfind(b"PK\x06\x06", 0, found)
        if locator < 0 or found - locator < 56:
            raise FileError(Failed.INVALID, "The archive is damaged: its directory is not where it should be.")
        length, start = struct.unpack_from("<QQ", tail, locator + 40)
    if length > MAX_DIRECTORY or tail_at + found - start > MAX_DIRECTORY + _ZIP_COMMENT:
        raise FileError(Failed.REFUSED, f"The archive has more than {MAX_ENTRIES:,} entries.")
    archive.seek(0)


def _zip_content(
    opened: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget, most: int = MAX_BYTES
) -> Iterator[bytes]:
    with opened.open(info) as content:
        while block := content.read(BLOCK):
            budget.spend(len(block))
            most -= len(block)
            if most < 0:
                raise FileError(Failed.REFUSED, f"{_for_message(os.fsencode(info.filename))} is too long for a link.")
            yield block


def _zip_time(info: zipfile.ZipInfo) -> int:
    """The member's time, in seconds since 1970. A zip file does not name its time zone, so UTC is assumed."""
    year, month, day, hour, minute, second = info.date_time
    days_before = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
    leap = 1 if month > 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 0
    earlier = year - 1
    days = earlier * 365 + earlier // 4 - earlier // 100 + earlier // 400 - 719_162
    days += days_before[max(1, min(month, 12)) - 1] + leap + max(day, 1) - 1
    return ((days * 24 + hour) * 60 + minute) * 60 + second


@dataclass
class _Further:
    """Values from preceding records that replace those of a header."""

    name: bytes | None = None
    target: bytes | None = None
    size: int | None = None
    sparse: SparseRecords = field(default_factory=SparseRecords)


_PAX: Final = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_GNU_MAGIC_AT, _GNU_MAGIC = 257, b"ustar  \0"
_VOLUME_LABEL: Final = b"V"
_CONTINUED: Final = b"M"
_FOLDER_WITH_LIST: Final = b"D"
"""A folder of `tar --listed-incremental`, with the names in it as content."""


def tar_members(stream: Stream, budget: Budget) -> Iterator[Member]:
    """As `members`, for a stream that is read once."""
    everywhere, next_one = _Further(), _Further()
    while header := _block(stream, budget):
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        if info.size < 0:
            raise FileError(Failed.INVALID, "The archive is damaged: it has a negative size.")
        if info.type in (*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            record = _record(stream, info.size, budget)
            if info.type == tarfile.GNUTYPE_LONGNAME:
                next_one.name = record.rstrip(b"\0")
            elif info.type == tarfile.GNUTYPE_LONGLINK:
                next_one.target = record.rstrip(b"\0")
            else:
                _read_pax(record, everywhere if info.type == tarfile.XGLTYPE else next_one)
            continue
        budget.entry()
        size = next_one.size if next_one.size is not None else info.size
        sparse = next_one.sparse
        name = sparse.name or next_one.name or everywhere.name or _own_name(header, info)
        target = next_one.target or everywhere.target or os.fsencode(info.linkname)
        next_one = _Further()
        if info.type == tarfile.GNUTYPE_SPARSE:
            further = iter(lambda: _exactly(stream, _TAR_BLOCK, budget), b"")
            layout: Layout | None = old_layout(header, further)
        else:
            layout = sparse.layout()
        reading = _Reading(stream, size, budget, layout, in_content=sparse.in_content)
        yield from _tar_member(info, name, target, reading)
    while rest := stream.read(BLOCK):  # Read to the end, so that the stream's own checksum is checked.
        budget.spend(len(rest))


def _own_name(header: bytes, info: tarfile.TarInfo) -> bytes:
    """In a header of GNU's own form there are times where others have the start of a long name."""
    if header[_GNU_MAGIC_AT : _GNU_MAGIC_AT + len(_GNU_MAGIC)] == _GNU_MAGIC:
        return header[:100].split(b"\0", 1)[0]
    return os.fsencode(info.name)


@dataclass(frozen=True)
class _Reading:
    """How the content of a member is read: `size` bytes of the stream, which are the parts of `layout` if it has holes.
    `in_content`: the layout is at the start of the content."""

    stream: Stream
    size: int
    budget: Budget
    layout: Layout | None
    in_content: bool

    def content(self) -> Iterator[bytes]:
        blocks = _tar_content(self.stream, self.size, self.budget)
        if self.layout is None:
            return blocks
        return expanded(blocks, self.layout, self.budget.spend, in_content=self.in_content)

    def skip(self) -> None:
        for _ in _tar_content(self.stream, self.size, self.budget):
            pass


def _tar_member(info: tarfile.TarInfo, name: bytes, target: bytes, reading: _Reading) -> Iterator[Member]:
    mode, modified = info.mode & 0o777, int(info.mtime)
    match info.type:
        case tarfile.DIRTYPE:
            yield Member(name, Kind.FOLDER, mode, modified)
        case tarfile.SYMTYPE:
            yield Member(name, Kind.LINK, 0o777, modified, target=target[: MAX_TARGET + 1])
        case tarfile.LNKTYPE:
            yield Member(name, Kind.HARD_LINK, mode, modified, target=target)
        case tarfile.REGTYPE | tarfile.AREGTYPE | tarfile.CONTTYPE | tarfile.GNUTYPE_SPARSE:
            if name.endswith(b"/"):  # Old archives mark folders in this way, because there was no type for them.
                yield Member(name, Kind.FOLDER, mode, modified)
                return
            yield Member(name, Kind.FILE, mode, modified, reading.content())
        case _ if info.type == _FOLDER_WITH_LIST:
            reading.skip()
            yield Member(name, Kind.FOLDER, mode, modified)
        case _ if info.type == _VOLUME_LABEL:
            reading.skip()
        case _ if info.type == _CONTINUED:
            raise _one_of_several()
        case _:
            raise _special(name)


def _block(stream: Stream, budget: Budget) -> bytes:
    """The next header; empty at the archive's end, which is either a block of zeros or the end of the file."""
    block = _exactly(stream, _TAR_BLOCK, budget, may_end=True)
    return b"" if block == bytes(_TAR_BLOCK) else block


def _exactly(stream: Stream, size: int, budget: Budget, *, may_end: bool = False) -> bytes:
    first = stream.read(size)
    if len(first) == size:
        budget.spend(size)
        return first
    found = bytearray(first)
    while first and len(found) < size and (block := stream.read(size - len(found))):
        found += block
    budget.spend(len(found))
    if len(found) < size and not (may_end and not found):
        raise FileError(Failed.INVALID, "The archive is incomplete: it ends early.")
    return bytes(found)


def _record(stream: Stream, size: int, budget: Budget) -> bytes:
    if size > MAX_NAME_RECORD:
        raise FileError(Failed.REFUSED, "The archive has a name that is too long.")
    padded = _exactly(stream, -(-size // _TAR_BLOCK) * _TAR_BLOCK, budget)
    return padded[:size]


def _tar_content(stream: Stream, size: int, budget: Budget) -> Iterator[bytes]:
    rest = size
    while rest:
        block = _exactly(stream, min(rest, BLOCK), budget)
        rest -= len(block)
        yield block
    _exactly(stream, -size % _TAR_BLOCK, budget)


def _read_pax(record: bytes, into: _Further) -> None:
    """Records of pax(1): `length key=value` and a line end; the length is that of the whole record."""
    while record:
        length_text, _, _ = record.partition(b" ")
        length = int(length_text)
        if not length_text or length <= len(length_text) or length > len(record):
            raise FileError(Failed.INVALID, "The archive is damaged: a record of the wrong length.")
        key, _, value = record[len(length_text) + 1 : length - 1].partition(b"=")
        if key == b"path":
            into.name = value
        elif key == b"linkpath":
            into.target = value
        elif key == b"size":
            into.size = int(value)
            if into.size < 0:
                raise FileError(Failed.INVALID, "The archive is damaged: it has a negative size.")
        elif key.startswith(b"GNU.sparse."):
            into.sparse.take(key.removeprefix(b"GNU.sparse."), value)
        record = record[length:]


def _one_of_several() -> FileError:
    return FileError(
        Failed.REFUSED, "The archive is one part of several. Put the parts together, and pack them as one archive."
    )


def _special(name: bytes) -> FileError:
    return FileError(Failed.REFUSED, f"{_for_message(name)} in the archive is not a file, folder or link.")


def _for_message(name: bytes) -> str:
    return name[:200].decode(errors="replace")
