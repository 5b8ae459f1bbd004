"""The pages of members: a customer lets somebody in, who does what the role allows, and is out again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import trio
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
        browser.press("Invite member")
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
        browser.shows("No redirects")
        expect(browser.page.get_by_role("button", name="Create redirect")).to_have_count(0)

    def owner_again(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.page.get_by_role("link", name="Members", exact=True).click()
        browser.row(BOB).get_by_role("button", name="Change role").click()
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


TABS = [
    "Overview",
    "Domains",
    "Protection",
    "DNS",
    "Files",
    "Access",
    "Databases",
    "Schedules",
    "Mail",
    "Backups",
    "Certificate",
    "Diagnosis",
    ".htaccess",
    "Logs",
]
READS_FILES_OF_SERVERS = {"developer", "manager"}
"""Who has the tab of .htaccess files, in which there may be passwords."""
OFFERED: dict[str, set[str]] = {
    "viewer": set(),
    "editor": {"New folder", "New file"},
    "developer": {"New folder", "New file", "Create database", "Create task"},
    "manager": {
        "New folder",
        "New file",
        "Create database",
        "Create task",
        "Add domain",
        "Create redirect",
        "Protect path",
        "Deny path",
        "Create record",
        "Create account",
        "Back up now",
        "Change site",
        "Upload certificate",
    },
}
"""By role, of the buttons that begin something on a page of a site, those that are there."""
EVERY = set().union(*OFFERED.values())


@pytest.mark.parametrize("role", OFFERED)
async def test_a_member_is_offered_what_the_role_allows_and_nothing_that_is_refused(
    panel: PanelPages, role: str
) -> None:
    ada = await panel.core.customer(ADA)
    bob = await panel.core.person(BOB, "member")
    assert (await ada.post("/sites", {"domain": "shop.example.org", "type": "static"})).status_code == 201
    await let_in(panel, bob, role)
    refused: list[str] = []
    found: set[str] = set()

    def visit(browser: Browser) -> None:
        browser.page.on("response", lambda got: refused.append(got.url) if got.status == 403 else None)
        browser.sign_in(BOB)
        browser.follow("shop.example.org")
        tabs = browser.page.get_by_role("navigation", name="Of this site")
        expected = [tab for tab in TABS if tab != ".htaccess" or role in READS_FILES_OF_SERVERS]
        expect(tabs.get_by_role("link")).to_have_text(expected)
        for tab in expected:
            tabs.get_by_role("link", name=tab, exact=True).click()
            expect(tabs.locator("[aria-current=page]")).to_have_text(tab)
            expect(browser.page.locator("main").get_by_text("Loading…")).to_have_count(0)
            found.update(browser.page.locator("main").get_by_role("button").all_inner_texts())

    await panel.browse(visit)

    assert refused == []
    assert found & EVERY == OFFERED[role]


async def test_a_member_of_one_site_is_shown_nothing_of_its_domain_and_a_new_role_counts_at_once(
    panel: PanelPages,
) -> None:
    ada = await panel.core.customer(ADA)
    bob = await panel.core.person(BOB, "member")
    site = (await ada.post("/sites", {"domain": "shop.example.org", "type": "static"})).json()
    await let_in(panel, bob, "viewer", site["id"])

    def visit(browser: Browser) -> None:
        browser.sign_in(BOB)
        browser.follow("shop.example.org")
        tabs = browser.page.get_by_role("navigation", name="Of this site")
        expect(tabs.get_by_role("link")).to_have_text([tab for tab in TABS if tab not in ("DNS", ".htaccess")])
        tabs.get_by_role("link", name="Databases").click()
        browser.shows("No databases yet")
        expect(browser.page.get_by_role("button", name="Create database")).to_have_count(0)
        trio.from_thread.run(developer, trio_token=browser.trio_token)
        expect(browser.page.get_by_role("button", name="Create database")).to_be_visible()

    async def developer() -> None:
        await panel.core.database.execute("UPDATE account_members SET role = 'developer' WHERE user_id = $1", bob)

    await panel.browse(visit)


@pytest.mark.parametrize(("role", "offered"), [("viewer", 0), ("manager", 1)])
async def test_a_site_is_created_by_managers_of_a_whole_account(panel: PanelPages, role: str, offered: int) -> None:
    ada = await panel.core.customer(ADA)
    bob = await panel.core.person(BOB, "member")
    assert (await ada.post("/sites", {"domain": "shop.example.org", "type": "static"})).status_code == 201
    await let_in(panel, bob, role)

    def visit(browser: Browser) -> None:
        browser.sign_in(BOB)
        expect(browser.row("shop.example.org")).to_be_visible()
        browser.page.wait_for_load_state("networkidle")
        expect(browser.page.get_by_role("button", name="Create site")).to_have_count(offered)

    await panel.browse(visit)


async def let_in(panel: PanelPages, person: UUID, role: str, site: str | None = None) -> None:
    await panel.core.database.execute(
        """INSERT INTO account_members (account_id, user_id, site_id, role, invited_by, accepted_at)
           SELECT id, $1, $2, $3, email, now() FROM users WHERE email = $4""",
        person,
        None if site is None else UUID(site),
        role,
        ADA,
    )
