"""Computes imported zones as they will be on this server. Pure functions, which the plan, the import and its
verification share.

A zone answers every question as on the old host, except that the names of imported sites lead to this server. Services
of these names that are not imported stay where they were:

- A name that is an alias (CNAME) of a site's name, and is not a name of the site itself (`mail`, `ftp` in zones of
  cPanel), gets the records that the site had. As an alias it would lead to this server.
- MX, SRV and NS records that led to the name of a site now lead to a name with the addresses that the site had.
- MX, SRV and NS records that led to another alias, which RFC 2181 (section 10.3) forbids, now lead to the name behind
  the alias.

Rejected: to import the records of a name together or not at all. One bad record would take the address and the mail of
the domain with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from itertools import chain, count, islice
from typing import Final

from pydantic import ValidationError

from svc_actors.panel.dns.records import DATA, NewRecord
from svc_actors.panel.dns.rules import MOST_RECORDS, check_name, delegation_above, target_of
from svc_common.errors import ServiceError
from svc_webhost.archives.model import FoundZone
from svc_webhost.knot import RecordData, RecordType
from svc_webhost.knot.data import AaaaData, AData, CnameData, MxData, TxtData
from svc_webhost.knot.names import is_within, to_ascii

ADDRESSES: Final = (RecordType.A, RecordType.AAAA)
_LEADING: Final = (*ADDRESSES, RecordType.CNAME)
_LONGEST_CHAIN: Final = 8
"""The most aliases in a row that are followed."""
_MOST_ADDRESSES: Final = 32
"""The most addresses of one name: each record that leads to the name may need a copy of them."""
_MOST_TERMS: Final = 100
"""The most terms of an SPF record."""
_NAMED: Final = 10


@dataclass(frozen=True)
class ZoneHere:
    """`changed`: what differs from the old host, in words. `left`: records that are not taken, and why."""

    records: list[NewRecord] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)


class Answers:
    """What a name server answers from these records."""

    def __init__(self, records: Iterable[NewRecord]) -> None:
        self._records: dict[str, list[NewRecord]] = defaultdict(list)
        self._names: set[str] = set()
        for record in records:
            self.add(record)

    def add(self, record: NewRecord) -> None:
        self._records[record.name].append(record)
        name = record.name
        while name and name not in self._names:
            self._names.add(name)
            name = name.partition(".")[2]

    def has(self, name: str) -> bool:
        """Whether the name has records of its own."""
        return name in self._records

    def at(self, name: str) -> Sequence[NewRecord]:
        """The name's own records, or else those of the wildcard that answers for it (RFC 4592)."""
        if name in self._names:
            return self._records.get(name, ())
        above = name
        while above := above.partition(".")[2]:
            if above in self._names:
                return self._records.get(f"*.{above}", ())
        return ()

    def end(self, name: str) -> str:
        """The name that this one is an alias of, at the end of all of its aliases; itself if it is none."""
        for _ in range(_LONGEST_CHAIN):
            alias = next((each.data for each in self._records.get(name, ()) if isinstance(each.data, CnameData)), None)
            if alias is None:
                break
            name = alias.target
        return name

    def behind(self, name: str) -> Sequence[NewRecord]:
        """What a resolver finds for the name: its records, or those that its aliases lead to."""
        for _ in range(_LONGEST_CHAIN):
            there = self.at(name)
            alias = next((each.data for each in there if isinstance(each.data, CnameData)), None)
            if alias is None:
                return there
            name = alias.target
        return ()

    def addresses(self, name: str) -> list[NewRecord]:
        """The A and AAAA records of the name, or of the name behind its aliases."""
        return list(islice((each for each in self.behind(name) if each.type in ADDRESSES), _MOST_ADDRESSES))


