"""A running guest that moves from this host, or to it: libvirt moves it, over streams that the controller joins.

libvirt's peer-to-peer move is used: the source's libvirt speaks with the target's. The guest arrives paused, always,
and goes on here once the controller's record says that it is here (`finish`).

Invariants:
- until then the source has a guest that can go on: libvirt ends it there only once the target has it complete, and
  where anything fails it is let go on, at the latest by `settle`;
- what the target has bears the mark of a creation that was given up until the guest has arrived complete, so whatever
  an end or a crash leaves is removed; its taps carry nothing until `finish` brings the machine's network;
- what comes names no file of this host but the machine's own and its image.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID
from xml.etree import ElementTree

import libvirt
import libvirt_qemu
import structlog
import trio
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from svc_nodeagent.durable import write_whole
from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError, OpenStream, Report
from svc_nodeagent.hypervisor import disks
from svc_nodeagent.hypervisor.acceleration import qemu_user
from svc_nodeagent.hypervisor.connection import CALL_TIMEOUT_SECONDS, ConnectionLost, LibvirtError
from svc_nodeagent.hypervisor.definitions import Definitions
from svc_nodeagent.hypervisor.domains import disk_target, domain_state
from svc_nodeagent.hypervisor.files import (
    RECORD,
    SECRET,
    FirstBoot,
    Folders,
    MachineRecord,
    in_thread,
    put_in_place,
)
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.images import ImageCache, file_name
from svc_nodeagent.hypervisor.live_gate import Gate, Moved
from svc_nodeagent.hypervisor.live_streams import (
    LIBVIRT_SOCKETS,
    SILENCE_SECONDS,
    Sockets,
    carry_dialled,
    carry_dialling,
    close,
    listen,
)
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.protocol import (
    DomainResult,
    DomainState,
    FailureCode,
    LiveOperation,
    LivePlace,
    LiveResult,
    LiveStreams,
    NetworkSpec,
    OperationResult,
    VmLiveFinish,
    VmLiveLook,
    VmLiveReceive,
    VmLiveSend,
    VmLiveSettle,
)

READY_SECONDS: Final = 120.0
"""How long the other host may take to make room."""
SETTLE_SECONDS: Final = 60.0
"""How long libvirt may take to end what is under way."""
ARRIVAL_SECONDS: Final = 20.0
"""How long libvirt may take, once its connection has ended, to keep or remove what has come."""
DOWNTIME_MS: Final = 300
_LOOK_SECONDS: Final = 0.1
_PROGRESS_SECONDS: Final = 1.0
_UNDO_SECONDS: Final = 30.0
_MOST_LINE: Final = 16 * 1024
_MOST_SEED: Final = 16 * 1024 * 1024
_ANNOUNCE: Final = {"initial": 50, "max": 550, "rounds": 5, "step": 100}
log = structlog.get_logger(__name__)

Steps = Callable[[UUID], AbstractAsyncContextManager[None]]
Remove = Callable[[UUID], Awaitable[object]]


class _Place(BaseModel):
    """Where the files of the host that takes in are, and what it calls the domain."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: Path
    base: Path
    domain: str


