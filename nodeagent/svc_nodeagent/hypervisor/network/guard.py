"""The anti-spoofing rules of one tap: a chain in our `netdev` table, at the hook where the host first sees a frame.

A frame passes if it comes from the NIC's own MAC and one of its own addresses, in IPv4, ARP or IPv6; everything else is
dropped and counted by reason. The counters are named objects of the table and not parts of rules, so they keep their
values when the rules change; they are removed with the tap. One table serves all taps, because nft requests the objects
of each table separately.

RFC 826, 5227 (ARP), 4861, 4862, 6980 (neighbours), 7112 (fragments), 2131, 8415 (DHCP), 792, 4443 (errors).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address, IPv6Network
from typing import Final, NamedTuple

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.nft import (
    ACCEPT,
    DROP,
    Json,
    elements,
    emptied_chain,
    header,
    match,
    meta,
    named_set,
    no_chain,
    prefix,
    rule,
)
from svc_nodeagent.hypervisor.network.plan import LINK_LOCALS, TapPlan
from svc_nodeagent.protocol import NetworkAddress, Spoof

FAMILY: Final = "netdev"
PRIORITY: Final = -300
"""The guard's priority: it runs before everything else at the tap's ingress."""

SETS: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "routers4": ("icmp_type", (5, 9)),  # redirect, advertisement
    "routers6": ("icmpv6_type", (130, 134, 137, 138)),  # listener query, advertisement, redirect, renumbering
    "errors4": ("icmp_type", (3, 4, 11, 12)),
    "errors6": ("icmpv6_type", (1, 2, 3, 4)),
    "extensions": ("inet_proto", (0, 43, 44, 51, 60, 135)),
}
"""Named sets that the rules of all taps share. For an anonymous set of a rule, the kernel finds a free name by walking
through all sets of the table; with a thousand taps this would take half a minute."""
_ROUTER_MESSAGES_4, _ROUTER_MESSAGES, _ERRORS_4, _ERRORS, _EXTENSIONS = (f"@{name}" for name in SETS)

LINK_LOCAL_SOURCES: Final = "link_local_sources"
"""The set of the link-local addresses, by tap, that guests may send from at the moment. The rules fill it."""
_SOURCES_TOGETHER, _SOURCE_SECONDS = 65_535, 60
_SOURCES_A_MINUTE, _SOURCES_AT_ONCE = 4, 8
"""The limit for new members of a guest in this set, so that the guest has at most 12 at a time. The host has to resolve
each of these addresses to which it answers, and all guests share its neighbour table. Only the link-local address that
is derived from the MAC is not limited, since it has a permanent entry."""

_MEMBERSHIP_QUERY = 0x11
_ROUTER_SOLICIT, _SOLICIT, _ADVERTISE, _LISTENER_REPORT = 133, 135, 136, 143
_TARGET_BITS, _OPTION_BITS = 64, 192
"""The positions of the target and of the first option in a neighbour message, in bits of the ICMPv6 message."""
_ONE_OPTION_BYTES = 32
"""The size of a neighbour message with one option. Only one option can be checked."""
_ERRED_TARGET_BITS = {4: 64 + 128, 6: 64 + 192}
"""The position at which an error message quotes the target of the packet that caused it, in bits of the message."""
_SOLICITATIONS_A_SECOND, _SOLICITATIONS_AT_ONCE = 20, 40
"""The limit for neighbour solicitations. A guest may send them from any address of its networks, and the host keeps an
entry for each of these addresses in the same neighbour table for some seconds."""


class PacketCount(NamedTuple):
    packets: int
    bytes: int


_NONE = PacketCount(0, 0)


def guard(
    device: str,
    tap: TapPlan | None,
    naming: Naming,
    *,
    fresh: bool = False,
    counted: Mapping[Spoof, PacketCount] | None = None,
) -> list[Json]:
    """Commands that make the tap's chain match the plan exactly; without a plan, nothing passes. `fresh`: the tap's
    counters start at 0; `counted`: the initial values of counters that do not exist yet. The device must exist."""
    name = naming.table
    hook: dict[str, Json] = {"type": "filter", "hook": "ingress", "dev": device, "prio": PRIORITY, "policy": "drop"}
    return [
        *(no_guard(device, naming) if fresh else ()),
        *counters(name, device, counted),
        *emptied_chain(FAMILY, name, device, **hook),
        *(rule(FAMILY, name, device, *expressions) for expressions in rules(tap)),
    ]


def sets(table: str) -> list[Json]:
    return [
        named_set(
            FAMILY,
            table,
            LINK_LOCAL_SOURCES,
            ["ifname", "ipv6_addr"],
            flags=["timeout"],
            timeout=_SOURCE_SECONDS,
            size=_SOURCES_TOGETHER,
        ),
        *(
            command
            for name, (type, members) in SETS.items()
            for command in (named_set(FAMILY, table, name, type), *elements(FAMILY, table, name, members))
        ),
    ]


def counters(table: str, device: str, counted: Mapping[Spoof, PacketCount] | None = None) -> list[Json]:
    """Commands that create the tap's counters, one for each reason. An existing counter keeps its value."""
    begin = counted or {}
    return [
        {
            "add": {
                "counter": {
                    "family": FAMILY,
                    "table": table,
                    "name": counter(reason, device),
                    "packets": begin.get(reason, _NONE).packets,
                    "bytes": begin.get(reason, _NONE).bytes,
                }
            }
        }
        for reason in Spoof
    ]


