"""Records of sites over the API: what is taken, what is refused, who sees what, and that the name server follows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
import trio

from svc_actors.errors import ServiceError
from svc_actors.host.knot import KnotAway, KnotError
from svc_actors.panel.dns.settings import DnsSettings
from svc_actors.panel.dns.watch import ZoneWatch
from svc_actors.panel.dns.zone import DnsZone
from svc_actors.store import Database, service_itself
from tests.support.dns import RecordedDelegations, RecordedNameServer
from tests.support.identity import Client
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.panel_sites import site_row

SETTINGS = DnsSettings(
    nameservers=("ns1.panel.test", "ns2.panel.test"),
    hostmaster="dns@panel.test",
    addresses=(ip_address("203.0.113.5"), ip_address("2001:db8::5")),
)
AWAY = KnotAway("Knot does not answer")


@dataclass
class World:
    """`ada`, who has the site example.test, and what her panel drives."""

    panel: PanelHarness
    ada_id: UUID
    ada: Client
    site: UUID
    knot: RecordedNameServer
    parents: RecordedDelegations

    async def add(self, name: str, **data: Any) -> httpx.Response:
        return await self.ada.post(f"/sites/{self.site}/dns/records", {"name": name, "data": data})

    async def added(self, name: str, **data: Any) -> str:
        answer = await self.add(name, **data)
        assert answer.status_code == 201, answer.text
        record_id: str = answer.json()["record"]["id"]
        return record_id

    async def compare(self) -> None:
        """A round of the watch, now."""
        await ZoneWatch(self.panel.database, self.panel.services.actors, self.knot).round()


@asynccontextmanager
async def dns_world(database: Database, folder: Path, knot: RecordedNameServer | None = None) -> AsyncIterator[World]:
    host = recorded_host(knot)
    assert isinstance(host.name_server, RecordedNameServer)
    assert isinstance(host.delegations, RecordedDelegations)
    async with open_panel(database, folder, host, dns=SETTINGS) as panel:
        ada = await panel.database.fetchval("SELECT id FROM users WHERE email = 'ada@example.com'")
        site = await panel.database.fetchval("SELECT id FROM sites WHERE domain = 'example.test'")
        if ada is None:
            ada = await panel.person("ada@example.com")
            site = await site_row(panel.database, ada, "example.test")
        yield World(panel, ada, panel.program(await panel.token(ada)), site, host.name_server, host.delegations)


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with dns_world(panel_database, tmp_path) as world:
        yield world


GOOD: list[tuple[str, dict[str, Any], str, str]] = [
    ("@", {"type": "A", "address": "192.0.2.1"}, "example.test", "192.0.2.1"),
    ("www", {"type": "AAAA", "address": "2001:DB8::1"}, "www.example.test", "2001:db8::1"),
    ("blog.example.test", {"type": "CNAME", "target": "Host.Example.NET."}, "blog.example.test", "host.example.net."),
    (
        "bücher",
        {"type": "CNAME", "target": "s1._dkim.x.net"},
        "xn--bcher-kva.example.test",
        "s1._dkim.x.net.",
    ),
    ("@", {"type": "MX", "preference": 10, "exchange": "mail.x.net"}, "example.test", "10 mail.x.net."),
    ("no-mail", {"type": "MX", "preference": 0, "exchange": "."}, "no-mail.example.test", "0 ."),
    ("@", {"type": "TXT", "text": 'v=spf1 "x"; \\ ü'}, "example.test", '"v=spf1 \\"x\\"; \\\\ \\195\\188"'),
    (
        "_sip._tcp",
        {"type": "SRV", "priority": 1, "weight": 2, "port": 5060, "target": "sip.x.net"},
        "_sip._tcp.example.test",
        "1 2 5060 sip.x.net.",
    ),
    ("@", {"type": "CAA", "tag": "issue", "value": ";"}, "example.test", '0 issue ";"'),
    ("sub", {"type": "NS", "target": "ns.x.net"}, "sub.example.test", "ns.x.net."),
    ("7.2.0", {"type": "PTR", "target": "host.x.net"}, "7.2.0.example.test", "host.x.net."),
    (
        "_443._tcp.www",
        {"type": "TLSA", "usage": 3, "selector": 1, "matching": 1, "certificate": "AB" * 32},
        "_443._tcp.www.example.test",
        "3 1 1 " + "ab" * 32,
    ),
    (
        "host",
        {"type": "SSHFP", "algorithm": 4, "fingerprint_type": 2, "fingerprint": "CD" * 32},
        "host.example.test",
        "4 2 " + "cd" * 32,
    ),
    ("*", {"type": "A", "address": "192.0.2.9"}, "*.example.test", "192.0.2.9"),
]


async def test_every_type_is_stored_as_said_and_served(world: World) -> None:
    created = [await world.add(name, **data) for name, data, _, _ in GOOD]
    listed = (await world.ada.get(f"/sites/{world.site}/dns")).json()

    for answer, (_, data, full, served) in zip(created, GOOD, strict=True):
        assert answer.status_code == 201, answer.text
        assert answer.json()["zone"]["served"] is True
        assert answer.json()["record"]["name"] == full
        assert answer.json()["record"] in listed["records"]
        assert world.knot.answers(full, data["type"]) == {served}
    assert len(listed["records"]) == len(GOOD)
    assert listed["zone"]["nameservers"] == ["ns1.panel.test", "ns2.panel.test"]
    assert world.knot.answers("example.test", "NS") == {"ns1.panel.test.", "ns2.panel.test."}


async def test_a_text_of_any_length_stays_one_value(world: World) -> None:
    text = "v=DKIM1; p=" + "A" * 1500

    created = await world.add("k._domainkey", type="TXT", text=text)

    (served,) = world.knot.answers("k._domainkey.example.test", "TXT")
    assert created.json()["record"]["data"]["text"] == text
    assert max(len(part) for part in served.strip('"').split('" "')) == 255
    assert served.replace('" "', "") == f'"{text}"'


async def test_a_ds_record_vouches_for_a_delegation_and_goes_before_it(world: World) -> None:
    early = await world.add("sub", **DS)
    ns_id = await world.added("sub", type="NS", target="ns.x.net")
    ds_id = await world.added("sub", **DS)
    needed = await world.ada.delete(f"/sites/{world.site}/dns/records/{ns_id}")
    gone = await world.ada.delete(f"/sites/{world.site}/dns/records/{ds_id}")
    then = await world.ada.delete(f"/sites/{world.site}/dns/records/{ns_id}")

    assert early.status_code == 409
    assert needed.status_code == 409
    assert (gone.status_code, then.status_code) == (200, 200)
    assert world.knot.answers("sub.example.test", "NS") == set()


A: dict[str, Any] = {"type": "A", "address": "192.0.2.1"}
CNAME: dict[str, Any] = {"type": "CNAME", "target": "host.x.net"}
NS: dict[str, Any] = {"type": "NS", "target": "ns.x.net"}
DS: dict[str, Any] = {"type": "DS", "key_tag": 7, "algorithm": 13, "digest_type": 2, "digest": "ef" * 32}
TLSA: dict[str, Any] = {"type": "TLSA", "usage": 3, "selector": 1, "matching": 1, "certificate": "ab" * 32}
NO_MAIL: dict[str, Any] = {"type": "MX", "preference": 0, "exchange": "."}


TOGETHER: list[tuple[tuple[str, dict[str, Any]], str, dict[str, Any]]] = [
    (("www", A), "www", A),
    (("www", A), "WWW.example.test.", A),
    (("www", A), "www", CNAME),
    (("www", CNAME), "www", A),
    (("www", CNAME), "www", {"type": "CNAME", "target": "other.x.net"}),
    (("mail", CNAME), "@", {"type": "MX", "preference": 1, "exchange": "mail.example.test"}),
    (("@", {"type": "MX", "preference": 1, "exchange": "mail.example.test"}), "mail", CNAME),
    (("ns", CNAME), "sub", {"type": "NS", "target": "ns.example.test"}),
    (
        ("@", {"type": "MX", "preference": 0, "exchange": "."}),
        "@",
        {"type": "MX", "preference": 1, "exchange": "a.b"},
    ),
    (("sub", NS), "www.sub", {"type": "TXT", "text": "lost"}),
    (("sub", NS), "sub", {"type": "TXT", "text": "lost"}),
    (("www.sub", CNAME), "sub", NS),
]


async def test_what_cannot_be_beside_another_is_a_conflict(world: World) -> None:
    for number, ((first_name, first), name, data) in enumerate(TOGETHER):
        site = await site_row(world.panel.database, world.ada_id, f"case{number}.test")
        in_zone = json.loads(json.dumps([first_name, first, name, data]).replace("example.test", f"case{number}.test"))
        there = await world.ada.post(f"/sites/{site}/dns/records", {"name": in_zone[0], "data": in_zone[1]})

        refused = await world.ada.post(f"/sites/{site}/dns/records", {"name": in_zone[2], "data": in_zone[3]})

        assert there.status_code == 201, there.text
        assert refused.status_code == 409, (in_zone, refused.text)
        assert len((await world.ada.get(f"/sites/{site}/dns")).json()["records"]) == 1


async def test_glue_below_a_delegation_is_taken(world: World) -> None:
    await world.added("sub", type="NS", target="ns.sub.example.test")

    await world.added("ns.sub", type="A", address="192.0.2.1")

    assert world.knot.answers("ns.sub.example.test", "A") == {"192.0.2.1"}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": "www.other.test.", "data": A}, "name"),
    ({"name": "a..b", "data": A}, "name"),
    ({"name": "a b", "data": A}, "name"),
    ({"name": "-a", "data": A}, "name"),
    ({"name": "a\nb", "data": A}, "name"),
    ({"name": "$(id)", "data": A}, "name"),
    ({"name": "x" * 64, "data": A}, "name"),
    ({"name": "a.*", "data": A}, "name"),
    ({"name": "@", "data": CNAME}, "name"),
    ({"name": "@", "data": NS}, "name"),
    (
        {"name": "@", "data": {"type": "DS", "key_tag": 1, "algorithm": 13, "digest_type": 2, "digest": "ab" * 32}},
        "name",
    ),
    ({"name": "*.x", "data": NS}, "name"),
    ({"name": "sip", "data": {"type": "SRV", "priority": 0, "weight": 0, "port": 1, "target": "a.b"}}, "name"),
    (
        {"name": "x", "data": {"type": "TLSA", "usage": 3, "selector": 1, "matching": 1, "certificate": "ab" * 32}},
        "name",
    ),
    ({"name": "x", "ttl": 59, "data": A}, "ttl"),
    ({"name": "x", "ttl": 604801, "data": A}, "ttl"),
    ({"name": "x", "ttl": "300", "data": A}, "ttl"),
    ({"name": "x", "data": {"type": "A", "address": "2001:db8::1"}}, "data.address"),
    ({"name": "x", "data": {"type": "A"}}, "data.address"),
    ({"name": "x", "data": {"type": "MX", "preference": 1, "exchange": "mail"}}, "data.exchange"),
    ({"name": "x", "data": {"type": "CNAME", "target": "x.example.test"}}, "data.target"),
    ({"name": "x", "data": {"type": "HINFO", "cpu": "x"}}, "data"),
    ({"name": "x", "data": {**A, "more": 1}}, "data.more"),
    ({"name": "x", "data": "A 192.0.2.1"}, "data"),
    ({"name": "x"}, "data"),
    ({"name": "x", "data": A, "command": "x"}, "command"),
    ({"name": "x", "data": A, "zone": "other.test"}, "zone"),
]


async def test_bad_input_names_its_field_and_changes_nothing(world: World) -> None:
    for body, field in BAD:
        refused = await world.ada.post(f"/sites/{world.site}/dns/records", body)

        assert refused.status_code == 400, (body, refused.text)
        assert refused.json()["error"]["code"] == "invalid"
        assert refused.json()["error"]["message"].startswith(f"{field}: "), (body, refused.text)
    assert await world.panel.database.fetchval("SELECT count(*) FROM dns_zones") == 0


async def test_a_record_is_changed_in_place_and_every_change_is_audited_once(world: World) -> None:
    record_id = await world.added("www", **A)

    changed = await world.ada.patch(
        f"/sites/{world.site}/dns/records/{record_id}", {"ttl": 120, "data": {"type": "A", "address": "192.0.2.2"}}
    )
    removed = await world.ada.delete(f"/sites/{world.site}/dns/records/{record_id}")
    again = await world.ada.delete(f"/sites/{world.site}/dns/records/{record_id}")

    rows = [row for row in await world.panel.audit() if row["operation"].startswith("dns.")]
    assert changed.json()["record"]["id"] == record_id
    assert changed.json()["record"]["ttl"] == 120
    assert (removed.status_code, again.status_code) == (200, 404)
    assert [(row["operation"], row["outcome"]) for row in rows] == [
        ("dns.create", "ok"),
        ("dns.update", "ok"),
        ("dns.delete", "ok"),
        ("dns.delete", "denied"),
    ]
    assert rows[1]["details"] == {
        "from": "www.example.test 3600 A 192.0.2.1",
        "to": "www.example.test 120 A 192.0.2.2",
    }
    assert rows[0]["project_id"] == world.ada_id


async def test_all_records_of_a_name_and_type_have_the_ttl_that_was_said_last(world: World) -> None:
    await world.added("www", **A)

    await world.ada.post(
        f"/sites/{world.site}/dns/records", {"name": "www", "ttl": 90, "data": {"type": "A", "address": "192.0.2.2"}}
    )
    third = await world.add("www", type="A", address="192.0.2.3")

    listed = (await world.ada.get(f"/sites/{world.site}/dns")).json()["records"]
    assert third.json()["record"]["ttl"] == 90
    assert {record["ttl"] for record in listed} == {90}


async def test_nobody_elses_zone_is_seen_or_changed(world: World) -> None:
    record_id = await world.added("www", **A)
    bob_id = await world.panel.person("bob@example.com")
    his = await site_row(world.panel.database, bob_id, "bob.test")
    bob = world.panel.program(await world.panel.token(bob_id))

    answers = [
        await bob.get(f"/sites/{world.site}/dns"),
        await bob.post(f"/sites/{world.site}/dns/records", {"data": A}),
        await bob.post(f"/sites/{world.site}/dns/records", {"site_id": str(his), "data": A}),
        await bob.patch(f"/sites/{world.site}/dns/records/{record_id}", {"ttl": 60}),
        await bob.delete(f"/sites/{world.site}/dns/records/{record_id}"),
        await bob.post(f"/sites/{world.site}/dns/point"),
        await bob.patch(f"/sites/{his}/dns/records/{record_id}", {"ttl": 60}),
        await bob.delete(f"/sites/{his}/dns/records/{record_id}"),
    ]
    absent = await bob.delete(f"/sites/{his}/dns/records/{uuid4()}")
    into_hers = await bob.post(f"/sites/{his}/dns/records", {"zone": "example.test", "data": A})

    assert {answer.status_code for answer in [*answers, absent]} == {404}
    assert answers[-1].json() == absent.json()
    assert into_hers.status_code == 400
    assert world.knot.answers("www.example.test", "A") == {"192.0.2.1"}


async def test_who_gets_a_domain_after_somebody_else_gets_none_of_their_records(world: World) -> None:
    await world.added("secret", type="TXT", text="of ada")
    await world.panel.database.execute("DELETE FROM sites WHERE id = $1", world.site)
    bob_id = await world.panel.person("bob@example.com")
    his = await site_row(world.panel.database, bob_id, "example.test")
    bob = world.panel.program(await world.panel.token(bob_id))

    seen = (await bob.get(f"/sites/{his}/dns")).json()
    await bob.post(f"/sites/{his}/dns/records", {"name": "www", "data": A})

    assert seen["records"] == []
    assert world.knot.answers("secret.example.test", "TXT") == set()
    assert world.knot.answers("www.example.test", "A") == {"192.0.2.1"}


async def test_the_zone_of_a_site_that_is_handed_over_stays_and_is_its_new_owners(world: World) -> None:
    root = await world.panel.administrator()
    bob_id = await world.panel.person("bob@example.com")
    bob = world.panel.program(await world.panel.token(bob_id))
    await world.ada.post(f"/sites/{world.site}/dns/point")
    record_id = await world.added("kept", type="TXT", text="of the site")

    handed = await root.patch(f"/sites/{world.site}", {"owner_email": "bob@example.com"})
    await world.compare()
    seen = (await bob.get(f"/sites/{world.site}/dns")).json()
    changed = await bob.patch(f"/sites/{world.site}/dns/records/{record_id}", {"ttl": 120})
    added = await bob.post(f"/sites/{world.site}/dns/records", {"name": "more", "data": A})

    assert handed.status_code == 200, handed.text
    assert {(record["name"], record["data"]["type"]) for record in seen["records"]} == {
        ("example.test", "A"),
        ("example.test", "AAAA"),
        ("kept.example.test", "TXT"),
    }
    assert (changed.status_code, added.status_code) == (200, 201)
    assert world.knot.answers("kept.example.test", "TXT") == {'"of the site"'}
    assert (await world.ada.get(f"/sites/{world.site}/dns")).status_code == 404


async def test_a_read_scope_changes_nothing_and_a_site_scope_does(world: World) -> None:
    reader = world.panel.program(await world.panel.token(world.ada_id, ("read",)))
    keeper = world.panel.program(await world.panel.token(world.ada_id, ("sites",)))

    assert (await reader.get(f"/sites/{world.site}/dns")).status_code == 200
    assert (await reader.post(f"/sites/{world.site}/dns/records", {"data": A})).status_code == 403
    assert (await reader.post(f"/sites/{world.site}/dns/point")).status_code == 403
    assert (await keeper.post(f"/sites/{world.site}/dns/records", {"data": A})).status_code == 201


async def test_changes_at_the_same_time_all_hold_and_of_equal_ones_one(world: World) -> None:
    answers: list[int] = []

    async def add(number: int) -> None:
        answers.append((await world.add(f"n{number % 10}", **A)).status_code)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(add, number)

    listed = (await world.ada.get(f"/sites/{world.site}/dns")).json()
    assert sorted(answers) == [201] * 10 + [409] * 10
    assert len(listed["records"]) == 10
    assert listed["zone"]["served"] is True
    assert all(world.knot.answers(f"n{number}.example.test", "A") for number in range(10))


async def test_a_change_stands_while_knot_is_away_and_is_served_when_it_is_back(world: World) -> None:
    world.knot.failure = AWAY

    created = await world.add("www", **A)
    shown = (await world.ada.get(f"/sites/{world.site}/dns")).json()["zone"]
    world.knot.failure = None
    await world.compare()
    after = (await world.ada.get(f"/sites/{world.site}/dns")).json()["zone"]

    assert created.status_code == 201
    assert created.json()["zone"]["served"] is False
    assert shown["problem"] == str(AWAY)
    assert after["served"] is True
    assert after["problem"] is None
    assert world.knot.answers("www.example.test", "A") == {"192.0.2.1"}


async def test_what_knot_refuses_is_an_alert_until_it_is_taken(world: World) -> None:
    root = await world.panel.administrator()
    world.knot.refused["example.test"] = KnotError("semantic check failed")

    refused = await world.add("www", **A)
    alerts = (await root.get("/alerts")).json()["items"]
    world.knot.refused.clear()
    await world.compare()
    closed = (await root.get("/alerts")).json()["items"]

    assert refused.json()["zone"]["problem"] == "semantic check failed"
    assert ["semantic check failed" in alert["message"] for alert in alerts] == [True]
    assert closed == []


async def test_the_alert_of_a_zone_is_closed_by_the_one_that_is_made_anew_in_its_place(world: World) -> None:
    root = await world.panel.administrator()
    bob_id = await world.panel.person("bob@example.com")
    bob = world.panel.program(await world.panel.token(bob_id))
    world.knot.refused["example.test"] = KnotError("semantic check failed")
    await world.add("www", **A)
    before = (await root.get("/alerts")).json()["items"]
    await world.panel.database.execute("DELETE FROM sites WHERE id = $1", world.site)
    his = await site_row(world.panel.database, bob_id, "example.test")

    world.knot.refused.clear()
    await bob.post(f"/sites/{his}/dns/records", {"name": "www", "data": A})

    assert len(before) == 1
    assert (await root.get("/alerts")).json()["items"] == []


async def test_a_zone_that_cannot_be_removed_keeps_no_other_one_from_being_mended(world: World) -> None:
    gone = await site_row(world.panel.database, world.ada_id, "a.test")
    await world.ada.post(f"/sites/{gone}/dns/records", {"name": "www", "data": A})
    await world.added("www", **A)
    world.knot.refused["a.test"] = KnotError("the control socket is busy")
    await world.panel.database.execute("DELETE FROM sites WHERE id = $1", gone)

    served = []
    for _ in range(2):  # Removed from the records by the first round, it is a stranger's to the second.
        world.knot.purge("example.test")
        with pytest.raises(ServiceError, match="the control socket is busy"):
            await world.compare()
        served.append(world.knot.answers("www.example.test", "A"))
    world.knot.refused.clear()
    await world.compare()

    assert served == [{"192.0.2.1"}] * 2
    assert "a.test" not in world.knot.zones


async def test_a_zone_that_knot_lost_or_never_should_have_had_is_mended(world: World) -> None:
    await world.added("www", **A)
    await world.knot.add(["stray.test"])
    world.knot.purge("example.test")

    await world.compare()

    assert "stray.test" not in world.knot.zones
    assert world.knot.answers("www.example.test", "A") == {"192.0.2.1"}


async def test_a_core_that_died_between_record_and_knot_makes_them_agree_when_it_starts(
    panel_database: Database, tmp_path: Path
) -> None:
    knot = RecordedNameServer(failure=AWAY)
    async with dns_world(panel_database, tmp_path, knot) as before:
        await before.added("www", **A)
    knot.failure = None

    async with dns_world(panel_database, tmp_path, knot):
        with trio.fail_after(60):
            while not knot.answers("www.example.test", "A"):
                await trio.sleep(0.01)

    assert knot.answers("www.example.test", "A") == {"192.0.2.1"}


async def test_new_name_servers_reach_all_zones_at_the_next_start(panel_database: Database, tmp_path: Path) -> None:
    knot = RecordedNameServer()
    async with dns_world(panel_database, tmp_path, knot) as before:
        await before.added("www", **A)

    async with open_panel(panel_database, tmp_path, recorded_host(knot), dns=DnsSettings(("ns9.panel.test",))):
        with trio.fail_after(60):
            while knot.answers("example.test", "NS") != {"ns9.panel.test."}:
                await trio.sleep(0.01)


async def test_a_zone_goes_with_the_last_site_in_it(world: World) -> None:
    shop = await site_row(world.panel.database, world.ada_id, "shop.example.test", registrable="example.test")
    await world.added("www", **A)
    await world.panel.database.execute("DELETE FROM sites WHERE id = $1", world.site)
    await world.compare()
    kept = (await world.ada.get(f"/sites/{shop}/dns")).json()

    await world.panel.database.execute("DELETE FROM sites WHERE id = $1", shop)
    await world.compare()

    assert "example.test" not in world.knot.zones
    assert kept["zone"]["name"] == "example.test"
    assert [record["name"] for record in kept["records"]] == ["www.example.test"]
    assert await world.panel.database.fetchval("SELECT count(*) FROM dns_records") == 0
    assert (await world.panel.audit())[-1]["operation"] == "dns.release"


async def test_pointing_sets_every_name_and_says_what_the_parent_says(world: World) -> None:
    await world.panel.database.execute(
        """INSERT INTO site_domains (site_id, name, registrable)
           VALUES ($1, 'www.example.test', 'example.test'), ($1, 'example.other', 'example.other')""",
        world.site,
    )
    await world.added("www", **CNAME)
    await world.added("@", type="TXT", text="stays")
    world.parents.parents["example.test"] = frozenset({"ns1.panel.test", "ns2.panel.test"})
    world.parents.parents["example.other"] = frozenset({"ns1.panel.test", "ns.elsewhere.test"})

    pointed = (await world.ada.post(f"/sites/{world.site}/dns/point")).json()
    again = (await world.ada.post(f"/sites/{world.site}/dns/point")).json()

    for name in ("example.test", "www.example.test", "example.other"):
        assert world.knot.answers(name, "A") == {"203.0.113.5"}
        assert world.knot.answers(name, "AAAA") == {"2001:db8::5"}
    assert world.knot.answers("example.test", "TXT") == {'"stays"'}
    assert {name["name"]: name["replaced"] for name in pointed["names"]} == {
        "example.test": [],
        "www.example.test": ["CNAME host.x.net."],
        "example.other": [],
    }
    assert [name["replaced"] for name in again["names"]] == [[], [], []]
    assert {each["zone"]["name"]: each["delegation"]["state"] for each in pointed["zones"]} == {
        "example.test": "here",
        "example.other": "partly",
    }
    assert pointed["effective"] is False


async def test_a_delegation_is_told_as_it_is(world: World) -> None:
    parents: list[tuple[str, frozenset[str] | None, bool]] = [
        ("here", frozenset({"ns1.panel.test", "ns2.panel.test"}), True),
        ("partly", frozenset({"ns1.panel.test"}), False),
        ("elsewhere", frozenset({"ns.elsewhere.test"}), False),
        ("nowhere", frozenset(), False),
        ("unknown", None, False),
    ]
    for state, parent, effective in parents:
        domain = f"{state}.test"
        site = await site_row(world.panel.database, world.ada_id, domain)
        if parent is not None:
            world.parents.parents[domain] = parent

        pointed = (await world.ada.post(f"/sites/{site}/dns/point")).json()
        shown = (await world.ada.get(f"/sites/{site}/dns")).json()["delegation"]

        assert shown["state"] == state
        assert shown["expected"] == ["ns1.panel.test", "ns2.panel.test"]
        assert shown["nameservers"] == sorted(parent or ())
        assert (shown["problem"] is not None) == (parent is None)
        assert pointed["effective"] is effective
    assert world.parents.asked == [f"{state}.test" for state, _, _ in parents]


async def test_pointing_is_refused_where_the_server_does_not_know_its_addresses(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind NAT, where nobody said them."""
    monkeypatch.setattr("svc_actors.panel.dns.settings.public_addresses", lambda: ())
    async with open_panel(panel_database, tmp_path, dns=DnsSettings()) as panel:
        ada = await panel.person("ada@example.com")
        site = await site_row(panel.database, ada, "example.test")

        refused = await panel.program(await panel.token(ada)).post(f"/sites/{site}/dns/point")

    assert refused.status_code == 409
    assert "not known" in refused.json()["error"]["message"]


async def test_proofs_of_the_panel_are_shown_left_alone_and_gone_when_they_are_not_needed(world: World) -> None:
    own = await world.added("_acme-challenge", type="TXT", text="hers")
    zone = world.panel.services.actors.ref(DnsZone, "example.test")
    caller = service_itself("certificate.prove")
    name = "_acme-challenge.example.test"

    await zone.ask(DnsZone.set_proofs, caller, world.ada_id, name, ("one", "hers"))
    await zone.ask(DnsZone.set_proofs, caller, world.ada_id, name, ("two", "hers"))
    proving = world.knot.answers(name, "TXT")
    records = (await world.ada.get(f"/sites/{world.site}/dns")).json()["records"]
    [managed] = [record["id"] for record in records if record["managed"]]
    refused = await world.ada.delete(f"/sites/{world.site}/dns/records/{managed}")
    await zone.ask(DnsZone.set_proofs, caller, world.ada_id, name, ())

    assert proving == {'"two"', '"hers"'}
    assert refused.status_code == 409
    assert world.knot.answers(name, "TXT") == {'"hers"'}
    assert (await world.ada.get(f"/sites/{world.site}/dns")).json()["records"][0]["id"] == own
