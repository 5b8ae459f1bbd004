"""What was seen on a wire: frames captured at one end, and read as far as the tests ask about them."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

import trio

from tests.system.network.places import Family, IpAddress

ICMP, TCP, UDP, ICMPV6 = 1, 6, 17, 58
PATIENCE_SECONDS = 30
"""How long a packet that must arrive is waited for, on a machine that is busy with other things."""


@dataclass(frozen=True)
class Packet:
    """An IP packet as it was seen. `port` is the destination's, or the type of an ICMP message."""

    family: Family
    source: IpAddress
    target: IpAddress
    protocol: int
    port: int
    source_port: int
    body: bytes
    frame_source: str
    size: int


def read(frame: bytes) -> Packet | None:
    """The packet in a frame; None where there is none that has ports or types."""
    ethertype = struct.unpack("!H", frame[12:14])[0]
    family: Family
    source: IpAddress
    target: IpAddress
    if ethertype == 0x0800:
        family, protocol, start = 4, frame[23], 14 + 4 * (frame[14] & 15)
        source, target = IPv4Address(frame[26:30]), IPv4Address(frame[30:34])
        body = frame[start : 14 + struct.unpack("!H", frame[16:18])[0]]
    elif ethertype == 0x86DD:
        family, protocol = 6, frame[20]
        source, target = IPv6Address(frame[22:38]), IPv6Address(frame[38:54])
        body = frame[54 : 54 + struct.unpack("!H", frame[18:20])[0]]
    else:
        return None
    if protocol not in (ICMP, TCP, UDP, ICMPV6) or len(body) < 4:
        return None
    source_port, port = struct.unpack("!HH", body[:4])
    if protocol in (ICMP, ICMPV6):
        source_port, port = 0, body[0]
    return Packet(family, source, target, protocol, port, source_port, body, frame[6:12].hex(":"), len(frame))


class Capture:
    """Everything that comes to a device from when this was made; what goes out of it is left out."""

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw
        self._socket = trio.socket.from_stdlib_socket(raw)
        self.raw: list[bytes] = []
        """Every frame that was looked at so far."""

    async def frames(self) -> AsyncIterator[bytes]:
        while True:
            frame, (_, _, kind, *_) = await self._socket.recvfrom(65536)
            if kind != socket.PACKET_OUTGOING:
                self.raw.append(frame)
                yield frame

    async def until(self, last: Callable[[Packet], bool]) -> list[Packet]:
        """The packets that came before the one awaited."""
        seen: list[Packet] = []
        with trio.fail_after(PATIENCE_SECONDS):
            async for frame in self.frames():
                packet = read(frame)
                if packet is not None and last(packet):
                    return seen
                if packet is not None:
                    seen.append(packet)
        raise AssertionError("unreachable")

    def rest(self) -> list[bytes]:
        """Every frame that came until now, without waiting for more."""
        while True:
            try:
                frame, (_, _, kind, *_) = self._raw.recvfrom(65536)
            except BlockingIOError:
                return self.raw
            if kind != socket.PACKET_OUTGOING:
                self.raw.append(frame)

    def close(self) -> None:
        self._socket.close()


def checksum(data: bytes) -> int:
    """Of RFC 1071."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
