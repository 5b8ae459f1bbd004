"""Our nftables rules as one transaction: two tables of ours, replaced whole; no other rule is read or written.

`netdev`, at the tap's ingress, before the host has looked at a packet: what is not IPv4 or ARP from the card's own MAC
and one of its own addresses is dropped, so a guest cannot speak for another, ask for DHCP, or speak IPv6 on an IPv4
network. `inet`: of the host's own services a guest reaches ping alone; guests behind nat are not reached from outside;
what leaves from them is masqueraded.

Membership is in sets, so a packet meets a handful of rules however many guests there are. Source of the format:
libnftables-json(5).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TypeAlias

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.plan import TapPlan
from svc_nodeagent.protocol import Topology

Json: TypeAlias = "bool | int | str | Sequence[Json] | dict[str, Json] | None"

GUARD = "from_guest"
SOURCES = "sources4"
NAT_GUESTS = "nat4"
# Before every other ingress hook, and beside the host's own filters: their drops and ours both hold.
_INGRESS_PRIORITY = -300
_FILTER_PRIORITY = 0
_SRCNAT_PRIORITY = 100


def ruleset(taps: Sequence[TapPlan], guarded: Sequence[str], naming: Naming) -> bytes:
    """The transaction, as JSON for `nft -j -f -`, that makes our tables say exactly this.

    `guarded`: the devices that are there now; from one that is in no plan, nothing passes.
    """
    commands = [*_netdev(taps, guarded, naming), *_inet(taps, naming)]
    return json.dumps({"nftables": commands}).encode()


def removal(naming: Naming) -> bytes:
    """The transaction that removes our tables, whether they are there or not."""
    commands = [command for family in ("netdev", "inet") for command in _fresh_table(family, naming.table)[:2]]
    return json.dumps({"nftables": commands}).encode()


def digest(listing: bytes) -> str:
    """SHA-256 of what nft lists of our tables, without what changes by itself (handles, counters)."""
    return hashlib.sha256(json.dumps(_settled(json.loads(listing)), sort_keys=True).encode()).hexdigest()


def filtered_devices(listing: bytes) -> frozenset[str]:
    """The devices whose ingress a chain of ours guards, by a listing of the netdev table."""
    entries = json.loads(listing)["nftables"]
    guarded = {
        entry["rule"]["chain"]
        for entry in entries
        if any(
            expression.get("jump", {}).get("target") == GUARD for expression in entry.get("rule", {}).get("expr", ())
        )
    }
    return frozenset(entry["chain"]["name"] for entry in entries if entry.get("chain", {}).get("name") in guarded)


def _netdev(taps: Sequence[TapPlan], guarded: Sequence[str], naming: Naming) -> list[Json]:
    family, table = "netdev", naming.table
    members: list[Json] = [{"concat": [tap.device, tap.mac, str(address)]} for tap in taps for address in tap.addresses]
    return [
        *_fresh_table(family, table),
        _set(family, table, SOURCES, ["ifname", "ether_addr", "ipv4_addr"], members),
        _chain(family, table, GUARD),
        _rule(family, table, GUARD, _from_set(("ether", "saddr"), ("ip", "saddr")), {"accept": None}),
        _rule(
            family,
            table,
            GUARD,
            # The frame's own source too: an ARP packet in a frame of another MAC teaches switches and bridges a lie.
            _from_set(("ether", "saddr"), ("arp", "saddr ip")),
            _from_set(("arp", "saddr ether"), ("arp", "saddr ip")),
            {"accept": None},
        ),
        _rule(family, table, GUARD, {"counter": None}, {"drop": None}),
        *(
            command
            for device in guarded
            for command in (
                _chain(
                    family,
                    table,
                    device,
                    type="filter",
                    hook="ingress",
                    dev=device,
                    prio=_INGRESS_PRIORITY,
                    policy="drop",
                ),
                _rule(family, table, device, {"jump": {"target": GUARD}}),
            )
        ),
    ]


def _inet(taps: Sequence[TapPlan], naming: Naming) -> list[Json]:
    family, table, ours = "inet", naming.table, f"{naming.device_prefix}*"
    nat: list[Json] = [str(address) for tap in taps if tap.topology is Topology.NAT for address in tap.addresses]
    from_guest: Json = _match("==", _meta("iifname"), ours)
    from_outside: Json = _match("!=", _meta("iifname"), ours)
    known: Json = _match("in", {"ct": {"key": "state"}}, ["established", "related"])
    drop: Json = {"drop": None}
    accept: Json = {"accept": None}
    return [
        *_fresh_table(family, table),
        _set(family, table, NAT_GUESTS, "ipv4_addr", nat),
        _chain(family, table, "input", type="filter", hook="input", prio=_FILTER_PRIORITY, policy="accept"),
        _rule(family, table, "input", from_outside, accept),
        _rule(family, table, "input", known, accept),
        _rule(family, table, "input", _match("==", _field("icmp", "type"), "echo-request"), accept),
        _rule(family, table, "input", {"counter": None}, drop),
        _chain(family, table, "forward", type="filter", hook="forward", prio=_FILTER_PRIORITY, policy="accept"),
        _rule(family, table, "forward", known, accept),
        _rule(family, table, "forward", from_guest, accept),
        _rule(family, table, "forward", _match("==", _field("ip", "daddr"), f"@{NAT_GUESTS}"), {"counter": None}, drop),
        _chain(family, table, "postrouting", type="nat", hook="postrouting", prio=_SRCNAT_PRIORITY, policy="accept"),
        _rule(
            family,
            table,
            "postrouting",
            _match("==", _field("ip", "saddr"), f"@{NAT_GUESTS}"),
            _match("!=", _meta("oifname"), ours),
            {"masquerade": None},
        ),
    ]


def _fresh_table(family: str, name: str) -> list[Json]:
    """Add, delete, add: the middle one needs the table to be there."""
    table: Json = {"table": {"family": family, "name": name}}
    return [{"add": table}, {"delete": table}, {"add": table}]


def _set(family: str, table: str, name: str, type: Json, members: list[Json]) -> Json:
    body: dict[str, Json] = {"family": family, "table": table, "name": name, "type": type}
    return {"add": {"set": body | {"elem": members} if members else body}}


def _chain(family: str, table: str, name: str, **hook: Json) -> Json:
    return {"add": {"chain": {"family": family, "table": table, "name": name, **hook}}}


def _rule(family: str, table: str, chain: str, *expressions: Json) -> Json:
    return {"add": {"rule": {"family": family, "table": table, "chain": chain, "expr": expressions}}}


def _match(operator: str, left: Json, right: Json) -> Json:
    return {"match": {"op": operator, "left": left, "right": right}}


def _meta(key: str) -> Json:
    return {"meta": {"key": key}}


def _field(protocol: str, field: str) -> Json:
    return {"payload": {"protocol": protocol, "field": field}}


def _from_set(mac: tuple[str, str], address: tuple[str, str]) -> Json:
    return _match("==", {"concat": [_meta("iifname"), _field(*mac), _field(*address)]}, f"@{SOURCES}")


def _settled(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _settled(inner) for key, inner in value.items() if key not in ("handle", "counter", "metainfo")}
    if isinstance(value, list):
        return [_settled(inner) for inner in value]
    return value
