"""The page over a site's .htaccess files: a verdict beside each line."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.support.panel_pages import Browser, PanelPages
from tests.support.panel_sites import site_row
from tests.support.site_files import give, site_folder

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ADA = "ada@example.com"


async def test_each_line_has_a_verdict_and_its_reason(panel: PanelPages) -> None:
    site = await site_row(panel.core.database, await panel.core.person(ADA), "shop.example.org")
    number = await panel.core.database.fetchval("SELECT number FROM sites WHERE id = $1", site)
    folder = site_folder(panel.core.services.config.folders.sites, number)
    give(folder, "public/.htaccess", b"Options -Indexes\nRequire ip 192.0.2.0/24\n")

    def visit(browser: Browser) -> None:
        browser.sign_in(ADA)
        browser.follow("shop.example.org")
        browser.follow(".htaccess")
        browser.shows(".htaccess files need attention")
        expect(browser.row("Options -Indexes").first).to_contain_text("same")
        expect(browser.row("Require ip").first).to_contain_text("blocks")
        expect(browser.row("Require ip").first).to_contain_text("would be open here")

    await panel.browse(visit)
