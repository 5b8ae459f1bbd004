"""Where the names of a site lead, on every page that shows them: in words, and without asking the DNS at will."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio
from trio.testing import MockClock

from svc_actors.panel.dns.pointing import (
    PATIENCE_SECONDS,
    PER_MINUTE,
    REMEMBERED_SECONDS,
    Answer,
    PublicNames,
    in_words,
    points_to,
)
from svc_actors.panel.dns.settings import DnsSettings
from svc_actors.store import Database
from tests.panel.dns.zones import World
from tests.support.dns import RecordedAddresses
from tests.support.panel import open_panel
from tests.support.panel_sites import site_row

HERE = ["203.0.113.5", "2001:db8::5"]
ADA, BOB = UUID(int=1), UUID(int=2)
AT = datetime(2026, 12, 1, tzinfo=UTC)


def addresses(world: World) -> RecordedAddresses:
    found = world.panel.host.name_addresses
    assert isinstance(found, RecordedAddresses)
    return found


async def alias(world: World, name: str, registrable: str = "example.test") -> None:
    await world.panel.database.execute(
        "INSERT INTO site_domains (site_id, name, registrable) VALUES ($1, $2, $3)", world.site, name, registrable
    )


async def site(world: World) -> dict[str, Any]:
    shown: dict[str, Any] = (await world.ada.get(f"/sites/{world.site}")).json()
    return shown


async def test_a_site_says_which_records_it_needs_and_where_each_of_its_names_leads(world: World) -> None:
    says: dict[str, tuple[list[str] | None, str, str]] = {
        "example.test": (HERE, "here", "points here"),
        "away.example.test": (["198.51.100.7"], "elsewhere", "points to 198.51.100.7 (elsewhere)"),
        "both.example.test": (
            ["203.0.113.5", "198.51.100.7"],
            "partly",
            "points here and to 198.51.100.7 (elsewhere)",
        ),
        "inner.example.test": (["10.0.0.7"], "elsewhere", "points to a private address (elsewhere)"),
        "none.example.test": ([], "nowhere", "does not resolve: there is no public top-level domain .test"),
        "slow.example.test": (None, "unknown", "cannot be resolved: its name servers do not answer"),
    }
    for name, (found, _, _) in says.items():
        addresses(world).addresses[name] = found
        if name != "example.test":
            await alias(world, name)

    pointing = (await site(world))["pointing"]
    domains = (await world.ada.get(f"/sites/{world.site}/domains")).json()

    assert pointing["addresses"] == HERE
    assert {each["name"]: (each["state"], each["text"]) for each in pointing["names"]} == {
        name: (state, text) for name, (_, state, text) in says.items()
    }
    assert {each["name"]: each["points"]["text"] for each in domains} == {
        name: text for name, (*_, text) in says.items()
    }
    assert all(each["checked_at"] for each in pointing["names"])
    assert "10.0.0.7" not in str(pointing)
    assert pointing["advice"] == (
        "Where the DNS of example.test is hosted, set the A record 203.0.113.5 and the AAAA record 2001:db8::5 for "
        "away.example.test, both.example.test, inner.example.test and none.example.test."
    )
    assert sorted(addresses(world).asked) == sorted(says), "each name was asked about once, for both answers"


@pytest.mark.parametrize(
    ("address", "is_shown"),
    [
        ("::ffff:10.1.2.3", False),
        ("64:ff9b::a01:203", False),
        ("64:ff9b:1::a01:203", False),
        ("0.0.0.0", False),
        ("::", False),
        ("fd00::1", False),
        ("fe80::1", False),
        ("100.64.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::808:808", True),
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("198.51.100.7", True),
    ],
)
def test_addresses_of_private_networks_are_not_shown_in_any_form(address: str, is_shown: bool) -> None:
    said = in_words([address], [ip_address("203.0.113.5")])

    assert said == (str(ip_address(address)) if is_shown else "a private address")


@pytest.mark.parametrize(
    ("name", "text"), [("a.lan", ".lan"), ("a.example", ".example"), ("xn--a.xn--zckzah", ".xn--zckzah")]
)
def test_a_name_that_no_public_dns_will_ever_have_says_so(name: str, text: str) -> None:
    assert points_to(name, Answer((), AT), [])[1] == f"does not resolve: there is no public top-level domain {text}"
    assert points_to("a.example.org", Answer((), AT), [])[1] == "does not resolve"


async def test_names_of_a_zone_on_this_server_are_pointed_here(world: World) -> None:
    await world.added("@", type="TXT", text="the zone is here")
    await alias(world, "example.other", "example.other")

    dns = (await world.ada.get(f"/sites/{world.site}/dns")).json()
    pointing = (await site(world))["pointing"]

    here = (
        "The zone example.test is on this server: point example.test here (svc dns point), and name ns1.panel.test and "
        "ns2.panel.test as the name servers of example.test at its registrar."
    )
    assert dns["pointing"]["advice"] == here
    assert [each["name"] for each in dns["pointing"]["names"]] == ["example.test"]
    assert pointing["advice"].startswith(f"{here} Where the DNS of example.other is hosted, set the A record")
    assert pointing["zones"] == ["example.test"]


async def test_a_new_name_says_at_once_where_it_leads(world: World) -> None:
    addresses(world).addresses = {"new.example.test": HERE, "example.test": HERE}

    added = (await world.ada.post(f"/sites/{world.site}/domains", {"name": "new.example.test"})).json()

    assert added["points"]["text"] == "points here"
    assert (await site(world))["pointing"]["advice"] is None


async def test_a_server_that_does_not_know_its_addresses_says_so(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind NAT: its own address is not the public one."""
    monkeypatch.setattr("svc_actors.panel.dns.settings.public_addresses", lambda: ())
    async with open_panel(panel_database, tmp_path, dns=DnsSettings()) as panel:
        addresses = panel.host.name_addresses
        assert isinstance(addresses, RecordedAddresses)
        addresses.addresses["example.test"] = ["203.0.113.5"]
        ada = await panel.person("ada@example.com")
        site = await site_row(panel.database, ada, "example.test")

        pointing = (await panel.program(await panel.token(ada)).get(f"/sites/{site}")).json()["pointing"]

    assert pointing["addresses"] == []
    assert "--site-address" in pointing["advice"]
    assert [(each["state"], each["text"]) for each in pointing["names"]] == [("unknown", "points to 203.0.113.5")]


