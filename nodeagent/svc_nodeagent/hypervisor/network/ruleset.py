"""Our nftables rules in the host's forward, input and output paths: one `inet` table, and a `bridge` table if NICs are
bridged.

    forward   a guest's packets pass its chains (`firewall`); from outside nothing new reaches a guest behind nat
    input     of the host's own services a guest reaches ping, and DNS at a gateway that is also its nameserver
    output    what the host sends to a guest passes the guest's chain as well
    postrouting   what leaves the node from behind nat is masqueraded

A guest's chain is found by a map, and whether a guest is behind nat by a set, so a packet passes a handful of rules
however many guests there are. A change of a machine changes only its own chains and its members of these maps and sets.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from typing import Final

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import firewall
from svc_nodeagent.hypervisor.network.firewall import FROM_GUEST, TO_GUEST
from svc_nodeagent.hypervisor.network.guard import FAMILY, PacketCount, guard, no_guard, sets
from svc_nodeagent.hypervisor.network.nft import (
    ACCEPT,
    CT_STATE,
    DROP,
    Json,
    among,
    chain,
    elements,
    emptied_chain,
    header,
    match,
    meta,
    named_set,
    no_chain,
    no_elements,
    no_table,
    prefix,
    rule,
    table,
    verdict_map,
)
from svc_nodeagent.hypervisor.network.plan import TapPlan
from svc_nodeagent.protocol import Spoof

NAT4: Final = "nat4"
NAT6: Final = "nat6"
RESOLVERS: Final = {4: "resolvers4", 6: "resolvers6"}
_SETS: dict[str, Json] = {
    NAT4: "ipv4_addr",
    NAT6: "ifname",  # of a NIC's IPv6 networks either all are behind NAT or none
    RESOLVERS[4]: ["ifname", "ipv4_addr"],
    RESOLVERS[6]: ["ifname", "ipv6_addr"],
}
_DNS = 53
_CHANGING = re.compile(r'"(?:handle|packets|bytes)": \d+(?:, )?')

# Our chains work in addition to the host's own filters: a packet is dropped if either drops it.
HOOKS: dict[str, dict[str, dict[str, Json]]] = {
    "inet": {
        "forward": {"type": "filter", "hook": "forward", "prio": 0, "policy": "accept"},
        "input": {"type": "filter", "hook": "input", "prio": 0, "policy": "accept"},
        "output": {"type": "filter", "hook": "output", "prio": 0, "policy": "accept"},
        "postrouting": {"type": "nat", "hook": "postrouting", "prio": 100, "policy": "accept"},
    },
    "bridge": {
        "forward": {"type": "filter", "hook": "forward", "prio": 0, "policy": "accept"},
        "input": {"type": "filter", "hook": "input", "prio": 0, "policy": "accept"},
        "output": {"type": "filter", "hook": "output", "prio": 0, "policy": "accept"},
    },
}


def families(*, bridged: bool) -> tuple[str, ...]:
    return ("inet", "bridge") if bridged else ("inet",)


METADATA: Final = tuple(
    ip_address(text)
    for text in ("100.100.100.200", "fd00:ec2::254", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42")
)
"""Addresses at which clouds serve secrets to a host that is itself a guest, in addition to 169.254.0.0/16: of Alibaba,
and for IPv6 of AWS, Google, Oracle and Scaleway, according to their documentation. Only the single addresses are
blocked, since guests may have networks in the rest of these ranges. Azure's 168.63.129.16 is left out: it is also the
name server of Azure's hosts, so guests need it."""


def fresh(naming: Naming, *, bridged: bool) -> list[Json]:
    """Our tables without guests; their previous content is removed."""
    guards = [*no_table(FAMILY, naming.table), table(FAMILY, naming.table), *sets(naming.table)]
    return guards + _paths(naming, bridged=bridged)


