"""What belongs to one site: its names, DNS, certificate and logs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio
from playwright.sync_api import expect

from svc_actors.alerts import CustomerNotice, raise_alert
from svc_actors.store import Transaction
from tests.support.certificates import self_signed
from tests.support.harness import Client
from tests.support.panel_pages import Browser, PanelPages

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ADA = "ada@example.com"


async def made(client: Client) -> dict[str, Any]:
    answer = await client.post("/sites", {"domain": "shop.example.org", "type": "static"})
    assert answer.status_code == 201, answer.text
    site: dict[str, Any] = answer.json()
    return site


async def test_names_are_added_made_primary_and_removed_and_paths_are_sent_elsewhere(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    site = await made(ada)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow("shop.example.org")
        browser.follow("Domains")
        browser.press("Add domain")
        browser.fill("Name", "www.shop.example.org")
        browser.press("Add")
        other = browser.row("www.shop.example.org")
        other.get_by_role("button", name="Make primary").click()
        browser.press("Make primary")
        expect(browser.page.get_by_role("heading", name="www.shop.example.org")).to_be_visible()
        old = browser.page.locator("main tr").filter(
            has=browser.page.get_by_role("cell", name="shop.example.org", exact=True)
        )
        old.get_by_role("button", name="Delete").click()
        browser.press("Delete")
        expect(old).to_have_count(0)

        browser.press("Create redirect")
        browser.fill("Path", "/old")
        browser.fill("Target", "/new")
        browser.press("Create")
        expect(browser.row("/old")).to_contain_text("/new")

    await panel.browse(visit)

    names = (await ada.get(f"/sites/{site['id']}/domains")).json()
    assert [each["name"] for each in names] == ["www.shop.example.org"]
    [redirect] = (await ada.get(f"/sites/{site['id']}/redirects")).json()
    assert (redirect["path"], redirect["target"], redirect["status"]) == ("/old", "/new", 301)


async def test_paths_are_denied_and_ask_for_passwords_that_are_shown_once(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    site = await made(ada)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow("shop.example.org")
        browser.follow("Protection")
        browser.shows("No path is protected")
        browser.press("Protect path")
        browser.fill("Path", "/members")
        browser.fill("Login", "bob")
        browser.press("Protect")
        browser.shows("It is shown only once")
        browser.press("Done")
        browser.row("/members").get_by_role("button", name="Set login").click()
        browser.fill("Login", "eve")
        browser.fill("Password", "correct-horse-battery")
        browser.press("Set")
        expect(browser.row("/members")).to_contain_text("eve")
        browser.row("/members").get_by_role("button", name="Remove").first.click()
        browser.press("Remove")
        expect(browser.row("/members")).not_to_contain_text("bob")

        browser.press("Deny path")
        browser.fill("Path or name", "/old*/x")
        browser.press("Deny")
        browser.shows("must be a path such as /private")
        browser.fill("Path or name", "*.bak")
        browser.press("Deny")
        expect(browser.row("*.bak")).to_be_visible()

    await panel.browse(visit)

    [protected] = (await ada.get(f"/sites/{site['id']}/protected-paths")).json()
    assert (protected["path"], protected["logins"]) == ("/members", ["eve"])
    [denied] = (await ada.get(f"/sites/{site['id']}/denied-paths")).json()
    assert denied["pattern"] == "*.bak"


async def test_records_of_any_type_are_added_changed_and_deleted(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    site = await made(ada)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow("shop.example.org")
        browser.follow("DNS")
        browser.press("Point here")
        browser.press("Point here")
        browser.shows("203.0.113.80")
        browser.press("Done")
        expect(browser.row("203.0.113.80")).to_contain_text("A")

        browser.press("Create record")
        browser.choose("Type", "MX")
        browser.fill("Preference", "10")
        browser.fill("Exchange", "mail.example.org")
        browser.press("Create")
        mail = browser.row("mail.example.org")
        expect(mail).to_contain_text("MX")
        mail.get_by_role("button", name="Change").click()
        expect(browser.field("Exchange")).to_have_value("mail.example.org")
        browser.fill("Preference", "20")
        browser.press("Save")
        expect(mail).to_contain_text("20")
        mail.get_by_role("button", name="Delete").click()
        browser.press("Delete")
        expect(mail).to_have_count(0)

    await panel.browse(visit)

    records = (await ada.get(f"/sites/{site['id']}/dns")).json()["records"]
    assert "MX" not in {record["type"] for record in records}


async def test_a_certificate_is_uploaded_and_what_cannot_be_served_is_told_in_words(
    panel: PanelPages, tmp_path: Path
) -> None:
    ada = await panel.core.customer(ADA)
    site = await made(ada)
    own, other, ended, strange = (certified(tmp_path / name) for name in ("own", "other", "ended", "strange"))
    refused = {
        "is not in PEM": ("nothing of the kind", "nor this"),
        "The key is not the certificate's": (own.chain, other.key),
        "The certificate expired on": (ended.chain, ended.key),
        "The chain is not in order": (own.chain + other.chain, own.key),
        "not for shop.example.org": (strange.chain, strange.key),
    }

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow("shop.example.org")
        browser.follow("Certificate")
        browser.press("Upload certificate")
        for words, (chain, key) in refused.items():
            browser.fill("Certificate chain", chain)
            browser.fill("Private key", key)
            browser.press("Upload")
            expect(browser.page.get_by_role("alert")).to_contain_text(words)
        browser.fill("Certificate chain", own.chain)
        browser.fill("Private key", own.key)
        browser.press("Upload")
        expect(browser.page.get_by_role("dialog")).to_have_count(0)
        expect(browser.page.locator("main")).to_contain_text("SHA-256")

    await panel.browse(visit)

    shown = (await ada.get(f"/sites/{site['id']}/ssl")).json()
    assert (shown["state"], shown["source"], shown["names"]) == ("active", "uploaded", ["shop.example.org"])


@dataclass(frozen=True)
class Certified:
    chain: str
    key: str


def certified(folder: Path) -> Certified:
    """A certificate and its key, in PEM, of the site's name; `ended` and `strange` are what they are called."""
    folder.mkdir()
    names = ["elsewhere.example.org"] if folder.name == "strange" else ["shop.example.org"]
    files = self_signed(folder, names, ends_in=timedelta(days=-1 if folder.name == "ended" else 1))
    return Certified(files.certificate.read_text(), files.key.read_text())