@pytest.fixture
async def names(nursery: trio.Nursery, autojump_clock: MockClock) -> PublicNames:
    return PublicNames(RecordedAddresses({"a.test": HERE}), lambda: AT, nursery)


def asked(names: PublicNames) -> list[str]:
    assert isinstance(names._look_up, RecordedAddresses)
    return names._look_up.asked


async def test_a_name_is_asked_about_once_a_minute_however_often_somebody_looks(names: PublicNames) -> None:
    for _ in range(50):
        found = await names.answers(ADA, ["a.test"])
    often = len(asked(names))
    await trio.sleep(REMEMBERED_SECONDS + 1)
    await names.answers(BOB, ["a.test"])

    assert found == {"a.test": Answer(tuple(HERE), AT)}
    assert (often, len(asked(names))) == (1, 2)


async def test_a_customer_cannot_make_the_server_ask_at_will(names: PublicNames) -> None:
    many = [f"{uuid4()}.test" for _ in range(5 * PER_MINUTE)]
    found = await names.answers(ADA, many)
    first = len(asked(names))
    await trio.sleep(30)
    await names.answers(ADA, many)
    others = await names.answers(BOB, ["a.test"])

    assert first == PER_MINUTE
    assert [found[name] for name in many[PER_MINUTE:]] == [None] * (4 * PER_MINUTE)
    assert len(asked(names)) == first + PER_MINUTE // 2 + 1
    assert others["a.test"] is not None


async def test_nobody_waits_for_name_servers_that_do_not_answer(names: PublicNames) -> None:
    assert isinstance(names._look_up, RecordedAddresses)
    names._look_up.before = partial(trio.sleep, 10 * PATIENCE_SECONDS)
    began = trio.current_time()

    first = await names.answers(ADA, ["a.test", "b.test"])
    waited = trio.current_time() - began
    await trio.sleep(10 * PATIENCE_SECONDS)
    then = await names.answers(ADA, ["a.test", "b.test"])

    assert first == {"a.test": None, "b.test": None}
    assert waited == pytest.approx(PATIENCE_SECONDS, abs=0.1)
    assert then == {"a.test": Answer(tuple(HERE), AT), "b.test": Answer((), AT)}
    assert len(asked(names)) == 2


async def test_a_late_answer_leaves_the_last_one_in_place(names: PublicNames) -> None:
    assert isinstance(names._look_up, RecordedAddresses)
    await names.answers(ADA, ["a.test"])
    names._look_up.before = partial(trio.sleep, 10 * PATIENCE_SECONDS)
    await trio.sleep(REMEMBERED_SECONDS + 1)

    assert await names.answers(ADA, ["a.test"]) == {"a.test": Answer(tuple(HERE), AT)}