class ImportedZones:
    """`names`: those of the imported sites. `addresses`: those of this server."""

    def __init__(
        self,
        zones: Sequence[FoundZone],
        names: Collection[str],
        addresses: Sequence[IPv4Address | IPv6Address],
    ) -> None:
        self._names = frozenset(names)
        self._addresses = [_address(each) for each in addresses]
        self._zones: dict[str, ZoneHere] = {}
        for zone in zones:
            self._zones.setdefault(zone.name, _valid(zone))
        # Sites of an account lead to each other across its zones.
        self._before = Answers(chain.from_iterable(zone.records for zone in self._zones.values()))
        self._names_of: dict[str, dict[str, None]] = defaultdict(dict)
        for name in sorted(self._names):
            above = name
            while above:
                if above in self._zones:
                    self._names_of[above][name] = None
                above = above.partition(".")[2]

    def here(self, zone: str) -> ZoneHere:
        valid = self._zones[zone]
        # If this server's own addresses are not known, names cannot be made to lead to it.
        records = valid.records
        changed: list[str] = []
        left = list(valid.left)
        if self._addresses:
            records = self._retargeted(zone, self._moved(zone, records, changed, left), changed, left)
            changed += self._unauthorised(zone, records)
        return ZoneHere(_possible(zone, records, left), list(dict.fromkeys(changed)), list(dict.fromkeys(left)))

    def _moved(
        self, zone: str, records: Sequence[NewRecord], changed: list[str], left: list[tuple[str, str]]
    ) -> list[NewRecord]:
        """The records, changed so that names of sites lead to this server and all other names lead to where they led
        before."""
        moved: list[NewRecord] = []
        staying: dict[str, list[str]] = defaultdict(list)
        for record in records:
            target = record.data.target if isinstance(record.data, CnameData) else None
            if record.name in self._names and record.type in _LEADING:
                # `www` stays an alias of a name that leads here too.
                if target in self._names_of[zone] and record.name != zone:
                    moved.append(record)
                continue
            if target is None or target not in self._names:
                moved.append(record)
            elif not self._before.addresses(target):
                changed.append(f"{record.name} is an alias of {target}, which leads to this server")
                moved.append(record)
            elif len(moved) + len(stays := self._before.behind(target)) > MOST_RECORDS:
                left.append((f"{record.name} CNAME", f"a zone has at most {MOST_RECORDS} records"))
            else:
                moved += [replace(each, name=record.name) for each in stays if each.type is not RecordType.NS]
                staying[target].append(record.name)
        before, aliases = Answers(records), {record.name for record in moved if record.type is RecordType.CNAME}
        for name in self._names_of[zone]:
            there = before.at(name)
            leading = [each for each in there if each.type in _LEADING]
            if name in aliases or not leading:
                continue
            if not before.has(name) and len(moved) + len(there) > MOST_RECORDS:
                left.append((name, f"a zone has at most {MOST_RECORDS} records"))
                continue
            moved += [NewRecord(name, leading[0].ttl, data) for data in self._addresses]
            if not before.has(name):
                # The name now has records of its own, so the wildcard no longer answers for it: its other records are
                # copied.
                moved += [replace(each, name=name) for each in there if each.type not in _LEADING]
            changed.append(f"{name} leads to this server")
        for target, names in staying.items():
            changed.append(f"{_listed(names)}: the records that {target} had, instead of an alias of it")
        return moved

    def _retargeted(
        self, zone: str, records: Sequence[NewRecord], changed: list[str], left: list[tuple[str, str]]
    ) -> list[NewRecord]:
        """The records, with MX, SRV and NS records that lead to the same servers as before, and to no alias."""
        answers = Answers(records)
        made: list[NewRecord] = []
        # The new names that have old addresses of sites, by these addresses.
        mail, names = f"mail.{zone}", dict[frozenset[RecordData], str]()
        if mail not in self._names:
            names[frozenset(each.data for each in answers.at(mail) if each.type in ADDRESSES)] = mail
        numbered = (f"mail-before-{number}.{zone}" for number in count(2))
        free = (
            name for name in chain([f"mail-before.{zone}"], numbered) if not (name in self._names or answers.has(name))
        )
        retargeted: list[NewRecord] = []
        for record in records:
            target = target_of(record)
            end = target if target is None else answers.end(target)
            if target is None or end is None or (end == target and end not in self._names):
                retargeted.append(record)
                continue
            what = "mail" if record.type is RecordType.MX else f"{record.name} {record.type}"
            if end in self._names:
                stays = self._before.addresses(target)
                if not stays or len(records) + len(made) > MOST_RECORDS:
                    changed.append(f"{what} goes to {target}, which leads to this server: give its address yourself")
                    retargeted.append(record)
                    continue
                wanted = frozenset(each.data for each in stays)
                if wanted not in names:
                    names[wanted] = next(free)
                    made += [replace(each, name=names[wanted]) for each in stays]
                end = names[wanted]
                changed.append(f"{what} goes to {end}, which has the address that {target} had")
            else:
                changed.append(f"{what} goes to {end}, of which {target} is an alias")
            key = "exchange" if record.type is RecordType.MX else "target"
            try:
                data = DATA.validate_python({**record.data.model_dump(), key: end})
                retargeted.append(replace(record, data=data))
            except ValidationError as error:
                left.append((f"{record.name} {record.type}", f"{target} is an alias of {end}: {_problem(error)}"))
        return retargeted + made

    def _unauthorised(self, zone: str, records: Sequence[NewRecord]) -> list[str]:
        """In words, the SPF records of sites that allow the old host's mail by nothing but the site's address."""
        answers, found = Answers(records), dict[str, str]()
        for record in records:
            terms = _spf_terms(record)
            if record.name in found or record.name not in self._names_of[zone]:
                continue
            if not {"a", f"a:{record.name}"}.intersection(terms):
                continue
            allowed: set[IPv4Address | IPv6Address] = set()
            if "mx" in terms:
                there = [each.data.exchange for each in answers.at(record.name) if isinstance(each.data, MxData)]
                allowed = {address for exchange in there for address in _of(answers.addresses(exchange))}
            networks = [network for term in terms if (network := _network(term)) is not None]
            missing = [
                f"ip{old.version}:{old}"
                for old in _of(self._before.addresses(record.name))
                if old not in allowed and not any(old in network for network in networks)
            ]
            found[record.name] = ""
            if missing:
                added = " ".join(missing)
                found[record.name] = f"SPF of {record.name}: add {added} if the old host goes on sending mail of it"
        return [text for text in found.values() if text]


