"""What a guest can say and reach, on this host's kernel, with the test at the guest's end of the wire."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address
from uuid import uuid4

import pytest
import trio

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import NetworkSpec, Spoof
from tests.nodeagent.hypervisor.builders import ADDRESS, CLOSED, GATEWAY, OTHER, address, carried, mac_of, network
from tests.nodeagent.hypervisor.guest_end import IPV4, IPV6, RARP, guest_end

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]


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
        with trio.fail_after(60):
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
        with trio.fail_after(60):
            async for frame in receiver.frames():
                if frame[12:14] == struct.pack("!H", IPV4) and frame[23] == 1 and frame[34] == 8:
                    assert frame[26:30] == IPv4Address(ADDRESS).packed
                    break


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
