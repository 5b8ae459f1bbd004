"""A machine's page in a real browser: its volumes, what is in its CD-ROM drive, and its rescue."""

from __future__ import annotations

import pytest

from tests.support.browser import Page, open_browser
from tests.system.test_pages import (
    add_image,
    add_node,
    called,
    controller_with_pages,
    create_machine,
    press_in_row,
    row_says,
    set_up,
    simulated_node,
)

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]


async def add_system(page: Page, kind: str, name: str, digit: str) -> None:
    image = {
        "slug": kind,
        "name": name,
        "kind": kind,
        "distribution": "demo",
        "release": "1",
        "format": "raw",
        "source": "url",
        "url": f"https://example.com/{kind}",
        "digest": digit * 64,
    }
    assert (await called(page, "POST", "/images", image))["slug"] == kind


async def test_a_person_gives_a_machine_a_volume_and_a_disc_and_rescues_it() -> None:
    async with controller_with_pages() as stack, open_browser() as browser:
        page = await set_up(browser, stack)
        token, fingerprint = await add_node(page)
        async with simulated_node(stack, token=token, fingerprint=fingerprint):
            await page.until("!!document.querySelector('td .badge.good')")
            await add_image(page)
            await add_system(page, "iso", "Installer", "b")
            await add_system(page, "rescue", "Rescue system", "c")
            await create_machine(page, "first")

            await page.press("Create volume")
            await page.fill("Name", "data")
            await page.fill("Size", "2")
            await page.press("Create")
            await row_says(page, "data", "in use", "2 GiB")
            await press_in_row(page, "data", "Grow")
            await page.fill("Size", "3")
            await page.press("Grow")
            await row_says(page, "data", "in use", "3 GiB")
            await press_in_row(page, "data", "Detach")
            await page.press("Detach")
            await page.shows("No volumes.")
            await page.press("Attach volume")
            await page.shows("A volume can be attached on its own node only")
            await page.press("Attach")
            await row_says(page, "data", "in use")

            await page.press("Insert")
            await page.shows("Insert an ISO into")
            await page.press("Insert")
            await page.shows("Installer")
            await page.press("Eject")
            await page.press("Eject")
            await page.until("!document.querySelector('main').innerText.includes('Installer')")

            await page.press("Rescue")
            await page.press("Start rescue")
            await page.shows("It is shown only once")
            await page.press("Done")
            await page.shows("In rescue since")
            await page.press("End rescue")
            await page.press("End rescue")
            await page.until("!document.querySelector('main').innerText.includes('In rescue since')")

            await page.press("Machines")
            await page.press("Create machine")
            await page.shows("for cloud-init of the first boot")
            await page.fill("Image", "Installer, an ISO")
            await page.until("!document.querySelector('dialog').innerText.includes('for cloud-init of the first boot')")
            await page.fill("Name", "installed")
            await page.press("Create")
            await page.shows("Install it on its console")
            await page.press("Done")
            await page.until("document.querySelector('main .head .badge')?.innerText === 'running'")
            await page.shows("Installer")

            assert [line for line in page.complaints if "Security" in line] == []
