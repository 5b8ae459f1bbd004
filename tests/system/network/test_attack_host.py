"""What a guest, or somebody outside, would do to the host itself through a guest's tap, and what the host would do for
a guest with its own identity."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    ICMPv6ND_NS,
    ICMPv6NDOptSrcLLAddr,
    ICMPv6PacketTooBig,
    IPv6,
)
from scapy.packet import Packet, Raw

from svc_nodeagent.hypervisor.network import ruleset
from svc_nodeagent.protocol import Action, Direction, Spoof, Topology
from tests.system.network.forged import MARK, Stage, udp4, udp6
from tests.system.network.lab import CARRIED
from tests.system.network.matrix import Matrix, Tcp
from tests.system.network.places import FAMILIES, GUESTS, OUTSIDE, UPLINK_ADDRESSES, Family
from tests.system.network.rules import firewall, rule

pytestmark = [pytest.mark.system, pytest.mark.isolated]

METADATA = ("169.254.169.254", *(str(address) for address in ruleset.METADATA))
"""Where the provider of a virtual host tells it secrets."""
SCANNED = 60
_PORT = 4500


def stage_of(matrix: Matrix, topology: Topology) -> Stage:
    liar, victim = GUESTS[topology]
    return Stage(liar, victim, matrix.lab.tap_mac(liar))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_a_guest_cannot_narrow_the_hosts_own_paths(matrix: Matrix, topology: Topology, family: Family) -> None:
    stage, host = stage_of(matrix, topology), str(UPLINK_ADDRESSES[family])
    outside, own = str(OUTSIDE.addresses[family]), stage.of(stage.liar, family)
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with matrix.lab.host.open_socket(kind, socket.SOCK_DGRAM) as speaking:
        speaking.bind((host, _PORT))
        speaking.connect((outside, _PORT))
        speaking.send(b"of the host's own")
        sent = UDP(sport=_PORT, dport=_PORT) / Raw(b"of the host's own")
        too_big: Packet
        if family == 4:
            too_big = IP(src=own, dst=host) / ICMP(type=3, code=4, nexthopmtu=600) / IP(src=host, dst=outside) / sent
        else:
            too_big = IPv6(src=own, dst=host) / ICMPv6PacketTooBig(mtu=1280) / IPv6(src=host, dst=outside) / sent
        matrix.lab.inject(stage.liar, bytes(stage.ethernet() / too_big))
        await matrix.pings_gateway(stage.liar, family)
    assert "mtu" not in matrix.lab.host.output("ip", "route", "get", outside)


@pytest.mark.parametrize("topology", CARRIED)
async def test_the_metadata_of_the_hosts_own_provider_is_not_routed_to(matrix: Matrix, topology: Topology) -> None:
    guest, _ = GUESTS[topology]
    roads = [f"{address} via {OUTSIDE.addresses[6 if ':' in address else 4]}" for address in METADATA]
    for road in roads:
        matrix.lab.host.ip(f"route replace {road}")
    try:
        async with matrix.established(guest, OUTSIDE, 4) as control4, matrix.established(guest, OUTSIDE, 6) as control6:
            with matrix.capture(OUTSIDE) as outside:
                with matrix.udp(guest, 4) as asking4, matrix.udp(guest, 6) as asking6:
                    for address in METADATA:
                        await (asking6 if ":" in address else asking4).sendto(MARK, (address, 80))
                    await control4.arrives(guest, outside)
                    await control6.arrives(guest, outside)
    finally:
        for road in roads:
            matrix.lab.host.ip(f"route del {road}")
    assert [frame for frame in outside.raw if MARK in frame] == []


@pytest.mark.parametrize("flags", ["SA", "R", "FA"])
@pytest.mark.parametrize("family", FAMILIES)
async def test_no_inner_address_leaves_with_what_belongs_to_no_connection(
    matrix: Matrix, family: Family, flags: str
) -> None:
    stage = stage_of(matrix, Topology.NAT)
    own, outside = stage.of(stage.liar, family), str(OUTSIDE.addresses[family])
    network: Packet = IP(src=own, dst=outside) if family == 4 else IPv6(src=own, dst=outside)
    async with matrix.established(stage.liar, OUTSIDE, family) as control:
        with matrix.capture(OUTSIDE) as seen:
            frame = stage.ethernet() / network / TCP(sport=4001, dport=443, flags=flags, seq=7, ack=9) / Raw(MARK)
            matrix.lab.inject(stage.liar, bytes(frame))
            await control.arrives(stage.liar, seen)
    assert [frame for frame in seen.raw if stage.liar.addresses[family].packed in frame] == []


async def test_a_scanned_prefix_costs_the_host_no_neighbours(matrix: Matrix) -> None:
    """Else one who scans one guest's addresses fills the table that all guests share (RFC 6583)."""
    guest, _ = GUESTS[Topology.ROUTED]
    prefix = guest.given[1].network
    async with matrix.established(OUTSIDE, guest, 6) as control:
        with matrix.capture(guest) as at_guest, matrix.udp(OUTSIDE, 6) as scanning:
            for number in range(SCANNED):
                await scanning.sendto(MARK, (str(prefix[1000 + number]), 80))
            await control.arrives(OUTSIDE, at_guest)
    assert sum(MARK in frame for frame in at_guest.raw) == SCANNED
    listed = matrix.lab.host.output("ip", "-6", "-j", "neighbour", "show", "dev", matrix.lab.tap(guest))
    assert len(json.loads(listed)) < SCANNED // 2


