"""The page of health: what each check says, and what changed, also while it is looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from playwright.sync_api import expect

from svc_actors.panel.health import CheckName
from svc_actors.panel.health.busiest import TopConsumers
from svc_actors.panel.health.checks import Checks
from svc_actors.panel.health.watch import BETTER_LOOKS, WORSE_LOOKS, HealthWatch
from svc_actors.store import Database
from tests.support.panel import RecordedVitals, recorded_host
from tests.support.panel_pages import Browser, PagesTier, panel_with_pages

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ROOT, ADA = "root@example.com", "ada@example.com"


async def test_what_is_critical_is_seen_while_the_page_is_open_and_so_is_its_end(
    tier: PagesTier, panel_database: Database
) -> None:
    vitals = RecordedVitals()
    host = replace(recorded_host(), vitals=vitals)
    async with panel_with_pages(tier, panel_database, host=host) as panel:
        await panel.core.person(ROOT, "administrator")
        await panel.core.person(ADA)
        folder = panel.core.services.config.folders.data
        busiest = TopConsumers(panel_database, vitals, host.databases, {}, ())
        checks = Checks(
            panel_database, host.launcher, host.name_server, vitals, host.databases, folder, busiest, relay=True
        )
        watch = HealthWatch(panel_database, {CheckName.DISK: checks.disk, CheckName.DNS: checks.dns})

        async def looks(number: int, filled: float) -> None:
            vitals.bytes = filled
            for _ in range(number):
                await watch.round()

        await looks(1, 10)

        def visit(browser: Browser) -> None:
            browser.sign_in(ROOT)
            browser.follow("Health")
            expect(browser.row("The disk of")).to_contain_text("ok")
            expect(browser.row("The name server answers")).to_contain_text("ok")
            browser.shows("Nothing.")
            trio.from_thread.run(looks, WORSE_LOOKS, 96, trio_token=browser.trio_token)
            expect(browser.row("96 % full").first).to_contain_text("critical")
            expect(browser.row("96 % full")).to_have_count(2)
            trio.from_thread.run(looks, BETTER_LOOKS, 20, trio_token=browser.trio_token)
            expect(browser.row("20 % full").first).to_contain_text("ok")
            expect(browser.row("96 % full")).to_have_count(1)

        def refused(browser: Browser) -> None:
            browser.sign_in(ADA)
            browser.shows("Sites")
            expect(browser.page.get_by_role("link", name="Health", exact=True)).to_have_count(0)

        await panel.browse(visit)
        await panel.browse(refused)
