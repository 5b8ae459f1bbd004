"""The page of updates, and the licence on the page of the server."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.sync_api import expect

from svc_actors.host.packages import PackageUpdate
from svc_actors.store import Database
from tests.support.packages import RecordedPackages
from tests.support.panel import recorded_host
from tests.support.panel_pages import Browser, PagesTier, panel_with_pages

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ROOT = "root@example.com"


async def test_updates_are_held_installed_and_turned_off_and_a_beta_needs_no_licence(
    tier: PagesTier, panel_database: Database
) -> None:
    offered = [PackageUpdate(name, "1.0", "1.1", security=True) for name in ("nginx", "restic")]
    packages = RecordedPackages(offered=offered)
    async with panel_with_pages(tier, panel_database, host=replace(recorded_host(), packages=packages)) as panel:
        await panel.core.person(ROOT, "administrator")

        def visit(browser: Browser) -> None:
            browser.sign_in(ROOT)
            browser.follow("Updates")
            browser.row("restic").get_by_role("button", name="Hold").click()
            browser.shows("Held as they are")
            browser.press("Install security updates")
            browser.press("Install")
            expect(browser.page.get_by_text("succeeded").first).to_be_visible()
            browser.follow("Updates")
            browser.shows("Installed last")
            browser.press("Change the mode")
            browser.choose("Mode", "off")
            browser.press("Change")
            expect(browser.page.get_by_role("button", name="Look now")).to_have_count(0)

            browser.follow("Server")
            browser.shows("There is none, and none is needed")

        await panel.browse(visit)

    assert packages.there == {"knot": "3.2-1", "nginx": "1.1"}
    assert packages.holds == {"restic"}