async def test_a_guest_with_many_addresses_takes_few_neighbours_of_the_host(matrix: Matrix) -> None:
    stage = stage_of(matrix, Topology.ROUTED)
    guest, prefix = stage.liar, stage.liar.given[1].network
    for number in range(500):
        question = IPv6(src=str(prefix[5000 + number]), dst=str(guest.gateway(6)), hlim=255)
        matrix.lab.inject(
            guest,
            bytes(
                stage.ethernet()
                / question
                / ICMPv6ND_NS(tgt=str(guest.gateway(6)))
                / ICMPv6NDOptSrcLLAddr(lladdr=guest.mac)
            ),
        )
    await matrix.pings_gateway(guest, 6)
    listed = matrix.lab.host.output("ip", "-6", "-j", "neighbour", "show", "dev", matrix.lab.tap(guest))
    assert len(json.loads(listed)) < 200


@pytest.mark.parametrize("topology", CARRIED)
async def test_a_guest_with_many_link_local_addresses_takes_few_neighbours_of_the_host(
    matrix: Matrix, topology: Topology
) -> None:
    """A single address, as an ordinary guest chooses one, is not limited. Few pings are sent from it, because the guest
    does not answer for it here: replies that wait for a neighbour fill the buffer of the kernel's ICMP socket."""
    stage = stage_of(matrix, topology)
    guest = stage.liar

    async def ping(numbers: Iterable[int]) -> int:
        before = await matrix.dropped(guest, Spoof.NEIGHBOUR)
        for number in numbers:
            ping = IPv6(src=f"fe80::7:{number:x}", dst="fe80::1", hlim=255) / ICMPv6EchoRequest(id=7, seq=7)
            matrix.lab.inject(guest, bytes(stage.ethernet() / ping))
        await matrix.pings_gateway(guest, 6)
        return await matrix.dropped(guest, Spoof.NEIGHBOUR) - before

    assert await ping([0] * 15) == 0
    assert await ping(range(1, 501)) > 450
    assert await ping([0] * 15) == 0
    listed = matrix.lab.host.output("ip", "-6", "-j", "neighbour", "show", "dev", matrix.lab.tap(guest))
    assert len([entry for entry in json.loads(listed) if entry["dst"].startswith("fe80::7:")]) < 20


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_rate_lets_nothing_by_the_guard_or_the_firewall(matrix: Matrix, family: Family) -> None:
    """What a capped guest sends takes a way of its own through the host, behind the guard."""
    stage = stage_of(matrix, Topology.ROUTED)
    await matrix.apply(
        stage.liar,
        rate_mbps=50,
        firewall=firewall(rule(Direction.EGRESS, "tcp", 25, action=Action.DROP), ingress=Action.ACCEPT),
    )
    forged = udp4(stage, stage.of(stage.victim, 4)) if family == 4 else udp6(stage, stage.of(stage.victim, 6))
    async with matrix.established(stage.liar, OUTSIDE, family) as control:
        with matrix.capture(OUTSIDE) as outside:
            matrix.lab.inject(stage.liar, bytes(forged))
            await control.arrives(stage.liar, outside)
        assert [frame for frame in outside.raw if MARK in frame] == []
        await matrix.refused(Tcp(25), stage.liar, OUTSIDE, control)
        await matrix.passes(Tcp(443), stage.liar, OUTSIDE, family)
        with matrix.capture(OUTSIDE) as outside:
            await matrix.apply(stage.liar, rate_mbps=50, isolated=True)
            await control.send(stage.liar)
            await matrix.apply(stage.liar)
            left = await control.arrives(stage.liar, outside)
    assert [packet for packet in left if packet.source == stage.liar.addresses[family]] == []
