"""A real browser: Debian's Chromium, driven by Playwright.

`async with open_browser() as browser`, then `page = await browser.open(url)`. A page is told in terms of what a person
sees and does: `await page.shows("text")`, `await page.press("Sign in")`, `await page.fill("Email", "a@b")`.

Playwright's synchronous interface has a loop of its own, so each browser has a thread in which nothing else runs.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import trio
from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Playwright, sync_playwright
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page as Tab

_PATIENCE: Final = 120.0
_POLL: Final = 0.05
_PLACE: Final = ("dialog[open]", "body:not(:has(dialog[open]))")
"""Where a person can do something: in the dialog, if one is open."""

T = TypeVar("T")


@dataclass
class Page:
    """One tab. `complaints` are what scripts and the Content-Security-Policy wrote to its console as errors."""

    browser: Browser
    tab: Tab
    complaints: list[str] = field(default_factory=list)

    async def goto(self, url: str) -> None:
        await self.browser.do(lambda: self.tab.goto(url, wait_until="commit"))

    async def evaluate(self, expression: str) -> Any:
        return await self.browser.do(lambda: self.tab.evaluate(expression))

    async def until(self, expression: str, *, patience: float = _PATIENCE) -> None:
        """Return once the expression is true; what the page shows is in the failure otherwise."""

        def wait() -> bool:
            last = time.monotonic() + patience
            while time.monotonic() < last:
                try:
                    # Not wait_for_function, which the page's Content-Security-Policy keeps from evaluating anything.
                    if self.tab.evaluate(expression):
                        return True
                except PlaywrightError as error:
                    if "context was destroyed" not in error.message:  # by the page that takes its place
                        raise
                self.tab.wait_for_timeout(_POLL * 1000)
            return False

        if not await self.browser.do(wait):
            raise AssertionError(f"never true: {expression}\nThe page shows:\n{await self.text()}\n{self.complaints}")

    async def text(self) -> str:
        return str(await self.evaluate("document.body ? document.body.innerText : ''"))

    async def shows(self, text: str, *, patience: float = _PATIENCE) -> None:
        await self.until(f"!!document.body && document.body.innerText.includes({json.dumps(text)})", patience=patience)

    async def press(self, label: str) -> None:
        """Press the button or follow the link with this text, in the dialog if one is open."""
        await self._told(lambda: self._any("button:enabled", "a", text=rf"^\s*{re.escape(label)}\s*$").click())

    async def downloaded(self, label: str) -> bytes:
        """What the file holds that pressing this gives."""

        def fetch() -> bytes:
            with self.tab.expect_download() as fetched:
                self._any("button:enabled", text=rf"^\s*{re.escape(label)}\s*$").click()
            return fetched.value.path().read_bytes()

        return await self.browser.do(fetch)

    async def fill(self, label: str, value: str) -> None:
        """Type into the field whose label begins with this text, or choose that value of it."""

        def enter() -> None:
            labelled = self._any("label", text=rf"^\s*{re.escape(label)}")
            entry = labelled.locator("input, select, textarea").first
            if entry.evaluate("one => one.tagName") == "SELECT":
                entry.select_option(value)
            else:
                entry.fill(value)

        await self._told(enter)

    async def choose_file(self, label: str, file: Path) -> None:
        """Give this file to the field whose label has this text."""
        labelled = self._any("label", text=rf"^\s*{re.escape(label)}\s*$")
        await self._told(lambda: labelled.locator("input[type=file]").set_input_files(file))

    async def type(self, text: str) -> None:
        """Type on the keyboard, into whatever has the focus."""
        await self.browser.do(lambda: self.tab.keyboard.type(text))

    async def screenshot(self, path: Path) -> None:
        await self.browser.do(lambda: self.tab.screenshot(path=path))

    def _any(self, *elements: str, text: str) -> Locator:
        found = self.tab.locator(", ".join(f"{place} {element}" for place in _PLACE for element in elements))
        return found.filter(has_text=re.compile(text)).first

    async def _told(self, call: Callable[[], T]) -> T:
        try:
            return await self.browser.do(call)
        except PlaywrightError as error:
            error.add_note(f"The page shows:\n{await self.text()}\n{self.complaints}")
            raise


class Browser:
    """One person's: its pages share their cookies."""

    def __init__(self, thread: ThreadPoolExecutor, context: BrowserContext) -> None:
        self._thread = thread
        self._context = context

    async def do(self, call: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(lambda: self._thread.submit(call).result())

    async def open(self, url: str, *, dark: bool = False, width: int = 1280, height: int = 860) -> Page:
        tab = await self.do(self._context.new_page)
        page = Page(self, tab)

        def said(message: ConsoleMessage) -> None:
            if message.type == "error":
                page.complaints.append(f"{message.text} {message.location['url']}")

        def begin() -> None:
            tab.on("pageerror", lambda error: page.complaints.append(str(error)))
            tab.on("console", said)
            tab.set_viewport_size({"width": width, "height": height})
            tab.emulate_media(color_scheme="dark" if dark else "light")

        await self.do(begin)
        await page.goto(url)
        return page


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Chromium, headless, with a profile of its own; gone at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="svc-browser-", ignore_cleanup_errors=True) as profile,
        ThreadPoolExecutor(1) as thread,
    ):
        playwright = await trio.to_thread.run_sync(lambda: thread.submit(lambda: sync_playwright().start()).result())
        try:
            context = await trio.to_thread.run_sync(lambda: thread.submit(_launched, playwright, profile).result())
            yield Browser(thread, context)
        finally:
            # Chromium ends with it.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(lambda: thread.submit(playwright.stop).result())


def _launched(playwright: Playwright, profile: str) -> BrowserContext:
    chromium = playwright.chromium.launch(
        executable_path="/usr/bin/chromium",
        args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"],
        env={**os.environ, "HOME": profile},
        timeout=_PATIENCE * 1000,
    )
    context = chromium.new_context(ignore_https_errors=True)
    context.set_default_timeout(_PATIENCE * 1000)
    return context
