"""Taps, routes and rules on this host's kernel, with the test at the guest's end of the wire.

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
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import NetworkSpec, Topology
from tests.nodeagent.hypervisor.builders import ADDRESS, GATEWAY, OTHER, mac_of, network, nic

pytestmark = pytest.mark.system

ARP, IPV4, IPV6, RARP = 0x0806, 0x0800, 0x86DD, 0x8035
BROADCAST = b"\xff" * 6
_TUNSETIFF, _TAP, _NO_PI = 0x400454CA, 0x0002, 0x1000


class GuestEnd:
    """The guest's network card: frames in and out of a tap that the host made."""

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
        """Ask until answered, as guests do: a card that was just plugged in carries nothing for up to a second."""
        with trio.fail_after(5):
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
        with trio.fail_after(5):
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


@pytest.fixture
def host_network(naming: Naming, clean_host: None) -> HostNetwork:
    return HostNetwork(naming, {})


async def test_a_guest_reaches_its_gateway_by_ping_and_nothing_else_of_the_host(
    host_network: HostNetwork, naming: Naming
) -> None:
    spec = network(ADDRESS)
    await host_network.apply(uuid4(), spec)
    listener = trio.socket.socket()
    await listener.bind(("0.0.0.0", 0))
    listener.listen(1)
    with listener, guest_end(naming.tap(spec.nics[0].nic_id), mac_of(ADDRESS)) as guest:
        await guest.learn_gateway(ADDRESS)
        guest.send(guest.connect(ADDRESS, GATEWAY, listener.getsockname()[1]))
        guest.send(guest.ping(ADDRESS, number=9))
        tcp = []
        with trio.fail_after(5):
            async for frame in guest.frames():
                if frame[12:14] != struct.pack("!H", IPV4):
                    continue
                if frame[23] == 6:
                    tcp.append(frame)
                if frame[23] == 1 and frame[34] == 0:
                    break
    assert tcp == []


async def test_a_guest_cannot_speak_for_another(host_network: HostNetwork, naming: Naming) -> None:
    victim, spec = network(OTHER), network(ADDRESS)
    await host_network.apply(uuid4(), victim)
    await host_network.apply(uuid4(), spec)
    stranger = bytes.fromhex("525400bad000")
    with guest_end(naming.tap(spec.nics[0].nic_id), mac_of(ADDRESS)) as guest:
        await guest.learn_gateway(ADDRESS)
        guest.send(guest.ping(OTHER, number=1))
        guest.send(guest.ping("192.0.2.1", number=2))
        guest.send(guest.ping(ADDRESS, number=3, mac=stranger))
        guest.send(guest.ping(ADDRESS, number=4))
        assert await guest.replies_until(4) == [4]


async def test_a_guest_cannot_claim_anothers_address_or_mac_in_arp(host_network: HostNetwork, naming: Naming) -> None:
    spec = network(ADDRESS)
    await host_network.apply(uuid4(), spec)
    stranger = bytes.fromhex("525400bad000")
    device = naming.tap(spec.nics[0].nic_id)
    with guest_end(device, mac_of(ADDRESS)) as guest:
        guest.send(guest.arp(OTHER))
        guest.send(guest.arp(ADDRESS, mac=stranger))
        guest.send(guest.arp(ADDRESS, inner=stranger))
        guest.send(guest.arp(OTHER, kind=RARP))
        await guest.learn_gateway(ADDRESS)
        neighbours = (await run_program("ip", "-4", "neighbour", "show", "dev", device)).decode()
    assert "52:54:00:ba:d0:00" not in neighbours
    assert OTHER not in neighbours


async def test_ipv6_does_not_leave_a_card_without_ipv6_addresses(host_network: HostNetwork, naming: Naming) -> None:
    spec = network(ADDRESS)
    await host_network.apply(uuid4(), spec)
    device = naming.tap(spec.nics[0].nic_id)
    with guest_end(device, mac_of(ADDRESS)) as guest:
        await guest.learn_gateway(ADDRESS)
        before = await dropped(naming)
        guest.send(bytes.fromhex("333300000001") + guest.mac + struct.pack("!H", IPV6) + b"\x60" + bytes(39))
        guest.send(guest.ping(ADDRESS, number=1))
        await guest.replies_until(1)
        assert await dropped(naming) == before + 1


async def dropped(naming: Naming) -> int:
    listing = (await run_program("nft", "list", "chain", "netdev", naming.table, "from_guest")).decode()
    return int(listing.rpartition("counter packets ")[2].split()[0])


