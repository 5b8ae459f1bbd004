"""Taps, routes and rules on this host's kernel, with the test at the guest's end of the wire.

What a guest must not send is sent, followed by a frame that it may: the answer to the second, and the silence about the
first that came before it, are seen without waiting for time to pass.
"""

from __future__ import annotations

import fcntl
import inspect
import itertools
import json
import os
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import apply, nft, taps
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.network.plan import Uplink
from svc_nodeagent.hypervisor.network.rates import set_rate, shaper_of
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import Action, FailureCode, Firewall, NetworkSpec, ProbeResult, Spoof, Topology
from tests.nodeagent.hypervisor.builders import ADDRESS, GATEWAY, OTHER, address, mac_of, network, nic

pytestmark = pytest.mark.system

ARP, IPV4, IPV6, RARP = 0x0806, 0x0800, 0x86DD, 0x8035
CLOSED = Firewall(default_ingress=Action.DROP, default_egress=Action.ACCEPT)
SIX = address(f"2001:db8:{os.getpid() % 65536:x}:5::1/64", topology=Topology.ROUTED)
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


async def test_ipv6_does_not_leave_a_nic_without_ipv6_addresses(host_network: HostNetwork, naming: Naming) -> None:
    spec = network(ADDRESS)
    await host_network.apply(uuid4(), spec)
    device = naming.tap(spec.nics[0].nic_id)
    with guest_end(device, mac_of(ADDRESS)) as guest:
        await guest.learn_gateway(ADDRESS)
        before = await dropped(host_network, Spoof.IPV6)
        guest.send(bytes.fromhex("333300000001") + guest.mac + struct.pack("!H", IPV6) + b"\x60" + bytes(39))
        guest.send(guest.ping(ADDRESS, number=1))
        await guest.replies_until(1)
        assert await dropped(host_network, Spoof.IPV6) == before + 1


async def dropped(host_network: HostNetwork, reason: Spoof) -> int:
    (tap,) = (await host_network.probe()).taps
    return tap.dropped.get(reason, 0)


async def test_what_was_dropped_stays_counted_when_the_network_changes(
    host_network: HostNetwork, naming: Naming
) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    await host_network.apply(vm_id, spec)
    with guest_end(naming.tap(spec.nics[0].nic_id), mac_of(ADDRESS)) as guest:
        await guest.learn_gateway(ADDRESS)
        guest.send(guest.ping(OTHER, number=1))
        guest.send(guest.ping(ADDRESS, number=2))
        await guest.replies_until(2)
    counted = await dropped(host_network, Spoof.IPV4)
    assert counted > 0
    await host_network.apply(vm_id, spec.model_copy(update={"firewall": CLOSED}))
    await host_network.restore()
    assert await dropped(host_network, Spoof.IPV4) == counted
    await host_network.remove(vm_id)
    await host_network.apply(vm_id, spec)
    assert await dropped(host_network, Spoof.IPV4) == 0


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
    assert carried(before) == [ADDRESS, OTHER]
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
    assert carried(probe) == [OTHER]
    assert {tap.vm_id for tap in probe.taps} == {other}


async def test_an_address_another_machine_holds_is_not_named_as_released(host_network: HostNetwork) -> None:
    await host_network.apply(uuid4(), network(ADDRESS))
    assert await host_network.absent((ADDRESS, OTHER), uuid4()) == (OTHER,)


async def test_an_address_that_the_host_still_routes_is_not_named_as_released(
    host_network: HostNetwork, naming: Naming
) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    await host_network.apply(vm_id, spec)
    await run_program("ip", "route", "add", f"{OTHER}/32", "dev", naming.tap(spec.nics[0].nic_id))
    assert await host_network.absent((OTHER,), vm_id) == ()
    await host_network.apply(vm_id, spec)
    assert await host_network.absent((OTHER,), vm_id) == (OTHER,)


async def test_an_address_that_the_host_still_lets_in_is_not_named_as_released(
    host_network: HostNetwork, naming: Naming
) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    await host_network.apply(vm_id, spec)
    tap = naming.tap(spec.nics[0].nic_id)
    await run_program("nft", "insert", "rule", "netdev", naming.table, tap, "ip", "saddr", OTHER, "accept")
    assert await host_network.absent((OTHER,), vm_id) == ()


def carried(probe: ProbeResult) -> list[str]:
    return sorted(each for machine in probe.machines for each in machine.addresses)


def differences(probe: ProbeResult) -> list[str]:
    return [each for machine in probe.machines for each in machine.differences]


