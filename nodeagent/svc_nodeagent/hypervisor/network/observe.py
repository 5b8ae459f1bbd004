"""Compares the host's networks with the applied plans.

nftables lists rules in another form than the one in which they were added, and that form depends on its version. So the
expected rules of a chain are added to a table without hooks, through which no packet passes, and are listed from there.
Then the expected and the actual rules are in the same form. These listings are cached.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import firewall, guard, nft, ruleset, taps
from svc_nodeagent.hypervisor.network.nft import Json
from svc_nodeagent.hypervisor.network.plan import TapPlan, network_of, text_of
from svc_nodeagent.hypervisor.network.taps import SeenTap
from svc_nodeagent.protocol import NetworkAddress, Spoof

Rules: TypeAlias = "Sequence[tuple[Json, ...]]"
Chain: TypeAlias = tuple[str, str]
"""A chain: its family, and its rules as text."""


_ANY_TAP = "tap"
"""A placeholder for the tap's name, so that guards of different taps can be compared."""


@dataclass
class Listing:
    """The content of nft's listing, by (family, table): rules by chain, hooks by chain, members by set or map, dropped
    frames."""

    rules: dict[tuple[str, str, str], list[Json]] = field(default_factory=dict)
    hooks: dict[tuple[str, str, str], dict[str, Json]] = field(default_factory=dict)
    members: dict[tuple[str, str, str], set[str]] = field(default_factory=dict)
    tables: set[tuple[str, str]] = field(default_factory=set)
    counted: dict[str, dict[Spoof, guard.PacketCount]] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[dict[str, Any]]) -> Listing:
        listing = cls()
        for entry in entries:
            for kind, body in entry.items():
                if kind == "chain":
                    key = (body["family"], body["table"], body["name"])
                    listing.rules.setdefault(key, [])
                    if "hook" in body:
                        listing.hooks[key] = {name: body.get(name) for name in ("type", "hook", "prio", "policy")}
                elif kind == "rule":
                    key = (body["family"], body["table"], body["chain"])
                    listing.rules.setdefault(key, []).append(body["expr"])
                elif kind in ("set", "map"):
                    key = (body["family"], body["table"], body["name"])
                    listing.members[key] = {_key(member) for member in body.get("elem", ())}
                elif kind == "table":
                    listing.tables.add((body["family"], body["name"]))
                elif kind == "counter" and (found := guard.counter_of(body["name"])) is not None:
                    reason, device = found
                    counted = guard.PacketCount(body["packets"], body["bytes"])
                    listing.counted.setdefault(device, {})[reason] = counted
        return listing

    def let_in(self, table: str, device: str) -> frozenset[NetworkAddress]:
        """The networks from which a tap's guard accepts packets of the guest."""
        return allowed_sources(self.rules.get((guard.FAMILY, table, device), ()))


class Reference:
    """The expected rules of chains in the form in which nft lists them."""

    def __init__(self, naming: Naming) -> None:
        self._table = f"{naming.table}-reference"
        self._naming = naming
        self._known: dict[Chain, str] = {}
        self._sets: dict[str, set[str]] = {}

    async def learn(self, chains: Iterable[Chain]) -> None:
        """Make sure that the reference listing has these chains."""
        unknown = dict.fromkeys(each for each in chains if each not in self._known)
        for family in dict.fromkeys(family for family, _ in unknown):
            texts = [text for each, text in unknown if each == family]
            await nft.load(self._commands(family, texts))
            try:
                listing = Listing.of(await nft.list_table(family, self._table))
            finally:
                await nft.load(nft.no_table(family, self._table))
            if family == guard.FAMILY:
                self._sets = {name: listing.members[family, self._table, name] for name in guard.SETS}
            for number, text in enumerate(texts):
                self._known[family, text] = ruleset.comparable_text(
                    listing.rules[family, self._table, f"rules{number}"]
                )

    def lists(self, family: str, rules: Rules, listed: str) -> bool:
        """Whether the listed rules of a chain are the expected `rules` in nft's form."""
        return self._known[chain(family, rules)] == listed

    def sets(self) -> Mapping[str, set[str]]:
        """The sets that guards use, by name; known with the first guard."""
        return self._sets

    def keep(self, chains: Iterable[Chain]) -> None:
        """Remove all chains except these from the cache."""
        retained = set(chains)
        self._known = {key: listed for key, listed in self._known.items() if key in retained}

    def _commands(self, family: str, texts: list[str]) -> list[Json]:
        commands = [*nft.no_table(family, self._table), nft.table(family, self._table)]
        if family == guard.FAMILY:
            commands += [*guard.sets(self._table), *guard.counters(self._table, _ANY_TAP)]
        else:
            commands += ruleset.lookups(family, self._table)
        for number, text in enumerate(texts):
            commands.append(nft.chain(family, self._table, f"rules{number}"))
            commands += [nft.rule(family, self._table, f"rules{number}", *each) for each in json.loads(text)]
        return commands


def chain(family: str, rules: Rules) -> Chain:
    return family, _text(rules)


def expected(tap: TapPlan) -> Iterator[Chain]:
    """Every chain of a tap."""
    yield chain(guard.FAMILY, guard.rules(replace(tap, device=_ANY_TAP)))
    for _, _, rules in firewall.chains(tap):
        yield chain(firewall.family(tap), rules)


