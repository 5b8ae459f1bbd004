"""A machine's security groups as two nftables chains for each tap: one for traffic from the guest, one for traffic to
the guest.

A chain drops what must not pass and returns for everything else. So between two guests of one node both the sender's
egress and the receiver's ingress are applied, and so is any other filter of the host. Replies pass first, then packets
that match a drop rule are dropped, then those that match an accept rule pass, then the default applies. Isolation is a
chain that drops before anything else, established or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from svc_nodeagent.hypervisor.network.guard import address_json
from svc_nodeagent.hypervisor.network.nft import CT_STATE, DROP, RETURN, Json, among, header, match, meta
from svc_nodeagent.hypervisor.network.plan import TapPlan
from svc_nodeagent.protocol import Action, Direction, Firewall, FirewallRule, TransportProtocol

FROM_GUEST: Final = "from_guest"
TO_GUEST: Final = "to_guest"
"""The verdict maps, by the tap from which a packet comes or to which it goes. A tap's chain is named `<map>_<tap>`."""

_MAPS = {Direction.EGRESS: FROM_GUEST, Direction.INGRESS: TO_GUEST}
_ETHER_TYPES = {4: "ip", 6: "ip6"}
_ICMP = {4: ("icmp", "icmp"), 6: ("icmpv6", "ipv6-icmp")}
_NEIGHBOURS = (135, 136)


def is_filtered(tap: TapPlan) -> bool:
    return tap.isolated or tap.firewall is not None


def family(tap: TapPlan) -> str:
    """The nftables family in which a tap's packets are seen together with their connections."""
    return "inet" if tap.bridge is None else "bridge"


def chains(tap: TapPlan) -> Iterator[tuple[str, str, list[tuple[Json, ...]]]]:
    """(map, chain, rules) of a filtered tap."""
    for direction, name in _MAPS.items():
        if tap.isolated:
            yield name, chain_name(name, tap.device), [(DROP,)]
        elif tap.firewall is not None:
            yield name, chain_name(name, tap.device), rules(tap.firewall, direction, bridged=tap.bridge is not None)


def chain_name(map: str, device: str) -> str:
    return f"{map}_{device}"


def rules(firewall: Firewall, direction: Direction, *, bridged: bool) -> list[tuple[Json, ...]]:
    """The rules of one direction. Neighbour discovery always passes, since without it no traffic of the guest can be
    delivered; a hop limit of 255 proves that a message was not forwarded."""
    mine = [rule for rule in firewall.rules if rule.direction is direction]
    default = firewall.default_ingress if direction is Direction.INGRESS else firewall.default_egress
    on_link = match(header("ip6", "hoplimit"), 255)
    return [
        *([(match(meta("protocol"), "arp"), RETURN)] if bridged else []),
        (among(CT_STATE, ["established", "related"]), RETURN),
        (among(CT_STATE, ["invalid"]), DROP),
        *((match(header("icmpv6", "type"), each), on_link, RETURN) for each in _NEIGHBOURS),
        *((*packets, DROP) for rule in mine if rule.action is Action.DROP for packets in _packets(rule)),
        *((*packets, RETURN) for rule in mine if rule.action is Action.ACCEPT for packets in _packets(rule)),
        (DROP if default is Action.DROP else RETURN,),
    ]


def _packets(rule: FirewallRule) -> Iterator[tuple[Json, ...]]:
    """The packets that a rule matches, as alternatives."""
    other_side = "saddr" if rule.direction is Direction.INGRESS else "daddr"
    where: tuple[Json, ...] = ()
    if rule.cidr is not None:
        where = (match(header("ip" if rule.cidr.version == 4 else "ip6", other_side), address_json(rule.cidr)),)
        if rule.cidr.prefixlen == 0:
            where = (match(meta("protocol"), _ETHER_TYPES[rule.cidr.version]),)
    elif rule.family is not None:
        where = (match(meta("protocol"), _ETHER_TYPES[rule.family]),)
    match rule.protocol:
        case TransportProtocol.ANY:
            yield where
        case TransportProtocol.TCP | TransportProtocol.UDP:
            name = rule.protocol.value
            if rule.ports is None:
                yield (*where, match(meta("l4proto"), name))
            else:
                first, last = rule.ports
                ports: Json = first if first == last else {"range": [first, last]}
                yield (*where, match(header(name, "dport"), ports))
        case TransportProtocol.ICMP:
            for family in (4, 6) if rule.family is None else (rule.family,):
                name, transport = _ICMP[family]
                if rule.icmp_type is None:
                    yield (*where, match(meta("l4proto"), transport))
                else:
                    yield (*where, match(header(name, "type"), rule.icmp_type))
