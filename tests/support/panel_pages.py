"""The panel's pages in a real browser: the core in this process, the web tier as a program of its own account, and
Debian's Chromium, driven by Playwright.

Playwright's plain interface is one for threads: what a person does is a function `visit(page)` that a thread runs while
Trio serves the core. A locator waits for what it names, so that nothing here sleeps or polls.
"""

from __future__ import annotations

import grp
import os
import re
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Locator, Page, Playwright, expect, sync_playwright

from svc_actors.store import Database
from svc_http.server import serve_local
from svc_webhost.self_signed import keep_self_signed
from tests.support.harness import PASSWORD
from tests.support.panel import PanelHarness, open_panel
from tests.support.stack import BIN, free_port

WEB_ACCOUNT = "www-data"
PATIENCE_MILLISECONDS = 120_000
"""Of a machine that does much else: nothing waits that long where it is well."""

expect.set_options(timeout=PATIENCE_MILLISECONDS)


@dataclass
class Browser:
    """One person's: what they do, and what the pages complained of."""

    page: Page
    url: str
    trio_token: trio.lowlevel.TrioToken

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
        self.field(label).fill(value)

    def choose(self, label: str, value: str) -> None:
        self.field(label).select_option(value)

    def field(self, label: str) -> Locator:
        """The one whose label begins so: what is to be known of a field stands behind its name."""
        return self.place().get_by_label(re.compile(f"^\\s*{re.escape(label)}"))

    def place(self) -> Locator:
        dialog = self.page.locator("dialog[open]")
        return dialog if dialog.count() else self.page.locator("body")

    def meanwhile(self, happens: Callable[..., object], *args: object) -> None:
        """Have this happen where the core runs."""
        trio.from_thread.run_sync(happens, *args, trio_token=self.trio_token)

    def shows(self, text: str) -> None:
        expect(self.page.locator("body")).to_contain_text(text)

    def has_status(self, status: str) -> None:
        """What the page is about, beside its name: a step or a part of it may have the status before it has."""
        expect(self.page.locator("main .head .badge").first).to_have_text(status)

    def row(self, text: str) -> Locator:
        return self.page.locator("main tr").filter(has_text=text)


@dataclass(frozen=True)
class PagesTier:
    """What costs seconds to start, for all tests of a process: the web tier, which carries to whatever core listens on
    `socket`, and Chromium, which gives each person a profile of their own. Playwright belongs to the thread that began
    it."""

    url: str
    socket: Path
    chromium: Chromium
    thread: ThreadPoolExecutor


_ALONE = """
ip link set lo up
exec "$@"
"""


@contextmanager
def pages_tier() -> Iterator[PagesTier]:
    """The web tier and Chromium have a network of their own: Chromium gives up what it has asked for whenever an
    address of its host comes or goes, as they do while other tests make bridges and machines."""
    # Open to the web tier's account, as pytest's own folders are not.
    with tempfile.TemporaryDirectory(prefix="svc-pages-", ignore_cleanup_errors=True) as name:
        folder, port = Path(name), free_port()
        folder.chmod(0o755)
        keep_self_signed(folder / "tls", ("localhost",), grp.getgrnam(WEB_ACCOUNT).gr_gid)
        tier = ["unshare", "--net", "sh", "-ec", _ALONE, "sh", str(BIN / "svc"), "panel", "web"]
        tier += ["--socket", str(folder / "core.sock"), "--tls", str(folder / "tls")]
        tier += ["--bind", "127.0.0.1", "--port", str(port), "--user", WEB_ACCOUNT]
        (folder / "home").mkdir()
        with (
            _notified(folder / "notify") as notify,
            (folder / "web.log").open("wb") as log,
            ThreadPoolExecutor(1) as thread,
        ):
            telling = {**os.environ, "NOTIFY_SOCKET": str(folder / "notify")}
            web = subprocess.Popen(tier, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=telling)
            playwright = thread.submit(lambda: sync_playwright().start()).result()
            try:
                while (told := notify.recv(4096)) != b"READY=1":
                    assert told.startswith(b"FDSTORE=1\n"), (folder / "web.log").read_text()
                chromium = thread.submit(_launched, playwright, folder, web.pid).result()
                yield PagesTier(f"https://localhost:{port}", folder / "core.sock", chromium, thread)
                thread.submit(chromium.close).result()
            finally:
                thread.submit(playwright.stop).result()
                web.terminate()
                web.wait(30)


@contextmanager
def _notified(path: Path) -> Iterator[socket.socket]:
    """Where a program says that it is ready, as it says to systemd (sd_notify(3))."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(path))
        path.chmod(0o777)
        notify.settimeout(60)
        yield notify


def _launched(playwright: Playwright, folder: Path, beside: int) -> Chromium:
    """Chromium, in the network of the process `beside`."""
    program = folder / "chromium"
    program.write_text(f'#!/bin/sh\nexec nsenter --net=/proc/{beside}/ns/net /usr/bin/chromium "$@"\n')
    program.chmod(0o755)
    return playwright.chromium.launch(
        executable_path=program,
        args=["--no-sandbox", "--disable-dev-shm-usage"],
        env={**os.environ, "HOME": str(folder / "home")},
        timeout=PATIENCE_MILLISECONDS,
    )


@dataclass
class PanelPages:
    core: PanelHarness
    tier: PagesTier

    async def browse(self, visit: Callable[[Browser], None]) -> None:
        """Have a person do this. Neither their browser nor its policy shall have had anything to complain of."""
        visited = self.tier.thread.submit(_visit, self.tier, visit, trio.lowlevel.current_trio_token())
        await trio.to_thread.run_sync(visited.result)


def _visit(tier: PagesTier, visit: Callable[[Browser], None], token: trio.lowlevel.TrioToken) -> None:
    context = tier.chromium.new_context(ignore_https_errors=True, viewport={"width": 1280, "height": 860})
    context.set_default_timeout(PATIENCE_MILLISECONDS)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if "Security" in said.text else None)
    try:
        visit(Browser(page, tier.url, token))
    except Exception as problem:
        problem.add_note(f"at {page.url} the page shows:\n{page.locator('body').inner_text()}\n{complaints}")
        raise
    finally:
        context.close()
    assert complaints == []


@asynccontextmanager
async def panel_with_pages(tier: PagesTier, database: Database, **options: Any) -> AsyncIterator[PanelPages]:
    """A panel of one test, behind the web tier of all."""
    # Open to the accounts of sites, as pytest's own folders are not.
    with tempfile.TemporaryDirectory(prefix="svc-panel-") as name:
        Path(name).chmod(0o755)
        async with (
            open_panel(database, Path(name), origins=(tier.url,), loops=None, **options) as core,
            trio.open_nursery() as nursery,
        ):
            stop = trio.Event()
            await nursery.start(partial(serve_local, core.app, tier.socket, WEB_ACCOUNT, stop))
            try:
                yield PanelPages(core, tier)
            finally:
                stop.set()
