"""Reads the lines of a log while it is written and rotated, from a cursor that stays valid.

A cursor is a position in one file: its inode, the bytes read so far, and a checksum of its start, to detect another
file with the same inode. A rotated file keeps its inode under its new name (`access.log.1`), so a reader continues
there and then with the later files, and neither repeats nor skips a line. If the file was deleted, the reader continues
with the oldest one left, and learns of the gap.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

LONGEST_LINE: Final = 8192
"""The most bytes of a line that are shown."""
MOST_SCANNED: Final = 8 * 1024 * 1024
"""The most bytes that one call scans; the next call continues there."""
MOST_GIVEN: Final = 512 * 1024
"""The most bytes of lines that one call returns."""
_TAIL: Final = 1024 * 1024
"""Without a cursor, reading starts this many bytes before the end."""
_MARKED: Final = 64
_CURSOR: Final = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{8})")
CURSOR_PATTERN: Final = _CURSOR.pattern


class BadCursorError(ValueError):
    """The text is not a cursor of a log."""


@dataclass(frozen=True)
class LogPart:
    lines: list[str]
    cursor: str | None
    """The position after the last scanned line; None if there is no log yet."""
    more: bool
    """Whether there is more to read now."""
    gap: bool
    """Whether lines between the cursor and these are lost, because their file was deleted."""


@dataclass(frozen=True)
class _Cursor:
    inode: int
    offset: int
    mark: int

    @classmethod
    def parse(cls, text: str) -> _Cursor:
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise BadCursorError("this is no cursor of a log")
        return cls(*(int(part, 16) for part in match.groups()))

    def __str__(self) -> str:
        return f"{self.inode:x}-{self.offset:x}-{self.mark:08x}"


def read_log(log: Path, *, after: str | None, text: str | None, most: int) -> LogPart:
    """At most `most` lines of the log that contain `text` literally: those after the cursor `after`, or the last ones.

    Blocks. Raises `BadCursorError`.
    """
    cursor = _Cursor.parse(after) if after is not None else None
    files = [path.open("rb") for path in _generations(log)]
    try:
        if not files:
            return LogPart([], after, more=False, gap=False)
        if cursor is None:
            return _tail(files[-1], text, most)
        index = next((i for i, file in enumerate(files) if _is_of(file, cursor)), None)
        if index is not None:
            files[index].seek(cursor.offset)
        return _forward(files[index or 0 :], text, most, gap=index is None)
    finally:
        for file in files:
            file.close()


def read_on(log: Path, *, after: str | None, most: int) -> LogPart:
    """At most `most` lines after the cursor, or without one, from the oldest line left. Blocks."""
    if after is not None:
        return read_log(log, after=after, text=None, most=most)
    files = [path.open("rb") for path in _generations(log)]
    try:
        if not files:
            return LogPart([], None, more=False, gap=False)
        return _forward(files, None, most, gap=False)
    finally:
        for file in files:
            file.close()


def _generations(log: Path) -> list[Path]:
    """The uncompressed files of a log, the oldest first: `access.log.2`, `access.log.1`, `access.log`."""
    rotated = [path for path in log.parent.glob(f"{log.name}.*") if path.suffix[1:].isdigit()]
    rotated.sort(key=lambda path: int(path.suffix[1:]), reverse=True)
    return [*rotated, *([log] if log.exists() else [])]


def _is_of(file: BinaryIO, cursor: _Cursor) -> bool:
    found = os.fstat(file.fileno())
    return found.st_ino == cursor.inode and found.st_size >= cursor.offset and _mark(file, cursor.offset) == cursor.mark


def _mark(file: BinaryIO, offset: int) -> int:
    """Identifies a file by its start, which never changes: by as much of the start as had been read."""
    return zlib.crc32(os.pread(file.fileno(), min(offset, _MARKED), 0))


def _place(file: BinaryIO, offset: int) -> str:
    return str(_Cursor(os.fstat(file.fileno()).st_ino, offset, _mark(file, offset)))


def _tail(file: BinaryIO, text: str | None, most: int) -> LogPart:
    size = os.fstat(file.fileno()).st_size
    start = max(0, size - _TAIL)
    file.seek(start)
    if start:
        file.readline()
    lines, offset = list[str](), file.tell()
    for line, end in _lines(file, size):
        offset = end
        if _wanted(line, text):
            lines.append(_shown(line))
    kept, weight = list[str](), 0
    for shown in reversed(lines[-most:]):
        weight += len(shown.encode())
        if weight > MOST_GIVEN:
            break
        kept.append(shown)
    return LogPart(kept[::-1], _place(file, offset), more=False, gap=False)


def _forward(files: Sequence[BinaryIO], text: str | None, most: int, *, gap: bool) -> LogPart:
    lines, scanned, given = list[str](), 0, 0
    for number, file in enumerate(files):
        size = os.fstat(file.fileno()).st_size
        offset = file.tell()
        for line, end in _lines(file, size):
            if len(lines) == most or scanned >= MOST_SCANNED or given >= MOST_GIVEN:
                return LogPart(lines, _place(file, offset), more=True, gap=gap)
            scanned += len(line)
            offset = end
            if _wanted(line, text):
                lines.append(_shown(line))
                given += len(lines[-1].encode())
        if number == len(files) - 1:
            return LogPart(lines, _place(file, offset), more=False, gap=gap)
    raise AssertionError("a log has at least one file")


def _lines(file: BinaryIO, size: int) -> Iterator[tuple[bytes, int]]:
    """Complete lines up to `size`, with their end offsets. An unfinished line is left for the next call; a line that is
    too long is cut."""
    while file.tell() < size:
        line = file.readline(LONGEST_LINE)
        if not line.endswith(b"\n"):
            if len(line) < LONGEST_LINE:
                return
            while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
            if not rest:
                return
        yield line, file.tell()


def _wanted(line: bytes, text: str | None) -> bool:
    return text is None or text.encode() in line


def _shown(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode(errors="replace")
