"""Where the names of sites lead: what the world's resolvers say, next to what leads visitors to this server.

Invariants: a name is asked about at most once in `REMEMBERED_SECONDS`, a customer's names at most `PER_MINUTE` times a
minute, and all names `_AT_ONCE` at a time, however often somebody looks; nobody waits longer than `PATIENCE_SECONDS`
for an answer of the DNS. The name servers of a domain are its owner's: they may answer as late as they like.

Why: docs/decisions/0063-where-names-lead.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from uuid import UUID

import trio

from svc_actors.allowance import Allowances
from svc_actors.panel.sites.names import may_be_public, top_level
from svc_actors.webhooks.endpoint import Clock
from svc_common.outbound import is_public
from svc_webhost.name_addresses import AddressesUnknown, NameAddresses

Addresses = Sequence[IPv4Address | IPv6Address]

REMEMBERED_SECONDS: Final = 60.0
PER_MINUTE: Final = 60
PATIENCE_SECONDS: Final = 1.0
_AT_ONCE: Final = 16
_MOST_WAITING: Final = 500
_MOST_REMEMBERED: Final = 5_000
_MOST_NAMED: Final = 5
"""Names in one sentence."""
_NAT64: Final = IPv6Network("64:ff9b::/96")
"""Addresses whose last 32 bits are an IPv4 address (RFC 6052)."""
_DOCUMENTATION: Final = tuple(
    ip_network(network) for network in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
)
"""Addresses of no network (RFC 5737, RFC 3849), which say nothing of anybody's."""


@dataclass(frozen=True)
class Answer:
    """What the resolvers said about a name at `at`: `addresses` is None if they did not answer."""

    addresses: tuple[str, ...] | None
    at: datetime


class PublicNames:
    """Asks the world's resolvers about names of sites, and remembers what they said."""

    def __init__(self, look_up: NameAddresses, clock: Clock, nursery: trio.Nursery) -> None:
        self._look_up = look_up
        self._clock = clock
        self._nursery = nursery
        self._known: OrderedDict[str, tuple[float, Answer]] = OrderedDict()
        self._waiting: dict[str, trio.Event] = {}
        self._allowances = Allowances(per_minute=PER_MINUTE)
        self._at_once = trio.Semaphore(_AT_ONCE)

    async def answers(self, owner_id: UUID, names: Sequence[str]) -> dict[str, Answer | None]:
        """The last answer about each of these names, which are the owner's; None if there is none yet. An answer that
        comes too late for this call is there for the next one."""
        for name in names:
            if self._is_due(name) and len(self._waiting) < _MOST_WAITING and self._allowances.spend(owner_id):
                self._waiting[name] = trio.Event()
                self._nursery.start_soon(self._ask, name)
        with trio.move_on_after(PATIENCE_SECONDS):
            for answered in [self._waiting[name] for name in names if name in self._waiting]:
                await answered.wait()
        return {name: self._known[name][1] if name in self._known else None for name in names}

    def _is_due(self, name: str) -> bool:
        if name in self._waiting:
            return False
        return name not in self._known or trio.current_time() - self._known[name][0] > REMEMBERED_SECONDS

    async def _ask(self, name: str) -> None:
        try:
            async with self._at_once:
                found: tuple[str, ...] | None = tuple(await self._look_up(name))
        except AddressesUnknown:
            found = None
        self._known[name] = (trio.current_time(), Answer(found, self._clock()))
        self._known.move_to_end(name)
        if len(self._known) > _MOST_REMEMBERED:
            self._known.popitem(last=False)
        self._waiting.pop(name).set()


class PointsTo(StrEnum):
    """HERE: to this server only. PARTLY: to others as well. ELSEWHERE: only to others. NOWHERE: the name has no
    address. UNKNOWN: it was not looked up yet, its name servers do not answer, or this server does not know its own
    addresses."""

    HERE = "here"
    PARTLY = "partly"
    ELSEWHERE = "elsewhere"
    NOWHERE = "nowhere"
    UNKNOWN = "unknown"


def points_to(name: str, answer: Answer | None, own: Addresses) -> tuple[PointsTo, str]:
    """Where a name leads, and the same in words that continue the name. `own`: where sites are reached; none if that is
    not known."""
    if answer is None:
        return PointsTo.UNKNOWN, "was not looked up yet"
    if answer.addresses is None:
        return PointsTo.UNKNOWN, "cannot be resolved: its name servers do not answer"
    if not answer.addresses:
        return PointsTo.NOWHERE, "does not resolve" if may_be_public(name) else f"does not resolve: {no_domain(name)}"
    if not own:
        return PointsTo.UNKNOWN, f"points to {in_words(answer.addresses, own)}"
    others = foreign(answer.addresses, own)
    if not others:
        return PointsTo.HERE, "points here"
    elsewhere = f"{in_words(others, own)} (elsewhere)"
    if len(others) < len(answer.addresses):
        return PointsTo.PARTLY, f"points here and to {elsewhere}"
    return PointsTo.ELSEWHERE, f"points to {elsewhere}"


def no_domain(name: str) -> str:
    """Why a name of which the public DNS knows nothing never will, as `may_be_public` has it."""
    return f"there is no public top-level domain {top_level(name)}"


def foreign(addresses: Sequence[str], own: Addresses) -> list[str]:
    """The addresses that are not this server's; none are if its own are not known."""
    return [each for each in addresses if own and ip_address(each) not in own]


def in_words(addresses: Sequence[str], own: Addresses) -> str:
    """The addresses, without those of private networks: this host's resolver may know names of the provider's own
    network, which customers must not learn by adding them to a site."""
    shown = public(addresses, own)
    return ", ".join([*shown, *(["a private address"] if len(shown) < len(addresses) else [])])


def public(addresses: Sequence[str], own: Addresses) -> list[str]:
    """The addresses that everybody may see: all but those of private networks that are not this server's."""
    parsed = [ip_address(each) for each in addresses]
    return [str(each) for each in parsed if each in own or _may_be_seen(each)]


def _may_be_seen(address: IPv4Address | IPv6Address) -> bool:
    inner: IPv4Address | IPv6Address = address
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            inner = address.ipv4_mapped
        elif address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
    return is_public(inner) or any(inner in network for network in _DOCUMENTATION)


def needed_records(own: Addresses) -> str:
    """The records that lead to this server, in words."""
    if not own:
        return "an A or AAAA record with an address of this server"
    return " and ".join(f"the {'A' if each.version == 4 else 'AAAA'} record {each}" for each in own)


def advice(
    astray: Mapping[str, Sequence[str]], own: Addresses, hosted: frozenset[str], nameservers: Sequence[str]
) -> str | None:
    """What to do about names that do not lead here, by their zones. `hosted`: zones that this server has;
    `nameservers`: its names as a name server, none if it has no name yet."""
    if not own:
        return (
            "The public addresses of this server are not known: an administrator has to set them "
            "(--site-address, docs/dns.md)."
        )
    return " ".join(_of_zone(zone, names, own, hosted, nameservers) for zone, names in astray.items()) or None


def _of_zone(
    zone: str, names: Sequence[str], own: Addresses, hosted: frozenset[str], nameservers: Sequence[str]
) -> str:
    named = _listed(names)
    if zone in hosted and nameservers:
        return (
            f"The zone {zone} is on this server: point {named} here (svc dns point), and name "
            f"{' and '.join(nameservers)} as the name servers of {zone} at its registrar."
        )
    return f"Where the DNS of {zone} is hosted, set {needed_records(own)} for {named}."


def _listed(names: Sequence[str]) -> str:
    if len(names) > _MOST_NAMED:
        return f"{', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED} more"
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
