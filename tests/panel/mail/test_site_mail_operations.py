"""Mail of a site as its owner and administrators see it: state, limits, what is held, and what became of each mail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

import pytest
from trio.testing import MockClock

from svc_actors.mail import mail_settings
from svc_actors.panel.mail import holds
from svc_actors.panel.sites.records import lock_site
from svc_actors.store import Database, Transaction
from tests.panel.dns.zones import SETTINGS
from tests.support.dns import RecordedDelegations, RecordedTexts
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.panel_sites import site_row

RELAY = mail_settings({"SVC_MAIL_HOST": "smtp.example", "SVC_MAIL_SENDER": "svc@example.org"})


@dataclass
class MailWorld:
    panel: PanelHarness
    root: Client
    ada_id: UUID
    ada: Client
    site: UUID
    parents: RecordedDelegations
    texts: RecordedTexts

    async def handed_in(self, number: int = 1, script: str | None = "public/form.php", **columns: Any) -> UUID:
        """Mails of the site, as the intake records them."""
        row = {"state": "queued", "recipient": "bob@example.net", "age": 0.0, "error": None} | columns
        for _ in range(number):
            mail_id: UUID = await self.panel.database.fetchval(
                """INSERT INTO site_mails (message, site_id, sender, recipient, script, bytes, state, accepted_at,
                                           attempt_at, deadline_at, ended_at, error)
                   VALUES ($1, $2, 'shop@example.test', $3, $4, 900, $5, now() - make_interval(secs => $6),
                           now() + interval '1 hour', now() + interval '3 days',
                           CASE WHEN $5 = 'queued' THEN NULL ELSE now() END, $7)
                   RETURNING id""",
                uuid4(),
                columns.get("site", self.site),
                row["recipient"],
                script,
                row["state"],
                row["age"],
                row["error"],
            )
        return mail_id

    async def hold(self, reason: str = "more than 200 mails in an hour") -> None:
        async def work(tx: Transaction) -> None:
            await holds.hold(tx, await lock_site(tx, self.site), reason)

        await self.panel.database.transact(work)

    async def mail(self, client: Client | None = None) -> dict[str, Any]:
        answer = await (client or self.ada).get(f"/sites/{self.site}/mail")
        assert answer.status_code == 200, answer.text
        shown: dict[str, Any] = answer.json()
        return shown

    async def audited(self, operation: str) -> list[dict[str, Any]]:
        rows = await self.panel.database.fetch(
            "SELECT details FROM audit WHERE operation = $1 AND details IS NOT NULL", operation
        )
        return [row["details"] for row in rows]


@pytest.fixture
def mock_clock() -> MockClock:
    """Real time, which a test may move."""
    return MockClock(rate=1)


async def _world(panel: PanelHarness) -> MailWorld:
    ada_id = await panel.person("ada@example.com")
    host = panel.host
    assert isinstance(host.delegations, RecordedDelegations)
    assert isinstance(host.txt_records, RecordedTexts)
    return MailWorld(
        panel,
        await panel.administrator(),
        ada_id,
        panel.program(await panel.token(ada_id)),
        await site_row(panel.database, ada_id, "example.test"),
        host.delegations,
        host.txt_records,
    )


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[MailWorld]:
    async with open_panel(panel_database, tmp_path, recorded_host(), mail=RELAY, dns=SETTINGS) as panel:
        yield await _world(panel)


async def test_a_site_that_has_sent_nothing_may_send_within_the_servers_limits(world: MailWorld) -> None:
    shown = await world.mail()

    assert (shown["enabled"], shown["problem"], shown["held"], shown["queued"]) == (True, None, None, 0)
    assert shown["hour"] == {"limit": 200, "source": "server", "sent": 0}
    assert shown["day"] == {"limit": 1000, "source": "server", "sent": 0}
    assert shown["scripts"] == []


async def test_what_was_sent_is_counted_with_the_scripts_that_sent_most(world: MailWorld) -> None:
    await world.handed_in(3, "public/shop.php", state="sent", age=7200)
    await world.handed_in(2, "public/hacked.php")
    await world.handed_in(1, None)
    await world.handed_in(5, "public/old.php", state="sent", age=90_000)

    shown = await world.mail()

    assert (shown["hour"]["sent"], shown["day"]["sent"], shown["queued"]) == (3, 6, 3)
    assert [(each["script"], each["mails"]) for each in shown["scripts"]] == [
        ("public/shop.php", 3),
        ("public/hacked.php", 2),
        (None, 1),
    ]


async def test_the_nearest_limit_counts_and_says_where_it_comes_from(world: MailWorld) -> None:
    await world.root.patch("/settings", {"site_mails_per_hour": 50})
    by_server = await world.mail()
    plan = (await world.root.post("/plans", {"name": "Small", "mails_per_hour": 20})).json()
    await world.panel.database.execute(
        "INSERT INTO hosting_accounts (user_id, plan_id) VALUES ($1, $2)", world.ada_id, UUID(plan["id"])
    )
    by_plan = await world.mail()
    set_for_site = (await world.root.patch(f"/sites/{world.site}/mail", {"mails_per_hour": 7})).json()
    reset = (await world.root.patch(f"/sites/{world.site}/mail", {"mails_per_hour": None})).json()

    assert by_server["hour"] == {"limit": 50, "source": "server", "sent": 0}
    assert by_plan["hour"] == {"limit": 20, "source": "plan", "sent": 0}
    assert by_plan["day"]["source"] == "server"
    assert set_for_site["hour"] == {"limit": 7, "source": "site", "sent": 0}
    assert reset["hour"]["source"] == "plan"


async def test_a_plan_has_limits_of_mail_that_can_be_changed(world: MailWorld) -> None:
    created = (await world.root.post("/plans", {"name": "Shop", "mails_per_day": 5000})).json()
    changed = (await world.root.patch(f"/plans/{created['id']}", {"mails_per_hour": 900})).json()
    refused = await world.root.patch(f"/plans/{created['id']}", {"mails_per_hour": -1})

    assert (created["mails_per_hour"], created["mails_per_day"]) == (None, 5000)
    assert (changed["mails_per_hour"], changed["mails_per_day"]) == (900, 5000)
    assert refused.status_code == 400


async def test_setting_one_limit_leaves_the_other(world: MailWorld) -> None:
    await world.root.patch(f"/sites/{world.site}/mail", {"mails_per_hour": 7, "mails_per_day": 70})
    shown = (await world.root.patch(f"/sites/{world.site}/mail", {"mails_per_hour": 8})).json()

    assert (shown["hour"]["limit"], shown["day"]["limit"]) == (8, 70)


async def test_only_administrators_switch_mail_and_set_limits(world: MailWorld) -> None:
    refused = await world.ada.patch(f"/sites/{world.site}/mail", {"mails_per_hour": 10_000})
    off = (await world.root.patch(f"/sites/{world.site}/mail", {"enabled": False})).json()

    assert refused.status_code == 403
    assert off["enabled"] is False
    assert "switched off" in off["problem"]
    assert await world.audited("site.update_mail") == [{"enabled": False}]


async def test_a_held_site_says_why_and_its_owner_releases_it_once_a_day(world: MailWorld) -> None:
    await world.hold("more than 1000 mails in a day; programs that sent most in the last hour: public/x.php: 990")
    held = await world.mail()

    released = await world.ada.post(f"/sites/{world.site}/mail/release")
    await world.hold()
    again = await world.ada.post(f"/sites/{world.site}/mail/release")
    by_root = await world.root.post(f"/sites/{world.site}/mail/release")
    not_held = await world.root.post(f"/sites/{world.site}/mail/release")

    assert "public/x.php" in held["held"]["reason"]
    assert "public/x.php" in held["problem"]
    assert (released.status_code, released.json()["held"]) == (200, None)
    assert again.status_code == 409
    assert "Ask the provider" in again.json()["error"]["hint"]
    assert (by_root.status_code, not_held.status_code) == (200, 409)
    assert len(await world.audited("site.release_mail")) == 2


async def test_mails_are_listed_filtered_and_sorted(world: MailWorld) -> None:
    await world.handed_in(recipient="anna@example.net", age=30)
    await world.handed_in(recipient="bert@example.net", state="sent", age=20)
    await world.handed_in(recipient="carl@example.net", state="failed", error="550 no such user", age=10)
    other = await site_row(world.panel.database, world.ada_id, "other.test")
    await world.handed_in(recipient="hidden@example.net", site=other)

    async def recipients(**query: Any) -> list[str]:
        answer = await world.ada.get(f"/sites/{world.site}/mails?{urlencode(query)}")
        assert answer.status_code == 200, answer.text
        return [each["recipient"].partition("@")[0] for each in answer.json()["items"]]

    [failed] = (await world.ada.get(f"/sites/{world.site}/mails?state=failed")).json()["items"]
    assert await recipients() == ["carl", "bert", "anna"]
    assert await recipients(sort="recipient") == ["anna", "bert", "carl"]
    assert await recipients(state="queued") == ["anna"]
    assert await recipients(q="BERT") == ["bert"]
    assert await recipients(page_size=1, page=2) == ["bert"]
    assert (failed["error"], failed["next_attempt_at"], failed["script"]) == (
        "550 no such user",
        None,
        "public/form.php",
    )


async def test_a_queued_mail_is_tried_now_and_one_that_has_ended_is_not(world: MailWorld) -> None:
    queued = await world.handed_in()
    sent = await world.handed_in(state="sent")
    other = await site_row(world.panel.database, world.ada_id, "other.test")
    foreign = await world.handed_in(site=other)

    retried = await world.ada.post(f"/sites/{world.site}/mails/{queued}/retry")
    ended = await world.ada.post(f"/sites/{world.site}/mails/{sent}/retry")
    of_another = await world.ada.post(f"/sites/{world.site}/mails/{foreign}/retry")

    due = await world.panel.database.fetchval("SELECT attempt_at <= now() FROM site_mails WHERE id = $1", queued)
    assert (retried.status_code, due) == (200, True)
    assert (ended.status_code, of_another.status_code) == (409, 404)
    assert len(await world.audited("site.retry_mail")) == 1


async def test_what_waits_is_cancelled_and_not_what_was_sent(world: MailWorld) -> None:
    await world.handed_in(3)
    await world.handed_in(state="sent")

    cancelled = await world.ada.post(f"/sites/{world.site}/mails/cancel")
    listed = (await world.ada.get(f"/sites/{world.site}/mails?state=failed")).json()

    assert cancelled.json() == {"cancelled": 3}
    assert [each["error"] for each in listed["items"]] == ["cancelled by ada@example.com"] * 3
    assert (await world.mail())["queued"] == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("get", "mail"),
        ("get", "mails"),
        ("post", "mail/release"),
        ("post", "mails/cancel"),
        ("post", f"mails/{UUID(int=1)}/retry"),
        ("post", "dns/dkim"),
    ],
)
async def test_another_customer_learns_nothing_of_a_site(world: MailWorld, method: str, path: str) -> None:
    bob = await world.panel.customer("bob@example.com")

    answer = await partial(getattr(bob, method), f"/sites/{world.site}/{path}")()

    assert answer.status_code == 404


async def test_a_server_without_a_relay_says_so(panel_database: Database, tmp_path: Path) -> None:
    async with open_panel(panel_database, tmp_path, recorded_host()) as panel:
        world = await _world(panel)
        shown = await world.mail()

    assert "no mail of sites" in shown["problem"]
    assert "[mail]" in shown["problem"]


async def domain(world: MailWorld, clock: MockClock, name: str = "example.test") -> dict[str, Any]:
    """As it is seen once remembered answers of the DNS are over."""
    clock.jump(61)
    domains = {each["name"]: each for each in (await world.mail())["domains"]}
    found: dict[str, Any] = domains[name]
    return found


async def test_spf_of_a_zone_of_this_server_is_compared_with_what_the_relay_needs(
    world: MailWorld, mock_clock: MockClock
) -> None:
    world.parents.parents["example.test"] = frozenset(SETTINGS.nameservers)
    await world.ada.post(
        f"/sites/{world.site}/dns/records", {"name": "@", "data": {"type": "TXT", "text": "v=spf1 mx -all"}}
    )
    unknown = await domain(world, mock_clock)
    await world.root.patch("/settings", {"site_mail_spf": "include:spf.relay.example"})
    missing = await domain(world, mock_clock)
    record = (await world.ada.get(f"/sites/{world.site}/dns")).json()["records"][0]
    await world.ada.patch(
        f"/sites/{world.site}/dns/records/{record['id']}", {"data": {"type": "TXT", "text": missing["spf"]["text"]}}
    )
    right = await domain(world, mock_clock)

    assert (unknown["spf"]["state"], unknown["spf"]["found"]) == ("unknown", "v=spf1 mx -all")
    assert missing["spf"]["state"] == "missing"
    assert missing["spf"]["text"] == "v=spf1 mx include:spf.relay.example -all"
    assert (right["spf"]["state"], right["spf"]["advice"]) == ("ok", None)
    assert missing["dkim"]["state"] == "waiting"


async def test_records_of_a_domain_whose_dns_is_elsewhere_are_looked_up(
    world: MailWorld, mock_clock: MockClock
) -> None:
    await world.root.patch("/settings", {"site_mail_spf": "ip4:203.0.113.9"})
    world.parents.parents["example.test"] = frozenset({"ns.elsewhere.example"})
    asked_in_vain = await domain(world, mock_clock)
    world.texts.texts["example.test"] = ["other", "v=spf1 +ip4:203.0.113.9 ~all"]
    found = await domain(world, mock_clock)
    world.texts.texts["example.test"] = ["v=spf1 a", "v=spf1 mx"]
    two = await domain(world, mock_clock)

    assert asked_in_vain["spf"]["state"] == "unknown"
    assert found["spf"]["state"] == "ok"
    assert found["dkim"]["state"] == "elsewhere"
    assert "2 SPF records" in two["spf"]["advice"]


async def test_a_key_that_only_this_servers_zone_has_is_named_for_the_zone_elsewhere(
    world: MailWorld, mock_clock: MockClock
) -> None:
    await world.ada.post(
        f"/sites/{world.site}/dns/records", {"name": "@", "data": {"type": "A", "address": "192.0.2.1"}}
    )
    made = (await world.ada.post(f"/sites/{world.site}/dns/dkim")).json()
    world.parents.parents["example.test"] = frozenset({"ns.elsewhere.example"})
    world.texts.texts |= {"example.test": [], made["record"]: []}
    missing = await domain(world, mock_clock)
    world.texts.texts[made["record"]] = [made["text"].replace("; ", ";")]
    there = await domain(world, mock_clock)
    world.parents.parents["example.test"] = frozenset(SETTINGS.nameservers)
    here = await domain(world, mock_clock)

    assert missing["dkim"]["state"] == "missing"
    assert (missing["dkim"]["record"], missing["dkim"]["text"]) == (made["record"], made["text"])
    assert (there["dkim"]["state"], here["dkim"]["state"]) == ("signed", "signed")
