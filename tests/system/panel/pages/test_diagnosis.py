"""The page of a site's diagnosis: what is wrong, and the repair at a press."""

from __future__ import annotations

from typing import cast

import pytest
from playwright.sync_api import expect

from svc_webhost.site_rights import WrongRights
from tests.support.panel_pages import Browser, PanelPages
from tests.support.panel_sites import RecordedAccounts

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ADA = "ada@example.com"


async def test_what_is_wrong_is_named_and_its_repair_mends_it(panel: PanelPages) -> None:
    ada = await panel.core.customer(ADA)
    created = await ada.post("/sites", {"domain": "shop.example.org", "type": "static"})
    assert created.status_code == 201, created.text
    accounts = cast(RecordedAccounts, panel.core.host.accounts)
    account = f"s{created.json()['number']}"
    accounts.wrong[account] = [
        WrongRights("public/index.php belongs to 0:0."),
        WrongRights("public/x is another's.", mendable=False),
    ]

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow("shop.example.org")
        browser.follow("Diagnosis")
        browser.shows("Faults were found")
        browser.shows("public/x is another's.")
        expect(browser.page.locator("main").get_by_role("button", name="Repair")).to_have_count(1)

        browser.press("Repair")
        browser.press("Repair")
        browser.shows("Mended: public/index.php belongs to 0:0.")

        browser.follow("Sites")
        browser.follow("shop.example.org")
        browser.follow("Diagnosis")
        browser.shows("public/x is another's.")
        expect(browser.page.locator("main")).not_to_contain_text("public/index.php")
        # What no repair helps with has no button that says otherwise
        expect(browser.page.locator("main").get_by_role("button", name="Repair")).to_have_count(0)

        browser.meanwhile(accounts.wrong.clear)
        browser.page.reload()
        browser.shows("Nothing is wrong")

    await panel.browse(visit)
