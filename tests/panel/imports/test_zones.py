"""An imported zone answers every question as the old one did, but for what the plan names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from uuid import uuid4

import dns.rdata
import dns.zone
import pytest

from svc_actors.panel.dns.records import NewRecord, RecordRow
from svc_actors.panel.dns.restoring import change_of
from svc_actors.panel.dns.rules import MOST_RECORDS
from svc_actors.panel.imports.zones import ImportedZones, ZoneHere
from svc_webhost.archives.model import FoundZone
from svc_webhost.archives.zonefile import read_zone
from tests.support.zone_files import CPANEL_11, FILES, OLD, ZONE, ZoneFile, plain

SERVER = ip_address("203.0.113.80")
SERVER_6 = ip_address("2001:db8:80::1")
HEAD = f"$TTL 1h\n@ A {OLD}\n"


class NameServer:
    """Answers from records as a name server and a resolver do together: wildcards, and aliases of this zone."""

    def __init__(self, records: Iterable[tuple[str, dns.rdata.Rdata]]) -> None:
        self.sets: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.names = {ZONE}
        for owner, data in records:
            self.sets[owner, data.rdtype.name].add(plain(data))
            while owner != ZONE:
                self.names.add(owner)
                owner = owner.partition(".")[2]

    @classmethod
    def of_file(cls, text: str) -> NameServer:
        zone = dns.zone.from_text(text, ZONE, relativize=False, check_origin=False)
        records = ((name.to_text(omit_final_dot=True).lower(), data) for name, _, data in zone.iterate_rdatas())
        return cls((name, data) for name, data in records if (name, data.rdtype.name) not in OWN)

    @classmethod
    def of(cls, zone: ZoneHere) -> NameServer:
        return cls((record.name, record.data.rdata()) for record in zone.records)

    def owner(self, name: str) -> str:
        while name not in self.names:
            above = name.partition(".")[2]
            if above in self.names:
                return f"*.{above}"
            name = above
        return name

    def answer(self, name: str, kind: str) -> frozenset[str]:
        while (aliases := self.sets.get((self.owner(name), "CNAME"))) and kind != "CNAME":
            (alias,) = aliases
            name = alias.removesuffix(".")
            if not name.endswith(ZONE):
                return frozenset({name})
        return frozenset(self.sets.get((self.owner(name), kind), ()))

    def reached(self, name: str, kind: str) -> frozenset[tuple[str, frozenset[str]]]:
        """What records lead to: their numbers, with the addresses of their hosts."""
        found = set()
        for text in self.answer(name, kind):
            numbers, _, host = text.rpartition(" ")
            host = host.removesuffix(".")
            inside = host == ZONE or host.endswith(f".{ZONE}")
            addresses = self.answer(host, "A") | self.answer(host, "AAAA") if inside else frozenset({host})
            found.add((numbers, addresses))
        return frozenset(found)


OWN = {(ZONE, "SOA"), (ZONE, "NS")}


def here(
    *texts: str,
    names: Iterable[str] = (ZONE, f"www.{ZONE}"),
    addresses: Iterable[IPv4Address | IPv6Address] = (SERVER,),
) -> ZoneHere:
    """The first of these zones, the others being other domains of the account."""
    zones = [read_zone(ZONE if number == 0 else f"other{number}.example", text) for number, text in enumerate(texts)]
    return ImportedZones(zones, frozenset(names), list(addresses)).here(ZONE)


def row(record: NewRecord) -> RecordRow:
    return RecordRow(
        record.name, record.ttl, record.data, id=uuid4(), zone=ZONE, managed=False, created_at=datetime.now(UTC)
    )


def lines(zone: ZoneHere) -> list[str]:
    return [f"{each.name} {each.type} {each.data.rdata().to_text()}" for each in zone.records]


@pytest.mark.parametrize("addresses", [[SERVER], [SERVER, SERVER_6]], ids=["IPv4", "both"])
@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_every_question_is_answered_as_before_but_for_what_the_plan_names(
    file: ZoneFile, addresses: list[IPv4Address | IPv6Address]
) -> None:
    zone = here(file.text, names=file.names, addresses=addresses)

    old, new = NameServer.of_file(file.text), NameServer.of(zone)
    asked = {*old.names, *new.names, *file.names, f"nothing.{ZONE}", f"a.b.{ZONE}"}
    kinds = {kind for _, kind in old.sets} | {"A", "AAAA", "MX", "TXT"}
    named = " ".join(zone.changed)
    for name in sorted(asked):
        for kind in sorted(kinds):
            before, now = old.answer(name, kind), new.answer(name, kind)
            if name in file.names and kind in ("A", "AAAA"):
                assert now == {str(each) for each in addresses if (each.version == 4) == (kind == "A")}, (name, kind)
            elif kind in ("MX", "SRV", "NS"):
                assert new.reached(name, kind) == old.reached(name, kind), (name, kind)
            elif before != now:
                assert (kind, old.owner(name) in named) == ("CNAME", True), (name, before, now)
    assert not [name for name, _ in zone.left if name not in {f"{name} {kind}" for name, kind in OWN}]


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_no_record_of_an_imported_zone_is_refused(file: ZoneFile) -> None:
    zone = here(file.text, names=file.names, addresses=[SERVER, SERVER_6])

    by_name: dict[str, list[NewRecord]] = defaultdict(list)
    for record in zone.records:
        by_name[record.name].append(record)
    change = change_of(ZONE, ["ns1.panel.test"], [], by_name)

    assert change.refused == {}
    assert len(change.added) == len(zone.records)


def test_mail_of_a_domain_goes_to_the_old_host_and_the_domain_comes_here() -> None:
    zone = here(CPANEL_11.text)

    assert set(lines(zone)) >= {
        f"{ZONE} A {SERVER}",
        f"{ZONE} MX 0 mail.{ZONE}.",
        f"mail.{ZONE} A {OLD}",
        f"www.{ZONE} CNAME {ZONE}.",
    }
    assert zone.changed == [
        f"{ZONE} leads to this server",
        f"mail.{ZONE}: the records that {ZONE} had, instead of an alias of it",
        f"mail goes to mail.{ZONE}, which has the address that {ZONE} had",
    ]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("@ MX 0 @\n", "mail-before"),
        ("@ MX 0 @\nmail A 192.0.2.25\n", "mail-before"),
        ("@ MX 0 @\nmail A 192.0.2.25\nmail-before A 192.0.2.26\n", "mail-before-2"),
        ("@ MX 0 @\nmail CNAME mail.elsewhere.example.\n", "mail-before"),
        (f"@ MX 0 @\n* A {OLD}\n", "mail"),
        ("@ MX 0 www\nwww CNAME @\n", "mail-before"),
    ],
)
def test_a_name_for_the_old_host_has_exactly_its_addresses(text: str, target: str) -> None:
    zone = here(HEAD + text)

    server = NameServer.of(zone)
    assert server.answer(ZONE, "MX") == {f"0 {target}.{ZONE}."}
    assert server.answer(f"{target}.{ZONE}", "A") == {OLD}


@pytest.mark.parametrize(
    ("text", "served"),
    [
        ("@ MX 0 mail\nmail CNAME mx.elsewhere.example.\n", f"{ZONE} MX 0 mx.elsewhere.example."),
        ("_imaps._tcp SRV 0 1 993 @\n", f"_imaps._tcp.{ZONE} SRV 0 1 993 mail-before.{ZONE}."),
        ("eu NS @\n", f"eu.{ZONE} NS mail-before.{ZONE}."),
        ("@ MX 0 .\n", f"{ZONE} MX 0 ."),
    ],
)
def test_whatever_leads_to_a_host_leads_to_no_alias_and_not_here(text: str, served: str) -> None:
    assert served in lines(here(HEAD + text))


def test_sites_of_one_account_lead_to_each_other() -> None:
    other = "$TTL 1h\n@ A 198.51.100.99\n"
    zone = here(f"{HEAD}@ MX 0 other1.example.\nftp CNAME other1.example.\n", other, names=[ZONE, "other1.example"])

    assert set(lines(zone)) >= {
        f"{ZONE} MX 0 mail-before.{ZONE}.",
        f"mail-before.{ZONE} A 198.51.100.99",
        f"ftp.{ZONE} A 198.51.100.99",
    }


def test_mail_that_would_come_here_is_named() -> None:
    zone = here(f"{HEAD}@ MX 0 other.example.\n", names=[ZONE, "other.example"])

    assert any(change.startswith("mail goes to other.example, which leads to this server") for change in zone.changed)


@pytest.mark.parametrize(
    ("spf", "missing"),
    [
        ("v=spf1 a -all", f"ip4:{OLD}"),
        (f"v=spf1 +a:{ZONE} ?all", f"ip4:{OLD}"),
        ("v=spf1 a mx -all", None),
        ("v=spf1 a ip4:198.51.100.0/24 -all", None),
        ("v=spf1 include:spf.elsewhere.example -all", None),
        ("v=spf2 a", None),
        ("", None),
    ],
)
def test_the_plan_says_what_an_spf_record_lacks_for_the_old_host(spf: str, missing: str | None) -> None:
    zone = here(f'{HEAD}@ MX 0 @\n@ TXT "{spf}"\n')

    assert [change for change in zone.changed if change.startswith("SPF")] == (
        [] if missing is None else [f"SPF of {ZONE}: add {missing} if the old host goes on sending mail of it"]
    )


def test_a_site_that_a_wildcard_answered_for_keeps_the_rest_of_its_answers() -> None:
    zone = here(f"{HEAD}* A {OLD}\n* MX 10 mx.elsewhere.example.\n", names=[f"blog.{ZONE}"])

    assert set(lines(zone)) >= {f"blog.{ZONE} A {SERVER}", f"blog.{ZONE} MX 10 mx.elsewhere.example."}
    assert f"{ZONE} A {OLD}" in lines(zone)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("www TXT x\nwww CNAME cdn.elsewhere.example.\n", f"www.{ZONE} TXT"),
        ("eu NS ns.elsewhere.example.\nx.eu TXT x\n", f"x.eu.{ZONE} TXT"),
        ("a A 192.0.2.300\n", f"a.{ZONE} A"),
        ('k TXT "' + '" "'.join(["a" * 250] * 20) + '"\n', f"k.{ZONE} TXT"),
        ("sip SRV 0 0 1 a.elsewhere.example.\n", f"sip.{ZONE} SRV"),
    ],
)
def test_a_record_that_is_impossible_is_named_and_takes_no_other_with_it(text: str, left: str) -> None:
    zone = here(HEAD + text + "a A 192.0.2.1\n", names=[ZONE])

    assert [name for name, _ in zone.left] == [left]
    assert set(lines(zone)) >= {f"{ZONE} A {SERVER}", f"a.{ZONE} A 192.0.2.1"}


@pytest.mark.parametrize(
    "text",
    [
        # Each of these records would need as many copies as the zone has others.
        "".join(f"@ A 192.0.{number // 250}.{number % 250}\nalias{number} CNAME @\n" for number in range(900)),
        "".join(f'* TXT "{number}"\n' for number in range(900)) + f"* A {OLD}\n",
        "".join(f"@ A 192.0.{number // 250}.{number % 250}\n@ MX {number} site{number}\n" for number in range(900))
        + "* CNAME @\n",
    ],
    ids=["aliases", "wildcard", "mail"],
)
def test_a_zone_that_would_grow_without_end_does_not(text: str) -> None:
    zone = here(text, names=[ZONE, *(f"site{number}.{ZONE}" for number in range(900))])

    assert len(zone.records) < 3 * MOST_RECORDS


def test_records_are_restored_whatever_order_their_names_have() -> None:
    before = {"@": ["MX 0 mx.elsewhere.example."], "mail": ["CNAME x.elsewhere.example."]}
    after = {"@": [f"MX 0 mail.{ZONE}."], "mail": ["A 192.0.2.1"]}

    def records(told: Mapping[str, list[str]]) -> list[NewRecord]:
        text = "".join(f"{name} {line}\n" for name, each in told.items() for line in each)
        return ImportedZones([read_zone(ZONE, text)], (), ()).here(ZONE).records

    wanted: dict[str, list[NewRecord]] = defaultdict(list)
    for record in records(after):
        wanted[record.name].append(record)
    change = change_of(ZONE, (), [row(record) for record in records(before)], wanted)

    assert change.refused == {}
    assert len(change.added) == len(change.removed) == 2


def test_a_zone_of_another_name_than_its_records_has_none_of_them() -> None:
    zones = [FoundZone("bücher.example", read_zone(ZONE, HEAD).records)]

    assert ImportedZones(zones, (), [SERVER]).here("bücher.example").records == []
