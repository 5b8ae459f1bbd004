"""A disk as blocks of 1 MiB, with a digest of each block and a digest of all blocks. The latter verifies a whole disk
even if only its changes were read.

A copy is a sequence of blocks, each preceded by its number. If a number occurs twice, the later block counts. A missing
block consists of zeros in a copy of a whole disk; in a copy of changes, it is unchanged since the copy that this copy
is based on.

Rejected: feeding the whole disk to restic, from its start to its end. For a disk of 100 GiB with 2 GiB of content, 100
GiB were read, digested and chunked. Also rejected: a file for each block, which would need the space of the whole disk
again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

# Bitmaps have the same granularity, so a marked bit stands for exactly one block. With blocks of this size, the digests
# of a disk of 1 TiB take 32 MiB.
BLOCK_BYTES: Final = 1024 * 1024
NUMBER: Final = struct.Struct(">Q")
_DIGEST_BYTES: Final = 32
_ZERO: Final = bytes(BLOCK_BYTES)
_ZERO_DIGEST: Final = hashlib.sha256(_ZERO).digest()


class Digests:
    """The digests of the blocks of a disk of `size` bytes."""

    def __init__(self, size: int, known: bytes | None = None) -> None:
        self.size = size
        self.known = bytearray(known if known is not None else bytes(_DIGEST_BYTES * blocks_of(size)))
        if len(self.known) != _DIGEST_BYTES * blocks_of(size):
            raise ValueError(f"{len(self.known)} bytes are not the digests of a disk of {size} bytes")

    @classmethod
    def of_zeros(cls, size: int) -> Digests:
        whole, rest = divmod(size, BLOCK_BYTES)
        return cls(size, _ZERO_DIGEST * whole + (hashlib.sha256(bytes(rest)).digest() if rest else b""))

    def put(self, number: int, block: bytes) -> None:
        # Most of a new disk consists of zeros, and comparing a block with zeros costs far less than hashing it.
        digest = _ZERO_DIGEST if is_zero(block) and len(block) == BLOCK_BYTES else hashlib.sha256(block).digest()
        self.known[_DIGEST_BYTES * number : _DIGEST_BYTES * (number + 1)] = digest

    def root(self) -> str:
        return hashlib.sha256(NUMBER.pack(self.size) + self.known).hexdigest()


def blocks_of(size: int) -> int:
    return -(-size // BLOCK_BYTES)


def span_of(number: int, size: int) -> tuple[int, int]:
    """The offset of a block, and its length; the last may be shorter."""
    begin = number * BLOCK_BYTES
    return begin, min(BLOCK_BYTES, size - begin)


def blocks_touched(spans: Iterable[tuple[int, int]], size: int) -> list[int]:
    """The blocks that overlap any of these (offset, length)."""
    found: set[int] = set()
    for offset, length in spans:
        found.update(range(offset // BLOCK_BYTES, blocks_of(min(size, offset + length))))
    return sorted(found)


def is_zero(block: bytes) -> bool:
    return block == _ZERO[: len(block)]
