"""The pages of sites: what a customer and an administrator see and do."""

from __future__ import annotations

from functools import partial
from uuid import UUID

import pytest
from playwright.sync_api import expect

from svc_actors.alerts import CustomerNotice, raise_alert
from tests.support.panel_pages import Browser, PanelPages

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ADA = "ada@example.com"
ANOTHER_TAB = """
fetch("/api/v1/sites", {
  method: "POST",
  body: JSON.stringify({ domain: "new.example.org", type: "static" }),
  headers: { "Content-Type": "application/json", "X-Service-Request": "1" },
})"""


async def test_a_new_site_has_its_own_letters_and_www_and_says_where_to_point_them(panel: PanelPages) -> None:
    await panel.core.person(ADA)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.press("Create the first site")
        browser.fill("Domain", "müller-shop.net")
        browser.press("Create")
        expect(browser.page.locator("h1")).to_have_text("müller-shop.net")
        names = browser.page.locator("dl.facts div", has_text="Names").first
        expect(names).to_contain_text("www.müller-shop.net www.xn--mller-shop-9db.net")
        expect(names).to_contain_text("does not resolve")

    await panel.browse(visit)


async def test_a_customer_makes_a_site_suspends_it_and_deletes_it(panel: PanelPages) -> None:
    await panel.core.person(ADA)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.shows("No sites yet")
        browser.press("Create the first site")
        browser.fill("Domain", "shop.example.org")
        browser.fill("Other domains", "www.shop.example.org\nshop.example.net")
        browser.press("Create")
        status = browser.page.locator("main .head .badge")
        expect(status).to_have_text("active")
        browser.shows("shop.example.net")

        browser.press("Suspend")
        browser.fill("Reason", "a holiday")
        browser.press("Suspend")
        expect(status).to_have_text("suspended")
        browser.shows("a holiday")
        browser.press("Unsuspend")
        browser.press("Unsuspend")
        expect(status).to_have_text("active")

        browser.press("Delete site")
        delete = browser.place().get_by_role("button", name="Delete", exact=True)
        expect(delete).to_be_disabled()
        browser.fill("Type shop.example.org to confirm", "shop.example.org")
        delete.click()
        browser.shows("No sites yet")

    await panel.browse(visit)

    assert [row["operation"] for row in await panel.core.audit() if row["operation"].startswith("site.")] == [
        "site.create",
        "site.suspend",
        "site.suspend",
        "site.delete",
    ]


async def test_a_refusal_says_what_to_do_and_loses_nothing_that_was_typed(panel: PanelPages) -> None:
    await panel.core.person(ADA)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.press("Create site")
        browser.choose("Type", "proxy")
        browser.fill("Domain", "app.example.org")
        browser.fill("Upstream", "http://127.0.0.1:8080")
        browser.press("Create")

        failure = browser.page.get_by_role("alert")
        expect(failure).to_contain_text("127.0.0.1")
        expect(browser.field("Domain")).to_have_value("app.example.org")
        expect(browser.field("Type")).to_have_value("proxy")
        browser.choose("Type", "static")
        expect(browser.field("Upstream")).to_have_count(0)
        browser.press("Create")
        expect(browser.page.get_by_role("heading", name="app.example.org")).to_be_visible()

    await panel.browse(visit)


async def test_an_administrator_finds_a_customers_site_and_limits_it(panel: PanelPages) -> None:
    await panel.core.person("root@example.com", "administrator")
    ada = await panel.core.customer(ADA)
    for domain in ("one.example.org", "two.example.org"):
        assert (await ada.post("/sites", {"domain": domain, "type": "static"})).status_code == 201

    def visit(browser: Browser) -> None:
        browser.sign_in("root@example.com")
        expect(browser.row("two.example.org")).to_contain_text(ADA)
        browser.page.get_by_label("Filter").fill("one")
        expect(browser.row("two.example.org")).to_have_count(0)
        browser.follow("one.example.org")
        browser.press("Change limits")
        browser.fill("Memory, in MiB", "512")
        browser.press("Save")
        browser.shows("512 MiB")
        browser.press("Change limits")
        browser.fill("Memory, in MiB", "")
        browser.press("Save")
        expect(browser.page.locator("main")).not_to_contain_text("512 MiB")

    await panel.browse(visit)


async def test_what_a_program_changes_appears_without_a_reload(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)

    def before(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.shows("No sites yet")
        browser.page.evaluate(ANOTHER_TAB)
        expect(browser.row("new.example.org")).to_contain_text("active")

    await panel.browse(before)

    assert (await ada.get("/sites")).json()["total"] == 1


async def test_a_customer_over_their_plan_reads_it_where_they_begin(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    site = (await ada.post("/sites", {"domain": "shop.example.org", "type": "static"})).json()
    told = CustomerNotice(UUID(site["owner_id"]), "700 MiB of disk are used, and the plan small allows 500.")
    work = partial(
        raise_alert,
        key="test",
        message="ada: too much",
        resource_kind="user",
        resource_id=site["owner_id"],
        notice=told,
    )
    await panel.core.database.transact(work)

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        expect(browser.row("shop.example.org")).to_be_visible()
        alert = browser.row("700 MiB of disk are used")
        expect(alert).to_be_visible()
        alert.get_by_role("button", name="Acknowledge").click()
        expect(alert).to_contain_text("seen")

    await panel.browse(visit)
