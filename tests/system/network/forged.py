"""Frames that a guest must not send: each lies about one thing, and says under which reason it is to be counted.

Every frame carries `MARK`, so that it is recognised wherever it turns up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.dhcp6 import DHCP6_Advertise, DHCP6_Solicit
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RA,
    ICMPv6ND_Redirect,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptPrefixInfo,
    ICMPv6NDOptSrcLLAddr,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
)
from scapy.layers.l2 import ARP, LLC, STP, Dot1AD, Dot1Q, Dot3, Ether
from scapy.packet import Packet, Raw

from svc_nodeagent.protocol import Spoof, Topology
from tests.system.network.places import UPLINK_ADDRESSES, Family, GuestPlace, outside_of

MARK = b"forged by a guest"
STRANGER = "52:54:00:ba:d0:00"
BROADCAST, ALL_NODES = "ff:ff:ff:ff:ff:ff", "33:33:00:00:00:01"
NOBODY: dict[Family, str] = {4: "203.0.113.200", 6: "2001:db8:77:c8::1"}


@dataclass(frozen=True)
class Stage:
    """Who lies, about whom, and the MAC of the next hop."""

    liar: GuestPlace
    victim: GuestPlace
    host_mac: str

    def ethernet(self, source: str | None = None, target: str | None = None) -> Ether:
        return Ether(src=source or self.liar.mac, dst=target or self.host_mac)

    def of(self, guest: GuestPlace, family: Family) -> str:
        return str(guest.addresses[family])

    def outside(self, family: Family) -> str:
        return str(outside_of(self.liar.topology).addresses[family])


@dataclass(frozen=True)
class Forgery:
    """`reasons`: any of these is the right one, where a frame lies in two ways. `topologies`: where it is a lie."""

    name: str
    frame: Callable[[Stage], Packet]
    reasons: frozenset[Spoof]
    topologies: tuple[Topology, ...] = tuple(Topology)

    def __str__(self) -> str:
        return self.name


def udp4(stage: Stage, source: str, target: str | None = None, *, mac: str | None = None) -> Packet:
    return (
        stage.ethernet(mac) / IP(src=source, dst=target or stage.outside(4)) / UDP(sport=4000, dport=4000) / Raw(MARK)
    )


def udp6(stage: Stage, source: str, *headers: Packet, mac: str | None = None) -> Packet:
    packet = stage.ethernet(mac) / IPv6(src=source, dst=stage.outside(6))
    for header in headers:
        packet = packet / header
    return packet / UDP(sport=4000, dport=4000) / Raw(MARK)


def arp(stage: Stage, *, says: str, inner: str | None = None, outer: str | None = None, op: int = 1) -> Packet:
    """`says`: the address that the sender claims."""
    body = ARP(op=op, hwsrc=inner or stage.liar.mac, psrc=says, pdst=str(stage.liar.gateway(4)))
    return stage.ethernet(outer, BROADCAST) / body / Raw(MARK)


def gratuitous(stage: Stage, says: str) -> Packet:
    body = ARP(op=2, hwsrc=stage.liar.mac, psrc=says, hwdst=BROADCAST, pdst=says)
    return stage.ethernet(target=BROADCAST) / body / Raw(MARK)


def advertisement(stage: Stage, *, target: str, source: str | None = None, mac: str | None = None) -> Packet:
    return (
        stage.ethernet(target=ALL_NODES)
        / IPv6(src=source or stage.of(stage.liar, 6), dst="ff02::1", hlim=255)
        / ICMPv6ND_NA(tgt=target, R=0, S=0, O=1)
        / ICMPv6NDOptDstLLAddr(lladdr=mac or stage.liar.mac)
        / Raw(MARK)
    )


def solicitation(stage: Stage, *, source: str, mac: str) -> Packet:
    gateway = str(stage.liar.gateway(6))
    return (
        stage.ethernet(target=ALL_NODES)
        / IPv6(src=source, dst="ff02::1", hlim=255)
        / ICMPv6ND_NS(tgt=gateway)
        / ICMPv6NDOptSrcLLAddr(lladdr=mac)
        / Raw(MARK)
    )


def router(stage: Stage, *headers: Packet) -> Packet:
    packet = stage.ethernet(target=ALL_NODES) / IPv6(src=str(stage.liar.link_local), dst="ff02::1", hlim=255)
    for header in headers:
        packet = packet / header
    options = ICMPv6NDOptPrefixInfo(prefix="2001:db8:bad::", prefixlen=64) / ICMPv6NDOptSrcLLAddr(lladdr=stage.liar.mac)
    return packet / ICMPv6ND_RA(routerlifetime=1800) / options / Raw(MARK)


def redirect6(stage: Stage) -> Packet:
    return (
        stage.ethernet(target=ALL_NODES)
        / IPv6(src=str(stage.liar.link_local), dst="ff02::1", hlim=255)
        / ICMPv6ND_Redirect(tgt=str(stage.liar.link_local), dst=stage.of(stage.victim, 6))
        / Raw(MARK)
    )


def dhcp4_server(stage: Stage) -> Packet:
    return (
        stage.ethernet(target=BROADCAST)
        / IP(src=stage.of(stage.liar, 4), dst="255.255.255.255")
        / UDP(sport=67, dport=68)
        / BOOTP(op=2, yiaddr=stage.of(stage.victim, 4), siaddr=stage.of(stage.liar, 4))
        / DHCP(options=[("message-type", "offer"), ("router", stage.of(stage.liar, 4)), "end"])
        / Raw(MARK)
    )


def dhcp4_client(stage: Stage) -> Packet:
    return (
        stage.ethernet(target=BROADCAST)
        / IP(src="0.0.0.0", dst="255.255.255.255")
        / UDP(sport=68, dport=67)
        / BOOTP(op=1)
        / DHCP(options=[("message-type", "discover"), "end"])
        / Raw(MARK)
    )


def dhcp6(stage: Stage, sport: int, dport: int, message: Packet) -> Packet:
    return (
        stage.ethernet(target="33:33:00:01:00:02")
        / IPv6(src=str(stage.liar.link_local), dst="ff02::1:2")
        / UDP(sport=sport, dport=dport)
        / message
        / Raw(MARK)
    )


def tagged(stage: Stage, *tags: Packet) -> Packet:
    packet = stage.ethernet()
    for tag in tags:
        packet = packet / tag
    return packet / IP(src=stage.of(stage.liar, 4), dst=stage.outside(4)) / UDP(sport=4000, dport=4000) / Raw(MARK)


def other(stage: Stage, ethertype: int) -> Packet:
    return Ether(src=stage.liar.mac, dst=BROADCAST, type=ethertype) / Raw(MARK)


def forgery(
    name: str,
    reason: Spoof | tuple[Spoof, ...],
    frame: Callable[[Stage], Packet],
    topologies: tuple[Topology, ...] = tuple(Topology),
) -> Forgery:
    return Forgery(name, frame, frozenset(reason if isinstance(reason, tuple) else (reason,)), topologies)


_BRIDGED = (Topology.BRIDGED,)
"""On a tap of its own a guest has any link-local address that it likes: there is no neighbour."""


FORGERIES = (
    forgery("mac-of-a-stranger", Spoof.MAC, lambda s: udp4(s, s.of(s.liar, 4), mac=STRANGER)),
    forgery("mac-of-the-victim", Spoof.MAC, lambda s: udp4(s, s.of(s.victim, 4), mac=s.victim.mac)),
    forgery("mac-of-the-victim-ipv6", Spoof.MAC, lambda s: udp6(s, s.of(s.victim, 6), mac=s.victim.mac)),
    forgery("mac-of-the-host", Spoof.MAC, lambda s: udp4(s, s.of(s.liar, 4), mac=s.host_mac)),
    forgery("mac-of-a-group", Spoof.MAC, lambda s: udp4(s, s.of(s.liar, 4), mac=BROADCAST)),
    forgery("ipv4-of-the-victim", Spoof.IPV4, lambda s: udp4(s, s.of(s.victim, 4))),
    forgery(
        "ipv4-of-the-victim-tcp",
        Spoof.IPV4,
        lambda s: s.ethernet() / IP(src=s.of(s.victim, 4), dst=s.outside(4)) / TCP() / Raw(MARK),
    ),
    forgery("ipv4-of-nobody", Spoof.IPV4, lambda s: udp4(s, NOBODY[4])),
    forgery("ipv4-of-the-gateway", Spoof.IPV4, lambda s: udp4(s, str(s.liar.gateway(4)))),
    forgery("ipv4-of-the-host", Spoof.IPV4, lambda s: udp4(s, str(UPLINK_ADDRESSES[4]))),
    forgery("ipv4-of-loopback", Spoof.IPV4, lambda s: udp4(s, "127.0.0.1")),
    forgery("ipv4-of-nothing", Spoof.IPV4, lambda s: udp4(s, "0.0.0.0")),
    forgery("ipv4-to-the-victim", Spoof.IPV4, lambda s: udp4(s, s.outside(4), s.of(s.victim, 4))),
    forgery(
        "ipv4-fragment",
        Spoof.IPV4,
        lambda s: s.ethernet() / IP(src=s.of(s.victim, 4), dst=s.outside(4), frag=4, proto=17) / Raw(MARK),
    ),
    forgery(
        "ipv4-redirect",
        (Spoof.ROUTER, Spoof.IPV4),
        lambda s: (
            s.ethernet()
            / IP(src=str(s.liar.gateway(4)), dst=s.of(s.victim, 4))
            / ICMP(type=5, code=1, gw=s.of(s.liar, 4))
            / Raw(MARK)
        ),
    ),
    forgery("ipv6-of-the-victim", Spoof.IPV6, lambda s: udp6(s, s.of(s.victim, 6))),
    forgery("ipv6-of-nobody", Spoof.IPV6, lambda s: udp6(s, NOBODY[6])),
    forgery("ipv6-of-the-host", Spoof.IPV6, lambda s: udp6(s, str(UPLINK_ADDRESSES[6]))),
    forgery("ipv6-of-the-gateway", Spoof.IPV6, lambda s: udp6(s, str(s.liar.gateway(6)))),
    forgery("ipv6-link-local-of-the-victim", Spoof.IPV6, lambda s: udp6(s, str(s.victim.link_local)), _BRIDGED),
    forgery("ipv6-of-nothing", Spoof.IPV6, lambda s: udp6(s, "::")),
    forgery("ipv6-behind-hop-by-hop", Spoof.IPV6, lambda s: udp6(s, s.of(s.victim, 6), IPv6ExtHdrHopByHop())),
    forgery("ipv6-mapped-ipv4", Spoof.IPV6, lambda s: udp6(s, f"::ffff:{s.of(s.victim, 4)}")),
    forgery("arp-for-the-victim", Spoof.ARP, lambda s: arp(s, says=s.of(s.victim, 4))),
    forgery("arp-reply-for-the-victim", Spoof.ARP, lambda s: arp(s, says=s.of(s.victim, 4), op=2)),
    forgery("arp-gratuitous-for-the-victim", Spoof.ARP, lambda s: gratuitous(s, s.of(s.victim, 4))),
    forgery("arp-gratuitous-for-the-gateway", Spoof.ARP, lambda s: gratuitous(s, str(s.liar.gateway(4)))),
    forgery("arp-with-a-strangers-mac-inside", Spoof.ARP, lambda s: arp(s, says=s.of(s.liar, 4), inner=STRANGER)),
    forgery("arp-in-a-strangers-frame", (Spoof.MAC, Spoof.ARP), lambda s: arp(s, says=s.of(s.liar, 4), outer=STRANGER)),
    forgery(
        "rarp",
        Spoof.PROTOCOL,
        lambda s: (
            Ether(src=s.liar.mac, dst=BROADCAST, type=0x8035)
            / ARP(op=3, hwsrc=s.liar.mac, psrc=s.of(s.liar, 4), hwdst=s.liar.mac)
            / Raw(MARK)
        ),
    ),
    forgery("na-for-the-victim", Spoof.NEIGHBOUR, lambda s: advertisement(s, target=s.of(s.victim, 6))),
    forgery("na-for-the-gateway", Spoof.NEIGHBOUR, lambda s: advertisement(s, target=str(s.liar.gateway(6)))),
    forgery(
        "na-for-the-victims-link-local",
        Spoof.NEIGHBOUR,
        lambda s: advertisement(s, target=str(s.victim.link_local)),
        _BRIDGED,
    ),
    forgery(
        "na-from-the-victim",
        (Spoof.IPV6, Spoof.NEIGHBOUR),
        lambda s: advertisement(s, target=s.of(s.victim, 6), source=s.of(s.victim, 6)),
    ),
    forgery(
        "na-with-a-strangers-mac", Spoof.NEIGHBOUR, lambda s: advertisement(s, target=s.of(s.liar, 6), mac=STRANGER)
    ),
    forgery(
        "ns-from-the-victim",
        (Spoof.IPV6, Spoof.NEIGHBOUR),
        lambda s: solicitation(s, source=s.of(s.victim, 6), mac=s.liar.mac),
    ),
    forgery(
        "ns-with-a-strangers-mac", Spoof.NEIGHBOUR, lambda s: solicitation(s, source=s.of(s.liar, 6), mac=STRANGER)
    ),
    forgery("ra", Spoof.ROUTER, lambda s: router(s)),
    forgery("ra-behind-options", (Spoof.ROUTER, Spoof.IPV6), lambda s: router(s, IPv6ExtHdrDestOpt())),
    forgery(
        "ra-behind-a-fragment", (Spoof.ROUTER, Spoof.IPV6), lambda s: router(s, IPv6ExtHdrFragment(m=0, offset=0, id=1))
    ),
    forgery("redirect", Spoof.ROUTER, redirect6),
    forgery("dhcp-server", Spoof.DHCP, dhcp4_server),
    forgery("dhcp-client", (Spoof.DHCP, Spoof.IPV4), dhcp4_client),
    forgery("dhcpv6-server", Spoof.DHCP, lambda s: dhcp6(s, 547, 546, DHCP6_Advertise(trid=1))),
    forgery("dhcpv6-client", Spoof.DHCP, lambda s: dhcp6(s, 546, 547, DHCP6_Solicit(trid=1))),
    forgery("vlan", Spoof.PROTOCOL, lambda s: tagged(s, Dot1Q(vlan=7))),
    forgery("vlan-in-vlan", Spoof.PROTOCOL, lambda s: tagged(s, Dot1AD(vlan=7), Dot1Q(vlan=8))),
    forgery(
        "spanning-tree",
        Spoof.PROTOCOL,
        lambda s: Dot3(src=s.liar.mac, dst="01:80:c2:00:00:00") / LLC(dsap=0x42, ssap=0x42) / STP() / Raw(MARK),
    ),
    forgery("lldp", Spoof.PROTOCOL, lambda s: other(s, 0x88CC)),
    forgery("pppoe", Spoof.PROTOCOL, lambda s: other(s, 0x8863)),
    forgery("mpls", Spoof.PROTOCOL, lambda s: other(s, 0x8847)),
    forgery("of-no-known-type", Spoof.PROTOCOL, lambda s: other(s, 0x88B5)),
)
