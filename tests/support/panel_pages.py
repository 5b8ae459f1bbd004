"""The panel's pages in a real browser: the core in this process, the web tier as a program of its own account, and
Debian's Chromium, driven by Playwright.

Playwright's plain interface is one for threads: what a person does is a function `visit(page)` that a thread runs while
Trio serves the core. A locator waits for what it names, so that nothing here sleeps or polls.
"""

from __future__ import annotations

import grp
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio
from playwright.sync_api import Locator, Page, expect, sync_playwright

from svc_actors.host.self_signed import keep_self_signed
from svc_actors.store import Database
from svc_http.server import serve_local
from tests.support.identity import PASSWORD
from tests.support.panel import PanelHarness, open_panel
from tests.support.stack import BIN, Program, free_port

WEB_ACCOUNT = "www-data"
PATIENCE_MILLISECONDS = 45_000
"""Of a machine that does much else: nothing waits that long where it is well."""

expect.set_options(timeout=PATIENCE_MILLISECONDS)


@dataclass
class Browser:
    """One person's: what they do, and what the pages complained of."""

    page: Page
    url: str

    def sign_in(self, email: str, password: str = PASSWORD) -> None:
        self.page.goto(self.url)
        self.page.get_by_label("Email").fill(email)
        self.page.get_by_label("Password").fill(password)
        self.press("Sign in")

    def press(self, name: str) -> None:
        """The button of this name, in the dialog if one is open."""
        self.place().get_by_role("button", name=name, exact=True).click()

    def follow(self, name: str) -> None:
        self.page.get_by_role("link", name=name, exact=True).click()

    def fill(self, label: str, value: str) -> None:
        self.place().get_by_label(label).fill(value)

    def choose(self, label: str, value: str) -> None:
        self.place().get_by_label(label).select_option(value)

    def place(self) -> Locator:
        dialog = self.page.locator("dialog[open]")
        return dialog if dialog.count() else self.page.locator("body")

    def shows(self, text: str) -> None:
        expect(self.page.locator("body")).to_contain_text(text)

    def row(self, text: str) -> Locator:
        return self.page.locator("main tr").filter(has_text=text)


@dataclass
class PanelPages:
    core: PanelHarness
    url: str

    async def browse(self, visit: Callable[[Browser], None]) -> None:
        """Have a person do this. Neither their browser nor its policy shall have had anything to complain of."""
        await trio.to_thread.run_sync(partial(_visit, self.url, visit))


def _visit(url: str, visit: Callable[[Browser], None]) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="svc-browser-", ignore_cleanup_errors=True) as home,
        sync_playwright() as api,
    ):
        chromium = api.chromium.launch(
            executable_path="/usr/bin/chromium",
            args=["--no-sandbox", "--disable-dev-shm-usage"],
            env={**os.environ, "HOME": home},
            timeout=PATIENCE_MILLISECONDS,
        )
        context = chromium.new_context(ignore_https_errors=True, viewport={"width": 1280, "height": 860})
        context.set_default_timeout(PATIENCE_MILLISECONDS)
        page = context.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if "Security" in said.text else None)
        try:
            visit(Browser(page, url))
        except Exception as problem:
            problem.add_note(f"at {page.url} the page shows:\n{page.locator('body').inner_text()}\n{complaints}")
            raise
        finally:
            chromium.close()
        assert complaints == []


@asynccontextmanager
async def panel_with_pages(database: Database, **options: Any) -> AsyncIterator[PanelPages]:
    # Open to the web tier's account, as pytest's own folders are not.
    with tempfile.TemporaryDirectory(prefix="svc-pages-") as name:
        folder, port = Path(name), free_port()
        folder.chmod(0o755)
        keep_self_signed(folder / "tls", ("localhost",), grp.getgrnam(WEB_ACCOUNT).gr_gid)
        url = f"https://localhost:{port}"
        tier = [str(BIN / "svc"), "panel", "web", "--socket", str(folder / "core.sock"), "--tls", str(folder / "tls")]
        tier += ["--bind", "127.0.0.1", "--port", str(port), "--user", WEB_ACCOUNT]
        web = Program("web", tier, folder / "web.log")
        async with open_panel(database, folder, origins=(url,), **options) as core, trio.open_nursery() as nursery:
            stop = trio.Event()
            await nursery.start(partial(serve_local, core.app, core.services.config.socket, WEB_ACCOUNT, stop))
            web.start()
            try:
                await _until_it_listens(web, port)
                yield PanelPages(core, url)
            finally:
                with trio.CancelScope(shield=True, relative_deadline=60):
                    await web.stop()
                stop.set()


async def _until_it_listens(web: Program, port: int) -> None:
    with trio.fail_after(60):
        while True:
            try:
                async with await trio.open_tcp_stream("127.0.0.1", port):
                    return
            except OSError:
                assert web.running(), web.tail()
            await trio.sleep(0.05)  # It starts outside of this process.
