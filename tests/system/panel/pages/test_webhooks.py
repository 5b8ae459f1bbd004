"""The pages of webhooks: an endpoint, its secret, what was sent to it and what became of that."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest
from playwright.sync_api import expect

from svc_actors.store import Database
from svc_actors.webhooks.settings import WebhookSettings
from tests.support.panel import recorded_host
from tests.support.panel_pages import Browser, PagesTier, panel_with_pages
from tests.support.webhooks import leads_here, open_receiving

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ROOT = "root@example.com"


async def test_an_endpoint_is_added_tested_replayed_rotated_paused_and_removed(
    tier: PagesTier, panel_database: Database, tmp_path: Path
) -> None:
    async with open_receiving(tmp_path) as receiving:
        receiver = await receiving.receiver(404, 200)
        host = replace(recorded_host(), resolve=leads_here)
        settings = WebhookSettings(networks=(ip_network("127.0.0.1/32"),), ca_file=receiving.authorities)
        async with panel_with_pages(tier, panel_database, host=host, webhooks=settings) as panel:
            await panel.core.person(ROOT, "administrator")
            secrets: list[str] = []

            def visit(browser: Browser) -> None:
                shown = browser.page.locator("dialog .secret code")
                browser.sign_in(ROOT)
                browser.follow("Webhooks")
                browser.press("Create webhook")
                browser.fill("Address", "http://receiver.example/")
                browser.page.get_by_label("*", exact=True).check()
                browser.press("Create")
                expect(browser.page.get_by_role("alert")).to_contain_text("https")
                browser.fill("Address", receiver.url)
                browser.press("Create")
                expect(shown).to_contain_text("whsec_")
                secrets.append(shown.inner_text())
                browser.press("Done")
                browser.shows(f"whsec_…{secrets[0][-4:]}")

                browser.press("Send test")
                sent = browser.row("update.installed")
                expect(sent).to_contain_text("failed")
                expect(sent).to_contain_text("404")
                sent.get_by_role("button", name="Replay").click()
                expect(sent).to_contain_text("delivered")
                browser.press("update.installed")
                expect(browser.page.locator("dialog .payload")).to_contain_text('"test": true')
                browser.press("Done")

                browser.press("Rotate secret")
                browser.press("Rotate")
                expect(shown).to_contain_text("whsec_")
                secrets.append(shown.inner_text())
                browser.press("Done")
                browser.press("Disable")
                expect(browser.page.locator("main .head .badge").first).to_have_text("disabled")
                browser.press("Delete")
                browser.press("Delete")
                browser.shows("No endpoint gets events")

            await panel.browse(visit)
        receiving.nursery.cancel_scope.cancel()

    assert len(receiver.received) == 2
    assert receiver.received[0].delivery == receiver.received[1].delivery
    assert len(set(secrets)) == 2
