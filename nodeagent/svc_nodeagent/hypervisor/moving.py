"""Moving a stopped machine from this host, or to it: its disks on a stream, and how the machine is created from them.

    a line of JSON     `_Header`: the secret of a pending first boot, and the disks with their sizes
    of each disk       pieces, each an offset, a length and so many bytes; then the file's size with the length 0
    of some            the state of firmware and TPM (`platform_state`), as long as the header says

Holes of the files are not sent. The receiving host answers with one byte once it has everything, and the stream ends.

Invariants: the sending host changes nothing; on the receiving host, the remains of an interruption or a crash are
removed (`arrivals`). A received disk can refer to only one file of this host, the image that the machine is based on. A
disk may be no larger than was announced, nor than a disk of that size can be. The move ends if the receiving host's
file system is nearly full. Both hosts hold the machine's lock, so neither can start the machine meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Final
from uuid import UUID

import trio
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from svc_nodeagent.durable import PARTIAL_SUFFIX, write_whole
from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError, OpenStream, Report
from svc_nodeagent.hypervisor import arrivals, disks, platform_state
from svc_nodeagent.hypervisor.acceleration import Acceleration, qemu_user
from svc_nodeagent.hypervisor.domains import BaseImage, domain_xml
from svc_nodeagent.hypervisor.files import (
    GIB,
    RECORD,
    SECRET,
    FirstBoot,
    Folders,
    MachineRecord,
    in_thread,
    put_in_place,
    read_record,
)
from svc_nodeagent.hypervisor.guests import Guests, absent
from svc_nodeagent.hypervisor.images import ImageCache, file_name, require_room
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.platforms import require_platform
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.hypervisor.qcow2 import is_unfit_disk
from svc_nodeagent.hypervisor.seeds import write_seed
from svc_nodeagent.protocol import (
    PLAIN,
    CopiedDisk,
    DiskSpec,
    DomainState,
    FailureCode,
    NetworkSpec,
    SentDisks,
    VmMigrate,
    VmSend,
)

SILENCE_SECONDS = 60.0
"""How long the other host may take for a piece."""
TAKEN_IN_SECONDS = 300.0
"""How long the other host may take to create the machine, once it has received everything."""
_PIECE: Final = struct.Struct(">QI")
_PIECE_BYTES: Final = 1024 * 1024
_MOST_HEADER: Final = 16 * 1024
_LOOKED_AT_EVERY: Final = 64 * 1024 * 1024
"""Bytes between two checks of the free space: one percent of a large disk may be more than a nearly full file system
has."""
_MOST_LAYERS: Final = 1 + 50
"""A disk and all snapshots that a machine may ever have had (at most `most_snapshots`): these are in the disk's file,
and deleted ones have left unused space in it. Beyond this size the transfer is limited only by the check of the free
space."""
_TAKEN_IN: Final = b"\n"
_CLOSING_SECONDS: Final = 5.0
Steps = Callable[[UUID], AbstractAsyncContextManager[None]]


class _Disk(BaseModel):
    """A disk that is sent. `size_bytes`: the size of its file; `data_bytes`: how much of the file is sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int = Field(ge=0, le=15)
    size_bytes: int = Field(ge=0, le=2**62)
    data_bytes: int = Field(ge=0, le=2**62)


class _State(BaseModel):
    """The state of firmware and TPM, which is sent after the disks: the number of its bytes, and their SHA-256."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size_bytes: int = Field(ge=0, le=platform_state.MOST_BYTES)
    digest: str


class _Header(BaseModel):
    """The first line. It has `state` only for a machine that has more than a BIOS; an agent of a release without this
    field accepts no such machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    password_hash: str | None = Field(max_length=1024, repr=False)
    disks: Annotated[tuple[_Disk, ...], Field(min_length=1, max_length=16)]
    state: _State | None = None

    def line(self) -> bytes:
        return self.model_dump_json(exclude={"state"} if self.state is None else None).encode() + b"\n"


