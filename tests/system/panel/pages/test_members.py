"""The pages of members: a customer lets somebody in, who does what the role allows, and is out again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from playwright.sync_api import expect

from svc_actors.store import Database
from tests.support.identity import MAIL
from tests.support.panel_pages import Browser, PagesTier, PanelPages, panel_with_pages

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ADA, BOB = "ada@example.com", "bob@example.com"


@pytest.fixture
async def panel(tier: PagesTier, panel_database: Database) -> AsyncIterator[PanelPages]:
    async with panel_with_pages(tier, panel_database, mail=MAIL) as pages:
        yield pages


async def test_a_member_is_invited_accepts_is_held_to_the_role_and_removed(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    await panel.core.person(BOB, "member")
    assert (await ada.post("/sites", {"domain": "shop.example.org", "type": "static"})).status_code == 201

    def owner(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow("shop.example.org")
        browser.page.get_by_role("navigation", name="Of this site").get_by_role("link", name="Members").click()
        browser.press("Invite somebody")
        browser.fill("Email", BOB)
        browser.choose("Role", "viewer")
        browser.press("Invite")
        expect(browser.row(BOB)).to_contain_text("invited")

    def member(browser: Browser) -> None:
        browser.sign_in(BOB)
        browser.shows("No site is open to you")
        browser.follow("Memberships")
        expect(browser.row(ADA)).to_contain_text("viewer")
        browser.press("Accept")
        expect(browser.page.get_by_role("button", name="Leave")).to_be_visible()
        browser.follow("Sites")
        expect(browser.row("shop.example.org")).to_contain_text(ADA)
        browser.follow("shop.example.org")
        tabs = browser.page.get_by_role("navigation", name="Of this site")
        expect(tabs.get_by_role("link", name="Domains")).to_be_visible()
        expect(tabs.get_by_role("link", name="Members")).to_have_count(0)
        browser.follow("Domains")
        browser.press("Add a redirect")
        browser.fill("Path", "/old")
        browser.fill("Is sent to", "/new")
        browser.press("Add")
        expect(browser.page.locator("dialog[open]").get_by_role("alert")).to_contain_text("role manager")

    def owner_again(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.page.get_by_role("link", name="Members", exact=True).click()
        browser.row(BOB).get_by_role("button", name="Change the role").click()
        browser.choose("Role", "editor")
        browser.press("Change")
        expect(browser.row(BOB)).to_contain_text("editor")
        browser.row(BOB).get_by_role("button", name="Remove").click()
        browser.press("Remove")
        browser.shows("Nobody but you")

    await panel.browse(owner)
    await panel.browse(member)
    await panel.browse(owner_again)

    roles = [row["details"]["role"] for row in await panel.core.audit() if row["operation"] == "member.update"]
    assert roles == ["editor"]
    assert (await ada.get("/members")).json()["items"] == []
