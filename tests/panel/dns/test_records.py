"""Records of sites over the API: what is taken, what is refused, and that the name server follows."""

from __future__ import annotations

import json
from typing import Any

from tests.panel.dns.zones import CNAME, A, World
from tests.support.panel_sites import site_row

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


async def test_a_name_that_looks_like_one_of_another_domain_is_hinted_at(world: World) -> None:
    hints = {name: (await world.add(name, **A)).json()["hint"] for name in ("mail.example.org", "a.b", "www", "@")}
    record = (await world.ada.get(f"/sites/{world.site}/dns")).json()["records"][-1]
    at = f"/sites/{world.site}/dns/records/{record['id']}"
    changed = (await world.ada.patch(at, {"name": "shop.example.com"})).json()["hint"]

    assert hints == {
        "mail.example.org": "mail.example.org was taken as a short name: the record is mail.example.org.example.test. "
        "Names of other domains are not in the zone example.test.",
        "a.b": None,
        "www": None,
        "@": None,
    }
    assert changed is not None
    assert "shop.example.com.example.test" in changed


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