class Moves:
    """Sends and receives machines. Inside a block of `steps(vm_id)`, no other step of that machine runs; inside such a
    block, `remove` removes everything of the machine from this host."""

    def __init__(
        self,
        *,
        guests: Guests,
        folders: Folders,
        naming: Naming,
        images: ImageCache,
        acceleration: Acceleration,
        open_stream: OpenStream,
        steps: Steps,
        remove: arrivals.Remove,
    ) -> None:
        self._guests = guests
        self._folders = folders
        self._naming = naming
        self._images = images
        self._acceleration = acceleration
        self._open_stream = open_stream
        self._steps = steps
        self._remove = remove

    async def send(self, operation: VmSend, report: Report) -> SentDisks:
        vm_id = operation.vm_id
        async with self._steps(vm_id):
            record = await self._record(vm_id)
            if await self._guests.state(vm_id) not in (DomainState.STOPPED, DomainState.CRASHED):
                raise HostError(FailureCode.CONFLICT, "The machine is not off; it was not changed.", "Stop it.")
            state = await self._state(record)
            header = await in_thread(_header_of, record, self._folders, state)
            paths = {disk.index: self._folders.disk_of(vm_id, disk) for disk in record.disks}
            stream = _Stream(await self._dial(operation.stream_token))
            try:
                await stream.send(header.line())
                advance = _progress(report, "sending the disks", sum(disk.data_bytes for disk in header.disks))
                sent = [await _send_disk(paths[disk.index], disk, stream, advance) for disk in header.disks]
                if state is not None:
                    await stream.send(state)
                fault_point("move.sent")
                await report(95, "waiting for the other host")
                if await stream.receive(1, TAKEN_IN_SECONDS) != _TAKEN_IN:
                    raise _unreadable()
            finally:
                await stream.close()
        return SentDisks(vm_id=vm_id, disks=tuple(sent))

    async def take_in(self, operation: VmMigrate, report: Report) -> SentDisks:
        vm_id = operation.machine.vm_id
        await self._images.ensure(operation.image, _within(report, 10))
        async with self._steps(vm_id):
            volumes = arrivals.volumes_of(operation.machine.disks)
            await arrivals.require_nothing_of(self._guests, self._folders, vm_id, volumes)
            stream = _Stream(await self._dial(operation.stream_token))
            try:
                await in_thread(arrivals.start, self._folders, vm_id, volumes)
                fault_point("move.begun")
                taken = await self._take_in(operation, stream, report)
                await in_thread(arrivals.complete, self._folders, vm_id)
                fault_point("move.complete")
                await stream.send(_TAKEN_IN)
            except BaseException:
                await arrivals.undo(self._folders, vm_id, volumes, self._remove)
                raise
            finally:
                await stream.close()
        return SentDisks(vm_id=vm_id, disks=taken)

    async def _take_in(self, operation: VmMigrate, stream: _Stream, report: Report) -> tuple[CopiedDisk, ...]:
        spec = operation.machine
        record = MachineRecord(
            vm_id=spec.vm_id,
            name=spec.name,
            vcpus=spec.vcpus,
            memory_mib=spec.memory_mib,
            disks=tuple(sorted(spec.disks, key=lambda disk: disk.index)),
            base=file_name(operation.image),
            # No network yet: it is applied when the machine is started.
            network=NetworkSpec(nics=()),
            seed=spec.seed.model_copy(update={"account": spec.seed.account.model_copy(update={"password_hash": None})}),
            cpu_mode=operation.cpu_mode,
            platform=spec.platform,
        )
        await in_thread(require_platform, record.platform)
        header = await stream.header()
        if [disk.index for disk in header.disks] != [disk.index for disk in record.disks]:
            raise _unreadable()
        for announced, disk in zip(header.disks, record.disks, strict=True):
            _require_size(announced, disk)
        base = self._images.base_of(record.base)
        advance = _progress(report, "receiving the disks", sum(disk.data_bytes for disk in header.disks))
        taken = []
        for announced, disk in zip(header.disks, record.disks, strict=True):
            path = self._folders.disk_of(spec.vm_id, disk)
            partial = path.with_name(path.name + PARTIAL_SUFFIX)
            taken.append(await _receive_disk(announced, partial, stream, advance))
            await _stand_on(partial, disk, base if disk.index == 0 else None)
            await in_thread(put_in_place, partial, path, mode=0o600, owner=_owner())
            fault_point(f"move.disk{disk.index}.received")
        if header.state is not None:
            await in_thread(platform_state.restore_state, self._folders, spec.vm_id, await stream.state(header.state))
        await report(95, "defining the machine")
        folder = self._folders.machine(spec.vm_id)
        if header.password_hash is not None:
            first_boot = FirstBoot(password_hash=header.password_hash).model_dump_json().encode()
            await in_thread(write_whole, folder / SECRET, first_boot, mode=0o600)
        await in_thread(write_whole, folder / RECORD, record.stored(), mode=0o600)
        await write_seed(record, header.password_hash, self._folders.seed(spec.vm_id), _owner())
        fault_point("move.recorded")
        verdict = await self._acceleration.verdict()
        await self._guests.define(domain_xml(record, base, self._folders, self._naming, verdict.accelerator))
        fault_point("move.defined")
        return tuple(taken)

    async def _state(self, record: MachineRecord) -> bytes | None:
        if record.platform == PLAIN:
            return None
        return await in_thread(platform_state.packed, self._folders, record.vm_id)

    async def _dial(self, token: str) -> trio.abc.Stream:
        try:
            return await self._open_stream(token)
        except OSError as error:
            raise _cut_short(f"the controller could not be reached ({error})") from error

    async def _record(self, vm_id: UUID) -> MachineRecord:
        try:
            return await in_thread(read_record, self._folders.machine(vm_id) / RECORD)
        except FileNotFoundError as error:
            raise absent(vm_id) from error