def counter(reason: Spoof, device: str) -> str:
    return f"spoofed_{reason.value}_{device}"


def counter_of(name: str) -> tuple[Spoof, str] | None:
    """The reason and the tap that this counter belongs to; None for one that is not ours."""
    first, _, rest = name.partition("_")
    reason, _, device = rest.partition("_")
    return (Spoof(reason), device) if first == "spoofed" and reason in set(Spoof) else None


def no_guard(device: str, naming: Naming) -> list[Json]:
    """Commands that remove the tap's chain and counters, whether they exist or not."""
    return [
        *no_chain(FAMILY, naming.table, device),
        *(
            command
            for added in counters(naming.table, device)
            if isinstance(added, dict)
            for command in (added, {"delete": added["add"]})
        ),
    ]


def rules(tap: TapPlan | None) -> list[tuple[Json, ...]]:
    """The rules in order, each as nftables' expressions. Those that most frames match come first."""
    if tap is None or tap.isolated:
        return [(DROP,)]
    return [
        (match(header("ether", "saddr"), tap.mac, unlike=True), *_dropped(Spoof.MAC, tap.device)),
        *_ipv4(tap),
        *_arp(tap),
        *(_ipv6(tap) if tap.ipv6 else _no_ipv6(tap)),
        _dropped(Spoof.PROTOCOL, tap.device),
    ]


def _ipv4(tap: TapPlan) -> list[tuple[Json, ...]]:
    """The rules for IPv4. DHCP is dropped: a guest must not act as a DHCP server (which may answer from any port), and
    for a client there is no server here."""
    from_own = [match(header("ip", "saddr"), address_json(each)) for each in tap.ipv4]
    error = match(header("icmp", "type"), _ERRORS_4)
    router = _dropped(Spoof.ROUTER, tap.device)
    return [
        (_IS_IPV4, match(header("udp", "sport"), 67), *_dropped(Spoof.DHCP, tap.device)),
        (_IS_IPV4, match(header("udp", "dport"), {"range": [67, 68]}), *_dropped(Spoof.DHCP, tap.device)),
        (_IS_IPV4, match(header("igmp", "type"), _MEMBERSHIP_QUERY), *router),
        *((_IS_IPV4, match(meta("l4proto"), "icmp", unlike=True), source, ACCEPT) for source in from_own),
        (_IS_IPV4, match(header("icmp", "type"), _ROUTER_MESSAGES_4), *router),
        *((_IS_IPV4, error, about, source, ACCEPT) for about in _about(tap.ipv4) for source in from_own),
        (_IS_IPV4, error, *_dropped(Spoof.IPV4, tap.device)),
        *((_IS_IPV4, source, ACCEPT) for source in from_own),
        (_IS_IPV4, *_dropped(Spoof.IPV4, tap.device)),
    ]


