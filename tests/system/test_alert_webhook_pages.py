"""Receivers of alerts on their page, in a real browser: added, tried, given a new secret, paused and removed."""

from __future__ import annotations

import pytest
import trio

from tests.support.browser import open_browser
from tests.support.stack import ROOT, fresh_controller
from tests.system.test_pages import row_says, set_up

# Chromium gives up what it has asked for whenever an address of its host comes or goes, as with other tests' machines.
pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

SECRET = "document.querySelector('dialog .secret code')?.innerText ?? ''"


async def test_an_administrator_has_alerts_told_by_webhook() -> None:
    await trio.run_process([str(ROOT / "tools" / "build-dashboard")])
    async with fresh_controller(SVC_WEBHOOK_NETWORKS="127.0.0.0/8,::1/128") as stack, open_browser() as browser:
        page = await set_up(browser, stack)
        await page.press("Alerts")
        await page.press("Webhooks")
        await page.shows("No webhook receives alerts")

        # What is refused is said in the dialog, which stays
        await page.press("Create webhook")
        await page.fill("Address", "http://receiver.example/")
        await page.press("Create")
        await page.until("!!document.querySelector('dialog .failure')?.innerText.includes('https')")
        await page.fill("Address", "https://localhost:9/alerts")
        await page.press("Create")
        await page.until(f"({SECRET}).startsWith('whsec_')")
        first = str(await page.evaluate(SECRET))
        await page.press("Done")
        await row_says(page, "https://localhost:9/alerts", "critical alerts", first[-4:])

        await page.press("https://localhost:9/alerts")
        await page.press("Send test")
        await row_says(page, "alert.test", "of 6")
        await page.press("alert.test")
        await page.until("!!document.querySelector('dialog .payload')?.innerText.includes('\"test\": true')")
        await page.press("Done")

        await page.press("Rotate secret")
        await page.press("Rotate")
        await page.until(f"({SECRET}).startsWith('whsec_')")
        assert str(await page.evaluate(SECRET)) != first
        await page.press("Done")
        await page.press("Disable")
        await page.until("document.querySelector('main .head .badge')?.innerText === 'disabled'")
        await page.press("Delete")
        await page.press("Delete")
        await page.shows("No webhook receives alerts")
        assert [line for line in page.complaints if "Security" in line] == []
