"""Whether a packet comes through, asserted by packets: what is allowed is answered, what is refused does not arrive.

A refusal is not waited for. A packet is sent on a flow that was established before, behind the one that is refused; it
takes the same way, and when it has arrived without the other one before it, the other one was dropped.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from secrets import randbits, token_bytes
from typing import TypeAlias

import trio

from svc_nodeagent.protocol import Firewall, GuestAddress, ObservedTap, ProbeResult, Spoof, Topology
from tests.system.network.agent import Agent
from tests.system.network.lab import Lab
from tests.system.network.packets import ICMP, ICMPV6, PATIENCE_SECONDS, TCP, UDP, Capture, Packet, checksum, read
from tests.system.network.places import Family, GuestPlace, IpAddress, Place


@dataclass(frozen=True)
class Tcp:
    port: int


@dataclass(frozen=True)
class Udp:
    port: int


@dataclass(frozen=True)
class Icmp:
    """`kind` is the type, in the numbers of the family it is sent in."""

    kind: int


Flow: TypeAlias = Tcp | Udp | Icmp
PROTOCOLS = ("tcp", "udp", "ping")
ECHO: dict[Family, Icmp] = {4: Icmp(8), 6: Icmp(128)}
_FAMILIES: dict[Family, socket.AddressFamily] = {4: socket.AF_INET, 6: socket.AF_INET6}


class Matrix:
    """The laboratory as one test uses it: every guest has its addresses and no firewall when it begins."""

    def __init__(self, lab: Lab, agent: Agent) -> None:
        self.lab = lab
        self.agent = agent
        self._changed: set[GuestPlace] = set()

    async def apply(
        self,
        guest: GuestPlace,
        *,
        firewall: Firewall | None = None,
        isolated: bool = False,
        rate_mbps: int | None = None,
        given: tuple[GuestAddress, ...] | None = None,
        nameservers: tuple[str, ...] = (),
    ) -> None:
        self._changed.add(guest)
        spec = self.lab.spec(
            guest, firewall=firewall, isolated=isolated, rate_mbps=rate_mbps, given=given, nameservers=nameservers
        )
        await self.agent.apply({guest.vm_id: spec})

    async def restore(self) -> None:
        """Leave every guest as the next test expects it."""
        for guest in self._changed:
            await self.agent.apply({guest.vm_id: self.lab.spec(guest)})

    async def dropped(self, guest: GuestPlace, reason: Spoof) -> int:
        """How many frames of a guest the host dropped for a reason."""
        return tap_of(await self.agent.probe(), self.lab.tap(guest)).dropped.get(reason, 0)

    async def carried(self, guest: GuestPlace) -> tuple[str, ...]:
        """The networks that the host routes to a guest and lets it speak from."""
        return next(each.addresses for each in (await self.agent.probe()).machines if each.vm_id == guest.vm_id)

    def udp(
        self, place: Place, family: Family, address: IpAddress | None = None, port: int = 0
    ) -> trio.socket.SocketType:
        made = self.lab.namespace(place).open_socket(_FAMILIES[family], socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((str(address or place.addresses[family]), port))
        return trio.socket.from_stdlib_socket(made)

    def tcp(self, place: Place, family: Family) -> trio.socket.SocketType:
        made = self.lab.namespace(place).open_socket(_FAMILIES[family], socket.SOCK_STREAM)
        return trio.socket.from_stdlib_socket(made)

    @contextmanager
    def capture(self, place: Place) -> Iterator[Capture]:
        capture = Capture(self.lab.namespace(place).capture(place.device))
        try:
            yield capture
        finally:
            capture.close()

    async def passes(
        self, flow: Flow, source: Place, target: Place, family: Family, address: IpAddress | None = None
    ) -> IpAddress:
        """It arrives, and what answers it comes back; gives the address that the target saw it come from.

        `address` is the target's, where it has several."""
        to = address or target.addresses[family]
        with trio.fail_after(PATIENCE_SECONDS), self.capture(target) as capture:
            match flow:
                case Udp(port=port):
                    await self._udp_passes(source, target, to, family, port)
                case Tcp(port=port):
                    await self._tcp_passes(source, target, to, family, port)
                case Icmp():
                    await self._ping_passes(flow, source, to, family)
            async for packet in _packets(capture):
                if _is(packet, flow, to):
                    return packet.source
        raise AssertionError("unreachable")

    async def refused(
        self, flow: Flow, source: Place, target: Place, control: Control, address: IpAddress | None = None
    ) -> None:
        """It does not arrive, and a packet of the established flow behind it does."""
        family = control.family
        to = address or target.addresses[family]
        with self.capture(target) as capture, self.sent(flow, source, to, family):
            seen = await control.arrives(source, capture)
        assert [packet for packet in seen if _is(packet, flow, to)] == []

    @contextmanager
    def sent(self, flow: Flow, source: Place, to: IpAddress, family: Family) -> Iterator[None]:
        """The first packet of a flow has been sent, and nobody minds whether it is answered."""
        match flow:
            case Udp(port=port):
                with self.lab.namespace(source).open_socket(_FAMILIES[family], socket.SOCK_DGRAM) as sender:
                    sender.bind((str(source.addresses[family]), 0))
                    sender.sendto(b"first", (str(to), port))
                    yield
            case Tcp(port=port):
                with self.lab.namespace(source).open_socket(_FAMILIES[family], socket.SOCK_STREAM) as sender:
                    sender.bind((str(source.addresses[family]), 0))
                    sender.connect_ex((str(to), port))
                    yield
            case Icmp(kind=kind):
                with self._icmp(source, family) as raw:
                    raw.sendto(_icmp_message(kind, token_bytes(8)), (str(to), 0))
                    yield

    @asynccontextmanager
    async def established(self, opener: Place, other: Place, family: Family) -> AsyncIterator[Control]:
        """A flow that both ends have spoken on."""
        with self.udp(opener, family) as first, self.udp(other, family) as second:
            with trio.fail_after(PATIENCE_SECONDS):
                await first.connect((str(other.addresses[family]), second.getsockname()[1]))
                await first.send(b"open")
                _, peer = await second.recvfrom(100)
                await second.connect(peer)
                await second.send(b"opened")
                await first.recv(100)
            yield Control(family, {opener: first, other: second})

    async def pings_gateway(self, guest: GuestPlace, family: Family) -> None:
        """The host's end answers an echo."""
        token, namespace = token_bytes(8), self.lab.namespace(guest)
        gateway = guest.gateway(family)
        zone = f"%{guest.device}" if gateway.is_link_local else ""
        with trio.socket.from_stdlib_socket(self._icmp(guest, family)) as raw, trio.fail_after(PATIENCE_SECONDS):
            await raw.sendto(_icmp_message(ECHO[family].kind, token), namespace.resolved(f"{gateway}{zone}", 0))
            while token not in await raw.recv(1000):
                pass

    async def _udp_passes(self, source: Place, target: Place, to: IpAddress, family: Family, port: int) -> None:
        with self.udp(target, family, to, port) as server, self.udp(source, family) as client:
            await client.connect((str(to), port))
            await client.send(b"question")
            question, peer = await server.recvfrom(100)
            await server.sendto(question + b" answered", peer)
            assert await client.recv(100) == b"question answered"

    async def _tcp_passes(self, source: Place, target: Place, to: IpAddress, family: Family, port: int) -> None:
        async with self.connection(source, target, family, port, to):
            return

    @asynccontextmanager
    async def connection(
        self, source: Place, target: Place, family: Family, port: int, address: IpAddress | None = None
    ) -> AsyncIterator[Connection]:
        """A TCP connection on which both ends have spoken."""
        to = str(address or target.addresses[family])
        with self.tcp(target, family) as listener, self.tcp(source, family) as client:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            await listener.bind((to, port))
            listener.listen(1)
            with trio.fail_after(PATIENCE_SECONDS):
                await client.bind((str(source.addresses[family]), 0))
                await client.connect((to, port))
                server, _ = await listener.accept()
            listener.close()
            with server:
                connection = Connection(trio.SocketStream(client), trio.SocketStream(server))
                await connection.speaks()
                yield connection

    async def _ping_passes(self, flow: Icmp, source: Place, to: IpAddress, family: Family) -> None:
        """An echo is answered by the target's kernel; of another message, the arrival is enough."""
        token = token_bytes(8)
        with trio.socket.from_stdlib_socket(self._icmp(source, family)) as raw:
            await raw.sendto(_icmp_message(flow.kind, token), (str(to), 0))
            while flow == ECHO[family]:
                received = await raw.recv(1000)
                if token in received and received[0 if family == 6 else 20] in (0, 129):
                    return

    def _icmp(self, source: Place, family: Family) -> socket.socket:
        """A raw socket; the kernel computes the checksum of ICMPv6, and `_icmp_message` that of ICMP."""
        return self.lab.namespace(source).open_socket(
            _FAMILIES[family], socket.SOCK_RAW, ICMP if family == 4 else socket.IPPROTO_ICMPV6
        )


