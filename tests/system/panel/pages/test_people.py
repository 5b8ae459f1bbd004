"""The pages of people and of the audit: what an administrator does for others, and what is written down of it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.support.panel_pages import Browser, PanelPages

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ROOT, ADA = "root@example.com", "ada@example.com"


async def test_a_customer_is_given_a_plan_and_a_token_suspended_and_deleted(panel: PanelPages) -> None:
    await panel.core.person(ROOT, "administrator")
    tokens: list[str] = []

    def visit(browser: Browser) -> None:
        browser.sign_in(ROOT)
        browser.follow("Plans")
        browser.press("Create plan")
        browser.fill("Name", "Small")
        browser.fill("Sites", "2")
        browser.press("Create")
        expect(browser.row("Small")).to_have_count(1)
        browser.follow("People")
        browser.press("Create account")
        browser.fill("Email", ADA)
        browser.fill("Name", "Ada")
        browser.fill("Password", "Correct-Horse-42")
        browser.press("Create")
        expect(browser.page.get_by_role("heading", name=ADA)).to_be_visible()
        browser.shows("Plan: Small")
        browser.shows("0 of 2")

        browser.press("Create token")
        browser.fill("What it is for", "deploys")
        browser.fill("May", "sites\nread")
        browser.press("Create token")
        shown = browser.page.locator("dialog .secret code")
        expect(shown).to_contain_text("svc_")
        tokens.append(shown.inner_text())
        browser.press("Done")
        expect(browser.row("deploys")).to_contain_text("read, sites")

        browser.press("Suspend")
        browser.fill("Reason", "unpaid")
        browser.press("Suspend")
        browser.has_status("suspended")
        browser.shows("unpaid")
        browser.press("Unsuspend")
        browser.press("Unsuspend")
        browser.has_status("active")

        browser.press("Terminate account")
        browser.fill(f"Type {ADA} to confirm", ADA)
        browser.press("Terminate")
        browser.has_status("succeeded")
        browser.follow("People")
        expect(browser.row(ROOT)).to_have_count(1)
        expect(browser.row(ADA)).to_have_count(0)

    await panel.browse(visit)

    assert (await panel.core.program(tokens[0]).get("/sites")).status_code == 401


async def test_the_audit_is_searched_by_what_was_done_and_shows_each_entry_whole(panel: PanelPages) -> None:
    await panel.core.person(ROOT, "administrator")
    ada = await panel.core.customer(ADA)
    await ada.post("/sites", {"domain": "ada.example.org", "type": "static"})
    await ada.post("/webhooks", {"url": "https://receiver.example/", "events": ["*"]})

    def visit(browser: Browser) -> None:
        browser.sign_in(ROOT)
        browser.follow("Audit")
        expect(browser.row("site.create")).to_contain_text("ada.example.org")
        browser.page.get_by_label("Outcome").select_option("denied")
        expect(browser.row("site.create")).to_have_count(0)
        expect(browser.row("webhook.create")).to_contain_text(ADA)
        browser.press("Clear filters")
        browser.page.get_by_label("Operation").fill("site.create")
        browser.page.get_by_label("Operation").press("Enter")
        expect(browser.page.locator("main tbody tr")).to_have_count(1)
        browser.press("site.create")
        browser.follow("All that was done to it")
        browser.shows("Of one site alone")
        expect(browser.row("site.create")).to_contain_text(ADA)

    await panel.browse(visit)


async def test_the_server_is_shown_with_its_alerts_and_a_customer_is_offered_none_of_it(panel: PanelPages) -> None:
    await panel.core.person(ROOT, "administrator")
    await panel.core.person(ADA)
    await panel.core.database.execute(
        "INSERT INTO alerts (key, severity, message) VALUES ('disk', 'critical', 'The disk is nearly full.')"
    )

    def administrator(browser: Browser) -> None:
        browser.sign_in(ROOT)
        browser.follow("Server")
        browser.shows("beta")
        expect(browser.row("The disk is nearly full.")).to_contain_text("critical")
        browser.press("Acknowledge")
        expect(browser.row("The disk is nearly full.")).to_contain_text("seen")

    def customer(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.shows("No sites yet")
        sections = browser.page.get_by_role("navigation", name="Sections")
        for name in ("Server", "People", "Webhooks", "Audit"):
            expect(sections.get_by_role("link", name=name)).to_have_count(0)
        browser.page.goto(f"{browser.url}/#/people")
        browser.shows("There is no such page")

    await panel.browse(administrator)
    await panel.browse(customer)