def _valid(zone: FoundZone) -> ZoneHere:
    valid = ZoneHere(left=list(zone.left))
    for found in zone.records:
        try:
            record = NewRecord(to_ascii(found.name, wildcard=True), found.ttl, DATA.validate_python(found.data))
        except ValueError as error:
            valid.left.append((f"{found.name[:253]} {found.type}", _problem(error)))
            continue
        if is_within(record.name, zone.name):
            valid.records.append(record)
        else:
            valid.left.append((f"{record.name} {record.type}", "it is not in the zone"))
    return valid


def _possible(zone: str, records: Iterable[NewRecord], left: list[tuple[str, str]]) -> list[NewRecord]:
    """The records that can be in one zone. If an alias and other records of a name cannot be together, the alias stays:
    name servers that hold both (PowerDNS) answer with the alias."""
    known = dict.fromkeys(records)
    aliases: dict[str, NewRecord] = {}
    for record in known:
        if record.type is RecordType.CNAME and record.name != zone:
            aliases.setdefault(record.name, record)
    cuts = {record.name for record in known if record.type is RecordType.NS}
    possible: list[NewRecord] = []
    seen: set[tuple[str, RecordData]] = set()
    for record in known:
        shown = f"{record.name} {record.type}"
        try:
            check_name(zone, record)
        except ServiceError as error:
            left.append((shown, error.message))
            continue
        above = delegation_above(zone, cuts, record)
        if aliases.get(record.name, record) is not record:
            left.append((shown, f"{record.name} is an alias (CNAME), which cannot have other records"))
        elif above is not None:
            left.append((shown, f"{above} is delegated to other name servers, which answer for it"))
        elif (record.name, record.data) not in seen:
            seen.add((record.name, record.data))
            possible.append(record)
    return possible


def _address(address: IPv4Address | IPv6Address) -> RecordData:
    return DATA.validate_python({"type": "A" if address.version == 4 else "AAAA", "address": str(address)})


def _of(records: Iterable[NewRecord]) -> list[IPv4Address | IPv6Address]:
    return [each.data.address for each in records if isinstance(each.data, AData | AaaaData)]


def _spf_terms(record: NewRecord) -> list[str]:
    """What an SPF record allows (RFC 7208); nothing for any other record."""
    words = record.data.text.lower().split() if isinstance(record.data, TxtData) else []
    return [term.removeprefix("+") for term in words[1:_MOST_TERMS]] if words[:1] == ["v=spf1"] else []


def _network(term: str) -> IPv4Network | IPv6Network | None:
    kind, _, network = term.partition(":")
    try:
        return ip_network(network, strict=False) if kind in ("ip4", "ip6") else None
    except ValueError:
        return None


def _problem(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        return error.errors()[0]["msg"].removeprefix("Value error, ")
    return str(error)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
