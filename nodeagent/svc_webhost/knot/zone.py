"""A zone as Knot should serve it, and its difference from what Knot serves: values, without a server.

Invariants: two records are equal exactly if they are the same in the DNS, since one formatter writes both sides; the
records of one name and type (an RRset) have one TTL; the serial is Knot's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import dns.exception
import dns.rdata
import dns.rdataclass
import dns.rdatatype

from svc_webhost.knot.control import KnotError
from svc_webhost.knot.data import RecordData

NS_TTL: Final = 86_400
SOA_TTL: Final = 3_600
REFRESH: Final = 7_200
RETRY: Final = 1_800
EXPIRE: Final = 1_209_600
NEGATIVE_TTL: Final = 300
"""How long a resolver may remember that a name has no such record. It is short, because the resolver may have asked
just before the record was added."""
_SERIALS: Final = 1 << 32


@dataclass(frozen=True, order=True)
class ResourceRecord:
    """`owner` is a full name in A-labels without the final dot; `data` the text of a zone file, its names absolute."""

    owner: str
    type: str
    ttl: int
    data: str

    @classmethod
    def of(cls, owner: str, ttl: int, data: RecordData) -> ResourceRecord:
        return cls(owner, data.type.value, ttl, data.rdata().to_text())

    @classmethod
    def parsed(cls, owner: str, ttl: str, type_: str, data: str) -> ResourceRecord:
        """A record in Knot's form. Raises `KnotError` for anything else."""
        try:
            rdata = dns.rdata.from_text(dns.rdataclass.IN, dns.rdatatype.from_text(type_), data)
            return cls(owner.lower().removesuffix("."), type_, int(ttl), rdata.to_text())
        except (dns.exception.DNSException, ValueError) as error:
            raise KnotError(f"Knot serves at {owner} what cannot be read: {type_} {data}") from error


@dataclass(frozen=True)
class Authority:
    """The authority for a zone: the full names of its name servers, the first of them primary, and a mailbox."""

    nameservers: tuple[str, ...]
    hostmaster: str
    """In the form `hostmaster@example.net`."""

    def soa(self, serial: int) -> str:
        return f"{self.nameservers[0]}. {mailbox(self.hostmaster)} {serial} {REFRESH} {RETRY} {EXPIRE} {NEGATIVE_TTL}"


@dataclass(frozen=True)
class Zone:
    """`records` are all records but the SOA and the zone's own NS records, which follow from `authority`."""

    name: str
    authority: Authority
    records: frozenset[ResourceRecord] = frozenset()

    @property
    def served(self) -> frozenset[ResourceRecord]:
        """The records that Knot should serve, except for the SOA."""
        own = (ResourceRecord(self.name, "NS", NS_TTL, f"{server}.") for server in self.authority.nameservers)
        return self.records.union(own)


@dataclass(frozen=True)
class ServedZone:
    """What Knot serves: `soa` None if the zone is configured and empty."""

    records: frozenset[ResourceRecord]
    soa: ResourceRecord | None

    @property
    def serial(self) -> int | None:
        return None if self.soa is None else int(self.soa.data.split()[2])

    @classmethod
    def of(cls, records: Iterable[ResourceRecord]) -> ServedZone:
        kept = frozenset(records)
        soa = next((record for record in kept if record.type == "SOA"), None)
        return cls(kept - {soa} if soa is not None else kept, soa)


RRset = tuple[str, str]
"""The owner and the type of a set of records."""


@dataclass(frozen=True)
class Difference:
    """Whole RRsets: those to remove, and those to add with their records. `soa` is the new one, if it changes."""

    unset: tuple[RRset, ...]
    set: tuple[ResourceRecord, ...]
    soa: ResourceRecord | None

    def __bool__(self) -> bool:
        return bool(self.unset or self.set or self.soa)


def difference(zone: Zone, served: ServedZone, *, now: int, last_serial: int | None = None) -> Difference:
    """The changes that make Knot serve `zone`. `now` is Unix time; `last_serial` the highest that was ever served."""
    wanted, there = _sets(zone.served), _sets(served.records)
    changed = [key for key in sorted(wanted.keys() | there.keys()) if wanted.get(key) != there.get(key)]
    return Difference(
        unset=tuple(key for key in changed if key in there),
        set=tuple(record for key in changed for record in sorted(wanted.get(key, ()))),
        soa=_new_soa(zone, served, now, last_serial),
    )


def next_serial(last: int | None, now: int) -> int:
    """The time, but at least the last one plus one (RFC 1982): secondaries ignore a serial that goes back."""
    if last is None:
        return now % _SERIALS
    ahead = (now - last) % _SERIALS
    return now % _SERIALS if 0 < ahead < _SERIALS // 2 else (last + 1) % _SERIALS


def mailbox(address: str) -> str:
    """An address in the form of an SOA (RFC 1035, section 8): dots before the @ are escaped."""
    local, _, domain = address.rpartition("@")
    escaped = local.replace("\\", "\\\\").replace(".", "\\.")
    return f"{escaped}.{domain}."


def _new_soa(zone: Zone, served: ServedZone, now: int, last_serial: int | None) -> ResourceRecord | None:
    """The SOA to write; None if the served one is correct. (Knot raises its serial at every commit.)"""
    if served.soa is not None and served.serial is not None:
        wanted = ResourceRecord.parsed(zone.name, str(SOA_TTL), "SOA", zone.authority.soa(served.serial))
        if wanted == served.soa:
            return None
        last_serial = served.serial if last_serial is None else max(served.serial, last_serial)
    return ResourceRecord.parsed(zone.name, str(SOA_TTL), "SOA", zone.authority.soa(next_serial(last_serial, now)))


def _sets(records: Iterable[ResourceRecord]) -> Mapping[RRset, frozenset[ResourceRecord]]:
    sets: dict[RRset, set[ResourceRecord]] = defaultdict(set)
    for record in records:
        sets[record.owner, record.type].add(record)
    return {key: frozenset(records) for key, records in sets.items()}
