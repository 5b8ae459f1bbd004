"""A real Knot serves what it is told, all of it or nothing of it, and what was lost comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv4Address
from typing import Any

import dns.rdata
import dns.rdataclass
import dns.rdatatype
import pytest
import trio
from dns.rdtypes.ANY.TXT import TXT
from pydantic import TypeAdapter

from svc_webhost.folders import HostFolders
from svc_webhost.knot import (
    Authority,
    KnotAway,
    KnotError,
    KnotServer,
    KnotSettings,
    RecordData,
    ResourceRecord,
    Zone,
)
from svc_webhost.knot.control import conversation
from svc_webhost.knot.server import SERVICE
from tests.support.figures import report_figure
from tests.support.knot import knotc, real_knot
from tests.support.launchers import keeper_place
from tests.support.stack import free_port

pytestmark = [pytest.mark.system, pytest.mark.isolated]

AUTHORITY = Authority(("ns1.panel.test", "ns2.panel.test"), "dns.admin@panel.test")
DATA: TypeAdapter[RecordData] = TypeAdapter(RecordData)
LONG = 'v=DKIM1; k=rsa; p="' + "MIIB\\" * 200 + '"; ünïcode ✓'


def record(owner: str, ttl: int = 300, **data: Any) -> ResourceRecord:
    return ResourceRecord.of(owner, ttl, DATA.validate_python(data))


EVERY_TYPE: Mapping[str, dict[str, Any]] = {
    "a.example.test": {"type": "A", "address": "192.0.2.1"},
    "aaaa.example.test": {"type": "AAAA", "address": "2001:db8::1"},
    "cname.example.test": {"type": "CNAME", "target": "bücher.example.net"},
    "mx.example.test": {"type": "MX", "preference": 10, "exchange": "mail.example.net"},
    "txt.example.test": {"type": "TXT", "text": LONG},
    "_sip._tcp.example.test": {"type": "SRV", "priority": 1, "weight": 2, "port": 5060, "target": "sip.example.net"},
    "caa.example.test": {"type": "CAA", "tag": "issue", "value": "letsencrypt.org; accounturi=https://ca.test/1"},
    "sub.example.test": {"type": "NS", "target": "ns.example.net"},
    "ptr.example.test": {"type": "PTR", "target": "host.example.net"},
    "_443._tcp.example.test": {"type": "TLSA", "usage": 3, "selector": 1, "matching": 1, "certificate": "AB" * 32},
    "sshfp.example.test": {"type": "SSHFP", "algorithm": 4, "fingerprint_type": 2, "fingerprint": "cd" * 32},
    "*.wild.example.test": {"type": "A", "address": "192.0.2.7"},
    "example.test": {"type": "TXT", "text": ""},
}


def zone(*records: ResourceRecord, name: str = "example.test") -> Zone:
    return Zone(name, AUTHORITY, frozenset(records))


async def test_every_type_is_answered_as_it_was_stored() -> None:
    records = [record(owner, **data) for owner, data in EVERY_TYPE.items()]
    signed = record("sub.example.test", type="DS", key_tag=7, algorithm=13, digest_type=2, digest="ef" * 32)
    async with real_knot() as knot:
        await knot.server.agree(zone(*records, signed))

        answers = {each: await knot.answers(each.owner, each.type) for each in [*records, signed] if each.type != "NS"}
        soa = await knot.answers("example.test", "SOA")
        nameservers = await knot.answers("example.test", "NS", at="::1")
        read = await knot.server.read("example.test")

    assert {each: {each.data} for each in answers} == answers
    assert b"".join(strings(answers, "txt.example.test")).decode() == LONG
    assert next(iter(soa)).startswith("ns1.panel.test. dns\\.admin.panel.test. ")
    assert nameservers == {"ns1.panel.test.", "ns2.panel.test."}
    assert read is not None
    assert read.records == zone(*records, signed).served


async def test_kdig_reads_a_long_text_in_one_piece() -> None:
    async with real_knot() as knot:
        await knot.server.agree(zone(record("txt.example.test", type="TXT", text="x" * 700)))

        said = await trio.run_process(
            ["kdig", "@127.0.0.1", "-p", str(knot.server.settings.port), "+short", "txt.example.test", "TXT"],
            capture_stdout=True,
        )

    assert said.stdout.decode().replace('" "', "").strip() == f'"{"x" * 700}"'


async def test_a_change_is_seen_whole_or_not_at_all_and_raises_the_serial() -> None:
    before = zone(*(record(f"n{number}.example.test", type="A", address="192.0.2.1") for number in range(40)))
    after = zone(*(record(f"n{number}.example.test", type="A", address="192.0.2.2") for number in range(40)))
    wrong = Zone(
        "example.test", AUTHORITY, after.records | {ResourceRecord("n1.example.test", "CNAME", 300, "x.test.")}
    )
    async with real_knot() as knot:
        first = await knot.server.agree(before)
        with pytest.raises(KnotError):
            await knot.server.agree(wrong)
        refused = await knot.server.read("example.test")
        second = await knot.server.agree(after)
        again = await knot.server.agree(after)
        changed = await knot.server.read("example.test")

    assert refused is not None
    assert refused.records == before.served
    assert refused.serial == first.serial
    assert changed is not None
    assert changed.records == after.served
    assert second.serial > first.serial
    assert (again.serial, again.changed) == (second.serial, False)


async def test_a_zone_that_was_purged_or_edited_by_hand_comes_back_with_a_higher_serial() -> None:
    wanted = zone(record("www.example.test", type="A", address="192.0.2.1"))
    async with real_knot() as knot:
        first = await knot.server.agree(wanted)
        knotc(knot, "-f", "zone-purge", "example.test")
        purged = await knot.answers("www.example.test", "A")

        second = await knot.server.agree(wanted, first.serial)
        back = await knot.answers("www.example.test", "A")
        knotc(knot, "zone-begin", "example.test")
        knotc(knot, "zone-unset", "example.test", "www", "A")
        knotc(knot, "zone-commit", "example.test")
        third = await knot.server.agree(wanted, second.serial)
        again = await knot.answers("www.example.test", "A")

    assert purged == set()
    assert back == again == {"192.0.2.1"}
    assert first.serial < second.serial < third.serial


async def test_a_transaction_that_nobody_ended_is_given_up() -> None:
    wanted = zone(record("www.example.test", type="A", address="192.0.2.1"))
    async with real_knot() as knot:
        await knot.server.agree(zone())
        async with conversation(knot.server.folders.socket) as left_open:
            await left_open.ask("zone-begin", zone="example.test.")
            await left_open.ask(
                "zone-set", zone="example.test.", owner="x.example.test.", ttl="60", type="A", data="192.0.2.9"
            )

        await knot.server.agree(wanted)
        found = await knot.answers("x.example.test", "A") | await knot.answers("www.example.test", "A")

    assert found == {"192.0.2.1"}


async def test_knot_killed_in_the_middle_of_a_change_serves_the_old_zone_and_takes_the_new_one() -> None:
    before = zone(record("www.example.test", type="A", address="192.0.2.1"))
    after = zone(record("www.example.test", type="A", address="192.0.2.2"))
    async with real_knot() as knot:
        first = await knot.server.agree(before)
        async with conversation(knot.server.folders.socket) as change:
            await change.ask("zone-begin", zone="example.test.")
            await change.ask("zone-unset", zone="example.test.", owner="www.example.test.", type="A")
            await knot.kill()
            with pytest.raises(KnotAway):
                await change.ask("zone-commit", zone="example.test.")
        with pytest.raises(KnotAway):
            await knot.server.agree(after)

        await knot.start()
        old = await knot.answers("www.example.test", "A")
        second = await knot.server.agree(after)
        new = await knot.answers("www.example.test", "A")

    assert old == {"192.0.2.1"}
    assert new == {"192.0.2.2"}
    assert second.serial > first.serial


async def test_of_a_removed_zone_nothing_is_left_and_others_stay() -> None:
    async with real_knot() as knot:
        await knot.server.agree(zone(record("www.example.test", type="A", address="192.0.2.1")))
        await knot.server.agree(zone(name="other.test"))

        await knot.server.remove(["example.test"])
        await knot.server.remove(["example.test"])
        serials = await knot.server.serials()
        await knot.server.add(["example.test"])
        empty = await knot.server.read("example.test")

    assert set(serials) == {"other.test"}
    assert empty is not None
    assert empty.soa is None


async def test_many_zones_are_made_at_once_and_survive_a_restart() -> None:
    names = [f"zone{number}.test" for number in range(200)]
    async with real_knot() as knot:
        await knot.server.add(names)
        first = await knot.server.agree(zone(name=names[7]))
        await knot.kill()

        await knot.start()
        serials = await knot.server.serials()

    assert set(serials) == set(names)
    assert serials[names[7]] == first.serial
    assert serials[names[8]] is None


async def test_an_order_is_answered_in_good_time() -> None:
    seconds: list[float] = []
    async with real_knot() as knot:
        await knot.server.agree(zone())
        for number in range(20):
            wanted = zone(record("www.example.test", type="A", address=f"192.0.2.{number + 1}"))
            began = trio.current_time()
            await knot.server.agree(wanted)
            answer = await knot.answers("www.example.test", "A")
            seconds.append(trio.current_time() - began)
            assert answer == {f"192.0.2.{number + 1}"}

    seconds.sort()
    report_figure(
        f"a record is answered after {seconds[10] * 1000:.1f} ms (median), {seconds[-1] * 1000:.1f} ms (worst of 20)"
    )
    assert seconds[10] < 0.2


def strings(answers: Mapping[ResourceRecord, set[str]], owner: str) -> tuple[bytes, ...]:
    (text,) = next(found for asked, found in answers.items() if asked.owner == owner)
    rdata = dns.rdata.from_text(dns.rdataclass.IN, dns.rdatatype.TXT, text)
    assert isinstance(rdata, TXT)
    return rdata.strings


async def test_a_keeper_keeps_it_running() -> None:
    listen = (IPv4Address("127.0.0.1"),)
    async with keeper_place() as place:
        server = KnotServer(HostFolders(place.folder).knot, KnotSettings(listen, free_port()), place.launcher)
        await server.ensure()
        first = await server.agree(zone(record("www.example.test", type="A", address="192.0.2.1")))
        status = await place.launcher.status(SERVICE)
        assert status.pid is not None
        os.kill(status.pid, signal.SIGKILL)

        with trio.fail_after(60):
            while await serial(server) != first.serial:
                await trio.sleep(0.05)
        again = await place.launcher.status(SERVICE)

    assert again.pid != status.pid
    assert again.restarts == 1


async def serial(server: KnotServer) -> int | None:
    """None while it does not answer."""
    with suppress(KnotAway):
        return (await server.serials()).get("example.test")
    return None
