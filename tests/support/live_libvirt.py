"""A libvirt and a QEMU in memory, of one host, that move guests as the real ones do: over the sockets they are given.

They keep to what live moves stand on: the guest that comes is removed where the connection ends before it is complete;
one that is complete stays, paused; a source that does not hear that it is has its own go on.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID
from xml.etree import ElementTree

import libvirt
import trio

from svc_nodeagent.hypervisor.connection import LibvirtError
from svc_nodeagent.hypervisor.domains import domain_state
from svc_nodeagent.hypervisor.live_streams import SocketsOf
from svc_nodeagent.protocol import DomainState, FailureCode

T = TypeVar("T")
State = tuple[int, int]
RUNNING: Final = (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_BOOTED)
PAUSED: Final = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION)
OFF: Final = (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_DESTROYED)
LEFT: Final = (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED)

BEAT_SECONDS: Final = 0.1
SILENT_SECONDS: Final = 1.5
_HEAD: Final = struct.Struct(">7I")
_REMOTE, _KEEPALIVE = 0x20008086, 0x6B656570
_OPEN, _PREPARE, _FINISH = 1, 303, 306
_CALL, _REPLY = 0, 1
_CHUNKS: Final = 4
_GONE: Final = (OSError, EOFError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)


@dataclass
class Domain:
    vm_id: UUID
    name: str
    host: LibvirtInMemory
    disk: bytes
    as_it_is: State
    persistent: bool = True
    complete: bool = True
    job: _Job | None = None
    wanted: tuple[str, dict[str, Any]] = ("", {})

    def become(self, state: State) -> None:
        self.as_it_is = state
        self.host.changed(self.vm_id, domain_state(*state))

    # As of libvirt's own

    def XMLDesc(self, flags: int = 0) -> str:  # noqa: N802
        del flags
        return f"<domain><uuid>{self.vm_id}</uuid><name>{self.name}</name><devices/></domain>"

    def state(self) -> State:
        return self.as_it_is

    def isActive(self) -> bool:  # noqa: N802
        return bool(self.as_it_is[0] != libvirt.VIR_DOMAIN_SHUTOFF)

    def isPersistent(self) -> bool:  # noqa: N802
        return self.persistent

    def resume(self) -> None:
        self.become(RUNNING)

    def jobInfo(self) -> list[int]:  # noqa: N802
        return [libvirt.VIR_DOMAIN_JOB_NONE if self.job is None else libvirt.VIR_DOMAIN_JOB_UNBOUNDED]

    def jobStats(self) -> dict[str, int]:  # noqa: N802
        return {}

    def abortJob(self) -> None:  # noqa: N802
        if self.job is not None:
            self.job.scope.cancel()

    def migrateToURI3(self, uri: str, parameters: dict[str, Any], flags: int) -> None:  # noqa: N802
        del flags
        self.wanted = uri, parameters


@dataclass
class LibvirtInMemory:
    """In the place of `Guests`. `reach` is told of each step of a move; `told` of each state of a guest."""

    folder: Path
    sockets: SocketsOf
    reach: Callable[[str], None]
    told: Callable[[UUID, DomainState], None]
    domains: dict[UUID, Domain] = field(default_factory=dict)
    announced: list[UUID] = field(default_factory=list)
    _nursery: trio.Nursery = field(init=False)

    @property
    def socket(self) -> Path:
        return self.folder / "libvirt"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        await listening.bind(str(self.socket))
        listening.listen(8)
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(trio.serve_listeners, self._serve, [trio.SocketListener(listening)])
            yield
            self._nursery.cancel_scope.cancel()

    async def state(self, vm_id: UUID) -> DomainState:
        await trio.lowlevel.checkpoint()
        domain = self.domains.get(vm_id)
        return domain_state(*domain.as_it_is) if domain is not None else DomainState.ABSENT

    async def on_domain(self, vm_id: UUID, name: str, work: Callable[[Any], T], *, timeout: float = 0.0) -> T:
        await trio.lowlevel.checkpoint()
        domain = self.domains.get(vm_id)
        if domain is None:
            raise LibvirtError(FailureCode.NOT_FOUND, "no such domain", libvirt.VIR_ERR_NO_DOMAIN)
        if name == "announce-self":
            self.announced.append(vm_id)
            return None  # type: ignore[return-value]
        done = work(domain)
        if name == "virDomainMigrateToURI3":
            uri, parameters = domain.wanted
            domain.job = job = _Job(self, domain, uri.partition("?socket=")[2], parameters)
            self._nursery.start_soon(job.run)
            await job.over.wait()
            return job.why  # type: ignore[return-value]
        return done

    async def define(self, xml: str) -> None:
        await trio.lowlevel.checkpoint()
        definition = ElementTree.fromstring(xml)
        vm_id = UUID(definition.findtext("uuid"))
        if vm_id in self.domains:
            self.domains[vm_id].persistent = True
        else:
            self.put(vm_id, str(definition.findtext("name")), OFF, b"")

    def put(self, vm_id: UUID, name: str, state: State, disk: bytes) -> Domain:
        domain = self.domains[vm_id] = Domain(vm_id, name, self, disk, state)
        domain.become(state)
        return domain

    def remove(self, vm_id: UUID) -> None:
        if (domain := self.domains.pop(vm_id, None)) is not None:
            domain.abortJob()
            self.changed(vm_id, DomainState.ABSENT)

    def lose_power(self) -> None:
        for domain in self.domains.values():
            domain.abortJob()
            domain.become(OFF)

    def changed(self, vm_id: UUID, state: DomainState) -> None:
        self.told(vm_id, state)

    async def _serve(self, stream: trio.SocketStream) -> None:
        """The other host's libvirt, as far as it is let."""
        comes: list[Domain] = []
        try:
            async with stream, trio.open_nursery() as nursery:
                words = _Words(stream)
                nursery.start_soon(words.beat)
                while True:
                    procedure, body = await words.heard(_CALL)
                    if procedure == _PREPARE:
                        domain = await self._prepared(body, nursery)
                        comes.append(domain)
                    if procedure == _FINISH:
                        [domain] = comes
                        if not domain.complete:
                            raise EOFError("not complete")
                        domain.persistent = True
                        self.reach("finished")
                    await words.say(procedure, _REPLY)
        except* _GONE:
            pass
        finally:
            for domain in comes:
                if not domain.persistent:
                    self.remove(domain.vm_id)

    async def _prepared(self, body: bytes, nursery: trio.Nursery) -> Domain:
        xml = ElementTree.fromstring(_texts(body)["destination_xml"])
        vm_id = UUID(xml.findtext("uuid"))
        domain = self.domains[vm_id] = Domain(vm_id, str(xml.findtext("name")), self, b"", PAUSED, False, False)
        domain.become(PAUSED)
        sockets = self.sockets(vm_id)
        for path, take in ((sockets.disk, _take_disk), (sockets.memory, _take_memory)):
            listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
            await listening.bind(str(path))
            listening.listen(1)
            nursery.start_soon(_once, trio.SocketListener(listening), take, domain)
        return domain


