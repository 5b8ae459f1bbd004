"""A machine's backups on its page, in a real browser: made by staff, looked through, and restored while it is off."""

from __future__ import annotations

import pytest

from svc_nodeagent.simulated_state import FILES
from tests.support.browser import open_browser
from tests.system.test_machine_pages import add_system
from tests.system.test_pages import (
    add_image,
    add_node,
    controller_with_pages,
    create_machine,
    press_in_row,
    row_says,
    set_up,
    simulated_node,
)

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]


async def test_staff_back_a_machine_up_and_go_back_to_what_it_was() -> None:
    async with controller_with_pages() as stack, open_browser() as browser:
        page = await set_up(browser, stack)
        token, fingerprint = await add_node(page)
        async with simulated_node(stack, token=token, fingerprint=fingerprint):
            await page.until("!!document.querySelector('td .badge.good')")
            await add_image(page)
            await add_system(page, "rescue", "Rescue system", "c")
            await create_machine(page, "first")

            await page.shows("No backups")
            assert "Restore" not in str(await page.evaluate("document.querySelector('main').innerText")).split()
            await page.press("Back up now")
            await page.press("Back up")
            await row_says(page, "not frozen")

            await page.press("Files")
            await page.press("Open files")
            await page.press("home")
            await page.press("alice")
            assert await page.downloaded("Download") == FILES["/home/alice/%FF notes.txt"]
            await page.press("/")
            await page.press("etc")
            await row_says(page, "hostname", "10 B")
            await page.press("Close files")
            await row_says(page, "not frozen")

            await page.press("Force stop")
            await page.fill("Type", "first")
            await page.press("Force stop")
            await page.until("document.querySelector('main .head .badge')?.innerText === 'stopped'")
            await press_in_row(page, "not frozen", "Restore")
            await page.fill("Type", "first")
            await page.press("Restore")
            await page.shows("vm.restore")
