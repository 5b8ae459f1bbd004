"""The pages of jobs: the list, and one job as it goes on."""

from __future__ import annotations

import pytest
import trio
from playwright.sync_api import expect

from svc_actors.panel.jobs import JobRun
from svc_actors.store import Database
from svc_common.errors import conflict
from tests.panel.jobs.work import Held, Steps, nothing, queue
from tests.support.panel_pages import Browser, PagesTier, panel_with_pages

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ADA = "ada@example.com"


async def test_a_job_is_followed_line_by_line_and_cancelled(tier: PagesTier, panel_database: Database) -> None:
    held = Held()

    async def talk(run: JobRun) -> None:
        await run.log("The first line.")
        await held.hold(run)
        await run.log("The last line.")
        await trio.sleep_forever()

    work = {"test.talk": Steps(talk=talk, tidy=nothing)}
    async with panel_with_pages(tier, panel_database, work=work) as panel:
        ada = await panel.core.person(ADA)
        job = await queue(panel_database, "test.talk", "talk", "tidy", owner=ada)

        def visit(browser: Browser) -> None:
            browser.sign_in(ADA)
            browser.shows("No sites yet")
            browser.follow("Jobs")
            browser.follow("A job of test.talk")
            log = browser.page.locator(".log li")
            expect(log).to_have_count(1)
            expect(log).to_contain_text("The first line.")
            browser.meanwhile(held.release, job)
            expect(log).to_have_count(2)
            expect(log.last).to_contain_text("The last line.")

            browser.press("Cancel")
            expect(browser.page.locator("main .head .badge")).to_have_text("cancelled")
            expect(browser.page.locator(".steps li")).to_contain_text(["cancelled", "cancelled"])
            expect(browser.page.get_by_role("button", name="Cancel")).to_have_count(0)

        await panel.browse(visit)


async def test_a_job_that_failed_says_why_and_is_found_by_its_status(tier: PagesTier, panel_database: Database) -> None:
    async def refuse(run: JobRun) -> None:
        raise conflict("The folder is not empty.", hint="Empty it.")

    work = {"test.bad": Steps(check=refuse, pack=nothing), "test.good": Steps(check=nothing)}
    async with panel_with_pages(tier, panel_database, work=work) as panel:
        ada = await panel.core.person(ADA)
        await queue(panel_database, "test.good", "check", owner=ada)
        await queue(panel_database, "test.bad", "check", "pack", owner=ada)

        def visit(browser: Browser) -> None:
            browser.sign_in(ADA)
            browser.shows("No sites yet")
            browser.follow("Jobs")
            expect(browser.row("A job of test.good")).to_contain_text("succeeded")
            browser.page.get_by_label("Status").select_option("failed")
            expect(browser.row("A job of test.good")).to_have_count(0)
            expect(browser.row("A job of test.bad")).to_contain_text("The folder is not empty.")
            browser.follow("A job of test.bad")
            browser.shows("Empty it.")
            expect(browser.page.locator(".steps li").nth(1)).to_contain_text("cancelled")

        await panel.browse(visit)