class _Luggage(BaseModel):
    """What goes with the guest besides: the secret of a first boot that has not been, and the seed that it has open."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    password_hash: str | None = Field(max_length=1024, repr=False)
    seed_bytes: int = Field(ge=0, le=_MOST_SEED)


class LiveMoves:
    """`steps` and `remove` as of `Moves`."""

    def __init__(
        self,
        *,
        guests: Guests,
        folders: Folders,
        naming: Naming,
        images: ImageCache,
        network: HostNetwork,
        definitions: Definitions,
        open_stream: OpenStream,
        steps: Steps,
        remove: Remove,
    ) -> None:
        self._guests = guests
        self._folders = folders
        self._naming = naming
        self._images = images
        self._network = network
        self._definitions = definitions
        self._open_stream = open_stream
        self._steps = steps
        self._remove = remove
        self._leaving: dict[UUID, trio.CancelScope] = {}
        self._turns: dict[UUID, trio.Lock] = {}

    async def perform(self, operation: LiveOperation, report: Report) -> OperationResult:
        """Not repeated where libvirt goes away meanwhile: the streams of a move are opened once."""
        try:
            match operation:
                case VmLiveSend():
                    return await self.send(operation, report)
                case VmLiveReceive():
                    return await self.receive(operation, report)
                case VmLiveSettle():
                    return await self.settle(operation.vm_id)
                case VmLiveLook():
                    return await self.look(operation.vm_id)
                case VmLiveFinish():
                    return await self.finish(operation)
        except ConnectionLost as lost:
            raise _cut_short(lost.message) from lost

    # The host that sends

    async def send(self, operation: VmLiveSend, report: Report) -> LiveResult:
        """The machine's other steps go on meanwhile: a change of its rules must not wait for hours."""
        vm_id = operation.vm_id
        async with self._turns.setdefault(vm_id, trio.Lock()):
            record = await self._definitions.record(vm_id)
            if await self._guests.state(vm_id) is not DomainState.RUNNING:
                raise HostError(FailureCode.CONFLICT, "The guest does not run, so it was not moved.")
            with trio.CancelScope() as self._leaving[vm_id]:
                try:
                    why = await self._send(record, operation.streams, report)
                finally:
                    del self._leaving[vm_id]
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + SETTLE_SECONDS):
                        settled = await self._settled(vm_id)
                if why is not None and settled.place is not LivePlace.LEFT:
                    raise _cut_short(why)
                return settled
        raise _cut_short("it was given up")

    async def settle(self, vm_id: UUID) -> LiveResult:
        """Ends a `send` that is under way."""
        if (leaving := self._leaving.get(vm_id)) is not None:
            leaving.cancel()
        async with self._turns.setdefault(vm_id, trio.Lock()):
            return await self._settled(vm_id)

    async def _send(self, record: MachineRecord, streams: LiveStreams, report: Report) -> str | None:
        """Gives why libvirt has failed, None where it has not."""
        vm_id, sockets = record.vm_id, Sockets(record.vm_id)
        async with sockets.opened(), self._dialled(streams) as (words, memory, disk):
            place = _Place.model_validate_json(await _line(words))
            await self._send_luggage(vm_id, words)
            fault_point("live.luggage_sent")
            if await _line(words) != b"ready":
                raise _unreadable()
            parameters = await self._parameters(record, place, sockets)
            async with trio.open_nursery() as nursery:
                for path, stream, silence in (
                    (sockets.libvirt, words, SILENCE_SECONDS),
                    (sockets.memory, memory, None),
                    (sockets.disk, disk, None),
                ):
                    nursery.start_soon(carry_dialled, await listen(path), stream, silence)
                nursery.start_soon(self._tell, vm_id, report)
                fault_point("live.sending")
                try:
                    why = await self._migrate(vm_id, sockets, parameters)
                finally:
                    nursery.cancel_scope.cancel()
            fault_point("live.sent")
        return why

    async def _migrate(self, vm_id: UUID, sockets: Sockets, parameters: dict[str, Any]) -> str | None:
        flags = (
            libvirt.VIR_MIGRATE_LIVE
            | libvirt.VIR_MIGRATE_PEER2PEER
            | libvirt.VIR_MIGRATE_PERSIST_DEST
            | libvirt.VIR_MIGRATE_PAUSED
            | libvirt.VIR_MIGRATE_NON_SHARED_INC
            | libvirt.VIR_MIGRATE_AUTO_CONVERGE
        )

        def migrate(domain: Any) -> str | None:
            try:
                domain.migrateToURI3(f"qemu+unix:///system?socket={sockets.libvirt}", parameters, flags)
            except libvirt.libvirtError as error:
                # Its words are of the other host's connection as well: none of them says that ours is lost.
                return str(error.get_error_message() or error)
            return None

        return await self._guests.on_domain(vm_id, "virDomainMigrateToURI3", migrate)

    async def _parameters(self, record: MachineRecord, place: _Place, sockets: Sockets) -> dict[str, Any]:
        live, stored = await self._guests.on_domain(
            record.vm_id,
            "virDomainGetXMLDesc",
            lambda domain: (
                str(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE | libvirt.VIR_DOMAIN_XML_SECURE)),
                str(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE)),
            ),
            timeout=CALL_TIMEOUT_SECONDS,
        )
        if place.domain != self._naming.domain(record.vm_id):
            raise HostError(FailureCode.CONFLICT, "The other host calls its machines differently, so none moves there.")
        base = self._images.base_of(record.base).path
        renamed = {self._folders.machine(record.vm_id): place.machine, base: place.base}
        return {
            libvirt.VIR_MIGRATE_PARAM_URI: f"unix://{sockets.memory}",
            libvirt.VIR_MIGRATE_PARAM_DISKS_URI: f"unix://{sockets.disk}",
            libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS: [disk_target(disk.index) for disk in record.disks],
            libvirt.VIR_MIGRATE_PARAM_DEST_XML: _elsewhere(live, renamed),
            libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: _elsewhere(stored, renamed),
        }

    async def _send_luggage(self, vm_id: UUID, stream: trio.abc.Stream) -> None:
        folder = self._folders.machine(vm_id)
        seed = await in_thread(self._folders.seed(vm_id).read_bytes)
        password_hash = None
        if await in_thread((folder / SECRET).exists):
            first_boot = FirstBoot.model_validate_json(await in_thread((folder / SECRET).read_bytes))
            password_hash = first_boot.password_hash
        luggage = _Luggage(password_hash=password_hash, seed_bytes=len(seed))
        await stream.send_all(luggage.model_dump_json().encode() + b"\n" + seed)

    async def _tell(self, vm_id: UUID, report: Report) -> None:
        """Progress, for as long as libvirt counts any."""
        while True:
            await trio.sleep(_PROGRESS_SECONDS)
            try:
                job = await self._guests.on_domain(
                    vm_id, "virDomainGetJobStats", lambda domain: dict(domain.jobStats()), timeout=CALL_TIMEOUT_SECONDS
                )
            except HostError:
                continue  # It ends, or has ended.
            total, left = job.get("data_total", 0), job.get("data_remaining", 0)
            if total:
                await report(min(95, 95 * (total - left) // total), "sending the running guest and its disk")

    async def _settled(self, vm_id: UUID) -> LiveResult:
        """End what is under way, and let the guest go on if it is here."""
        with trio.fail_after(SETTLE_SECONDS):
            while True:
                if await self._ask(vm_id, "virDomainAbortJob", _job_is_over) is not False:
                    break
                await trio.sleep(_LOOK_SECONDS)
        place = await self._ask(vm_id, "virDomainResume", _gone_on)
        state = await self._guests.state(vm_id)
        return LiveResult(vm_id=vm_id, place=place or LivePlace.ABSENT, state=state)

    # The host that takes in

    async def receive(self, operation: VmLiveReceive, report: Report) -> LiveResult:
        vm_id = operation.vm_id

        async def fetching(percent: int, message: str) -> None:
            await report(percent // 10, message)

        await self._images.ensure(operation.image, fetching)
        async with self._steps(vm_id):
            folder = self._folders.machine(vm_id)
            if await in_thread(folder.exists) or await self._guests.state(vm_id) is not DomainState.ABSENT:
                raise HostError(
                    FailureCode.CONFLICT,
                    "This host has something of the machine already; nothing was changed.",
                    "It is removed there before the machine is moved again.",
                )
            try:
                await in_thread(_begin, folder, self._folders.abandonment(vm_id))
                fault_point("live.begun")
                await self._receive(operation, report)
                if not await self._has_arrived(vm_id):
                    raise _cut_short("the guest has not come")
                fault_point("live.arrived")
                await in_thread(self._folders.abandonment(vm_id).unlink)
            except BaseException:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _UNDO_SECONDS):
                    await self._undo(vm_id)
                raise
        return LiveResult(vm_id=vm_id, place=LivePlace.ARRIVED, state=await self._guests.state(vm_id))

    async def look(self, vm_id: UUID) -> LiveResult:
        state = await self._guests.state(vm_id)
        arrived = state is not DomainState.ABSENT and await self._has_arrived(vm_id)
        marked = await in_thread(self._folders.abandonment(vm_id).exists)
        place = LivePlace.ARRIVED if arrived and not marked else LivePlace.ABSENT
        return LiveResult(vm_id=vm_id, place=place, state=state)

    async def finish(self, operation: VmLiveFinish) -> DomainResult:
        vm_id = operation.vm_id
        async with self._steps(vm_id):
            record = await self._definitions.with_network(vm_id, operation.network)
            await self._definitions.apply_network(record)
            fault_point("live.carried")
            if await self._ask(vm_id, "virDomainResume", _gone_on) is LivePlace.HERE:
                await self._announce(vm_id)
            fault_point("live.gone_on")
            return DomainResult(vm_id=vm_id, state=await self._guests.state(vm_id))

    async def _receive(self, operation: VmLiveReceive, report: Report) -> None:
        vm_id, sockets = operation.vm_id, Sockets(operation.vm_id)
        record = _record_of(operation)
        base = self._images.base_of(record.base)
        folder = self._folders.machine(vm_id)
        async with sockets.opened(), self._dialled(operation.streams) as (words, memory, disk):
            place = _Place(machine=folder, base=base.path, domain=self._naming.domain(vm_id))
            await words.send_all(place.model_dump_json().encode() + b"\n")
            await report(10, "making room for the guest")
            await self._take_luggage(record, words)
            await in_thread(write_whole, folder / RECORD, record.stored(), mode=0o600)
            await disks.ensure_disks(record, base, self._folders, qemu_user().owner)
            await self._network.apply(vm_id, record.network)
            fault_point("live.ready")
            await words.send_all(b"ready\n")
            gate = Gate(Moved(vm_id, place.domain, folder, base.path))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(carry_dialling, memory, sockets.memory)
                nursery.start_soon(carry_dialling, disk, sockets.disk)
                await carry_dialling(words, await in_thread(_libvirt_socket), gate.watch)
                nursery.cancel_scope.cancel()

    async def _take_luggage(self, record: MachineRecord, stream: trio.abc.Stream) -> None:
        vm_id = record.vm_id
        try:
            luggage = _Luggage.model_validate_json(await _line(stream))
        except ValidationError as error:
            raise _unreadable() from error
        seed = await _exactly(stream, luggage.seed_bytes)
        partial = self._folders.seed(vm_id).with_suffix(".partial")
        await in_thread(partial.write_bytes, seed)
        await in_thread(put_in_place, partial, self._folders.seed(vm_id), mode=0o400, owner=qemu_user().owner)
        if luggage.password_hash is not None:
            first_boot = FirstBoot(password_hash=luggage.password_hash).model_dump_json().encode()
            await in_thread(write_whole, self._folders.machine(vm_id) / SECRET, first_boot, mode=0o600)

    async def _has_arrived(self, vm_id: UUID) -> bool:
        """libvirt gives a guest its definition once it is complete, and removes one that is not."""
        with trio.move_on_after(ARRIVAL_SECONDS):
            while True:
                found = await self._ask(vm_id, "virDomainIsPersistent", lambda domain: bool(domain.isPersistent()))
                if found is not False:
                    return bool(found)
                await trio.sleep(_LOOK_SECONDS)
        return False

    async def _announce(self, vm_id: UUID) -> None:
        """QEMU has the guest tell its neighbours; one that cannot is found by what it sends next."""
        command = json.dumps({"execute": "announce-self", "arguments": _ANNOUNCE})
        try:
            await self._ask(vm_id, "announce-self", lambda domain: libvirt_qemu.qemuMonitorCommand(domain, command, 0))
        except HostError as error:
            log.warning("live.not_announced", vm_id=str(vm_id), error=error.message)

    async def _undo(self, vm_id: UUID) -> None:
        """The mark says that all of it goes; what cannot be removed now is when libvirt is there again."""
        try:
            if await in_thread(self._folders.machine(vm_id).exists):
                await in_thread(self._folders.abandonment(vm_id).touch)
            await self._remove(vm_id)
        except (HostError, OSError) as error:
            log.error("live.not_undone", vm_id=str(vm_id), error=str(error))

    # Both

    async def _ask(self, vm_id: UUID, name: str, work: Callable[[Any], Any]) -> Any:
        """None where there is no such domain."""
        try:
            return await self._guests.on_domain(vm_id, name, work, timeout=CALL_TIMEOUT_SECONDS)
        except LibvirtError as error:
            if error.number == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise

    @asynccontextmanager
    async def _dialled(
        self, streams: LiveStreams
    ) -> AsyncIterator[tuple[trio.abc.Stream, trio.abc.Stream, trio.abc.Stream]]:
        """Raises `HostError(interrupted)` where what is carried in the block breaks."""
        async with AsyncExitStack() as stack:
            dialled = []
            try:
                for token in (streams.libvirt, streams.memory, streams.disk):
                    dialled.append(await self._open_stream(token))
                    stack.push_async_callback(close, dialled[-1])
            except OSError as error:
                raise _cut_short(f"the controller could not be reached ({error})") from error
            words, memory, disk = dialled
            try:
                yield words, memory, disk
            except Exception as error:
                raise _reason(error) from error


def _reason(error: Exception) -> Exception:
    """The one failure of a block whose streams were carried by other tasks."""
    failures = list(_leaves(error))
    for failure in failures:
        if isinstance(failure, HostError):
            return failure
    if all(
        isinstance(each, trio.BrokenResourceError | trio.ClosedResourceError | trio.TooSlowError) for each in failures
    ):
        return _cut_short("the other host has gone")
    return error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for each in error.exceptions:
        yield from _leaves(each)


def _job_is_over(domain: Any) -> bool:
    """Gives it up where one is under way; to be asked again until it is over."""
    try:
        if not domain.isActive() or domain.jobInfo()[0] == libvirt.VIR_DOMAIN_JOB_NONE:
            return True
        domain.abortJob()
    except libvirt.libvirtError as error:
        if error.get_error_code() != libvirt.VIR_ERR_OPERATION_INVALID:
            raise
    return False


def _gone_on(domain: Any) -> LivePlace:
    """Lets a guest go on that a move has paused."""
    state, reason = domain.state()
    if state == libvirt.VIR_DOMAIN_SHUTOFF and reason == libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED:
        return LivePlace.LEFT
    if domain_state(state, reason) is DomainState.PAUSED and reason != libvirt.VIR_DOMAIN_PAUSED_IOERROR:
        domain.resume()
    return LivePlace.HERE


def _record_of(operation: VmLiveReceive) -> MachineRecord:
    """Its NICs are without addresses: until it is here this host carries nothing for it, and drops what it sends."""
    spec = operation.machine
    nics = tuple(nic.model_copy(update={"addresses": (), "nameservers": ()}) for nic in spec.network.nics)
    return MachineRecord(
        vm_id=spec.vm_id,
        name=spec.name,
        vcpus=spec.vcpus,
        memory_mib=spec.memory_mib,
        disks=tuple(sorted(spec.disks, key=lambda disk: disk.index)),
        base=file_name(operation.image),
        network=NetworkSpec(nics=nics, isolated=True),
        seed=spec.seed.model_copy(update={"account": spec.seed.account.model_copy(update={"password_hash": None})}),
        cpu_mode=operation.cpu_mode,
    )


def _elsewhere(xml: str, renamed: dict[Path, Path]) -> str:
    """The definition with the other host's names of files; what libvirt makes up for a guest that runs is left out."""
    domain = ElementTree.fromstring(xml)  # noqa: S314 - from libvirt itself
    for device in domain.iterfind("./devices/*"):
        if device.tag in ("serial", "console", "channel"):
            for source in device.findall("source"):
                device.remove(source)
            device.attrib.pop("tty", None)
        if device.tag == "graphics":
            for element in device.iter():
                element.attrib.pop("socket", None)
    for element in domain.iter():
        for attribute in ("file", "path"):
            if (named := element.get(attribute)) is None:
                continue
            for here, there in renamed.items():
                path = Path(named)
                if path == here or here in path.parents:
                    element.set(attribute, str(there / path.relative_to(here)) if path != here else str(there))
    return ElementTree.tostring(domain, encoding="unicode")


def _begin(folder: Path, mark: Path) -> None:
    folder.mkdir()
    folder.chmod(0o711)
    mark.touch()


def _libvirt_socket() -> Path:
    return next((path for path in LIBVIRT_SOCKETS if path.exists()), LIBVIRT_SOCKETS[0])


async def _line(stream: trio.abc.Stream) -> bytes:
    line = bytearray()
    with trio.fail_after(READY_SECONDS):
        while not line.endswith(b"\n"):
            if len(line) > _MOST_LINE:
                raise _unreadable()
            line += await _some(stream, 1)
    return bytes(line[:-1])


async def _exactly(stream: trio.abc.Stream, count: int) -> bytes:
    data = bytearray()
    with trio.fail_after(READY_SECONDS):
        while len(data) < count:
            data += await _some(stream, count - len(data))
    return bytes(data)


async def _some(stream: trio.abc.Stream, most: int) -> bytes | bytearray:
    data = await stream.receive_some(most)
    if not data:
        raise trio.BrokenResourceError("ended")
    return data


def _cut_short(why: str) -> HostError:
    return HostError(
        FailureCode.INTERRUPTED, f"The live move was cut short: {why.rstrip('.')}; the machine is where it was."
    )


def _unreadable() -> HostError:
    return HostError(FailureCode.INVALID, "What the other host sent is no machine that moves; nothing was kept.")
