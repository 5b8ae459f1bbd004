"""A name server that serves what it is told, and parents that say what a test wants."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import trio

from svc_webhost.delegation import DelegationError
from svc_webhost.knot import KnotError, ResourceRecord, ServedZone, Zone, ZoneOutcome
from svc_webhost.knot.zone import SOA_TTL
from svc_webhost.name_addresses import AddressesUnknown
from svc_webhost.txt_records import TxtUnknown


@dataclass
class RecordedNameServer:
    """`failure` is raised by everything until it is taken away; `refused` by what changes or removes the zones
    that are named in it."""

    zones: dict[str, Zone | None] = field(default_factory=dict)
    known_serials: dict[str, int] = field(default_factory=dict)
    failure: KnotError | None = None
    refused: dict[str, KnotError] = field(default_factory=dict)
    compared: list[str] = field(default_factory=list)

    async def ensure(self) -> None:
        self._check()

    async def serials(self) -> dict[str, int | None]:
        self._check()
        return {name: self.known_serials.get(name) if zone else None for name, zone in self.zones.items()}

    async def read(self, name: str) -> ServedZone | None:
        self._check()
        if name not in self.zones:
            return None
        zone = self.zones[name]
        if zone is None:
            return ServedZone(frozenset(), None)
        soa = zone.authority.soa(self.known_serials[name])
        return ServedZone(zone.served, ResourceRecord.parsed(name, str(SOA_TTL), "SOA", soa))

    async def agree(self, zone: Zone, last_serial: int | None = None) -> ZoneOutcome:
        self._check()
        self.compared.append(zone.name)
        if zone.name in self.refused:
            raise self.refused[zone.name]
        changed = self.zones.get(zone.name) != zone
        if changed:
            self.zones[zone.name] = zone
            self.known_serials[zone.name] = max(self.known_serials.get(zone.name, 0), last_serial or 0) + 1
        return ZoneOutcome(self.known_serials[zone.name], changed)

    async def add(self, names: Iterable[str]) -> None:
        self._check()
        for name in names:
            self.zones.setdefault(name, None)

    async def remove(self, names: Iterable[str]) -> None:
        self._check()
        for name in names:
            if name in self.refused:
                raise self.refused[name]
            self.zones.pop(name, None)

    def purge(self, name: str) -> None:
        """As by hand: the zone is configured and empty."""
        self.zones[name] = None

    def answers(self, name: str, type_: str) -> set[str]:
        """What it would answer about a name."""
        return {
            record.data
            for zone in self.zones.values()
            if zone is not None
            for record in zone.served
            if (record.owner, record.type) == (name, type_)
        }

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure


@dataclass
class RecordedTexts:
    """TXT records of the world. Names that are not there cannot be asked about."""

    texts: dict[str, list[str]] = field(default_factory=dict)

    async def __call__(self, name: str) -> list[str]:
        if name not in self.texts:
            raise TxtUnknown(f"the DNS says nothing about {name}")
        return self.texts[name]


@dataclass
class RecordedAddresses:
    """Addresses of names in the world. Names that are not there do not exist; of a name that is None there is no
    answer. `before` is awaited before each answer."""

    addresses: dict[str, list[str] | None] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    before: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint

    async def __call__(self, name: str) -> list[str]:
        self.asked.append(name)
        await self.before()
        found = self.addresses.get(name, [])
        if found is None:
            raise AddressesUnknown(f"the DNS did not answer about {name}")
        return found


@dataclass
class RecordedDelegations:
    """Domains that are not named cannot be asked about."""

    parents: dict[str, frozenset[str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def nameservers(self, domain: str) -> frozenset[str]:
        self.asked.append(domain)
        if domain not in self.parents:
            raise DelegationError(f"the parent of {domain} could not be asked")
        return self.parents[domain]
