"""The page of updates, and the licence on the page of the server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect

from svc_actors.store import Database
from svc_webhost.packages import PackageUpdate
from tests.support.own_releases import MAKER, installed_release, release_tree
from tests.support.packages import RecordedPackages
from tests.support.panel import recorded_host
from tests.support.panel_pages import Browser, PagesTier, panel_with_pages
from tools.release_archive import make_release

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ROOT = "root@example.com"


async def test_a_release_of_the_panel_is_looked_for_and_installed_and_its_trial_is_shown(
    tier: PagesTier, panel_database: Database, tmp_path: Path
) -> None:
    own = installed_release(tmp_path)
    make_release(release_tree(tmp_path / "tree"), own.releases.incoming, "1.1.0", MAKER)
    async with panel_with_pages(tier, panel_database, host=replace(recorded_host(), own_release=own)) as panel:
        await panel.core.person(ROOT, "administrator")

        def visit(browser: Browser) -> None:
            browser.sign_in(ROOT)
            browser.follow("Updates")
            browser.press("Check for a release")
            browser.has_status("succeeded")
            browser.follow("Updates")
            browser.press("Install 1.1.0")
            browser.press("Install")
            browser.has_status("succeeded")
            browser.follow("Updates")
            expect(browser.page.get_by_text("trial").first).to_be_visible()

        await panel.browse(visit)

    assert own.releases.ordered()


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
            browser.shows("Held packages")
            browser.press("Install security updates")
            browser.press("Install")
            browser.has_status("succeeded")
            browser.follow("Updates")
            browser.shows("Last installation")
            browser.press("Change mode")
            browser.choose("Mode", "off")
            browser.press("Change")
            expect(browser.page.get_by_role("button", name="Check now")).to_have_count(0)

            browser.follow("Server")
            browser.shows("There is none, and none is needed")

        await panel.browse(visit)

    assert packages.there == {"knot": "3.2-1", "nginx": "1.1"}
    assert packages.holds == {"restic"}
