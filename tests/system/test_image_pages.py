"""An administrator's first steps on the pages: what is still to be done, and images of their own."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.browser import open_browser
from tests.system.test_pages import (
    add_node,
    controller_with_pages,
    create_machine,
    press_in_row,
    row_says,
    set_up,
    simulated_node,
)

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]


async def test_the_overview_names_what_is_to_be_done_before_there_is_a_machine() -> None:
    async with controller_with_pages() as stack, open_browser() as browser:
        page = await set_up(browser, stack)
        await page.press("Overview")
        await page.shows("First steps")
        await page.shows("Give machines addresses done")  # The network that every installation has.

        token, fingerprint = await add_node(page)
        async with simulated_node(stack, token=token, fingerprint=fingerprint):
            await page.until("!!document.querySelector('td .badge.good')")
            await page.press("Overview")
            await page.shows("Add a node done")
            await page.press("Have an image")
            await page.press("Create image")
            await page.fill("Name", "Demo Linux")
            await page.fill("Short name", "demo")
            await page.fill("Distribution", "demo")
            await page.fill("Release", "1")
            await page.fill("Address", "https://example.com/demo.qcow2")
            await page.fill("SHA-256", "a" * 128)
            await page.fill("Account", "debian")
            await page.fill("Firmware", "uefi")
            await page.press("Create")
            await row_says(page, "Demo Linux", "custom", "active", "UEFI")
            await press_in_row(page, "Demo Linux", "Change")
            await page.fill("Firmware", "bios")
            await page.press("Save")
            await row_says(page, "Demo Linux", "BIOS")

            await press_in_row(page, "Demo Linux", "Pull to node")
            await page.press("Pull")
            await page.shows("is being fetched")
            await page.press("Overview")
            await page.shows("Have an image done")

            await create_machine(page, "first")
            await page.press("Overview")
            await page.shows("Latest tasks")
            assert "First steps" not in await page.text()


async def test_a_file_of_ones_own_becomes_an_image(tmp_path: Path) -> None:
    file = tmp_path / "installer.iso"
    file.write_bytes(b"\0" * 0x8001 + b"CD001" + b"\0" * (3 << 20))
    async with controller_with_pages() as stack, open_browser() as browser:
        page = await set_up(browser, stack)
        await page.press("Images")
        await page.press("Create image")
        await page.fill("It is", "iso")
        await page.fill("Its file", "file")
        await page.fill("Name", "Installer")
        await page.fill("Short name", "not a short name")
        await page.fill("Distribution", "demo")
        await page.fill("Release", "1")
        await page.press("Create")
        await page.shows("slug")
        await page.fill("Short name", "installer")
        await page.press("Create")
        await row_says(page, "Installer", "ISO", "no file yet")

        await page.choose_file("Send its file", file)
        await row_says(page, "Installer", "3 MiB", "active")

        images = await page.evaluate("fetch('/api/v1/images').then((answer) => answer.json())")
        (image,) = [image for image in images if image["slug"] == "installer"]
        assert image["digest"] == sha256(file.read_bytes()).hexdigest()
        assert "Send its file" not in await page.text()