class _Stream:
    """The stream to the other host. The controller joins the streams of both hosts."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._received = bytearray()

    async def send(self, data: bytes) -> None:
        try:
            with trio.fail_after(SILENCE_SECONDS):
                await self._stream.send_all(data)
        except trio.BrokenResourceError as error:
            raise _cut_short("the other host disconnected") from error
        except trio.TooSlowError as error:
            raise _cut_short("the other host no longer accepts data") from error

    async def receive(self, count: int, seconds: float = SILENCE_SECONDS) -> bytes:
        """Exactly so many bytes."""
        try:
            with trio.fail_after(seconds):
                while len(self._received) < count:
                    await self._more()
        except trio.BrokenResourceError as error:
            raise _cut_short("the other host disconnected") from error
        except trio.TooSlowError as error:
            raise _cut_short("the other host no longer sends data") from error
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    async def header(self) -> _Header:
        line = bytearray()
        while not line.endswith(b"\n"):
            if len(line) > _MOST_HEADER:
                raise _unreadable()
            line += await self.receive(1)
        try:
            return _Header.model_validate_json(bytes(line))
        except ValidationError as error:
            raise _unreadable() from error

    async def state(self, announced: _State) -> bytes:
        data = await self.receive(announced.size_bytes)
        if hashlib.sha256(data).hexdigest() != announced.digest:
            raise _unreadable()
        return data

    async def close(self) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSING_SECONDS):
            try:
                await self._stream.aclose()
            except trio.BrokenResourceError:
                return  # the other end was faster

    async def _more(self) -> None:
        data = await self._stream.receive_some(_PIECE_BYTES)
        if not data:
            raise trio.BrokenResourceError("ended")
        self._received += data


async def _send_disk(path: Path, disk: _Disk, stream: _Stream, advance: Callable[[int], Awaitable[None]]) -> CopiedDisk:
    digest = hashlib.sha256()
    descriptor = await in_thread(os.open, path, os.O_RDONLY)
    try:
        for offset, length in await in_thread(lambda: list(_pieces_of(descriptor, disk.size_bytes))):
            data = await in_thread(os.pread, descriptor, length, offset)
            if len(data) != length:
                raise HostError(FailureCode.HOST, f"Disk {disk.index} changed while it was sent.")
            head = _PIECE.pack(offset, length)
            digest.update(head)
            digest.update(data)
            await stream.send(head)
            await stream.send(data)
            await advance(length)
    finally:
        os.close(descriptor)
    end = _PIECE.pack(disk.size_bytes, 0)
    digest.update(end)
    await stream.send(end)
    return CopiedDisk(index=disk.index, size_bytes=disk.size_bytes, digest=digest.hexdigest())


async def _receive_disk(
    announced: _Disk, path: Path, stream: _Stream, advance: Callable[[int], Awaitable[None]]
) -> CopiedDisk:
    digest, came, left, look_at = hashlib.sha256(), 0, announced.data_bytes, 0
    what = f"disk {announced.index} of a machine that moves"
    descriptor = await in_thread(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        while True:
            head = await stream.receive(_PIECE.size)
            digest.update(head)
            offset, length = _PIECE.unpack(head)
            if length == 0 and offset == announced.size_bytes == max(offset, came):
                break
            rises, came, left = offset >= came, offset + length, left - length
            if not (rises and 0 < length <= _PIECE_BYTES and came <= announced.size_bytes and left >= 0):
                raise _unreadable()
            if announced.data_bytes - left >= look_at:
                look_at += _LOOKED_AT_EVERY
                await require_room(path.parent, what, left + length)
            data = await stream.receive(length)
            digest.update(data)
            await in_thread(_write, descriptor, data, offset)
            await advance(length)
        await in_thread(os.ftruncate, descriptor, announced.size_bytes)
    finally:
        os.close(descriptor)
    return CopiedDisk(index=announced.index, size_bytes=announced.size_bytes, digest=digest.hexdigest())


def _require_size(announced: _Disk, disk: DiskSpec) -> None:
    """Raise `HostError(invalid)` if the announced file is larger than such a disk can be. Each layer (the disk, or a
    snapshot) may have the size of the whole disk and its tables, some 10 bytes for each 64 KiB."""
    layer = disk.size_gib * GIB + disk.size_gib * GIB // 1024
    if announced.data_bytes > announced.size_bytes or announced.size_bytes > _MOST_LAYERS * layer:
        raise HostError(
            FailureCode.INVALID,
            f"The other host announces {announced.size_bytes // GIB} GiB for disk {disk.index}, which has"
            f" {disk.size_gib} GiB: more than it can have with all its snapshots. Nothing was kept.",
            "The machine is where it was. Check its disk there.",
        )


async def _stand_on(path: Path, disk: DiskSpec, base: BaseImage | None) -> None:
    """Base the disk on this host's file of its image. Raises `HostError` if the received file cannot be such a disk:
    another host made the file, and it might name files of this host."""
    info = None if await in_thread(is_unfit_disk, path) else await disks.inspect(path, "qcow2")
    named = {Path(name).name for name in info.refers_to} if info is not None else set()
    if (
        info is None
        or info.encrypted
        or info.virtual_bytes != disk.size_gib * GIB
        or named != ({base.path.name} if base is not None else set())
    ):
        raise HostError(
            FailureCode.INVALID,
            f"Disk {disk.index} is not as it is recorded (its size, or the image that it stands on); nothing was kept.",
            "The machine is where it was. Check its disk there.",
        )
    if base is not None:
        await run_program("qemu-img", "rebase", "-q", "-u", "-f", "qcow2", "-F", base.format, "-b", base.path, path)


def _header_of(record: MachineRecord, folders: Folders, state: bytes | None) -> _Header:
    found = []
    for disk in record.disks:
        descriptor = os.open(folders.disk_of(record.vm_id, disk), os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            data = sum(length for _, length in _pieces_of(descriptor, size))
        finally:
            os.close(descriptor)
        found.append(_Disk(index=disk.index, size_bytes=size, data_bytes=data))
    secret = folders.machine(record.vm_id) / SECRET
    password_hash = None
    if secret.exists():
        password_hash = FirstBoot.model_validate_json(secret.read_bytes()).password_hash
    announced = None
    if state is not None:
        announced = _State(size_bytes=len(state), digest=hashlib.sha256(state).hexdigest())
    return _Header(password_hash=password_hash, disks=tuple(found), state=announced)


def _pieces_of(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """The ranges with data: offset and length, in order, none longer than a piece."""
    at = 0
    while at < size:
        try:
            begin = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:
            return  # ENXIO: there is no data after this position
        at = min(os.lseek(descriptor, begin, os.SEEK_HOLE), size)
        for offset in range(begin, at, _PIECE_BYTES):
            yield offset, min(_PIECE_BYTES, at - offset)


def _write(descriptor: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _owner() -> tuple[int, int]:
    user = qemu_user()
    return user.uid, user.gid


def _within(report: Report, end: int) -> Report:
    async def report_share(percent: int, message: str) -> None:
        await report(percent * end // 100, message)

    return report_share


def _progress(report: Report, words: str, size: int) -> Callable[[int], Awaitable[None]]:
    """Reports every percent once; called with what has arrived since the last call."""
    done, last = 0, -1

    async def add(length: int) -> None:
        nonlocal done, last
        done += length
        percent = 10 + 80 * done // max(1, size)
        if percent != last:
            last = percent
            await report(percent, words)

    return add


def _cut_short(why: str) -> HostError:
    return HostError(FailureCode.INTERRUPTED, f"The move was cut short: {why}; the machine is where it was.")


def _unreadable() -> HostError:
    return HostError(
        FailureCode.INVALID,
        "The other host sent something that is not a machine's disks; nothing was kept.",
        "Check that both nodes run the same release of the agent.",
    )