def tap_differences(
    tap: TapPlan, seen: SeenTap | None, listing: Listing, reference: Reference, naming: Naming
) -> Iterator[str]:
    """The differences between a tap and its plan, each as a sentence."""
    if seen is None:
        yield f"The tap {tap.device} is missing."
        return
    if not seen.up:
        yield f"The tap {tap.device} is down."
    if seen.mtu != tap.nic.mtu:
        yield f"The tap {tap.device} has MTU {seen.mtu} instead of {tap.nic.mtu}."
    if seen.alias != taps.alias_of(tap, naming):
        yield f"The tap {tap.device} is not marked as this machine's."
    if seen.bridge != tap.bridge:
        yield f"The tap {tap.device} is plugged into {seen.bridge or 'no bridge'} instead of {tap.bridge or 'none'}."
    routes, gateways = taps.routes_and_addresses(tap)
    for route in sorted(routes - seen.routes, key=str):
        yield f"{text_of(route)} is not routed to {tap.device}."
    for route in sorted(seen.routes - routes, key=str):
        yield f"{text_of(route)} is routed to {tap.device} and should not be."
    for gateway in sorted(gateways - seen.gateways, key=str):
        yield f"The host does not answer for {gateway.ip} at {tap.device}."
    for gateway in sorted(seen.gateways - gateways, key=str):
        yield f"The host answers for {gateway} at {tap.device} and should not."

    key = (guard.FAMILY, naming.table, tap.device)
    if key not in listing.hooks:
        yield f"Nothing guards {tap.device} against spoofing."
    elif not reference.lists(
        guard.FAMILY, guard.rules(replace(tap, device=_ANY_TAP)), _of_any_tap(listing.rules[key], tap.device)
    ):
        yield f"The rules against spoofing at {tap.device} are not as they should be."
    wanted = {map: (name, rules) for map, name, rules in firewall.chains(tap)}
    family = firewall.family(tap)
    for map in (firewall.FROM_GUEST, firewall.TO_GUEST):
        is_member = tap.device in listing.members.get((family, naming.table, map), ())
        name, rules = wanted.get(map, (firewall.chain_name(map, tap.device), None))
        listed = ruleset.comparable_text(listing.rules.get((family, naming.table, name), ()))
        if rules is None and is_member:
            yield f"{tap.device} is filtered ({name}) and should not be."
        if rules is not None and (not is_member or not reference.lists(family, rules, listed)):
            yield f"The filter {name} of {tap.device} is not as it should be."
    for name, members in ruleset.members((tap,)).items():
        present = listing.members.get(("inet", naming.table, name), ())
        for member in members:
            if _key(member) not in present:
                yield f"{_key(member)} is missing in the set {name}."


def shared_rules(naming: Naming, *, bridged: bool) -> Iterator[tuple[str, str, Rules]]:
    """(family, name, rules) of the hooked chains."""
    for family in ruleset.families(bridged=bridged):
        for name, rules in ruleset.shared_rules(family, naming).items():
            yield family, name, rules


def shared_is_sound(listing: Listing, reference: Reference, naming: Naming, *, bridged: bool) -> bool:
    looked_up = all(
        listing.members.get((guard.FAMILY, naming.table, name)) == members for name, members in reference.sets().items()
    )
    return (
        looked_up
        and (guard.FAMILY, naming.table) in listing.tables
        and all(
            listing.hooks.get((family, naming.table, name)) == ruleset.HOOKS[family][name]
            and reference.lists(
                family, rules, ruleset.comparable_text(listing.rules.get((family, naming.table, name), ()))
            )
            for family, name, rules in shared_rules(naming, bridged=bridged)
        )
    )


def allowed_sources(rules: Iterable[Json]) -> frozenset[NetworkAddress]:
    """The networks from which a guard's rules let a guest send: the IPv4 or IPv6 sources they compare with, except
    link-local and unspecified ones."""
    found = set()
    for expressions in rules:
        for expression in expressions if isinstance(expressions, list) else ():
            body = expression.get("match") if isinstance(expression, dict) else None
            if not isinstance(body, dict) or not isinstance(body["left"], dict):
                continue
            payload, value = body["left"].get("payload"), body["right"]
            if not isinstance(payload, dict) or payload.get("field") not in ("saddr", "saddr ip"):
                continue
            if payload.get("protocol") == "ether":
                continue
            if isinstance(value, dict) and isinstance(value.get("prefix"), dict):
                inner: Any = value["prefix"]
                value = f"{inner['addr']}/{inner['len']}"
            network = network_of(str(value))
            if not network.is_link_local and not network.is_unspecified:
                found.add(network)
    return frozenset(found)


def _of_any_tap(rules: Sequence[Json], device: str) -> str:
    """The rules of a tap's guard, with any tap's counter names replaced by a common one."""
    return ruleset.comparable_text(rules).replace(f'_{device}"', f'_{_ANY_TAP}"')


def _text(rules: Rules) -> str:
    return json.dumps(rules)


def _key(member: Any) -> str:
    """A member of a set or map as text: a map's key, a concatenation's parts."""
    if isinstance(member, list):
        return _key(member[0])
    if isinstance(member, dict):
        if "elem" in member:
            return _key(member["elem"]["val"])
        if "concat" in member:
            return " . ".join(_key(part) for part in member["concat"])
    return str(member)
