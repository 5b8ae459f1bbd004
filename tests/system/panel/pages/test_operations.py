"""Every operation of the registry is reachable from the pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from svc.panel.catalogue import panel_registry
from svc.registry.principal import Access
from tests.support.panel_pages import Browser, PanelPages
from tests.support.stack import ROOT

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ADA = "ada@example.com"
SHARED = ROOT / "http" / "dashboard" / "src" / "shared"


def offered(browser: Browser) -> set[str]:
    browser.follow("Operations")
    expect(browser.page.get_by_role("heading", name="Operations")).to_be_visible()
    links = browser.page.locator("[data-operation]")
    return set(links.evaluate_all("(links) => links.map((link) => link.dataset.operation)"))


async def test_an_administrator_reaches_every_operation_and_a_customer_every_one_of_theirs(panel: PanelPages) -> None:
    await panel.core.person("root@example.com", "administrator")
    await panel.core.person(ADA)
    found: dict[str, set[str]] = {}

    def visit(browser: Browser) -> None:
        for email in (ADA, "root@example.com"):
            browser.sign_in(email)
            found[email] = offered(browser)
            browser.press("Sign out")

    await panel.browse(visit)

    by_access: dict[Access, set[str]] = {access: set() for access in Access}
    for operation in panel_registry():
        by_access[operation.access].add(operation.name)
    assert found[ADA] == by_access[Access.SIGNED_IN]
    assert found["root@example.com"] == {operation.name for operation in panel_registry()} - by_access[Access.PUBLIC]


def test_what_needs_no_sign_in_is_on_the_pages_for_signing_in() -> None:
    pages = "".join(path.read_text() for path in Path(SHARED).glob("*.ts"))

    public = [operation for operation in panel_registry() if operation.access is Access.PUBLIC]

    assert public
    for operation in public:
        assert re.search(rf'api\.post(<[^(]*>)?\("{operation.route.path}"', pages), operation.name


async def test_each_operation_has_a_form_of_its_fields(panel: PanelPages) -> None:
    await panel.core.person("root@example.com", "administrator")

    def visit(browser: Browser) -> None:
        browser.sign_in("root@example.com")
        for name in sorted(offered(browser)):
            browser.page.evaluate("(name) => { location.hash = `#/operations/${name}`; }", name)
            expect(browser.page.get_by_role("heading", name=name, exact=True)).to_be_visible()
            expect(browser.page.locator("form.operation button")).to_be_enabled()

    await panel.browse(visit)


async def test_an_operation_without_a_page_of_its_own_is_done_by_its_form(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    assert (await ada.post("/sites", {"domain": "shop.example.org", "type": "static"})).status_code == 201

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow("Operations")
        browser.page.get_by_label("Filter").fill("Add a name to a site")
        browser.follow("domain.add")
        browser.choose("Site", "shop.example.org")
        browser.fill("Name", "www.shop.example.org")
        browser.press("Run")
        expect(browser.page.get_by_role("status").first).to_contain_text("www.shop.example.org")

        browser.fill("Name", "not a name")
        browser.press("Run")
        expect(browser.page.get_by_role("alert")).to_be_visible()

    await panel.browse(visit)

    [site] = (await ada.get("/sites")).json()["items"]
    assert site["aliases"] == ["www.shop.example.org"]
