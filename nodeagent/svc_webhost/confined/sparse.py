"""Files with holes in tar archives, as `tar --sparse` writes them: the archive has the data between the holes only.

There are four forms (GNU tar's manual, "Storing Sparse Files"): GNU's old type of header, with a table in it and in
blocks behind it; and three of pax records: a record for each number (0.0), one record with all numbers (0.1), and the
numbers as text at the start of the content (1.0). A file is unpacked with zeros in place of its holes, which count
towards the limits of an archive as any content does.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Final

from svc_webhost.confined.protocol import Failed, FileError

MOST_PARTS: Final = 100_000
_BLOCK: Final = 512
_ZEROS: Final = bytes(1 << 16)
_NUMBER: Final = 12
_IN_HEADER, _AT_HEADER = 4, 386
_IN_BLOCK: Final = 21


@dataclass(frozen=True)
class Layout:
    """The data between holes: offset and length of each part, in order; and the size of the whole file."""

    parts: tuple[tuple[int, int], ...]
    size: int

    def __post_init__(self) -> None:
        ends = [(offset, offset + length) for offset, length in self.parts]
        if any(offset < 0 or length < 0 for offset, length in self.parts) or any(
            end > following for (_, end), (following, _) in pairwise([*ends, (self.size, self.size)])
        ):
            raise _damaged()


@dataclass
class SparseRecords:
    """What the pax records of one entry say of its holes. `in_content`: the numbers are at the start of the content."""

    name: bytes | None = None
    in_content: bool = False
    size: int | None = None
    numbers: list[int] = field(default_factory=list)

    def take(self, key: bytes, value: bytes) -> None:
        match key:
            case b"name":
                self.name = value
            case b"major":
                self.in_content = int(value) > 0
            case b"size" | b"realsize":
                self.size = int(value)
            case b"offset" | b"numbytes":
                self.numbers.append(int(value))
            case b"map":
                self.numbers = list(map(int, value.split(b","))) if value else []

    def layout(self) -> Layout | None:
        return None if self.size is None else Layout(_in_pairs(self.numbers), self.size)


def old_layout(header: bytes, further: Iterator[bytes]) -> Layout:
    """The layout of a file with GNU's old type of header. `further`: the following blocks, of which this reads those of
    the table."""
    numbers = _numbers(header[_AT_HEADER:], _IN_HEADER)
    extended, size = header[482], tarfile.nti(header[483:495])  # type: ignore[attr-defined]
    while extended:
        block = next(further)
        numbers += _numbers(block, _IN_BLOCK)
        if len(numbers) > 2 * MOST_PARTS:
            raise FileError(Failed.REFUSED, f"A file in the archive has more than {MOST_PARTS:,} holes.")
        extended = block[504]
    return Layout(_in_pairs(numbers), size)


def _numbers(table: bytes, most: int) -> list[int]:
    numbers = []
    for at in range(0, 2 * most * _NUMBER, 2 * _NUMBER):
        if not table[at]:
            break
        numbers += [
            tarfile.nti(table[at : at + _NUMBER]),  # type: ignore[attr-defined]
            tarfile.nti(table[at + _NUMBER : at + 2 * _NUMBER]),  # type: ignore[attr-defined]
        ]
    return numbers


def expanded(
    blocks: Iterator[bytes], layout: Layout, spend: Callable[[int], None], *, in_content: bool
) -> Iterator[bytes]:
    """The content of the whole file. `spend` counts the bytes of holes, before they are made."""
    source = _Source(blocks)
    parts = _parts_in_content(source) if in_content else layout.parts
    at = 0
    for offset, length in (*Layout(parts, layout.size).parts, (layout.size, 0)):
        for count in _steps(offset - at):
            spend(count)
            yield _ZEROS[:count]
        yield from source.take(length)
        at = offset + length
    if source.take_some(1):
        raise _damaged()


def _steps(count: int) -> Iterator[int]:
    while count > 0:
        yield min(count, len(_ZEROS))
        count -= len(_ZEROS)


def _parts_in_content(source: _Source) -> tuple[tuple[int, int], ...]:
    """Decimal numbers, a line each: how many parts, then offset and length of each; filled up to a whole block."""
    lines = source.lines()
    count = int(next(lines))
    if not 0 <= count <= MOST_PARTS:
        raise FileError(Failed.REFUSED, f"A file in the archive has more than {MOST_PARTS:,} holes.")
    numbers = list(map(int, islice(lines, 2 * count)))
    return _in_pairs(numbers)


class _Source:
    """The bytes of the archive for one file, taken in pieces."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def take_some(self, most: int) -> bytes:
        """At most so many bytes; empty at the end."""
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return b""
            self._rest = block
        found, self._rest = self._rest[:most], self._rest[most:]
        return found

    def take(self, count: int) -> Iterator[bytes]:
        while count:
            found = self.take_some(count)
            if not found:
                raise _damaged()
            count -= len(found)
            yield found

    def lines(self) -> Iterator[bytes]:
        text = b""
        while True:
            while b"\n" not in text:
                if len(text) > _BLOCK:
                    raise _damaged()
                text += b"".join(self.take(_BLOCK))
            line, _, text = text.partition(b"\n")
            yield line


def _in_pairs(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    each = list(numbers)
    if len(each) % 2:
        raise _damaged()
    return tuple(zip(each[::2], each[1::2], strict=True))


def _damaged() -> FileError:
    return FileError(Failed.INVALID, "The archive is damaged: the holes of a file are not in order.")
