"""A name that cannot be proven keeps no other name of its site from a certificate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

import pytest

from svc_actors.certificates import AcmeSettings
from svc_actors.panel.dns.settings import DnsSettings
from svc_actors.store import Database
from tests.support.acme_authority import DIRECTORY, FakeAuthority, problem
from tests.support.dns import RecordedAddresses, RecordedDelegations
from tests.support.harness import Client
from tests.support.identity import MAIL
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.served import RecordedServing

ACME = AcmeSettings("ops@example.com", (), terms_agreed=True, directory=DIRECTORY)
HERE = "203.0.113.5"
DNS = DnsSettings(nameservers=("ns1.panel.test", "ns2.panel.test"), addresses=(ip_address(HERE),))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svc_actors.certificates.keeper.SHORTEST_POLL_SECONDS", 0.0)
    monkeypatch.setattr("svc_actors.panel.certificates.site_certificates.LEFT_OUT_SECONDS", 0.0)


@dataclass
class World:
    """`addresses`: of names, as resolvers and the authority see them; of a name that is None they get no answer."""

    addresses: dict[str, list[str] | None] = field(default_factory=dict)
    authority: FakeAuthority = field(default_factory=FakeAuthority)
    panel: PanelHarness = field(init=False)
    ada: Client = field(init=False)
    site: str = field(init=False)

    async def look_up(self, name: str) -> list[str]:
        return await RecordedAddresses(self.addresses)(name)

    def verdict(self, token: str, name: str) -> dict[str, Any] | None:
        found = self.addresses.get(name)
        if not found:
            return {"type": "urn:ietf:params:acme:error:dns", "detail": f"no valid A records found for {name}"}
        if found != [HERE]:
            return {"type": "urn:ietf:params:acme:error:unauthorized", "detail": f"{found[0]}: Invalid response: 404"}
        return None

    @asynccontextmanager
    async def opened(self, database: Database, folder: Path, *aliases: str) -> AsyncIterator[World]:
        """With the site part.example.com."""
        self.authority.verdict = self.verdict
        parents = RecordedDelegations({"example.com": frozenset({"ns.host.example", "ns2.host.example"})})
        host = replace(
            recorded_host(), delegations=parents, open_acme=self.authority.client, name_addresses=self.look_up
        )
        async with open_panel(database, folder, host, acme=ACME, mail=MAIL, dns=DNS, loops=["web server"]) as panel:
            self.panel, self.ada = panel, await panel.customer("ada@example.com")
            body = {"domain": "part.example.com", "type": "static", "aliases": list(aliases)}
            self.site = (await self.ada.post("/sites", body)).json()["id"]
            await self.look()
            yield self

    async def look(self) -> None:
        await self.panel.step("certificates of sites")

    async def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.ada.get(f"/sites/{self.site}/ssl")).json()
        return found

    async def later(self) -> None:
        """The next attempt is due."""
        await self.panel.database.execute("UPDATE acme_certificates SET due_at = now() WHERE name LIKE 'site:%'")

    async def renewal_due(self, days_left: int = 30) -> None:
        """Of its 90 days, the certificate has so many left."""
        await self.panel.database.execute(
            """UPDATE acme_certificates SET due_at = now(), not_before = now() - interval '90 days' + $1::interval,
                   not_after = now() + $1::interval WHERE name LIKE 'site:%'""",
            timedelta(days=days_left),
        )

    async def pause_over(self) -> None:
        """The pause of the names that were left out has ended."""
        rows = await self.panel.database.fetch("SELECT name, left_out FROM acme_certificates WHERE name LIKE 'site:%'")
        for row in rows:
            before = {name: each | {"at": "2026-01-01T00:00:00+00:00"} for name, each in row["left_out"].items()}
            await self.panel.database.execute(
                "UPDATE acme_certificates SET left_out = $2 WHERE name = $1", row["name"], before
            )
        await self.failed_long_ago()

    async def failed_long_ago(self) -> None:
        """A customer may order again."""
        await self.panel.database.execute(
            "UPDATE acme_certificates SET failed_at = failed_at - interval '1 day' WHERE name LIKE 'site:%'"
        )

    def orders(self) -> list[list[str]]:
        return [order.names for order in self.authority.orders.values() if "panel.test" not in order.names]

    async def alerts(self) -> list[str]:
        rows = await self.panel.database.fetch("SELECT message FROM alerts WHERE key LIKE 'certificate-renewal:site:%'")
        return [row["message"] for row in rows]


async def test_an_alias_without_dns_is_left_out_and_named_and_the_others_are_certified(
    panel_database: Database, tmp_path: Path
) -> None:
    world = World({"part.example.com": [HERE]})
    async with world.opened(panel_database, tmp_path, "www.part.example.com"):
        shown = await world.shown()
        await world.renewal_due()
        await world.look()
        again = await world.shown()
        mails = await panel_database.fetch("SELECT recipient, subject FROM mails")
        events = await panel_database.fetch("SELECT event, body FROM webhook_events WHERE event LIKE 'ssl.%'")
        [alert] = await world.alerts()

    assert (shown["state"], shown["names"], shown["last_error"]) == ("active", ["part.example.com"], None)
    [left] = shown["left_out"]
    assert left["name"] == "www.part.example.com"
    assert left["reason"] == (
        "www.part.example.com has no address: it needs the A record 203.0.113.5. "
        "The records are changed where the zone example.com is hosted, at ns.host.example, ns2.host.example. "
        "The authority says: no valid A records found for www.part.example.com"
    )
    assert left["reason"] in alert
    assert again["fingerprint"] != shown["fingerprint"], "it is renewed without the name"
    assert [left["name"] for left in again["left_out"]] == ["www.part.example.com"]
    assert [tuple(mail) for mail in mails] == [
        ("ada@example.com", "The certificate of part.example.com does not have all names")
    ]
    assert [row["event"] for row in events].count("ssl.failed") == 1


async def test_a_name_that_leads_here_at_last_is_added(panel_database: Database, tmp_path: Path) -> None:
    world = World({"part.example.com": [HERE]})
    dead = ["mail.part.example.com", "www.part.example.com"]
    async with world.opened(panel_database, tmp_path, *dead):
        await world.pause_over()
        await world.look()
        unasked = len(world.orders())
        world.addresses["www.part.example.com"] = [HERE]
        await world.look()
        too_soon = await world.shown()
        await world.pause_over()
        await world.look()
        await world.look()
        shown = await world.shown()

    assert unasked == 2, "a name that has no address still is not ordered again"
    assert too_soon["names"] == ["part.example.com"]
    assert shown["names"] == ["part.example.com", "www.part.example.com"]
    assert [left["name"] for left in shown["left_out"]] == ["mail.part.example.com"]
    assert world.orders()[-1] == ["part.example.com", "www.part.example.com"]


async def test_a_try_for_a_name_that_is_refused_again_costs_no_second_certificate(
    panel_database: Database, tmp_path: Path
) -> None:
    world = World({"part.example.com": [HERE], "www.part.example.com": ["198.51.100.7"]})
    async with world.opened(panel_database, tmp_path, "www.part.example.com"):
        first = await world.shown()
        world.addresses["www.part.example.com"] = ["198.51.100.8"]
        await world.pause_over()
        await world.look()
        await world.look()
        shown = await world.shown()

    assert "resolves to 198.51.100.7, which is not this server" in first["left_out"][0]["reason"]
    assert "resolves to 198.51.100.8" in shown["left_out"][0]["reason"]
    assert shown["fingerprint"] == first["fingerprint"]
    assert len(world.orders()) == 3
    assert shown["next_attempt_at"] > first["not_before"]


async def test_an_alias_without_dns_that_is_added_later_costs_no_second_certificate(
    panel_database: Database, tmp_path: Path
) -> None:
    world = World({"part.example.com": [HERE]})
    async with world.opened(panel_database, tmp_path):
        first = await world.shown()
        await world.ada.post(f"/sites/{world.site}/domains", {"name": "www.part.example.com"})
        await world.look()
        shown = await world.shown()
        too_soon = await world.ada.post(f"/sites/{world.site}/ssl")
        await world.failed_long_ago()
        await world.ada.post(f"/sites/{world.site}/ssl")
        await world.look()
        asked_for = await world.shown()

    assert [left["name"] for left in shown["left_out"]] == ["www.part.example.com"]
    assert shown["fingerprint"] == first["fingerprint"]
    assert too_soon.status_code == 429
    assert "was refused for some names 15 minutes ago or less: www.part.example.com has no address" in too_soon.text
    assert asked_for["fingerprint"] != first["fingerprint"]
    assert asked_for["names"] == ["part.example.com"]


async def test_names_left_out_cause_no_orders_while_all_names_are_refused(
    panel_database: Database, tmp_path: Path
) -> None:
    world = World({"part.example.com": [HERE]})
    async with world.opened(panel_database, tmp_path, "www.part.example.com"):
        world.addresses = {"part.example.com": [], "www.part.example.com": ["198.51.100.7"]}
        await world.pause_over()
        await world.renewal_due()
        before = len(world.orders())
        await world.look()
        await world.look()
        [left] = (await panel_database.fetchval("SELECT left_out FROM acme_certificates WHERE name ~ '^site'")).values()
        world.addresses["www.part.example.com"] = ["198.51.100.8"]
        await world.pause_over()
        await world.look()
        await world.look()

    assert len(world.orders()) - before == 1
    assert (left["tries"], left["found"], left["out"]) == (2, ["198.51.100.7"], False)


async def test_aliases_without_dns_that_come_and_go_are_not_ordered_at_once(
    panel_database: Database, tmp_path: Path
) -> None:
    world = World({"part.example.com": [HERE]})
    async with world.opened(panel_database, tmp_path, "www.part.example.com"):
        before = len(world.orders())
        for name in ("a.part.example.com", "b.part.example.com"):
            made = (await world.ada.post(f"/sites/{world.site}/domains", {"name": name})).json()
            await world.look()
            await world.ada.delete(f"/domains/{made['id']}", {})
            await world.look()
        soon = len(world.orders())
        await world.ada.post(f"/sites/{world.site}/domains", {"name": "a.part.example.com"})
        await world.look()
        await world.later()
        await world.look()

    assert soon == before
    assert len(world.orders()) > before


async def test_a_name_that_stops_resolving_does_not_let_the_certificate_of_the_others_run_out(
    panel_database: Database, tmp_path: Path
) -> None:
    world = World({"part.example.com": [HERE], "gone.example.com": [HERE]})
    async with world.opened(panel_database, tmp_path, "gone.example.com"):
        first = await world.shown()
        world.addresses["gone.example.com"] = []
        await world.renewal_due()
        await world.look()
        kept = await world.shown()
        await world.renewal_due(days_left=14)
        await world.look()
        shown = await world.shown()

    assert first["names"] == ["part.example.com", "gone.example.com"]
    assert kept["fingerprint"] == first["fingerprint"], "it has the name, and long to live"
    assert "gone.example.com has no address" in kept["last_error"]
    assert (shown["names"], shown["last_error"]) == (["part.example.com"], None)
    assert [left["name"] for left in shown["left_out"]] == ["gone.example.com"]


async def test_a_new_name_waits_for_one_that_stopped_resolving_only_shortly(
    panel_database: Database, tmp_path: Path
) -> None:
    world = World({"part.example.com": [HERE], "gone.example.com": [HERE], "new.example.com": [HERE]})
    async with world.opened(panel_database, tmp_path, "gone.example.com"):
        world.addresses["gone.example.com"] = ["198.51.100.7"]
        await world.ada.post(f"/sites/{world.site}/domains", {"name": "new.example.com"})
        names = []
        for _ in range(3):
            await world.later()
            await world.look()
            names.append((await world.shown())["names"])

    assert names == [["part.example.com", "gone.example.com"]] * 2 + [["part.example.com", "new.example.com"]]


async def test_where_no_name_can_be_proven_the_reasons_name_what_to_mend(
    panel_database: Database, tmp_path: Path
) -> None:
    world = World({"part.example.com": ["198.51.100.7", "2001:db8::9"], "www.part.example.com": None})
    async with world.opened(panel_database, tmp_path, "www.part.example.com"):
        shown = await world.shown()

    assert (shown["state"], shown["left_out"]) == ("failed", [])
    assert "part.example.com resolves to 198.51.100.7, 2001:db8::9, which is not this server" in shown["last_error"]
    assert "The name servers of www.part.example.com do not answer." in shown["last_error"]


async def test_visitors_of_a_name_without_a_certificate_are_not_sent_to_https(
    panel_database: Database, tmp_path: Path
) -> None:
    world = World({"part.example.com": [HERE]})
    async with world.opened(panel_database, tmp_path, "www.part.example.com"):
        [server] = cast(RecordedServing, world.panel.host.web).sites.values()

    assert server.certificate is not None
    assert server.uncertified == {"www.part.example.com"}


@pytest.mark.parametrize(
    "detail",
    [
        'too many failed authorizations (5) for "www.part.example.com" in the last 1h0m0s',
        "Your account is temporarily prevented from requesting certificates for www.part.example.com. Please visit x",
    ],
)
async def test_a_limit_on_one_name_leaves_out_that_name(panel_database: Database, tmp_path: Path, detail: str) -> None:
    world = World({"part.example.com": [HERE], "www.part.example.com": [HERE]})
    world.authority.fail("neworder", problem("rateLimited", detail, 429, retry_after="3600"))
    async with world.opened(panel_database, tmp_path, "www.part.example.com"):
        shown = await world.shown()
        left = await panel_database.fetchval("SELECT left_out FROM acme_certificates WHERE name LIKE 'site:%'")

    assert shown["names"] == ["part.example.com"]
    assert detail in shown["left_out"][0]["reason"]
    assert left["www.part.example.com"]["retry_after"] == 3600


async def test_another_authority_issues_at_once_without_the_names_left_out(
    panel_database: Database, tmp_path: Path
) -> None:
    world = World({"part.example.com": [HERE]})
    async with world.opened(panel_database, tmp_path, "www.part.example.com"):
        first = await world.shown()
        await panel_database.execute(
            "INSERT INTO acme_accounts (directory, sealed_key, contact) VALUES ('https://before.test/d', 'x', 'a@b.c')"
        )
        await panel_database.execute(
            "UPDATE acme_certificates SET directory = 'https://before.test/d' WHERE name LIKE 'site:%'"
        )
        await world.failed_long_ago()
        await world.look()
        shown = await world.shown()

    assert shown["fingerprint"] != first["fingerprint"]
    assert shown["names"] == ["part.example.com"]


@pytest.mark.parametrize(
    "detail",
    [
        'too many certificates (50) already issued for "part.example.com" in the last 168h0m0s',
        "too many requests for part.example.com in the last 3h0m0s",
    ],
)
async def test_a_limit_on_a_domain_leaves_out_nothing(panel_database: Database, tmp_path: Path, detail: str) -> None:
    world = World({"part.example.com": [HERE], "www.part.example.com": [HERE]})
    world.authority.fail("neworder", problem("rateLimited", detail, 429, retry_after="3600"))
    async with world.opened(panel_database, tmp_path, "www.part.example.com"):
        shown = await world.shown()

    assert (shown["state"], shown["left_out"]) == ("failed", [])
    assert detail in shown["last_error"]
    assert len(world.orders()) == 0


async def test_a_removed_alias_is_no_longer_named(panel_database: Database, tmp_path: Path) -> None:
    world = World({"part.example.com": [HERE]})
    async with world.opened(panel_database, tmp_path, "www.part.example.com"):
        domains = (await world.ada.get(f"/sites/{world.site}/domains")).json()
        [alias] = [each for each in domains if each["name"].startswith("www.")]
        await world.ada.delete(f"/domains/{alias['id']}", {})
        await world.look()
        shown = await world.shown()

    assert (shown["names"], shown["left_out"]) == (["part.example.com"], [])
