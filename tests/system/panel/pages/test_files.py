"""The pages of a site's files: what a customer does there is done by the site's account, on the disk."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
from uuid import UUID

import pytest
from playwright.sync_api import FilePayload, Request, expect

from svc_webhost.confined_client import SiteFolder
from tests.support.panel_pages import Browser, PanelPages
from tests.support.panel_sites import site_row
from tests.support.site_files import give, site_folder

pytestmark = [pytest.mark.system, pytest.mark.isolated]

ADA = "ada@example.com"
LARGE = random.Random(7).randbytes((1 << 20) + (300 << 10))
"""Of three parts, the last a short one."""


async def a_site(panel: PanelPages) -> tuple[UUID, SiteFolder]:
    """Ada's site and the folder of its files."""
    site = await site_row(panel.core.database, await panel.core.person(ADA), "shop.example.org")
    number = await panel.core.database.fetchval("SELECT number FROM sites WHERE id = $1", site)
    return site, site_folder(panel.core.services.config.folders.sites, number)


def at_the_files(browser: Browser) -> None:
    browser.sign_in(ADA)
    browser.follow("shop.example.org")
    browser.follow("Files")


async def test_files_are_uploaded_arranged_packed_and_downloaded(panel: PanelPages) -> None:
    _, folder = await a_site(panel)

    def visit(browser: Browser) -> None:
        at_the_files(browser)
        browser.shows("Nothing is in this folder")
        browser.press("New folder")
        browser.fill("Name", "photos & more")
        browser.press("Create")
        browser.follow("photos & more")
        browser.page.get_by_label("Upload", exact=True).set_input_files(
            {"name": "large.bin", "mimeType": "application/octet-stream", "buffer": LARGE}
        )
        browser.shows("arrived whole")
        with browser.page.expect_download() as fetched:
            browser.press("large.bin")
        assert fetched.value.path().read_bytes() == LARGE

        browser.page.get_by_label("Choose large.bin").check()
        browser.press("Rename")
        browser.fill("Name", "renamed.bin")
        browser.press("Rename")
        browser.page.get_by_label("Choose renamed.bin").check()
        browser.press("Permissions")
        browser.fill("Mode", "600")
        browser.press("Set")
        expect(browser.row("renamed.bin")).to_contain_text("600")
        browser.page.get_by_label("Choose renamed.bin").check()
        browser.press("Copy")
        browser.press("Copy")
        expect(browser.row("renamed-copy.bin")).to_have_count(1)

        browser.page.get_by_label("Choose renamed-copy.bin").check()
        browser.press("Compress")
        browser.fill("Archive", "packed.zip")
        browser.press("Compress")
        browser.follow("site")
        expect(browser.row("packed.zip")).to_have_count(1)
        browser.page.get_by_label("Choose photos & more").check()
        browser.press("Delete")
        browser.press("Delete")
        expect(browser.row("photos & more")).to_have_count(0)

    await panel.browse(visit)

    assert [name for name in os.listdir(folder.path) if not name.startswith(".")] == ["packed.zip"]
    assert (folder.path / "packed.zip").stat().st_uid == folder.uid


async def test_an_upload_goes_on_from_what_had_come_of_it(panel: PanelPages) -> None:
    site, folder = await a_site(panel)
    ada = panel.core.program(
        await panel.core.token(await panel.core.database.fetchval("SELECT id FROM users WHERE email = $1", ADA))
    )
    begun = (await ada.post(f"/sites/{site}/files/upload", {"path": "large.bin", "size": len(LARGE)})).json()
    first = LARGE[: begun["chunk_bytes"]]
    part = {"offset": 0, "data_base64": base64.b64encode(first).decode()}
    await ada.call("PUT", f"/sites/{site}/files/upload/{begun['id']}", part)
    sent: list[int] = []

    def note(asked: Request) -> None:
        if asked.method == "PUT":
            sent.append(json.loads(asked.post_data or "")["offset"])

    def visit(browser: Browser) -> None:
        browser.page.on("request", note)
        at_the_files(browser)
        browser.page.get_by_label("Upload", exact=True).set_input_files(
            {"name": "large.bin", "mimeType": "application/octet-stream", "buffer": LARGE}
        )
        browser.shows("arrived whole")

    await panel.browse(visit)

    assert sorted(sent) == [len(first), 2 * len(first)]
    assert hashlib.sha256((folder.path / "large.bin").read_bytes()).digest() == hashlib.sha256(LARGE).digest()


async def test_a_file_that_is_there_is_replaced_only_if_that_is_said(panel: PanelPages) -> None:
    _, folder = await a_site(panel)
    there = give(folder, "page.html", b"before")

    def visit(browser: Browser) -> None:
        at_the_files(browser)
        new: FilePayload = {"name": "page.html", "mimeType": "text/html", "buffer": b"after"}
        browser.page.get_by_label("Upload", exact=True).set_input_files(new)
        replace = browser.page.get_by_role("button", name="Replace what is there")
        expect(replace).to_be_visible()
        assert there.read_bytes() == b"before"
        replace.click()
        browser.shows("arrived whole")

    await panel.browse(visit)

    assert there.read_bytes() == b"after"


async def test_a_text_is_edited_and_nobody_elses_change_is_lost_unseen(panel: PanelPages) -> None:
    _, folder = await a_site(panel)
    written = give(folder, "notes.txt", b"one\n")

    def visit(browser: Browser) -> None:
        at_the_files(browser)
        browser.follow("notes.txt")
        text = browser.page.get_by_label("Content of notes.txt")
        expect(text).to_have_value("one\n")
        text.fill("one\ntwo\n")
        browser.press("Save")
        browser.shows("Saved.")
        assert written.read_bytes() == b"one\ntwo\n"

        written.write_bytes(b"theirs\n")
        text.fill("mine\n")
        browser.press("Save")
        browser.shows("Somebody else has changed the file")
        assert written.read_bytes() == b"theirs\n"
        browser.choose("Version to keep", "theirs")
        browser.press("Continue")
        expect(text).to_have_value("theirs\n")

        written.write_bytes(b"theirs again\n")
        text.fill("mine\n")
        browser.press("Save")
        browser.choose("Version to keep", "mine")
        browser.press("Continue")
        # Where it says "not saved" until then.
        expect(browser.page.locator("main .head .quiet").last).to_have_text("5 B")
        assert written.read_bytes() == b"mine\n"

        text.fill("unsaved")
        browser.follow("Back to the files")
        browser.shows("Leave without saving?")
        browser.press("Discard")
        expect(browser.row("notes.txt")).to_have_count(1)

    await panel.browse(visit)

    assert written.read_bytes() == b"mine\n"
