"""Frames by which a guest would be router, name or address server to its neighbours on a bridge, hidden from a filter
that looks at the obvious place only; and errors about conversations of others. None of it reaches anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.dhcp6 import DHCP6_Advertise
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RA,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptSrcLLAddr,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
)
from scapy.layers.l2 import Dot1Q
from scapy.packet import Packet, Raw

from svc_nodeagent.protocol import Topology
from tests.system.network.forged import ALL_NODES, BROADCAST, MARK, STRANGER, Stage
from tests.system.network.matrix import Matrix, tap_of
from tests.system.network.places import GUESTS, OUTSIDE_ON_THE_BRIDGE, GuestPlace

pytestmark = [pytest.mark.system, pytest.mark.isolated]

_MARK = MARK.ljust(24)
_UDP, _ICMPV6, _DESTINATION_OPTIONS = 17, 58, 60


@dataclass(frozen=True)
class Attack:
    """`frames` are sent in turn; a frame of them, or what they come to, must not arrive."""

    name: str
    frames: Callable[[Stage], tuple[Packet, ...]]

    def __str__(self) -> str:
        return self.name


def to_all(stage: Stage, *, source: str | None = None) -> Packet:
    return stage.ethernet(target=ALL_NODES) / IPv6(src=source or str(stage.liar.link_local), dst="ff02::1", hlim=255)


def hidden(stage: Stage, transport: int, message: Packet, claims: int) -> tuple[Packet, Packet]:
    """A message whose first fragment ends before it begins, and whose second claims to be something else."""
    body = bytes(IPv6(src=str(stage.liar.link_local), dst="ff02::1", hlim=255) / message)[40:]
    options = bytes(IPv6ExtHdrDestOpt(nh=transport, options=[]))
    first = IPv6ExtHdrFragment(nh=_DESTINATION_OPTIONS, offset=0, m=1, id=7) / Raw(options.ljust(8, b"\0"))
    second = IPv6ExtHdrFragment(nh=claims, offset=1, m=0, id=7) / Raw(body + _MARK)
    return to_all(stage) / first, to_all(stage) / second


def dhcp_offer(stage: Stage) -> Packet:
    return (
        stage.ethernet(target=BROADCAST)
        / IP(src=stage.of(stage.liar, 4), dst="255.255.255.255")
        / UDP(sport=1067, dport=68)
        / BOOTP(op=2, yiaddr=stage.of(stage.victim, 4), siaddr=stage.of(stage.liar, 4))
        / DHCP(options=[("message-type", "offer"), ("router", stage.of(stage.liar, 4)), "end"])
        / Raw(_MARK)
    )


def with_two_options(message: Packet, option: type[Packet], stage: Stage) -> Packet:
    own = to_all(stage, source=stage.of(stage.liar, 6))
    return own / message / option(lladdr=stage.liar.mac) / option(lladdr=STRANGER) / Raw(_MARK)


def about_others(stage: Stage) -> Packet:
    """That a packet of the outside to the victim did not arrive, as if the liar were on the way."""
    inner = IP(src=stage.outside(4), dst=stage.of(stage.victim, 4)) / UDP(sport=4000, dport=4000)
    return (
        stage.ethernet(target=BROADCAST)
        / IP(src=stage.of(stage.liar, 4), dst=stage.outside(4))
        / ICMP(type=3, code=3)
        / inner
        / Raw(_MARK)
    )


def about_others6(stage: Stage) -> Packet:
    inner = IPv6(src=stage.outside(6), dst=stage.of(stage.victim, 6)) / UDP(sport=4000, dport=4000)
    return to_all(stage, source=stage.of(stage.liar, 6)) / ICMPv6DestUnreach(code=4) / inner / Raw(_MARK)


def attack(name: str, *frames: Callable[[Stage], Packet]) -> Attack:
    return Attack(name, lambda stage: tuple(frame(stage) for frame in frames))


_RA = ICMPv6ND_RA(routerlifetime=1800)
ATTACKS = (
    attack("dhcp-server-on-another-port", dhcp_offer),
    attack(
        "dhcpv6-server-on-another-port",
        lambda s: to_all(s) / UDP(sport=1547, dport=546) / DHCP6_Advertise(trid=1) / Raw(_MARK),
    ),
    Attack("router-behind-options-in-pieces", lambda s: hidden(s, _ICMPV6, _RA, claims=_UDP)),
    Attack(
        "dhcpv6-server-behind-options-in-pieces",
        lambda s: hidden(s, _UDP, UDP(sport=547, dport=546) / DHCP6_Advertise(trid=1), claims=_UDP),
    ),
    attack(
        "advertisement-with-a-second-mac",
        lambda s: with_two_options(ICMPv6ND_NA(tgt=s.of(s.liar, 6), S=0, O=1), ICMPv6NDOptDstLLAddr, s),
    ),
    attack(
        "solicitation-with-a-second-mac",
        lambda s: with_two_options(ICMPv6ND_NS(tgt=s.of(s.victim, 6)), ICMPv6NDOptSrcLLAddr, s),
    ),
    attack(
        "router-of-ipv4",
        lambda s: (
            s.ethernet(target=BROADCAST) / IP(src=s.of(s.liar, 4), dst="255.255.255.255") / ICMP(type=9) / Raw(_MARK)
        ),
    ),
    attack(
        "redirect-from-ones-own-address",
        lambda s: (
            s.ethernet(target=s.victim.mac)
            / IP(src=s.of(s.liar, 4), dst=s.of(s.victim, 4))
            / ICMP(type=5, code=1, gw=s.of(s.liar, 4))
            / IP(src=s.of(s.victim, 4), dst=s.outside(4))
            / Raw(_MARK)
        ),
    ),
    attack(
        "querier-of-multicast",
        lambda s: (
            s.ethernet(target="01:00:5e:00:00:01")
            / IP(src=s.of(s.liar, 4), dst="224.0.0.1", ttl=1, proto=2)
            / Raw(bytes.fromhex("1164ee9b00000000") + _MARK)
        ),
    ),
    attack(
        "with-a-priority-tag",
        lambda s: (
            s.ethernet(target=BROADCAST)
            / Dot1Q(vlan=0, prio=7)
            / IP(src=s.of(s.liar, 4), dst="255.255.255.255")
            / UDP(sport=4000, dport=4000)
            / Raw(_MARK)
        ),
    ),
    attack("error-about-a-packet-to-others", about_others),
    attack("error-about-an-ipv6-packet-to-others", about_others6),
)


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
async def test_what_a_guest_hides_reaches_no_neighbour(matrix: Matrix, attack: Attack) -> None:
    liar, victim = GUESTS[Topology.BRIDGED]
    stage = Stage(liar, victim, matrix.lab.tap_mac(liar))
    before = await dropped(matrix, liar)
    async with matrix.established(liar, OUTSIDE_ON_THE_BRIDGE, 4) as outwards:
        async with matrix.established(liar, victim, 4) as across:
            with matrix.capture(OUTSIDE_ON_THE_BRIDGE) as outside, matrix.capture(victim) as at_victim:
                for frame in attack.frames(stage):
                    matrix.lab.inject(liar, bytes(frame))
                await outwards.arrives(liar, outside)
                await across.arrives(liar, at_victim)
    seen = [*outside.raw, *at_victim.raw]
    first = bytes(attack.frames(stage)[0])
    assert [frame for frame in seen if frame[: len(first)] == first] == []
    assert await dropped(matrix, liar) > before


async def dropped(matrix: Matrix, guest: GuestPlace) -> int:
    return sum(tap_of(await matrix.agent.probe(), matrix.lab.tap(guest)).dropped.values())


async def test_an_error_about_a_packet_to_oneself_is_passed_on(matrix: Matrix) -> None:
    liar, victim = GUESTS[Topology.BRIDGED]
    stage = Stage(liar, victim, matrix.lab.tap_mac(liar))
    inner4 = IP(src=stage.outside(4), dst=stage.of(liar, 4)) / UDP(sport=4000, dport=4000)
    inner6 = IPv6(src=stage.outside(6), dst=stage.of(liar, 6)) / UDP(sport=4000, dport=4000)
    broadcast = stage.ethernet(target=BROADCAST)
    frames = (
        broadcast / IP(src=stage.of(liar, 4), dst=stage.outside(4)) / ICMP(type=3, code=3) / inner4 / Raw(_MARK),
        to_all(stage, source=stage.of(liar, 6)) / ICMPv6DestUnreach(code=4) / inner6 / Raw(_MARK),
    )
    async with matrix.established(liar, OUTSIDE_ON_THE_BRIDGE, 4) as control:
        with matrix.capture(OUTSIDE_ON_THE_BRIDGE) as outside:
            for frame in frames:
                matrix.lab.inject(liar, bytes(frame))
            await control.arrives(liar, outside)
    assert sum(_MARK in frame for frame in outside.raw) == len(frames)
