"""The guest's end of a tap: frames sent and received as a guest would.

What a guest must not send is sent, followed by a frame that it may: the answer to the second, and the silence about the
first that came before it, are seen without waiting for time to pass.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address

import trio

from tests.nodeagent.hypervisor.builders import GATEWAY

ARP, IPV4, IPV6, RARP = 0x0806, 0x0800, 0x86DD, 0x8035


BROADCAST = b"\xff" * 6


_TUNSETIFF, _TAP, _NO_PI = 0x400454CA, 0x0002, 0x1000


class GuestEnd:
    """The guest's NIC: frames in and out of a tap that the host made."""

    def __init__(self, descriptor: int, mac: str) -> None:
        self.descriptor = descriptor
        self.mac = bytes.fromhex(mac.replace(":", ""))
        self.host_mac = BROADCAST

    def send(self, frame: bytes) -> None:
        os.write(self.descriptor, frame.ljust(60, b"\0"))

    def arp(self, sender: str, *, mac: bytes | None = None, inner: bytes | None = None, kind: int = ARP) -> bytes:
        """Who has the gateway? Says `sender`."""
        outer = mac or self.mac
        body = struct.pack("!HHBBH", 1, IPV4, 6, 4, 1) + (inner or outer) + IPv4Address(sender).packed
        return BROADCAST + outer + struct.pack("!H", kind) + body + bytes(6) + IPv4Address(GATEWAY).packed

    def ip(self, source: str, target: str, protocol: int, payload: bytes, *, mac: bytes | None = None) -> bytes:
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 1, 0, 64, protocol, 0)
        header += IPv4Address(source).packed + IPv4Address(target).packed
        header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
        return self.host_mac + (mac or self.mac) + struct.pack("!H", IPV4) + header + payload

    def ping(self, source: str, target: str = GATEWAY, *, number: int = 1, mac: bytes | None = None) -> bytes:
        echo = struct.pack("!BBHHH", 8, 0, 0, 7, number)
        echo = echo[:2] + struct.pack("!H", checksum(echo)) + echo[4:]
        return self.ip(source, target, 1, echo, mac=mac)

    def connect(self, source: str, target: str, port: int) -> bytes:
        """The first segment of a TCP connection."""
        segment = struct.pack("!HHIIBBHHH", 40000, port, 1, 0, 5 << 4, 0x02, 1024, 0, 0)
        pseudo = IPv4Address(source).packed + IPv4Address(target).packed + struct.pack("!HH", 6, len(segment))
        segment = segment[:16] + struct.pack("!H", checksum(pseudo + segment)) + segment[18:]
        return self.ip(source, target, 6, segment)

    async def frames(self) -> AsyncIterator[bytes]:
        while True:
            await trio.lowlevel.wait_readable(self.descriptor)
            yield os.read(self.descriptor, 2048)

    async def learn_gateway(self, sender: str) -> None:
        """Ask until answered, as guests do: a NIC that was just plugged in carries nothing for up to a second."""
        with trio.fail_after(60):
            while self.host_mac == BROADCAST:
                self.send(self.arp(sender))
                with trio.move_on_after(0.1):
                    async for frame in self.frames():
                        if frame[12:14] == struct.pack("!H", ARP) and frame[20:22] == b"\x00\x02":
                            self.host_mac = frame[6:12]
                            break

    async def replies_until(self, number: int) -> list[int]:
        """The numbers of the pings that were answered, up to the one awaited."""
        answered = []
        with trio.fail_after(60):
            async for frame in self.frames():
                if frame[12:14] == struct.pack("!H", IPV4) and frame[23] == 1 and frame[34] == 0:
                    answered.append(int(struct.unpack("!H", frame[40:42])[0]))
                    if answered[-1] == number:
                        return answered
        raise AssertionError("unreachable")


def checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


@contextmanager
def guest_end(device: str, mac: str) -> Iterator[GuestEnd]:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _TAP | _NO_PI))
        yield GuestEnd(descriptor, mac)
    finally:
        trio.lowlevel.notify_closing(descriptor)
        os.close(descriptor)