def _arp(tap: TapPlan) -> list[tuple[Json, ...]]:
    """The rules for ARP. Frame and message must have the NIC's MAC, and the sender's address in the message must be one
    of the NIC's; only a probe for one of these addresses has no sender's address (RFC 5227)."""
    sound: tuple[Json, ...] = (
        _IS_ARP,
        match(header("arp", "htype"), 1),
        match(header("arp", "ptype"), 0x0800),
        match(header("arp", "hlen"), 6),
        match(header("arp", "plen"), 4),
        match(header("arp", "saddr ether"), tap.mac),
    )
    request, reply = (match(header("arp", "operation"), each) for each in ("request", "reply"))
    none = match(header("arp", "saddr ip"), "0.0.0.0")  # noqa: S104  (an ARP probe has this unspecified sender)
    return [
        *(
            (*sound, operation, match(header("arp", "saddr ip"), address_json(each)), ACCEPT)
            for each in tap.ipv4
            for operation in (request, reply)
        ),
        *((*sound, request, none, match(header("arp", "daddr ip"), address_json(each)), ACCEPT) for each in tap.ipv4),
        (_IS_ARP, *_dropped(Spoof.ARP, tap.device)),
    ]


def _ipv6(tap: TapPlan) -> list[tuple[Json, ...]]:
    """The rules for IPv6. A packet whose headers the kernel cannot follow to the transport header has no `l4proto`, and
    no rule lets it pass. Later fragments could contain headers that the first fragment does not have, so the transport
    header must directly follow the fragment header."""
    own: tuple[IPv6Network, ...] = (*tap.ipv6, tap.link_locals)
    from_own = [match(header("ip6", "saddr"), address_json(each)) for each in own]
    for_own = [match(_message_bits(_TARGET_BITS, each.prefixlen), _leading_bits(each)) for each in own]
    solicit, advertise = (match(header("icmpv6", "type"), each) for each in (_SOLICIT, _ADVERTISE))
    error = match(header("icmpv6", "type"), _ERRORS)
    neighbour, router = _dropped(Spoof.NEIGHBOUR, tap.device), _dropped(Spoof.ROUTER, tap.device)
    forged = _dropped(Spoof.IPV6, tap.device)
    in_pieces = match({"exthdr": {"name": "frag"}}, True)
    too_long: Json = {"match": {"op": ">", "left": header("ip6", "length"), "right": _ONE_OPTION_BYTES}}
    too_often: Json = {
        "limit": {"rate": _SOLICITATIONS_A_SECOND, "per": "second", "burst": _SOLICITATIONS_AT_ONCE, "inv": True}
    }
    hosts = [str(each) for each in tap.gateways if each.version == 6 and each in tap.link_locals]
    return [
        *((_IS_IPV6, match(header("ip6", "saddr"), each), *forged) for each in hosts),
        *(_few_link_locals(tap) if tap.bridge is None else ()),
        (_IS_IPV6, match(header("udp", "sport"), 547), *_dropped(Spoof.DHCP, tap.device)),
        (_IS_IPV6, match(header("udp", "dport"), {"range": [546, 547]}), *_dropped(Spoof.DHCP, tap.device)),
        (_IS_IPV6, match({"exthdr": {"name": "frag", "field": "nexthdr"}}, _EXTENSIONS), *forged),
        *((_IS_IPV6, match(meta("l4proto"), "ipv6-icmp", unlike=True), source, ACCEPT) for source in from_own),
        (_IS_IPV6, match(header("icmpv6", "type"), _ROUTER_MESSAGES), *router),
        *((_IS_IPV6, in_pieces, kind, *neighbour) for kind in (solicit, advertise)),
        # duplicate address detection: does anybody else have my address?
        *((_IS_IPV6, match(header("ip6", "saddr"), "::"), solicit, target, ACCEPT) for target in for_own),
        *(
            (
                _IS_IPV6,
                kind,
                match(_message_bits(_OPTION_BITS, 16), option),
                match(_message_bits(_OPTION_BITS + 16, 48), f"0x{tap.mac.replace(':', '')}", unlike=True),
                *neighbour,
            )
            # the option with the link-layer address, of the source or of the target
            for kind, option in ((solicit, 0x0101), (advertise, 0x0201))
        ),
        *((_IS_IPV6, kind, too_long, *neighbour) for kind in (solicit, advertise)),
        *(
            (_IS_IPV6, solicit, match(header("ip6", "saddr"), address_json(each)), too_often, *neighbour)
            for each in tap.ipv6
        ),
        *(
            (_IS_IPV6, advertise, match(_message_bits(_TARGET_BITS, 128), hex(int(IPv6Address(each)))), *neighbour)
            for each in hosts
        ),
        *((_IS_IPV6, advertise, target, source, ACCEPT) for target in for_own for source in from_own),
        (_IS_IPV6, advertise, *neighbour),
        *((_IS_IPV6, error, about, source, ACCEPT) for about in _about(own) for source in from_own),
        (_IS_IPV6, error, *forged),
        *((_IS_IPV6, match(meta("l4proto"), "ipv6-icmp"), source, ACCEPT) for source in from_own),
        (_IS_IPV6, match(header("ip6", "saddr"), "::"), solicit, *neighbour),
        (_IS_IPV6, match(header("ip6", "saddr"), "::"), match(header("icmpv6", "type"), _LISTENER_REPORT), DROP),
        (_IS_IPV6, *forged),
    ]