async def test_guests_of_one_node_reach_one_another(host_network: HostNetwork, naming: Naming) -> None:
    first, second = network(ADDRESS), network(OTHER)
    await host_network.apply(uuid4(), first)
    await host_network.apply(uuid4(), second)
    with (
        guest_end(naming.tap(first.nics[0].nic_id), mac_of(ADDRESS)) as sender,
        guest_end(naming.tap(second.nics[0].nic_id), mac_of(OTHER)) as receiver,
    ):
        await sender.learn_gateway(ADDRESS)
        await receiver.learn_gateway(OTHER)
        receiver.send(receiver.ping(OTHER))  # so that the host knows where it is
        await receiver.replies_until(1)
        sender.send(sender.ping(ADDRESS, OTHER, number=5))
        with trio.fail_after(5):
            async for frame in receiver.frames():
                if frame[12:14] == struct.pack("!H", IPV4) and frame[23] == 1 and frame[34] == 8:
                    assert frame[26:30] == IPv4Address(ADDRESS).packed
                    break


async def test_applying_again_changes_nothing(host_network: HostNetwork) -> None:
    vm_id, spec = uuid4(), network(ADDRESS, OTHER)
    await host_network.apply(vm_id, spec)
    before = await host_network.probe()
    await host_network.apply(vm_id, spec)
    assert await host_network.probe() == before
    assert before.addresses == (ADDRESS, OTHER)
    assert all(tap.up and tap.filtered and tap.vm_id == vm_id for tap in before.taps)


async def test_after_a_restart_all_stands_as_recorded_and_strays_are_gone(naming: Naming, clean_host: None) -> None:
    kept, stray, spec = uuid4(), uuid4(), network(ADDRESS)
    before = HostNetwork(naming, {})
    await before.apply(kept, spec)
    await before.apply(stray, network(OTHER))
    after = HostNetwork(naming, {kept: spec})
    await after.restore()
    probe = await after.probe()
    assert [(tap.vm_id, tap.routes, tap.up, tap.filtered) for tap in probe.taps] == [(kept, (ADDRESS,), True, True)]


async def test_after_a_reboot_of_the_host_a_restore_brings_everything_back(naming: Naming, clean_host: None) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    network_before = HostNetwork(naming, {})
    await network_before.apply(vm_id, spec)
    before = await network_before.probe()
    await network_before.clear()
    after = HostNetwork(naming, {vm_id: spec})
    await after.restore()
    assert await after.probe() == before


async def test_removal_names_what_is_gone_and_leaves_nothing(host_network: HostNetwork) -> None:
    vm_id, other = uuid4(), uuid4()
    await host_network.apply(vm_id, network(ADDRESS))
    await host_network.apply(other, network(OTHER))
    assert await host_network.remove(vm_id) == (ADDRESS,)
    assert await host_network.remove(vm_id) == ()
    probe = await host_network.probe()
    assert probe.addresses == (OTHER,)
    assert {tap.vm_id for tap in probe.taps} == {other}


async def test_an_address_another_machine_holds_is_not_named_as_released(host_network: HostNetwork) -> None:
    await host_network.apply(uuid4(), network(ADDRESS))
    assert await host_network.absent((ADDRESS, OTHER)) == (OTHER,)


async def test_an_address_taken_from_a_card_is_neither_routed_nor_let_through(
    host_network: HostNetwork, naming: Naming
) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    both = spec.nics[0].model_copy(update={"addresses": (*spec.nics[0].addresses, *nic(OTHER).addresses)})
    await host_network.apply(vm_id, NetworkSpec(nics=(both,)))
    await host_network.apply(vm_id, spec)
    assert (await host_network.probe()).addresses == (ADDRESS,)
    with guest_end(naming.tap(both.nic_id), mac_of(ADDRESS)) as guest:
        await guest.learn_gateway(ADDRESS)
        guest.send(guest.ping(OTHER, number=1))
        guest.send(guest.ping(ADDRESS, number=2))
        assert await guest.replies_until(2) == [2]


async def test_rules_of_others_are_left_alone(host_network: HostNetwork) -> None:
    foreign = f"foreign{os.getpid()}"
    await run_program("nft", "-f", "-", stdin=f"table inet {foreign} {{ chain c {{ }}\n}}\n".encode())
    try:
        before = await run_program("nft", "-j", "list", "table", "inet", foreign)
        await host_network.apply(uuid4(), network(ADDRESS))
        await host_network.clear()
        assert await run_program("nft", "-j", "list", "table", "inet", foreign) == before
    finally:
        await run_program("nft", "delete", "table", "inet", foreign)


async def test_a_card_with_jumbo_frames_and_a_routed_one_stand_side_by_side(
    host_network: HostNetwork, naming: Naming
) -> None:
    jumbo, routed = nic(ADDRESS, mtu=9000), nic("198.51.100.7", topology=Topology.ROUTED)
    await host_network.apply(uuid4(), NetworkSpec(nics=(jumbo, routed)))
    folder = Path("/sys/class/net")
    assert (folder / naming.tap(jumbo.nic_id) / "mtu").read_text().strip() == "9000"
    assert (folder / naming.tap(routed.nic_id) / "mtu").read_text().strip() == "1500"
