"""The agent's journal records which operations were started and how they ended, so that none is executed twice.

An append-only file of lines, each a CRC-32 and a JSON record. Invariants:

- `start` and `finish` return once their record is on the disk; concurrent ones share one fsync;
- a file cut at any byte reads as a prefix of what was written: a line that does not match its checksum is skipped;
- the file is rewritten (new file, fsync, rename) when most of it has been acknowledged, so it stays small.

If an operation was started and has no outcome when the journal is opened, it was interrupted: either the controller
asks for it again, or its outcome becomes `interrupted`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

import structlog
import trio
from pydantic import Field, TypeAdapter, ValidationError

from svc_nodeagent.durable import sync_folder
from svc_nodeagent.faults import fault_point
from svc_nodeagent.protocol import OperationId, Outcome, Wire

_MOST_DEAD_LINES = 2_000
_CHECKSUM_LENGTH = 8
log = structlog.get_logger(__name__)


class Started(Wire):
    record: Literal["begun"] = "begun"
    id: OperationId


class Ended(Wire):
    record: Literal["ended"] = "ended"
    id: OperationId
    outcome: Outcome


class Acknowledged(Wire):
    record: Literal["acknowledged"] = "acknowledged"
    ids: tuple[OperationId, ...]


Record = Annotated[Started | Ended | Acknowledged, Field(discriminator="record")]
_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


@dataclass
class _Entry:
    line: bytes
    written: bool = False
    error: OSError | None = None


@dataclass
class Journal:
    """Opened by `Journal.open`. Operations in `started` have no outcome yet; `outcomes` wait to be acknowledged."""

    path: Path | None
    started: set[OperationId] = field(default_factory=set)
    outcomes: dict[OperationId, Outcome] = field(default_factory=dict)
    _descriptor: int = -1
    _length: int = 0
    _lines: int = 0
    _waiting: list[_Entry] = field(default_factory=list)
    _turn: trio.Lock = field(default_factory=trio.Lock)
    _limiter: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))

    @classmethod
    def open(cls, path: Path | None) -> Self:
        """Read the file, or create one. Without a path nothing outlives the process: for simulated hosts only."""
        journal = cls(path)
        if path is not None:
            journal.read(path)
            journal._rewrite(path)
        return journal

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def unacknowledged(self) -> tuple[OperationId, ...]:
        return tuple(self.started) + tuple(self.outcomes)

    async def start(self, operation_id: OperationId) -> None:
        """Record that the operation is about to run. Raises `OSError`: then nothing was written, and the operation must
        not run."""
        await self._commit(Started(id=operation_id))
        self.started.add(operation_id)

    async def finish(self, operation_id: OperationId, outcome: Outcome, *, durable: bool = True) -> None:
        """Record how the operation ended. Raises `OSError`: then the operation is still recorded as started only."""
        if durable:
            await self._commit(Ended(id=operation_id, outcome=outcome))
        self.started.discard(operation_id)
        self.outcomes[operation_id] = outcome

    def acknowledge(self, operation_ids: Iterable[OperationId]) -> None:
        """Forget these outcomes. Written with the next record: if an acknowledgement is lost, the controller sends it
        again."""
        known = tuple(id_ for id_ in operation_ids if self.outcomes.pop(id_, None) is not None)
        if known and self.path is not None:
            self._waiting.append(_Entry(_line(Acknowledged(ids=known))))

    async def flush(self) -> None:
        """Write what waits for the next record to the disk now."""
        if self._waiting:
            await self._write_waiting(self._waiting[-1])

    async def _commit(self, record: Record) -> None:
        if self.path is None:
            return
        entry = _Entry(_line(record))
        self._waiting.append(entry)
        await self._write_waiting(entry)

    async def _write_waiting(self, entry: _Entry) -> None:
        """Write the waiting records. Of several concurrent callers, the first one writes the records of all, so a burst
        of operations costs one fsync."""
        async with self._turn:
            if not entry.written and entry.error is None:
                batch, self._waiting = self._waiting, []
                try:
                    await trio.to_thread.run_sync(self._append, batch, limiter=self._limiter)
                except OSError as error:
                    for each in batch:
                        each.error = error
                else:
                    for each in batch:
                        each.written = True
        if entry.error is not None:
            raise OSError(entry.error.errno, f"the journal cannot be written: {entry.error.strerror}", str(self.path))

    def _append(self, batch: list[_Entry]) -> None:
        data = b"".join(entry.line for entry in batch)
        try:
            _write_all(self._descriptor, data)
            fault_point("journal.written")
            os.fsync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._length)
            raise
        self._length += len(data)
        self._lines += len(batch)
        if self.path is not None and self._lines > _MOST_DEAD_LINES + 4 * (len(self.started) + len(self.outcomes)):
            self._compact(self.path, batch)

    def _compact(self, path: Path, batch: list[_Entry]) -> None:
        """Rewrite the file with the live records. The batch that was just written is not in memory yet, so its lines
        are copied unchanged."""
        try:
            self._rewrite(path, batch)
        except OSError as error:
            # The old file is complete and stays in use; with the next record, compacting is tried again.
            log.warning("journal.not_compacted", error=str(error))

    def read(self, path: Path) -> None:
        """Load the file's records without changing it."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        damaged = 0
        for line in data.split(b"\n"):
            record = _parse(line)
            match record:
                case Started():
                    self.started.add(record.id)
                case Ended():
                    self.started.discard(record.id)
                    self.outcomes[record.id] = record.outcome
                case Acknowledged():
                    for id_ in record.ids:
                        self.outcomes.pop(id_, None)
                case None:
                    damaged += bool(line)
        if damaged:
            log.warning("journal.damaged_lines", path=str(path), lines=damaged)

    def _rewrite(self, path: Path, batch: Iterable[_Entry] = ()) -> None:
        lines = [_line(Started(id=id_)) for id_ in list(self.started)]
        lines += [_line(Ended(id=id_, outcome=outcome)) for id_, outcome in list(self.outcomes.items())]
        lines += [entry.line for entry in batch]
        new = path.with_suffix(".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            data = b"".join(lines)
            _write_all(descriptor, data)
            os.fsync(descriptor)
            fault_point("journal.rewritten")
            new.rename(path)
            sync_folder(path.parent)
        except OSError:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self._length, self._lines = descriptor, len(data), len(lines)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _line(record: Record) -> bytes:
    body = record.model_dump_json().encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _parse(line: bytes) -> Record | None:
    checksum, body = line[:_CHECKSUM_LENGTH], line[_CHECKSUM_LENGTH + 1 :]
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    try:
        return _RECORD.validate_json(body)
    except ValidationError:
        return None
