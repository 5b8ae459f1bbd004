"""A machine's snapshots on its page, in a real browser: taken, restored while it is off, and deleted."""

from __future__ import annotations

import pytest

from tests.support.browser import open_browser
from tests.system.test_pages import (
    add_image,
    add_node,
    controller_with_pages,
    create_machine,
    press_in_row,
    row,
    row_says,
    set_up,
    simulated_node,
)

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]


async def test_a_person_takes_a_snapshot_goes_back_to_it_and_deletes_it() -> None:
    async with controller_with_pages() as stack, open_browser() as browser:
        page = await set_up(browser, stack)
        token, fingerprint = await add_node(page)
        async with simulated_node(stack, token=token, fingerprint=fingerprint):
            await page.until("!!document.querySelector('td .badge.good')")
            await add_image(page)
            await create_machine(page, "first")

            await page.shows("No snapshots")
            await page.press("Take snapshot")
            await page.fill("Name", "before-upgrade")
            await page.press("Take")
            await row_says(page, "before-upgrade", "ready", "frozen")
            # A machine that runs is not offered the way back
            assert "Restore" not in str(await page.evaluate(f"({row('before-upgrade')}).innerText")).split()

            # What is refused is said in the dialog, which stays
            await page.press("Take snapshot")
            await page.fill("Name", "before-upgrade")
            await page.press("Take")
            await page.until("!!document.querySelector('dialog .failure')?.innerText.includes('already')")
            await page.press("Cancel")

            await page.press("Force stop")
            await page.fill("Type", "first")
            await page.press("Force stop")
            await page.until("document.querySelector('main .head .badge')?.innerText === 'stopped'")
            await press_in_row(page, "before-upgrade", "Restore")
            await page.fill("Type", "first")
            await page.press("Restore")
            # Restored: a moment stands in the column before the buttons
            await page.until(f"({row('before-upgrade')})?.cells[4].innerText.trim() !== '—'")
            await row_says(page, "before-upgrade", "ready")

            await press_in_row(page, "before-upgrade", "Delete")
            await page.press("Delete")
            await page.shows("No snapshots")
            assert [line for line in page.complaints if "Security" in line] == []
