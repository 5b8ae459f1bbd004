"""Pointing the names of a site at this server, and what the parent zone says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_actors.panel.dns.settings import DnsSettings
from svc_actors.panel.dns.zone import DnsZone
from svc_actors.panel.host_work import finished
from svc_actors.store import Database, service_itself
from tests.panel.dns.zones import CNAME, World
from tests.support.panel import open_panel
from tests.support.panel_sites import site_row


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

    await zone.ask(DnsZone.add_proofs, caller, world.ada_id, {name: ("one", "hers")})
    await zone.ask(DnsZone.remove_proofs, caller, {name: ("one",)})
    second = await zone.ask(DnsZone.add_proofs, caller, world.ada_id, {name: ("two",)})
    await second.finished()
    proving = world.knot.answers(name, "TXT")
    records = (await world.ada.get(f"/sites/{world.site}/dns")).json()["records"]
    [managed] = [record["id"] for record in records if record["managed"]]
    refused = await world.ada.delete(f"/sites/{world.site}/dns/records/{managed}")
    await finished(zone.ask(DnsZone.remove_proofs, caller, {name: ("two", "hers")}))

    assert proving == {'"two"', '"hers"'}
    assert refused.status_code == 409
    assert world.knot.answers(name, "TXT") == {'"hers"'}
    assert (await world.ada.get(f"/sites/{world.site}/dns")).json()["records"][0]["id"] == own
