"""Mail of a site in the browser: its state, what is held and released, limits, and the mails themselves."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from playwright.sync_api import expect

from svc_actors.mail import mail_settings
from svc_actors.panel.mail import holds
from svc_actors.panel.sites.records import lock_site
from svc_actors.store import Database, Transaction
from tests.support.panel_pages import Browser, PagesTier, PanelPages, panel_with_pages
from tests.support.panel_sites import site_row

pytestmark = [pytest.mark.system, pytest.mark.isolated]

# Nothing listens there: mail that is sent now waits again.
RELAY = mail_settings(
    {
        "SVC_MAIL_HOST": "localhost",
        "SVC_MAIL_PORT": "9",
        "SVC_MAIL_SECURITY": "none",
        "SVC_MAIL_SENDER": "svc@example.org",
    }
)
ROOT, ADA = "root@example.com", "ada@example.com"


async def hold(site: UUID, tx: Transaction) -> None:
    reason = "more than 200 mails in an hour; programs that sent most in the last hour: public/uploads/x.php: 201"
    await holds.hold(tx, await lock_site(tx, site), reason)


async def hand_in(panel: PanelPages, site: UUID, recipient: str, **columns: Any) -> None:
    row = {"state": "queued", "error": None, "attempts": 0} | columns
    await panel.core.database.execute(
        """INSERT INTO site_mails (message, site_id, sender, recipient, script, bytes, state, attempts, error,
                                   attempt_at, deadline_at, ended_at)
           VALUES ($1, $2, 'shop@shop.example.org', $3, 'public/uploads/x.php', 2048, $4, $5, $6,
                   now() + interval '1 hour', now() + interval '3 days',
                   CASE WHEN $4 = 'queued' THEN NULL ELSE now() END)""",
        uuid4(),
        site,
        recipient,
        row["state"],
        row["attempts"],
        row["error"],
    )


async def test_an_owner_sees_what_is_held_releases_it_and_cancels_what_waits(
    tier: PagesTier, panel_database: Database
) -> None:
    async with panel_with_pages(tier, panel_database, mail=RELAY) as panel:
        ada = await panel.core.person(ADA)
        await panel.core.person(ROOT, "administrator")
        site = await site_row(panel_database, ada, "shop.example.org")
        await panel_database.transact(partial(hold, site))
        await hand_in(panel, site, "bob@example.net", state="sent", attempts=1)
        await hand_in(panel, site, "eve@example.net", state="failed", attempts=1, error="550 5.1.1 no such user")
        await hand_in(panel, site, "now@example.net")
        await hand_in(panel, site, "waits@example.net")

        def owner(browser: Browser) -> None:
            browser.sign_in(ADA)
            browser.follow("shop.example.org")
            browser.follow("Mail")
            browser.shows("The mail of this site is held: more than 200 mails in an hour")
            expect(browser.row("eve@example.net")).to_contain_text("550 5.1.1 no such user")
            expect(browser.page.get_by_role("button", name="Change limits")).to_have_count(0)
            browser.press("Release")
            browser.press("Release")
            browser.shows("is accepted again")
            expect(browser.page.get_by_text("is held")).to_have_count(0)
            browser.choose("State", "queued")
            expect(browser.row("bob@example.net")).to_have_count(0)
            browser.row("now@example.net").get_by_role("button", name="Send now").click()
            browser.press("Send now")
            browser.shows("It is sent now.")
            browser.press("Cancel waiting mails")
            browser.press("Cancel mails")
            browser.shows("Cancelled: ")
            browser.choose("State", "failed")
            expect(browser.row("waits@example.net")).to_contain_text(f"cancelled by {ADA}")

        def administrator(browser: Browser) -> None:
            browser.sign_in(ROOT)
            browser.page.goto(f"{browser.url}/#/sites/{site}/mail")
            browser.press("Change limits")
            browser.fill("Mails an hour", "5")
            browser.press("Save")
            browser.shows("0 of 5 set for this site")

        await panel.browse(owner)
        await panel.browse(administrator)
        assert await panel_database.fetchval("SELECT mails_per_hour FROM site_mail_settings") == 5