def _few_link_locals(tap: TapPlan) -> list[tuple[Json, ...]]:
    """Limit the number of link-local addresses that a guest uses. Packets from members of the set pass, and new members
    are added at a limited rate. Packets do not extend a member's lifetime: a member expires and has to be added again,
    since otherwise a guest could keep any number of members."""
    chosen = (
        _IS_IPV6,
        match(header("ip6", "saddr"), address_json(LINK_LOCALS)),
        match(header("ip6", "saddr"), str(tap.link_local), unlike=True),
    )
    source: Json = {"concat": [meta("iifname"), header("ip6", "saddr")]}
    members = f"@{LINK_LOCAL_SOURCES}"
    too_many: Json = {"limit": {"rate": _SOURCES_A_MINUTE, "per": "minute", "burst": _SOURCES_AT_ONCE, "inv": True}}
    admitted: Json = {"set": {"op": "add", "elem": source, "set": members}}
    return [
        (*chosen, match(source, members, unlike=True), too_many, *_dropped(Spoof.NEIGHBOUR, tap.device)),
        (*chosen, admitted),
    ]


def _about(own: Sequence[NetworkAddress]) -> list[Json]:
    """Let an ICMP error pass only if it is about a packet to one of these addresses. A guest that could send errors
    about other guests' packets could end their connections or reduce their path MTU."""
    return [match(_message_bits(_ERRED_TARGET_BITS[each.version], each.prefixlen), _leading_bits(each)) for each in own]


def _no_ipv6(tap: TapPlan) -> list[tuple[Json, ...]]:
    """The rules for a NIC without IPv6: the messages that every guest sends to configure IPv6 are dropped without being
    counted as spoofing."""
    greetings = [
        (_IS_IPV6, match(header("ip6", "saddr"), source), match(header("icmpv6", "type"), kind), DROP)
        for source in ("::", address_json(LINK_LOCALS))
        for kind in (_ROUTER_SOLICIT, _SOLICIT, _LISTENER_REPORT)
    ]
    return [*greetings, (_IS_IPV6, *_dropped(Spoof.IPV6, tap.device))]


def address_json(network: NetworkAddress) -> Json:
    if network.prefixlen == network.max_prefixlen:
        return str(network.network_address)
    return prefix(str(network.network_address), network.prefixlen)


def _dropped(reason: Spoof, device: str) -> tuple[Json, ...]:
    return ({"counter": counter(reason, device)}, DROP)


def _message_bits(offset: int, length: int) -> Json:
    return {"payload": {"base": "th", "offset": offset, "len": length}}


def _leading_bits(network: NetworkAddress) -> Json:
    return hex(int(network.network_address) >> (network.max_prefixlen - network.prefixlen))


_IS_IPV4: Json = match(header("ether", "type"), "ip")
_IS_ARP: Json = match(header("ether", "type"), "arp")
_IS_IPV6: Json = match(header("ether", "type"), "ip6")