async def test_ipv6_beside_ipv4_is_carried_and_goes_again(host_network: HostNetwork, naming: Naming) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    both = NetworkSpec(nics=(spec.nics[0].model_copy(update={"addresses": (*spec.nics[0].addresses, SIX)}),))
    await host_network.apply(vm_id, both)
    probe = await host_network.probe()
    assert (carried(probe), differences(probe)) == ([ADDRESS, str(SIX.network)], [])
    assert await host_network.absent((str(SIX.network),), vm_id) == ()
    await host_network.apply(vm_id, spec)
    probe = await host_network.probe()
    assert (carried(probe), differences(probe)) == ([ADDRESS], [])
    assert await host_network.absent((str(SIX.network),), vm_id) == (str(SIX.network),)


SPOILED = {
    "a route is missing": ("ip", "route", "del", "{address}/32", "dev", "{tap}"),
    "a route too many": ("ip", "route", "add", "192.0.2.77/32", "dev", "{tap}"),
    "the tap is down": ("ip", "link", "set", "dev", "{tap}", "down"),
    "the tap has gone": ("ip", "link", "del", "dev", "{tap}"),
    "the gateway has gone": ("ip", "address", "flush", "dev", "{tap}"),
    "a link-local address": ("ip", "address", "add", "fe80::5054:ff:fe00:77/64", "dev", "{tap}"),
    "a link-local address alone": ("ip", "address", "add", "fe80::5054:ff:fe00:77/128", "dev", "{tap}"),
    "the mtu is another": ("ip", "link", "set", "dev", "{tap}", "mtu", "1300"),
    "nobody's tap": ("ip", "link", "set", "dev", "{tap}", "alias", "x"),
    "the rate has gone": ("tc", "qdisc", "del", "dev", "{tap}", "root"),
    "the guard has gone": ("nft", "delete", "table", "netdev", "{table}"),
    "the guard is open": ("nft", "insert", "rule", "netdev", "{table}", "{tap}", "accept"),
    "the filter is open": ("nft", "insert", "rule", "inet", "{table}", "to_guest_{tap}", "return"),
    "the filter is unasked": ("nft", "delete", "element", "inet", "{table}", "to_guest", "{{", "{tap}", "}}"),
    "not behind nat": ("nft", "delete", "element", "inet", "{table}", "nat4", "{{", "{address}", "}}"),
    "the shared rules are open": ("nft", "insert", "rule", "inet", "{table}", "forward", "accept"),
    "the shared rules have gone": ("nft", "delete", "table", "inet", "{table}"),
}


@pytest.mark.parametrize("command", SPOILED.values(), ids=SPOILED.keys())
async def test_what_somebody_spoiled_is_seen_and_the_next_apply_mends_it(
    host_network: HostNetwork, naming: Naming, command: tuple[str, ...]
) -> None:
    vm_id, spec = uuid4(), NetworkSpec(nics=(nic(ADDRESS, SIX, rate_mbps=50),), firewall=CLOSED)
    await host_network.apply(vm_id, spec)
    assert differences(await host_network.probe()) == []
    tap = naming.tap(spec.nics[0].nic_id)
    named = {"tap": tap, "address": ADDRESS, "table": naming.table}
    await run_program(*(word.format(**named) for word in command))
    assert differences(await host_network.probe()) != []
    await host_network.apply(vm_id, spec)
    assert differences(await host_network.probe()) == []


@pytest.mark.parametrize("is_restarted", [False, True], ids=["lifted", "lifted by another agent"])
async def test_a_rate_that_lost_its_shaper_is_lifted_all_the_same(
    host_network: HostNetwork, naming: Naming, is_restarted: bool
) -> None:
    vm_id, lifted = uuid4(), network(ADDRESS)
    tap = naming.tap(lifted.nics[0].nic_id)
    await host_network.apply(vm_id, NetworkSpec(nics=(lifted.nics[0].model_copy(update={"rate_mbps": 50}),)))
    await run_program("ip", "link", "del", shaper_of(tap))
    if is_restarted:
        await HostNetwork(naming, {vm_id: lifted}).restore()
    else:
        await host_network.apply(vm_id, lifted)
    assert tap not in (await run_program("nft", "list", "tables")).decode()
    with guest_end(tap, mac_of(ADDRESS)) as guest:
        await guest.learn_gateway(ADDRESS)


