"""The content of a disk on its way to a store and back, block by block, with their digests.

A stream is a sequence of blocks, each preceded by its number (`blocks`). If the disk was read while its guest wrote,
some blocks are there twice, and the last one counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import trio

from svc_nodeagent.host import HostError, Report
from svc_nodeagent.hypervisor.backups.blocks import (
    BLOCK_BYTES,
    NUMBER,
    Digests,
    blocks_of,
    is_zero,
    span_of,
)
from svc_nodeagent.hypervisor.backups.chains import Snapshot
from svc_nodeagent.hypervisor.backups.nbd import NbdDisk
from svc_nodeagent.hypervisor.backups.store import MachineStore, Sink
from svc_nodeagent.protocol import CopiedDisk, FailureCode

PIECE_BYTES: Final = 256 * 1024
"""Bytes of a store's output that are read at once."""
_HEAD: Final = NUMBER.pack(BLOCK_BYTES)
"""The block size, written before the first block. It also keeps a stream without changes from being empty: restic
stores no empty files."""
OnProgress = Callable[[int, int], Awaitable[None]]
"""Called with the number of bytes done and the total."""


@dataclass(frozen=True)
class KeptDisk:
    """`read`: bytes of the disk that were read; `added`: bytes that the store did not have."""

    digests: Digests
    read: int
    added: int


def name_of(index: int) -> str:
    """A disk's name in the store."""
    return f"disk-{index}"


def progress(report: Report, words: str, span: tuple[int, int]) -> OnProgress:
    """A callback that reports each percent once."""
    last = -1

    async def report_percent(done: int, size: int) -> None:
        nonlocal last
        percent = span[0] + (span[1] - span[0]) * done // max(1, size)
        if percent != last:
            last = percent
            await report(percent, words)

    return report_percent


class DiskStream:
    """Takes blocks of one disk for one copy. `digests`: the digests of all blocks of the disk in this copy. They start
    as those of zeros, or for a copy of changes as those of the copy before, and each block that is taken replaces
    one."""

    def __init__(self, sink: Sink, digests: Digests) -> None:
        self._sink = sink
        self._looked_at: set[int] = set()
        self.digests = digests

    async def take(self, number: int, block: bytes) -> None:
        self.digests.put(number, block)
        await self._sink.send_all(NUMBER.pack(number))
        await self._sink.send_all(block)

    def looked_at(self, numbers: Iterable[int]) -> None:
        self._looked_at.update(numbers)

    def result(self) -> KeptDisk:
        """Called once the writer's block has ended: `added` is known only then."""
        size = self.digests.size
        return KeptDisk(self.digests, sum(span_of(number, size)[1] for number in self._looked_at), self._sink.added)


@asynccontextmanager
async def stream_of_whole(size: int, store: MachineStore, copy_id: UUID, name: str) -> AsyncIterator[DiskStream]:
    """A copy of the whole disk: blocks that are not taken are zeros."""
    async with store.writer(copy_id, f"{name}.blocks") as sink:
        await sink.send_all(_HEAD)
        stream = DiskStream(sink, Digests.of_zeros(size))
        stream.looked_at(range(blocks_of(size)))
        yield stream


@asynccontextmanager
async def stream_of_changes(
    before: Digests, store: MachineStore, copy_id: UUID, name: str, since: UUID
) -> AsyncIterator[DiskStream]:
    """A copy of changes: blocks that are not taken are as in the copy `since`, whose digests are `before`."""
    async with store.writer(copy_id, f"{name}.changed", since) as sink:
        await sink.send_all(_HEAD)
        yield DiskStream(sink, Digests(before.size, bytes(before.known)))


async def rebuild(
    sink: NbdDisk, store: MachineStore, parts: Sequence[Snapshot], disk: CopiedDisk, on_progress: OnProgress
) -> str:
    """Write the parts in order, the whole disk first and then the changes; returns the digest of the result."""
    # 0: a copy of an early release, with a single digest of the whole disk.
    if disk.block_bytes not in (0, BLOCK_BYTES):
        raise HostError(
            FailureCode.CONFLICT,
            f"The backup is by blocks of {disk.block_bytes} bytes, which this agent does not support; nothing was "
            "changed.",
            "Upgrade the node's agent.",
        )
    size = disk.size_bytes
    digests, plain, read = Digests.of_zeros(size), hashlib.sha256(), 0
    written = bytearray(blocks_of(size))
    for part in parts:
        async with store.reader(part) as source:
            async for number, block in _blocks(source, size, numbered=part.numbered):
                begin, _ = span_of(number, size)
                written[number] = True
                # Zeros are unmapped and not written, so the restored disk is as thin as the copied one was.
                await (sink.zero(begin, len(block)) if is_zero(block) else sink.write(begin, block))
                if disk.block_bytes:
                    digests.put(number, block)
                else:
                    plain.update(block)
                read += len(block)
                await on_progress(min(read, size), size)
    # Blocks that are in no part are zeros in the copy, but in the new file they may show the content of its image, so
    # they are zeroed. The same is done beyond the end of the copy, because the machine's disk may have grown since.
    for begin, end in _gaps(written):
        await sink.zero(begin * BLOCK_BYTES, min(size, end * BLOCK_BYTES) - begin * BLOCK_BYTES)
    await sink.zero(size, sink.size - size)
    await sink.flush()
    return digests.root() if disk.block_bytes else plain.hexdigest()


def _gaps(written: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """The ranges of blocks that were not written (each run of zeros in `written`), as start and end."""
    begin = written.find(0)
    while begin != -1:
        end = written.find(1, begin)
        end = len(written) if end == -1 else end
        yield begin, end
        begin = written.find(0, end)


async def _blocks(source: trio.abc.ReceiveStream, size: int, *, numbered: bool) -> AsyncIterator[tuple[int, bytes]]:
    """The blocks of a stream. Raises `HostError` for a block that the disk cannot have; a stream that ends too early is
    noticed by its digest."""
    kept, number = bytearray(), -1

    async def filled(length: int) -> bool:
        while len(kept) < length:
            if not (piece := await source.receive_some(PIECE_BYTES)):
                return False
            kept.extend(piece)
        return True

    if numbered and await filled(NUMBER.size):
        del kept[: NUMBER.size]  # The stream starts with a head of this size.
    while await filled(NUMBER.size if numbered else 1):
        if numbered:
            number = NUMBER.unpack(kept[: NUMBER.size])[0]
            del kept[: NUMBER.size]
        else:
            number += 1
        # The target is not trusted: a block with a number beyond the disk's end would be written past it.
        if number >= blocks_of(size):
            raise HostError(FailureCode.HOST, "The target returned other data than was backed up; nothing was changed.")
        length = span_of(number, size)[1]
        if not await filled(length):
            return
        yield number, bytes(kept[:length])
        del kept[:length]