def stand_in_tables(desired: Sequence[TapPlan], naming: Naming, *, bridged: bool) -> list[Json]:
    """Stand-in tables with the same filters as ours, which exist while our tables are replaced.

    One transaction replaces our tables, but a packet passes the hooked chains of the old and of the new tables one
    after the other, and each table has rules only in its own generation of the ruleset. If the generation changes while
    a packet is between the two chains, neither of them would filter it. (Guards need no stand-in: their chains drop by
    their policy.)"""
    other = _stand_in(naming)
    commands = _paths(other, bridged=bridged)
    for tap in desired:
        if firewall.is_filtered(tap):
            commands += _filtered(tap, other)
    for name, found in members(desired).items():
        commands += elements("inet", other.table, name, found)
    return commands


def remove_stand_in_tables(naming: Naming, tables: Iterable[tuple[str, str]]) -> list[Json]:
    other = _stand_in(naming)
    return [command for family, name in tables if name == other.table for command in no_table(family, name)]


def _stand_in(naming: Naming) -> Naming:
    return replace(naming, table=f"{naming.table}-restoring")


def _paths(naming: Naming, *, bridged: bool) -> list[Json]:
    return [
        command
        for family in families(bridged=bridged)
        for command in (
            *no_table(family, naming.table),
            table(family, naming.table),
            *lookups(family, naming.table),
            *(chain(family, naming.table, name, **hook) for name, hook in HOOKS[family].items()),
            *(
                rule(family, naming.table, name, *expressions)
                for name, rules in shared_rules(family, naming).items()
                for expressions in rules
            ),
        )
    ]


def lookups(family: str, name: str) -> list[Json]:
    maps = [verdict_map(family, name, each, "ifname") for each in (FROM_GUEST, TO_GUEST)]
    return [*maps, *(named_set(family, name, each, type) for each, type in _SETS.items() if family == "inet")]


def shared_rules(family: str, naming: Naming) -> dict[str, list[tuple[Json, ...]]]:
    """The rules of the hooked chains, which apply to all guests alike."""
    ours = f"{naming.device_prefix}*"
    from_guest: tuple[Json, ...] = ({"vmap": {"key": meta("iifname"), "data": f"@{FROM_GUEST}"}},)
    to_guest: tuple[Json, ...] = ({"vmap": {"key": meta("oifname"), "data": f"@{TO_GUEST}"}},)
    if family == "bridge":
        return {
            "forward": [from_guest, to_guest],
            "input": [(match(meta("iifname"), ours), DROP)],  # on a bridge, another machine is the guest's gateway
            "output": [to_guest],
        }
    from_ours, leaving = match(meta("iifname"), ours), match(meta("oifname"), ours, unlike=True)
    from_outside = match(meta("iifname"), ours, unlike=True)
    not_asked_for = among(CT_STATE, ["new", "invalid", "untracked"])
    is_ipv6 = match(meta("nfproto"), "ipv6")
    return {
        "forward": [
            from_guest,
            to_guest,
            # Link-local addresses must not be forwarded (RFC 3927). If the host is itself a guest, its metadata service
            # has such an address.
            (from_ours, match(header("ip", "daddr"), prefix("169.254.0.0", 16)), DROP),
            *(
                (from_ours, match(header("ip" if each.version == 4 else "ip6", "daddr"), str(each)), DROP)
                for each in METADATA
            ),
            (from_outside, match(header("ip", "daddr"), f"@{NAT4}"), not_asked_for, DROP),
            (from_outside, is_ipv6, match(meta("oifname"), f"@{NAT6}"), not_asked_for, DROP),
            # Packets without a connection would not be masqueraded, and would leave with their inner address.
            (from_ours, match(header("ip", "saddr"), f"@{NAT4}"), among(CT_STATE, ["invalid", "untracked"]), DROP),
            (is_ipv6, match(meta("iifname"), f"@{NAT6}"), among(CT_STATE, ["invalid", "untracked"]), DROP),
        ],
        "input": [
            (from_outside, ACCEPT),
            from_guest,
            (among(CT_STATE, ["established", "related"]), ACCEPT),
            (match(header("icmp", "type"), "echo-request"), ACCEPT),
            *((match(header("icmpv6", "type"), each), ACCEPT) for each in (128, 135, 136)),
            *(
                (
                    match({"concat": [meta("iifname"), header(protocol, "daddr")]}, f"@{RESOLVERS[version]}"),
                    match(header(transport, "dport"), _DNS),
                    ACCEPT,
                )
                for version, protocol in ((4, "ip"), (6, "ip6"))
                for transport in ("udp", "tcp")
            ),
            (DROP,),
        ],
        "output": [to_guest],
        "postrouting": [
            (match(header("ip", "saddr"), f"@{NAT4}"), leaving, {"masquerade": None}),
            (is_ipv6, match(meta("iifname"), f"@{NAT6}"), leaving, {"masquerade": None}),
        ],
    }