async def test_lines_appear_in_a_log_as_they_are_written(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    site = await made(ada)
    log = panel.core.services.config.folders.site_logs / site["account"] / "access.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("203.0.113.9 GET /first\n")

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow("shop.example.org")
        browser.follow("Logs")
        lines = browser.page.get_by_label("Lines of the log")
        expect(lines).to_have_text("203.0.113.9 GET /first")
        with log.open("a") as more:
            more.write("203.0.113.9 GET /second\n")
        expect(lines).to_have_text("203.0.113.9 GET /first\n203.0.113.9 GET /second")
        browser.page.get_by_label("Lines that contain").fill("second")
        expect(lines).to_have_text("203.0.113.9 GET /second")

    await panel.browse(visit)


async def test_the_owner_reads_what_is_wrong_with_a_site_and_says_that_it_was_seen(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    site = await made(ada)

    async def opened() -> None:
        async def work(tx: Transaction) -> None:
            for about, words in (
                (site["id"], "PHP ends again and again."),
                ("another", "Something of another site."),
            ):
                told = CustomerNotice(UUID(site["owner_id"]), words)
                await raise_alert(tx, f"test:{about}", words, resource_kind="site", resource_id=about, notice=told)

        await panel.core.database.transact(work)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow("shop.example.org")
        expect(browser.page.get_by_role("heading", name="Limits")).to_be_visible()
        trio.from_thread.run(opened, trio_token=browser.trio_token)
        alert = browser.row("PHP ends again and again.")
        expect(alert).to_be_visible()
        expect(browser.row("Something of another site.")).to_have_count(0)
        alert.get_by_role("button", name="Acknowledge").click()
        expect(alert).to_contain_text("seen")
        expect(alert.get_by_role("button")).to_have_count(0)

    await panel.browse(visit)
