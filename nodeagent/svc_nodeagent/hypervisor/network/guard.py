"""The rules against spoofing of one tap: a `netdev` table of its own, hooked where the host first sees a frame.

What passes comes from the card's own MAC and speaks from its own addresses, in IPv4, ARP or IPv6; everything else is
dropped and counted by reason. It is a table a tap because the kernel checks a table whole when a rule of it changes:
so a change of one machine costs the same however many there are, and nothing of it outlives its table. The counters
are objects of the table, not of its rules, and outlive the rules.

RFC 826, 5227 (ARP), 4861, 4862, 6980 (neighbours), 2131, 8415 (DHCP).
"""

from __future__ import annotations

from ipaddress import IPv6Network
from typing import Final

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.nft import (
    ACCEPT,
    DROP,
    Json,
    emptied_chain,
    header,
    match,
    meta,
    no_table,
    prefix,
    rule,
    table,
)
from svc_nodeagent.hypervisor.network.plan import TapPlan
from svc_nodeagent.protocol import NetworkAddress, Spoof

FAMILY: Final = "netdev"
CHAIN: Final = "from_guest"
PRIORITY: Final = -300
"""Before whatever else looks at the tap's ingress."""

_ROUTER_MESSAGES = (130, 134, 137, 138)
"""ICMPv6 of routers: listener query, advertisement, redirect, renumbering."""
_SOLICIT, _ADVERTISE = 135, 136
_TARGET_BITS, _OPTION_BITS = 64, 192
"""Where the target, and the first option, of a neighbour's message begin, in bits of the ICMPv6 message."""


def guard(device: str, tap: TapPlan | None, naming: Naming, *, fresh: bool = False) -> list[Json]:
    """Commands that make the tap's table say exactly this; without a plan, nothing passes. `fresh` begins the counters
    anew too. The device must be there."""
    name = naming.guard(device)
    hook: dict[str, Json] = {"type": "filter", "hook": "ingress", "dev": device, "prio": PRIORITY, "policy": "drop"}
    return [
        *(no_table(FAMILY, name) if fresh else ()),
        table(FAMILY, name),
        *counters(name),
        *emptied_chain(FAMILY, name, CHAIN, **hook),
        *(rule(FAMILY, name, CHAIN, *expressions) for expressions in rules(tap)),
    ]


def counters(table: str) -> list[Json]:
    """One for each reason, as it is where it is there."""
    return [{"add": {"counter": {"family": FAMILY, "table": table, "name": counter(reason)}}} for reason in Spoof]


def counter(reason: Spoof) -> str:
    """(A reason alone may be a word of nft's own.)"""
    return f"spoofed_{reason.value}"


def no_guard(device: str, naming: Naming) -> list[Json]:
    return no_table(FAMILY, naming.guard(device))


def rules(tap: TapPlan | None) -> list[tuple[Json, ...]]:
    """In their order, each as nftables' expressions. What most frames of a guest are is looked for first."""
    if tap is None or tap.isolated:
        return [(DROP,)]
    return [
        (match(header("ether", "saddr"), tap.mac, unlike=True), *_dropped(Spoof.MAC)),
        *_ipv4(tap),
        *_arp(tap),
        *(_ipv6(tap) if tap.ipv6 else [(_IS_IPV6, *_dropped(Spoof.IPV6))]),
        _dropped(Spoof.PROTOCOL),
    ]


def _ipv4(tap: TapPlan) -> list[tuple[Json, ...]]:
    """There is no DHCP: neither servers among guests nor anybody to ask."""
    return [
        (_IS_IPV4, match(header("udp", "sport"), 67), *_dropped(Spoof.DHCP)),
        (_IS_IPV4, match(header("udp", "sport"), 68), match(header("udp", "dport"), 67), *_dropped(Spoof.DHCP)),
        *((_IS_IPV4, match(header("ip", "saddr"), written(each)), ACCEPT) for each in tap.ipv4),
        (_IS_IPV4, *_dropped(Spoof.IPV4)),
    ]


