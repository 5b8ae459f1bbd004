"""Read the disks of a machine into its store. If its guest runs, the disks are first read live, while the guest writes;
then the blocks that it wrote meanwhile are read from a snapshot. The whole copy has the content of this snapshot.

While the snapshot exists, the guest is slowed down: QEMU has to save each block before the guest overwrites it. So the
snapshot is taken when little is left to read. These blocks are read into a file as fast as the disk delivers them, and
sent to the store afterwards. During the live reading, the backup pauses while the guest uses its disk (`pace`). While
the snapshot is read it never pauses, since the guest is slowed down until the snapshot ends.

Rejected: taking the snapshot at the start of the backup. QEMU then had to save blocks until the target had taken
everything. A program that wrote past the guest's cache kept 0.2 to 0.5 of its usual throughput, and lost a third to a
half of its reads to the backup. A faster disk for the scratch file helps with less than half of that.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import IO, Final
from uuid import UUID

import trio

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError, Report
from svc_nodeagent.hypervisor import platform_state
from svc_nodeagent.hypervisor.backups.bases import DiskBase
from svc_nodeagent.hypervisor.backups.blocks import BLOCK_BYTES, blocks_touched, span_of
from svc_nodeagent.hypervisor.backups.live_reading import changed_bytes, disk_wait_seconds, live_of
from svc_nodeagent.hypervisor.backups.nbd import connect_nbd, content
from svc_nodeagent.hypervisor.backups.pace import BackupThrottle
from svc_nodeagent.hypervisor.backups.reading import DiskSnapshot, open_disk_snapshot
from svc_nodeagent.hypervisor.backups.store import MachineStore
from svc_nodeagent.hypervisor.backups.streams import (
    DiskStream,
    KeptDisk,
    name_of,
    progress,
    stream_of_changes,
    stream_of_whole,
)
from svc_nodeagent.hypervisor.files import Folders, MachineRecord, in_thread
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.protocol import PLAIN, DomainState, FailureCode

_AT_ONCE: Final = 64 * 1024 * 1024
"""Bytes. Once no more than this is unread, the live rounds end, and the rest is read from a snapshot."""
_ROOM_ASIDE: Final = 4
"""At most one part in this many (a quarter) of the file system's free space is used to set blocks aside: guests need
the rest."""
_MOST_ROUNDS: Final = 4
_FEED_SECONDS: Final = 0.01
"""The most seconds of a block that count as work of this host: a longer wait is a wait for the target."""
Take = Callable[[int, int, bytes], Awaitable[None]]
"""Called with the disk's index, the block's number and its content."""


@dataclass(frozen=True)
class ParentCopy:
    """The copy that the new one may be based on, as the node remembers it."""

    copy_id: UUID
    disks: Mapping[int, DiskBase]


@dataclass
class CopyResult:
    """`state`: the packed state of firmware and TPM, if the machine has any."""

    kept: dict[int, KeptDisk] = field(default_factory=dict)
    marks: dict[int, str] = field(default_factory=dict)
    frozen: bool = False
    state: bytes | None = None


class DiskCopy:
    """One copy of one machine."""

    def __init__(
        self,
        record: MachineRecord,
        guests: Guests,
        folders: Folders,
        store: MachineStore,
        copy_id: UUID,
        since: ParentCopy | None,
        report: Report,
    ) -> None:
        self._record, self._guests, self._folders = record, guests, folders
        self._store, self._copy_id, self._since, self._report = store, copy_id, since, report
        self._paths = {disk.index: folders.disk_of(record.vm_id, disk) for disk in record.disks}
        self._streams: dict[int, DiskStream] = {}
        self._ends: list[tuple[int, AsyncExitStack]] = []

    async def run(self) -> CopyResult:
        marks = {} if self._since is None else {index: each.mark for index, each in self._since.disks.items()}
        copied = CopyResult()
        # For each disk a restic process of its own reads a stream. All streams stay open until all disks are read,
        # because the blocks of a disk come from several views.
        async with AsyncExitStack() as streams:
            if await self._guests.state(self._record.vm_id) in (DomainState.RUNNING, DomainState.PAUSED):
                await self._read_running(copied, marks, streams)
            else:
                async with self._snapshot({}, copied) as snapshot:
                    for disk in self._record.disks:
                        await self._read(snapshot, disk.index, streams, self._to_stream)
            # The streams are ended here and not by the stack: there is a fault point after each, and `added` is known
            # only after the end.
            for index, end in reversed(self._ends):
                await end.aclose()
                fault_point(f"backup.disk{index}.kept")
        copied.kept = {index: stream.result() for index, stream in self._streams.items()}
        return copied

    async def _read_running(self, copied: CopyResult, base: dict[int, str], streams: AsyncExitStack) -> None:
        paced = _Paced(self._to_stream, BackupThrottle(self._waited))
        # `keep`: the base's own bitmaps stay until the copy is stored, so that a failed backup can be repeated with the
        # same base.
        marks, left, keep = base, await self._unread(base), frozenset(base.values())
        for _ in range(_MOST_ROUNDS):
            if left is not None and left <= _AT_ONCE:
                break
            async with live_of(self._record, self._guests, self._folders, marks, keep) as live:
                for index in live.exports:
                    await self._read(live, index, streams, paced)
            if not live.exports:
                # QEMU records no writes, so further rounds would not help: everything is read from the snapshot.
                break
            marks, before = live.marks, left
            left = await self._unread(marks)
            # The round has not halved the remaining bytes: the guest writes nearly as fast as its disk is read.
            if left is None or (before is not None and left > before // 2):
                break
        # There is no room to set so much aside, so the snapshot lasts until the target has taken it, as for a whole
        # disk.
        folder = self._folders.machine(self._record.vm_id)
        if left is None or left > (await in_thread(shutil.disk_usage, folder)).free // _ROOM_ASIDE:
            async with self._snapshot(marks, copied, keep) as snapshot:
                for disk in self._record.disks:
                    await self._read(snapshot, disk.index, streams, self._to_stream)
            return
        with tempfile.TemporaryFile(dir=folder) as file:
            aside = _Aside(file)
            async with self._snapshot(marks, copied, keep) as snapshot:
                for disk in self._record.disks:
                    await self._read(snapshot, disk.index, streams, aside)
            await aside.feed(self._to_stream)

    @asynccontextmanager
    async def _snapshot(
        self, marks: Mapping[int, str], copied: CopyResult, keep: frozenset[str] = frozenset()
    ) -> AsyncIterator[DiskSnapshot]:
        async with open_disk_snapshot(self._record, self._guests, self._folders, marks, keep) as snapshot:
            copied.frozen, copied.marks = snapshot.frozen, snapshot.marks
            yield snapshot
            if self._record.platform != PLAIN:
                # Firmware and TPM seldom change. They are read within this block, while the snapshot exists, and need
                # no snapshot of their own.
                copied.state = await in_thread(platform_state.packed, self._folders, self._record.vm_id)

    async def _read(self, view: DiskSnapshot, index: int, streams: AsyncExitStack, take: Take) -> None:
        """Read the blocks of the disk that have to be copied from this view, and pass them to `take`."""
        export, spans = view.exports[index], view.written.get(index)
        async with connect_nbd(*export) as source:
            size = source.size
        # The first view of a disk decides whether the copy contains only changes (if the view knows what was written
        # since the base) or the whole disk. Later views only add blocks to the same stream.
        stream = self._streams.get(index)
        if stream is None:
            base = self._base(index, size) if spans is not None else None
            if base is None:
                spans = await content(*export)
            end = await streams.enter_async_context(AsyncExitStack())
            stream = await end.enter_async_context(self._stream(index, size, base))
            self._streams[index] = stream
            self._ends.append((index, end))
        elif stream.digests.size != size:
            raise HostError(FailureCode.CONFLICT, f"Disk {index} was resized while it was copied.", "Try again.")
        numbers = blocks_touched([(0, size)] if spans is None else spans, size)
        stream.looked_at(numbers)
        told, done = progress(self._report, f"copying disk {index}", self._span(index)), 0
        async with connect_nbd(*export) as source:
            async for begin, block in source.pieces(span_of(number, size) for number in numbers):
                await take(index, begin // BLOCK_BYTES, block)
                done += 1
                await told(done, len(numbers))
            fault_point(f"backup.disk{index}.read")

    def _base(self, index: int, size: int) -> DiskBase | None:
        base = None if self._since is None else self._since.disks.get(index)
        return base if base is not None and base.digests.size == size else None

    def _stream(self, index: int, size: int, base: DiskBase | None) -> AbstractAsyncContextManager[DiskStream]:
        if base is None or self._since is None:
            return stream_of_whole(size, self._store, self._copy_id, name_of(index))
        since = self._since.copy_id
        return stream_of_changes(base.digests, self._store, self._copy_id, name_of(index), since)

    def _span(self, index: int) -> tuple[int, int]:
        place, number = list(self._paths).index(index), len(self._paths)
        return 90 * place // number, 90 * (place + 1) // number

    async def _to_stream(self, index: int, number: int, block: bytes) -> None:
        await self._streams[index].take(number, block)

    async def _unread(self, since: Mapping[int, str]) -> int | None:
        return await changed_bytes(self._record.vm_id, self._guests, self._paths, since)

    async def _waited(self) -> float | None:
        return await disk_wait_seconds(self._record.vm_id, self._guests, self._paths)


class _Paced:
    """Passes blocks on, and pauses while the guest needs its disk."""

    def __init__(self, take: Take, pace: BackupThrottle) -> None:
        self._take, self._pace = take, pace
        self._rested_at = trio.current_time()

    async def __call__(self, index: int, number: int, block: bytes) -> None:
        given_at = trio.current_time()
        await self._take(index, number, block)
        took = min(trio.current_time() - given_at, _FEED_SECONDS)
        await self._pace.rest_after_work(given_at - self._rested_at + took)
        self._rested_at = trio.current_time()


class _Aside:
    """Blocks that are put aside in a file while the snapshot exists."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._kept: list[tuple[int, int, int]] = []

    async def __call__(self, index: int, number: int, block: bytes) -> None:
        await in_thread(self._file.write, block)
        self._kept.append((index, number, len(block)))

    async def feed(self, take: Take) -> None:
        await in_thread(self._file.seek, 0)
        for index, number, length in self._kept:
            await take(index, number, await in_thread(self._file.read, length))
