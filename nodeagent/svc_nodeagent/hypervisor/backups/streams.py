"""The content of a disk on its way to a store and back, block by block, with their digests.

A stream is the whole disk, or the blocks that have changed since another copy: how many, then each after its number.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.backups.blocks import (
    BLOCK_BYTES,
    NUMBER,
    Digests,
    blocks_of,
    is_zero,
    span_of,
    touched,
)
from svc_nodeagent.hypervisor.backups.chains import Snapshot
from svc_nodeagent.hypervisor.backups.nbd import NbdDisk
from svc_nodeagent.hypervisor.backups.store import MachineStore
from svc_nodeagent.protocol import CopiedDisk, FailureCode

_PIECE_BYTES: Final = 256 * 1024
Told = Callable[[int, int], Awaitable[None]]
"""How many bytes of how many are done."""


@dataclass(frozen=True)
class KeptDisk:
    """`read`: bytes of the disk; `added`: what of them the store did not have."""

    digests: Digests
    read: int
    added: int


async def keep_whole(source: NbdDisk, store: MachineStore, copy_id: UUID, name: str, told: Told) -> KeptDisk:
    digests = Digests(source.size)
    numbers = range(blocks_of(source.size))
    async with store.writer(copy_id, f"{name}.raw") as sink:
        async for begin, block in source.pieces(span_of(number, source.size) for number in numbers):
            digests.put(begin // BLOCK_BYTES, block)
            await sink.send_all(block)
            await told(begin + len(block), source.size)
    return KeptDisk(digests, source.size, sink.added)


async def keep_changes(
    source: NbdDisk,
    store: MachineStore,
    copy_id: UUID,
    name: str,
    told: Told,
    *,
    since: UUID,
    before: Digests,
    spans: Sequence[tuple[int, int]],
) -> KeptDisk:
    """As `keep_whole`, of a disk whose blocks were `before` in the copy `since` and of which only `spans` were
    written."""
    if before.size != source.size:
        raise ValueError("the digests are of a disk of another size")
    digests, read = Digests(before.size, bytes(before.known)), 0
    numbers = touched(spans, source.size)
    async with store.writer(copy_id, f"{name}.changed", since) as sink:
        await sink.send_all(NUMBER.pack(len(numbers)))
        async for begin, block in source.pieces(span_of(number, source.size) for number in numbers):
            number = begin // BLOCK_BYTES
            digests.put(number, block)
            await sink.send_all(NUMBER.pack(number))
            await sink.send_all(block)
            read += len(block)
            await told(read, len(numbers) * BLOCK_BYTES)
    return KeptDisk(digests, read, sink.added)


async def rebuild(sink: NbdDisk, store: MachineStore, parts: Sequence[Snapshot], disk: CopiedDisk, told: Told) -> str:
    """Write what the parts say, the whole disk first; the digest of what the disk is then."""
    if disk.block_bytes not in (0, BLOCK_BYTES):
        raise HostError(
            FailureCode.CONFLICT,
            f"The copy is by blocks of {disk.block_bytes} bytes, which this agent does not know; nothing was changed.",
            "Upgrade the node's agent.",
        )
    digests, plain, read = Digests(disk.size_bytes), hashlib.sha256(), 0
    for part in parts:
        async with store.reader(part) as source:
            async for number, block in _blocks(source, disk.size_bytes, numbered=part.on is not None):
                begin, _ = span_of(number, disk.size_bytes)
                await (sink.zero(begin, len(block)) if is_zero(block) else sink.write(begin, block))
                if disk.block_bytes:
                    digests.put(number, block)
                else:
                    plain.update(block)
                read += len(block)
                await told(read, disk.size_bytes * len(parts))
    await sink.zero(disk.size_bytes, sink.size - disk.size_bytes)
    await sink.flush()
    return digests.root() if disk.block_bytes else plain.hexdigest()


async def _blocks(source: trio.abc.ReceiveStream, size: int, *, numbered: bool) -> AsyncIterator[tuple[int, bytes]]:
    """Raises `HostError` for what is no block of the disk; of one that ends too early the digest tells."""
    kept, number = bytearray(), -1

    async def filled(length: int) -> bool:
        while len(kept) < length:
            if not (piece := await source.receive_some(_PIECE_BYTES)):
                return False
            kept.extend(piece)
        return True

    if numbered and await filled(NUMBER.size):
        del kept[: NUMBER.size]
    while await filled(NUMBER.size if numbered else 1):
        if numbered:
            number = NUMBER.unpack(kept[: NUMBER.size])[0]
            del kept[: NUMBER.size]
        else:
            number += 1
        if number >= blocks_of(size):
            raise HostError(FailureCode.HOST, "The target gave back what was not copied; nothing was changed.")
        length = span_of(number, size)[1]
        if not await filled(length):
            return
        yield number, bytes(kept[:length])
        del kept[:length]