@dataclass
class _Job:
    """The move of a guest to another host."""

    host: LibvirtInMemory
    domain: Domain
    libvirt: str
    parameters: dict[str, Any]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    over: trio.Event = field(default_factory=trio.Event)
    why: str | None = "operation aborted"

    async def run(self) -> None:
        try:
            with self.scope:
                await self._move()
                self.why = None
        except* _GONE as gone:
            self.why = f"the connection has ended ({gone.exceptions[0]!r})"
        finally:
            self.domain.job = None
            if self.why is not None and self.domain.as_it_is == PAUSED:
                self.domain.become(RUNNING)
            self.over.set()

    async def _move(self) -> None:
        memory, disk = (
            str(self.parameters[name]).removeprefix("unix://")
            for name in (libvirt.VIR_MIGRATE_PARAM_URI, libvirt.VIR_MIGRATE_PARAM_DISKS_URI)
        )
        async with await trio.open_unix_socket(self.libvirt) as stream, trio.open_nursery() as nursery:
            words = _Words(stream)
            nursery.start_soon(words.beat)
            await words.asked(_OPEN)
            await words.asked(_PREPARE, _parameters(self.parameters))
            self.host.reach("prepared")
            async with await trio.open_unix_socket(disk) as copying:
                nursery.start_soon(words.keep_hearing)
                await _exactly(copying, 1)
                size = len(self.domain.disk) // _CHUNKS
                for number in range(_CHUNKS):
                    await copying.send_all(self.domain.disk[number * size : (number + 1) * size])
                    await _exactly(copying, 1)
                    if number == 1:
                        self.host.reach("disk.half")
                self.host.reach("disk.copied")
                async with await trio.open_unix_socket(memory) as sending:
                    await sending.send_all(b"m" * 1000)
                    self.host.reach("memory.half")
                    self.domain.become(PAUSED)
                    self.host.reach("stopped")
                    await sending.send_all(b".")
                    await _exactly(sending, 1)
                    self.host.reach("memory.sent")
            await words.asked(_FINISH)
            self.domain.become(LEFT)
            self.host.reach("confirmed")
            nursery.cancel_scope.cancel()


