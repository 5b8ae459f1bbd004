"""Zone files of other hosts are read as name servers read them: dnspython is the judge."""

from __future__ import annotations

import dns.zone
import pytest
from pydantic import TypeAdapter

from svc_webhost.archives import cpmove
from svc_webhost.archives.model import MOST_ITEMS, FoundZone, Survey
from svc_webhost.archives.zonefile import read_zone
from svc_webhost.knot import RecordData
from tests.support.zone_files import CPANEL, DKIM, FILES, OLD, ZONE, ZoneFile, plain

DATA: TypeAdapter[RecordData] = TypeAdapter(RecordData)
OWN = {(ZONE, "SOA"), (ZONE, "NS")}


def judged(file: ZoneFile) -> set[tuple[str, str, int, str]]:
    zone = dns.zone.from_text(file.text, ZONE, relativize=False, check_origin=False)
    found = set()
    for name, ttl, data in zone.iterate_rdatas():
        owner = name.to_text(omit_final_dot=True).lower()
        if (owner, data.rdtype.name) not in OWN:
            found.add((owner, data.rdtype.name, ttl, plain(data)))
    return found


def cpanel(text: str, **files: bytes) -> FoundZone:
    """As it comes with its account, which has the sites shop.example and blog.shop.example."""
    survey = Survey(
        {
            "cp/ada": b"DNS=shop.example",
            "userdata/main": b"main_domain: shop.example\nsub_domains:\n  - blog.shop.example\n",
            f"dnszones/{ZONE}.db": text.encode(),
        },
        {"homedir": (1, 1), "homedir/public_html": (1, 1)},
        set(files),
    )
    account = cpmove.read(survey)
    assert account is not None
    return account.zones[0]


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_every_record_is_read_as_a_name_server_reads_it(file: ZoneFile) -> None:
    zone = read_zone(ZONE, file.text)

    read = {(each.name, each.type, each.ttl, plain(DATA.validate_python(each.data).rdata())) for each in zone.records}
    assert read == judged(file)
    assert {name for name, _ in zone.left} <= {f"{name} {kind}" for name, kind in OWN}


def test_spf_and_dkim_come_whole() -> None:
    texts = {
        record.name: record.data["text"] for record in read_zone(ZONE, CPANEL.text).records if record.type == "TXT"
    }

    assert texts[f"default._domainkey.{ZONE}"] == DKIM
    assert texts[f"_dmarc.{ZONE}"] == "v=DMARC1;p=none"
    assert f"v=spf1 +a +mx +ip4:{OLD} ~all" in [
        record.data.get("text") for record in read_zone(ZONE, CPANEL.text).records
    ]


def test_what_the_old_host_writes_for_itself_is_named_once() -> None:
    names = [name for name, _ in read_zone(ZONE, CPANEL.text).left]

    assert sorted(names) == [f"{ZONE} NS", f"{ZONE} SOA"]


def test_services_of_cpanel_are_left_out_and_named_once() -> None:
    zone = cpanel(CPANEL.text)

    names = {record.name.removesuffix(f".{ZONE}") for record in zone.records}
    assert names >= {"mail", "webmail", "autoconfig", "autodiscover", "_autodiscover._tcp", "ftp", "*"}
    assert [name for name, reason in zone.left if "cPanel" in reason] == [
        f"_caldav._tcp, _caldavs._tcp, _cpanel-dcv-test-record, cpanel, cpcalendars, cpcontacts, webdisk, whm of {ZONE}"
    ]
    assert not names & {"cpanel", "whm", "cpanel.blog", "_caldav._tcp", "_cpanel-dcv-test-record"}


@pytest.mark.parametrize(
    "line",
    [
        "webdisk CNAME files.elsewhere.example.",
        "_caldavs._tcp SRV 0 1 443 calendar.elsewhere.example.",
        "_caldavs._tcp TXT v=1",
        "cpanel A 198.51.100.7\npanel CNAME cpanel",
        "cpanel A 198.51.100.7\n@ MX 10 cpanel",
        "mycpanel A 198.51.100.7",
    ],
)
def test_records_of_the_customers_own_stay_whatever_their_name(line: str) -> None:
    text = f"$TTL 1h\n@ A {OLD}\n{line}\n"

    assert cpanel(text).records == read_zone(ZONE, text).records


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("www A 192.0.2.1 192.0.2.2", f"www.{ZONE} A"),
        ("@ MX mail", f"{ZONE} MX"),
        ("@ TXT", f"{ZONE} TXT"),
        ("@ TXT caf\\233", f"{ZONE} TXT"),
        ("_s._tcp SRV 1 2 3", f"_s._tcp.{ZONE} SRV"),
        ("@ SPF v=spf1", f"{ZONE} SPF"),
        ("$GENERATE 1-9 a$ A 192.0.2.$", "$GENERATE"),
    ],
)
def test_what_cannot_be_read_is_named_and_nothing_else_is_lost(line: str, left: str) -> None:
    zone = read_zone(ZONE, f"{line}\n{line}\nlast A 192.0.2.9\n")

    assert [name for name, _ in zone.left] == [left]
    assert [record.name for record in zone.records] == [f"last.{ZONE}"]


def test_records_without_a_ttl_have_the_last_one() -> None:
    zone = read_zone(ZONE, "a 600 A 192.0.2.1\nb A 192.0.2.2\n$ttl 2h\nc A 192.0.2.3\n")

    assert [record.ttl for record in zone.records] == [600, 600, 7200]


def test_a_zone_that_is_too_large_says_so() -> None:
    zone = read_zone(ZONE, "".join(f"a{number} A 192.0.2.1\n" for number in range(MOST_ITEMS + 2)))

    assert len(zone.records) == MOST_ITEMS
    assert [name for name, _ in zone.left] == [ZONE]