class Connection:
    """Both ends of an open TCP connection."""

    def __init__(self, client: trio.SocketStream, server: trio.SocketStream) -> None:
        self.client, self.server = client, server

    async def speaks(self) -> None:
        """What is said at either end is heard at the other."""
        with trio.fail_after(PATIENCE_SECONDS):
            for sender, receiver in ((self.client, self.server), (self.server, self.client)):
                said = token_bytes(16)
                await sender.send_all(said)
                heard = b""
                while len(heard) < len(said):
                    heard += await receiver.receive_some(len(said) - len(heard))
                assert heard == said


class Control:
    """An established flow, whose packets must come through whatever is refused beside them."""

    def __init__(self, family: Family, ends: dict[Place, trio.socket.SocketType]) -> None:
        self.family = family
        self._ends = ends

    async def arrives(self, sender: Place, capture: Capture) -> list[Packet]:
        """Send on it; gives what was captured before this arrived."""
        token = await self.send(sender)
        return await capture.until(lambda packet: packet.body.endswith(token))

    def end(self, place: Place) -> trio.socket.SocketType:
        return self._ends[place]

    async def send(self, sender: Place) -> bytes:
        """Send on it, and do not wait; gives what is sent."""
        token = token_bytes(16)
        await self._ends[sender].send(token)
        return token

    async def exchange(self) -> None:
        """It carries both ways."""
        with trio.fail_after(PATIENCE_SECONDS):
            for sender, receiver in (tuple(self._ends.values()), tuple(self._ends.values())[::-1]):
                token = token_bytes(16)
                await sender.send(token)
                while await receiver.recv(100) != token:
                    pass


