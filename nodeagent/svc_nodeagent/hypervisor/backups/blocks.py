"""A disk as blocks of 1 MiB, the digest of each, and one of them all: by it a disk is verified of which only what has
changed was read.

A copy is a row of blocks, each after its number, and one that comes again is in the place of the one before. Of a
whole disk those that are not there are zeros; of what has changed, those of the copy that it stands on.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

BLOCK_BYTES: Final = 1024 * 1024
NUMBER: Final = struct.Struct(">Q")
_DIGEST_BYTES: Final = 32
_ZERO: Final = bytes(BLOCK_BYTES)
_ZERO_DIGEST: Final = hashlib.sha256(_ZERO).digest()


class Digests:
    """Of the blocks of a disk of `size` bytes."""

    def __init__(self, size: int, known: bytes | None = None) -> None:
        self.size = size
        self.known = bytearray(known if known is not None else bytes(_DIGEST_BYTES * blocks_of(size)))
        if len(self.known) != _DIGEST_BYTES * blocks_of(size):
            raise ValueError("not the digests of a disk of this size")

    @classmethod
    def of_zeros(cls, size: int) -> Digests:
        whole, rest = divmod(size, BLOCK_BYTES)
        return cls(size, _ZERO_DIGEST * whole + (hashlib.sha256(bytes(rest)).digest() if rest else b""))

    def put(self, number: int, block: bytes) -> None:
        digest = _ZERO_DIGEST if is_zero(block) and len(block) == BLOCK_BYTES else hashlib.sha256(block).digest()
        self.known[_DIGEST_BYTES * number : _DIGEST_BYTES * (number + 1)] = digest

    def root(self) -> str:
        return hashlib.sha256(NUMBER.pack(self.size) + self.known).hexdigest()


def blocks_of(size: int) -> int:
    return -(-size // BLOCK_BYTES)


def span_of(number: int, size: int) -> tuple[int, int]:
    """Where a block is, and how long."""
    begin = number * BLOCK_BYTES
    return begin, min(BLOCK_BYTES, size - begin)


def touched(spans: Iterable[tuple[int, int]], size: int) -> list[int]:
    """The blocks that have something of these (offset, length)."""
    found: set[int] = set()
    for offset, length in spans:
        found.update(range(offset // BLOCK_BYTES, blocks_of(min(size, offset + length))))
    return sorted(found)


def is_zero(block: bytes) -> bool:
    return block == _ZERO[: len(block)]
