"""What belongs to one site: its names, DNS, certificate and logs."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.identity import Client
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
        browser.press("Add a name")
        browser.fill("Name", "www.shop.example.org")
        browser.press("Add")
        other = browser.row("www.shop.example.org")
        other.get_by_role("button", name="Make it primary").click()
        browser.press("Make it primary")
        expect(browser.page.get_by_role("heading", name="www.shop.example.org")).to_be_visible()
        old = browser.page.locator("main tr").filter(
            has=browser.page.get_by_role("cell", name="shop.example.org", exact=True)
        )
        old.get_by_role("button", name="Remove").click()
        browser.press("Remove")
        expect(old).to_have_count(0)

        browser.press("Add a redirect")
        browser.fill("Path", "/old")
        browser.fill("Is sent to", "/new")
        browser.press("Add")
        expect(browser.row("/old")).to_contain_text("/new")

    await panel.browse(visit)

    names = (await ada.get(f"/sites/{site['id']}/domains")).json()
    assert [each["name"] for each in names] == ["www.shop.example.org"]
    [redirect] = (await ada.get(f"/sites/{site['id']}/redirects")).json()
    assert (redirect["path"], redirect["target"], redirect["status"]) == ("/old", "/new", 301)


async def test_records_of_any_type_are_added_changed_and_deleted(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    site = await made(ada)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow("shop.example.org")
        browser.follow("DNS")
        browser.press("Point it here")
        browser.press("Point it here")
        browser.shows("203.0.113.80")
        browser.press("Done")
        expect(browser.row("203.0.113.80")).to_contain_text("A")

        browser.press("Add a record")
        browser.choose("Type", "MX")
        browser.fill("Preference", "10")
        browser.fill("Exchange", "mail.example.org")
        browser.press("Add")
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


async def test_a_certificate_that_is_none_is_refused_where_it_was_given(panel: PanelPages) -> None:
    await made(await panel.core.customer(ADA))

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow("shop.example.org")
        browser.follow("Certificate")
        browser.press("Upload one of your own")
        browser.fill("Certificate and those of its issuers", "nothing of the kind")
        browser.fill("Private key", "nor this")
        browser.press("Serve it")
        expect(browser.page.get_by_role("alert")).to_be_visible()

    await panel.browse(visit)


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