def _arp(tap: TapPlan) -> list[tuple[Json, ...]]:
    """Frame and message name the card's MAC, and the sender is one of its addresses; or none at all in a probe for one
    of them (RFC 5227)."""
    sound: tuple[Json, ...] = (
        _IS_ARP,
        match(header("arp", "htype"), 1),
        match(header("arp", "ptype"), 0x0800),
        match(header("arp", "hlen"), 6),
        match(header("arp", "plen"), 4),
        match(header("arp", "saddr ether"), tap.mac),
    )
    request, reply = (match(header("arp", "operation"), each) for each in ("request", "reply"))
    none = match(header("arp", "saddr ip"), "0.0.0.0")  # noqa: S104  (the unspecified sender of a probe)
    return [
        *(
            (*sound, operation, match(header("arp", "saddr ip"), written(each)), ACCEPT)
            for each in tap.ipv4
            for operation in (request, reply)
        ),
        *((*sound, request, none, match(header("arp", "daddr ip"), written(each)), ACCEPT) for each in tap.ipv4),
        (_IS_ARP, *_dropped(Spoof.ARP)),
    ]


def _ipv6(tap: TapPlan) -> list[tuple[Json, ...]]:
    """A packet whose headers the kernel cannot follow to the transport's has no `l4proto`, and so passes no rule."""
    own: tuple[NetworkAddress, ...] = (*tap.ipv6, IPv6Network(tap.link_local))
    from_own = [match(header("ip6", "saddr"), written(each)) for each in own]
    for_own = [match(_message_bits(_TARGET_BITS, each.prefixlen), _leading_bits(each)) for each in own]
    solicit, advertise = (match(header("icmpv6", "type"), each) for each in (_SOLICIT, _ADVERTISE))
    neighbour = _dropped(Spoof.NEIGHBOUR)
    in_pieces = match({"exthdr": {"name": "frag"}}, True)
    return [
        (_IS_IPV6, match(header("udp", "sport"), 547), *_dropped(Spoof.DHCP)),
        (_IS_IPV6, match(header("udp", "sport"), 546), match(header("udp", "dport"), 547), *_dropped(Spoof.DHCP)),
        *((_IS_IPV6, match(meta("l4proto"), "ipv6-icmp", unlike=True), source, ACCEPT) for source in from_own),
        *((_IS_IPV6, match(header("icmpv6", "type"), each), *_dropped(Spoof.ROUTER)) for each in _ROUTER_MESSAGES),
        *((_IS_IPV6, in_pieces, kind, *neighbour) for kind in (solicit, advertise)),
        # Is my own address taken?
        *((_IS_IPV6, match(header("ip6", "saddr"), "::"), solicit, target, ACCEPT) for target in for_own),
        *(
            (
                _IS_IPV6,
                kind,
                match(_message_bits(_OPTION_BITS, 16), option),
                match(_message_bits(_OPTION_BITS + 16, 48), f"0x{tap.mac.replace(':', '')}", unlike=True),
                *neighbour,
            )
            for kind, option in ((solicit, 0x0101), (advertise, 0x0201))  # its link-layer address, source's or target's
        ),
        *((_IS_IPV6, advertise, target, source, ACCEPT) for target in for_own for source in from_own),
        (_IS_IPV6, advertise, *neighbour),
        *((_IS_IPV6, match(meta("l4proto"), "ipv6-icmp"), source, ACCEPT) for source in from_own),
        (_IS_IPV6, match(header("ip6", "saddr"), "::"), solicit, *neighbour),
        (_IS_IPV6, *_dropped(Spoof.IPV6)),
    ]


def written(network: NetworkAddress) -> Json:
    if network.prefixlen == network.max_prefixlen:
        return str(network.network_address)
    return prefix(str(network.network_address), network.prefixlen)


def _dropped(reason: Spoof) -> tuple[Json, ...]:
    return ({"counter": counter(reason)}, DROP)


def _message_bits(offset: int, length: int) -> Json:
    return {"payload": {"base": "th", "offset": offset, "len": length}}


def _leading_bits(network: NetworkAddress) -> Json:
    return hex(int(network.network_address) >> (network.max_prefixlen - network.prefixlen))


_IS_IPV4: Json = match(header("ether", "type"), "ip")
_IS_ARP: Json = match(header("ether", "type"), "arp")
_IS_IPV6: Json = match(header("ether", "type"), "ip6")