def change(
    traces: Sequence[TapPlan],
    desired: Sequence[TapPlan],
    naming: Naming,
    *,
    created: frozenset[str] = frozenset(),
    counted: Mapping[str, Mapping[Spoof, PacketCount]] | None = None,
) -> list[Json]:
    """Commands that change our tables from `traces`, what they contain or may contain of a machine, to `desired`.

    The taps of `desired` must exist; `created`: those that were just created. `counted`: initial values of a tap's
    counters."""
    devices = {tap.device for tap in desired}
    commands: list[Json] = []
    for tap in desired:
        commands += guard(tap.device, tap, naming, fresh=tap.device in created, counted=(counted or {}).get(tap.device))
        if firewall.is_filtered(tap):
            commands += _filtered(tap, naming)
    filtered = {(firewall.family(tap), tap.device) for tap in desired if firewall.is_filtered(tap)}
    for family, device in dict.fromkeys((firewall.family(tap), tap.device) for tap in traces):
        if (family, device) not in filtered:
            commands += _unfiltered(family, device, naming)
    now, before = members(desired), members(traces)
    for name in _SETS:
        commands += no_elements("inet", naming.table, name, [each for each in before[name] if each not in now[name]])
        commands += elements("inet", naming.table, name, now[name])
    for device in dict.fromkeys(tap.device for tap in traces):
        if device not in devices:
            commands += no_guard(device, naming)
    return commands


def members(taps: Iterable[TapPlan]) -> dict[str, list[Json]]:
    """The sets' members for these taps."""
    found: dict[str, list[Json]] = {name: [] for name in _SETS}
    for tap in taps:
        found[NAT4] += [str(network.network_address) for network in tap.nat4]
        found[NAT6] += [tap.device] if tap.nat6 else []
        for address in tap.resolvers:
            found[RESOLVERS[address.version]].append({"concat": [tap.device, str(address)]})
    return {name: [each for index, each in enumerate(all) if each not in all[:index]] for name, all in found.items()}


def removal(naming: Naming, tables: Iterable[tuple[str, str]]) -> list[Json]:
    """Remove all tables of ours among these."""
    return [command for family, name in tables if is_ours(family, name, naming) for command in no_table(family, name)]


def is_ours(family: str, name: str, naming: Naming) -> bool:
    return family in (FAMILY, *HOOKS) and name in (naming.table, _stand_in(naming).table)


def digest(entries: Iterable[Json]) -> str:
    """SHA-256 of what nft lists."""
    return hashlib.sha256(comparable_text(list(entries)).encode()).hexdigest()


def comparable_text(listed: Json) -> str:
    """nft's listing as text, for comparison: without the parts that change by themselves (handles, counters)."""
    return _CHANGING.sub("", json.dumps(listed, sort_keys=True))


def _filtered(tap: TapPlan, naming: Naming) -> list[Json]:
    family, name = firewall.family(tap), naming.table
    commands: list[Json] = []
    for map, chain_name, rules in firewall.chains(tap):
        commands += emptied_chain(family, name, chain_name)
        commands += [rule(family, name, chain_name, *expressions) for expressions in rules]
        commands += elements(family, name, map, [_jump(map, tap.device)])
    return commands


def _unfiltered(family: str, device: str, naming: Naming) -> list[Json]:
    commands: list[Json] = []
    for map in (FROM_GUEST, TO_GUEST):
        chain_name = firewall.chain_name(map, device)
        commands.append(chain(family, naming.table, chain_name))
        commands += no_elements(family, naming.table, map, [_jump(map, device)])
        commands += no_chain(family, naming.table, chain_name)
    return commands


def _jump(map: str, device: str) -> Json:
    return [device, {"jump": {"target": firewall.chain_name(map, device)}}]
