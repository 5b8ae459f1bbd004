"""The page of imports: an archive is uploaded, its plan is gone through, and what is ticked is applied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect

from svc_actors.store import Database
from tests.panel.imports.world import FolderAccounts
from tests.support import foreign_archives as foreign
from tests.support.foreign_archives import ADDON, MAIN
from tests.support.panel import recorded_host
from tests.support.panel_pages import Browser, PagesTier, panel_with_pages

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ADA = "ada@example.com"
TABLE = {"database": "ada_wp", "table": "wp_posts", "rows_before": 7, "rows_imported": 5, "rows": None, "changed": None}
REPORT = {
    "verdict": "blocked",
    "urls": 1,
    "differences": [],
    "checks": [{"name": "rows", "ok": False, "reason": "1 tables lack rows of the dump (5 of 7)"}],
    "tables": [TABLE],
    "php": {"before": "8.1", "now": "8.2", "missing": ["intl"], "others_missing": []},
}


async def test_an_archive_is_gone_through_item_by_item_and_becomes_a_site(
    tier: PagesTier, panel_database: Database, tmp_path: Path
) -> None:
    archive = tmp_path / "cpmove-ada.tar.gz"
    archive.write_bytes(foreign.cpanel(foreign.model()))
    accounts = FolderAccounts(tmp_path / "sites")
    async with panel_with_pages(tier, panel_database, host=replace(recorded_host(), accounts=accounts)) as panel:
        await panel.core.person(ADA)
        accounts.sites = panel.core.services.config.folders.sites

        def visit(browser: Browser) -> None:
            browser.sign_in(ADA)
            browser.follow("Imports")
            browser.page.get_by_label("Upload archive", exact=True).set_input_files(archive)
            browser.shows("The plan")
            expect(browser.row("mailboxes are not imported").first).to_contain_text("leave out")
            browser.page.get_by_label(f"Import site {ADDON}", exact=True).uncheck()
            browser.press("Apply")
            browser.shows("left out")
            browser.press("Apply")
            browser.has_status("succeeded")

            browser.follow("Imports")
            browser.follow("cpmove-ada.tar.gz")
            browser.shows("1 site created")
            browser.follow(MAIN)
            browser.follow("Migration")
            browser.shows("It was not compared yet")

            browser.follow("Imports")
            browser.follow("cpmove-ada.tar.gz")
            browser.press("Delete")
            browser.press("Delete")
            browser.shows("No imports.")

        await panel.browse(visit)
        await panel_database.execute(
            """INSERT INTO migration_reports (site_id, address, report, job_id)
               SELECT sites.id, '198.51.100.7', $1, (SELECT max(id) FROM jobs) FROM sites""",
            REPORT,
        )

        def read(browser: Browser) -> None:
            browser.sign_in(ADA)
            browser.follow("Sites")
            browser.follow(MAIN)
            browser.follow("Migration")
            browser.shows("8.1 there, 8.2 here, without intl")
            expect(browser.row("ada_wp.wp_posts")).to_contain_text("7")
            expect(browser.row("ada_wp.wp_posts")).to_contain_text("not known")
            expect(browser.row("1 tables lack rows of the dump")).to_contain_text("blocked")

        await panel.browse(read)

    assert await panel_database.fetchval("SELECT array_agg(domain) FROM sites") == [MAIN]