def tap_of(probe: ProbeResult, device: str) -> ObservedTap:
    return next(tap for tap in probe.taps if tap.device == device)


def opener_of(source: Place, target: Place) -> tuple[Place, Place]:
    """Who can open a flow to the other: nobody outside reaches a guest behind nat."""
    behind_nat = isinstance(target, GuestPlace) and target.topology is Topology.NAT
    return (target, source) if behind_nat and not isinstance(source, GuestPlace) else (source, target)


def flow_of(protocol: str, family: Family, port: int = 443) -> Flow:
    """One of `PROTOCOLS`, to a port where it has any."""
    flows: dict[str, Flow] = {"tcp": Tcp(port), "udp": Udp(port), "ping": ECHO[family]}
    return flows[protocol]


async def _packets(capture: Capture) -> AsyncIterator[Packet]:
    async for frame in capture.frames():
        packet = read(frame)
        if packet is not None:
            yield packet


def _is(packet: Packet, flow: Flow, to: IpAddress) -> bool:
    match flow:
        case Udp(port=port):
            return (packet.protocol, packet.port, packet.target) == (UDP, port, to)
        case Tcp(port=port):
            return (packet.protocol, packet.port, packet.target) == (TCP, port, to)
        case Icmp(kind=kind):
            return packet.protocol in (ICMP, ICMPV6) and packet.port == kind and packet.target == to


def _icmp_message(kind: int, token: bytes) -> bytes:
    """Under an identifier of its own: connection tracking takes messages of one identifier for one flow."""
    message = struct.pack("!BBHHH", kind, 0, 0, randbits(16), 1) + token
    return message[:2] + struct.pack("!H", checksum(message)) + message[4:]