class _Words:
    """One end of a connection between two libvirts."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._sending = trio.Lock()
        self._replies, self._replied = trio.open_memory_channel[int](8)
        self._hearing = False

    async def beat(self) -> None:
        while True:
            await self._send(_KEEPALIVE, 1, 2, b"")
            await trio.sleep(BEAT_SECONDS)

    async def say(self, procedure: int, kind: int, body: bytes = b"") -> None:
        await self._send(_REMOTE, procedure, kind, body)

    async def asked(self, procedure: int, body: bytes = b"") -> None:
        await self.say(procedure, _CALL, body)
        if self._hearing:
            await self._replied.receive()
        else:
            await self.heard(_REPLY)

    async def keep_hearing(self) -> None:
        """From now on the end of the connection is noticed at once."""
        self._hearing = True
        while True:
            procedure, _ = await self.heard(_REPLY)
            await self._replies.send(procedure)

    async def heard(self, wanted: int) -> tuple[int, bytes]:
        while True:
            with trio.fail_after(SILENT_SECONDS):
                head = await _exactly(self._stream, _HEAD.size)
                length, program, _, procedure, kind, _, _ = _HEAD.unpack(head)
                body = await _exactly(self._stream, length - _HEAD.size)
            if program == _REMOTE and kind == wanted:
                return procedure, body

    async def _send(self, program: int, procedure: int, kind: int, body: bytes) -> None:
        async with self._sending:
            await self._stream.send_all(_HEAD.pack(_HEAD.size + len(body), program, 1, procedure, kind, 0, 0) + body)


async def _once(listener: trio.SocketListener, take: Any, domain: Domain) -> None:
    async with listener:
        stream = await listener.accept()
    async with stream:
        await take(stream, domain)


async def _take_disk(stream: trio.SocketStream, domain: Domain) -> None:
    await stream.send_all(b"N")  # QEMU's disk server speaks first.
    while data := await stream.receive_some():
        domain.disk += data
        await stream.send_all(b"a")


async def _take_memory(stream: trio.SocketStream, domain: Domain) -> None:
    while data := await stream.receive_some():
        if data.endswith(b"."):
            domain.complete = True
            await stream.send_all(b"c")


async def _exactly(stream: trio.SocketStream, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = await stream.receive_some(count - len(data))
        if not more:
            raise EOFError("the other end has gone")
        data += more
    return bytes(data)


def _parameters(parameters: dict[str, Any]) -> bytes:
    """The two definitions as libvirt's calls carry them."""
    given = [
        (name, str(parameters[name]))
        for name in (libvirt.VIR_MIGRATE_PARAM_DEST_XML, libvirt.VIR_MIGRATE_PARAM_PERSIST_XML)
    ]
    return struct.pack(">I", len(given)) + b"".join(
        _text(name) + struct.pack(">I", libvirt.VIR_TYPED_PARAM_STRING) + _text(value) for name, value in given
    )


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def _texts(body: bytes) -> dict[str, str]:
    (count,) = struct.unpack_from(">I", body)
    at, found = 4, []
    for _ in range(count):
        pair = []
        for _ in range(2):
            (length,) = struct.unpack_from(">I", body, at)
            pair.append(body[at + 4 : at + 4 + length].decode())
            at += 4 + length + -length % 4 + 4
        at -= 4
        found.append(pair)
    return {name: value for name, value in found}