async def test_a_change_that_fails_leaves_all_as_it_was(
    host_network: HostNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm_id, fresh, spec = uuid4(), uuid4(), NetworkSpec(nics=(nic(ADDRESS, rate_mbps=50),), firewall=CLOSED)
    await host_network.apply(vm_id, spec)
    before = await host_network.probe()
    changed = NetworkSpec(
        nics=(spec.nics[0].model_copy(update={"addresses": (address(OTHER), SIX), "mtu": 1400, "rate_mbps": 5}),),
        generation=9,
    )
    for failing in ("create_taps", "change", "silence", "set_vlan"):
        with monkeypatch.context() as patched:
            patched.setattr(taps, failing, once(getattr(taps, failing)))
            with pytest.raises(HostError) as failure:
                await host_network.apply(vm_id, changed)
        assert "as it was before" in failure.value.message
        assert await host_network.probe() == before
    with monkeypatch.context() as patched:
        patched.setattr(apply, "set_rate", once(set_rate))
        with pytest.raises(HostError):
            await host_network.apply(fresh, NetworkSpec(nics=(nic(OTHER, rate_mbps=7),)))
    assert await host_network.probe() == before
    assert await host_network.absent((OTHER,), fresh) == (OTHER,)


async def test_a_change_under_way_is_not_taken_for_something_that_was_removed(
    host_network: HostNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rate is recorded before it is set, so for a moment its table is missing."""
    restored: list[object] = []
    begun, looked = trio.Event(), trio.Event()

    async def slowly(device: str, mbps: int | None) -> None:
        begun.set()
        await looked.wait()
        await set_rate(device, mbps)

    async def look() -> None:
        await begun.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host_network.mend)
            with trio.move_on_after(0.5):
                await trio.sleep_forever()
            looked.set()

    await host_network.apply(uuid4(), network(OTHER))
    monkeypatch.setattr(apply, "set_rate", slowly)
    monkeypatch.setattr(host_network, "_restore", restored.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await host_network.apply(uuid4(), NetworkSpec(nics=(nic(ADDRESS, rate_mbps=50),)))
    assert restored == []


async def test_what_was_put_back_half_is_put_back_whole_at_the_next_look(
    host_network: HostNetwork, naming: Naming, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    await host_network.apply(vm_id, spec)
    tap = naming.tap(spec.nics[0].nic_id)
    await run_program("nft", "delete", "table", "inet", naming.table)
    await run_program("ip", "route", "del", f"{ADDRESS}/32", "dev", tap)
    with monkeypatch.context() as patched:
        patched.setattr(taps, "forward", failing)
        with pytest.raises(HostError):
            await host_network.mend()
    await host_network.mend()
    with guest_end(tap, mac_of(ADDRESS)) as guest:
        await guest.learn_gateway(ADDRESS)
    assert differences(await host_network.probe()) == []


async def test_while_a_host_could_not_be_restored_nothing_is_named_as_released(
    host_network: HostNetwork, naming: Naming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that died over a change knows what it recorded, and not what the taps still let in."""
    vm_id, spec = uuid4(), network(ADDRESS)
    await host_network.apply(vm_id, spec)
    tap = naming.tap(spec.nics[0].nic_id)
    await run_program("ip", "route", "del", f"{ADDRESS}/32", "dev", tap)
    heir = HostNetwork(naming, {vm_id: spec.model_copy(update={"nics": (nic(OTHER, nic_id=spec.nics[0].nic_id),)})})
    with monkeypatch.context() as patched:
        patched.setattr(taps, "create_taps", once(once(taps.create_taps)))
        with pytest.raises(HostError):
            await heir.restore()
        with pytest.raises(HostError):
            await heir.absent((ADDRESS,), vm_id)
    assert await heir.absent((ADDRESS,), vm_id) == (ADDRESS,)


def failing(*_: Any, **__: Any) -> None:
    raise HostError(FailureCode.HOST, "The test says no.")


def once(work: Callable[..., Any]) -> Callable[..., Any]:
    """The same, but the first time it fails when it has been done."""
    calls = itertools.count()

    def fail(result: Any) -> Any:
        if next(calls) == 0:
            raise HostError(FailureCode.HOST, "The test says no.")
        return result

    async def awaited(*arguments: Any, **named: Any) -> Any:
        return fail(await work(*arguments, **named))

    def called(*arguments: Any, **named: Any) -> Any:
        return fail(work(*arguments, **named))

    return awaited if inspect.iscoroutinefunction(work) else called


async def test_a_change_that_is_given_up_leaves_all_as_it_was(
    host_network: HostNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    await host_network.apply(vm_id, spec)
    before = await host_network.probe()
    with trio.CancelScope() as scope:
        monkeypatch.setattr(taps, "silence", lambda _: scope.cancel())
        await host_network.apply(vm_id, network(OTHER))
    assert scope.cancelled_caught
    monkeypatch.undo()
    assert await host_network.probe() == before


async def test_one_machine_that_cannot_be_carried_does_not_hold_up_others(
    host_network: HostNetwork, naming: Naming
) -> None:
    """Of changes that come at once, nft is given several in one transaction."""
    addresses = [f"{ADDRESS.rpartition('.')[0]}.{number}" for number in range(10, 30)]
    specs = {uuid4(): network(each) for each in addresses}
    bad = uuid4()
    bad_spec = NetworkSpec(nics=(nic(OTHER, mac="52:54:00:21:30:09"),))
    refused = []

    async def apply_bad() -> None:
        broken = bad_spec.nics[0].model_copy(update={"mac": "no mac"})
        try:
            await host_network.apply(bad, bad_spec.model_copy(update={"nics": (broken,)}))
        except HostError as error:
            refused.append(error)

    await host_network.restore()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(apply_bad)
        for vm_id, spec in specs.items():
            nursery.start_soon(host_network.apply, vm_id, spec)
    assert len(refused) == 1
    probe = await host_network.probe()
    assert (carried(probe), differences(probe)) == (sorted(addresses), [])
    assert len(probe.taps) == len(specs)


async def test_two_machines_that_ask_for_one_address_at_once_are_not_both_given_it(host_network: HostNetwork) -> None:
    refused = []

    async def ask() -> None:
        try:
            await host_network.apply(uuid4(), network(ADDRESS))
        except HostError as error:
            refused.append(error.code)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(ask)
    assert refused == [FailureCode.CONFLICT] * 3
    assert carried(await host_network.probe()) == [ADDRESS]


async def test_a_bridged_nic_is_plugged_in_and_given_nothing_of_the_host(naming: Naming, clean_host: None) -> None:
    bridge = f"b{naming.device_prefix}"
    await run_program("ip", "link", "add", bridge, "type", "bridge")
    try:
        host_network = HostNetwork(naming, {}, uplink=Uplink(bridge))
        vm_id, spec = uuid4(), NetworkSpec(nics=(nic(ADDRESS, topology=Topology.BRIDGED),))
        await host_network.apply(vm_id, spec)
        probe = await host_network.probe()
        (tap,) = probe.taps
        assert (differences(probe), tap.routes, tap.filtered) == ([], (), True)
        assert carried(probe) == [ADDRESS]
        await host_network.apply(vm_id, spec.model_copy(update={"isolated": True}))
        assert differences(await host_network.probe()) == []
        await run_program("ip", "link", "set", "dev", tap.device, "nomaster")
        assert differences(await host_network.probe()) != []
        await host_network.clear()
        assert naming.table not in (await run_program("nft", "list", "tables")).decode()
    finally:
        await run_program("ip", "link", "del", "dev", bridge)


async def test_an_address_taken_from_a_nic_is_neither_routed_nor_let_through(
    host_network: HostNetwork, naming: Naming
) -> None:
    vm_id, spec = uuid4(), network(ADDRESS)
    both = spec.nics[0].model_copy(update={"addresses": (*spec.nics[0].addresses, address(OTHER))})
    await host_network.apply(vm_id, NetworkSpec(nics=(both,)))
    await host_network.apply(vm_id, spec)
    assert carried(await host_network.probe()) == [ADDRESS]
    with guest_end(naming.tap(both.nic_id), mac_of(ADDRESS)) as guest:
        await guest.learn_gateway(ADDRESS)
        guest.send(guest.ping(OTHER, number=1))
        guest.send(guest.ping(ADDRESS, number=2))
        assert await guest.replies_until(2) == [2]


async def test_the_kernel_and_nft_name_the_same_tables(host_network: HostNetwork, naming: Naming) -> None:
    names = [f"{naming.table}-{number}-{'long' * 20}" for number in range(300)]
    families = ("ip", "ip6", "inet", "arp", "bridge", "netdev")
    added = [(families[number % len(families)], name) for number, name in enumerate(names)]
    await nft.load([nft.table(family, name) for family, name in added])
    try:
        listed = json.loads(await run_program("nft", "-j", "list", "tables"))["nftables"]
        found = {(each["table"]["family"], each["table"]["name"]) for each in listed if "table" in each}
        ours = {each for each in await nft.list_tables() if each[1].startswith(naming.table)}
        assert ours == {each for each in found if each[1].startswith(naming.table)}
        assert ours >= set(added)
    finally:
        await nft.load([command for family, name in added for command in nft.no_table(family, name)])


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


async def test_a_nic_with_jumbo_frames_and_a_routed_one_stand_side_by_side(
    host_network: HostNetwork, naming: Naming
) -> None:
    jumbo, routed = nic(ADDRESS, mtu=9000), nic("198.51.100.7", topology=Topology.ROUTED)
    await host_network.apply(uuid4(), NetworkSpec(nics=(jumbo, routed)))
    folder = Path("/sys/class/net")
    assert (folder / naming.tap(jumbo.nic_id) / "mtu").read_text().strip() == "9000"
    assert (folder / naming.tap(routed.nic_id) / "mtu").read_text().strip() == "1500"
