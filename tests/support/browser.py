"""A real browser, driven over the Chrome DevTools Protocol: nothing to install beside Chromium.

`async with open_browser() as browser`, then `page = await browser.open(url)`. A page is told in terms of what a person
sees and does: `await page.shows("text")`, `await page.press("Sign in")`, `await page.fill("Email", "a@b")`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from trio_websocket import WebSocketConnection, open_websocket_url

_PATIENCE = 30.0
_POLL = 0.05
_MESSAGE = 64 << 20
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--ignore-certificate-errors",
    "--remote-debugging-port=0",
    "--window-size=1280,860",
)


class BrowserRefused(Exception):  # noqa: N818 - named for what it says
    """The browser answered a command with an error, or a page's script threw."""


@dataclass
class Page:
    """One tab. `complaints` are what scripts and the Content-Security-Policy wrote to its console as errors."""

    browser: Browser
    session: str
    complaints: list[str] = field(default_factory=list)

    async def goto(self, url: str) -> None:
        await self.browser.command("Page.navigate", {"url": url}, self.session)

    async def evaluate(self, expression: str) -> Any:
        answer = await self.browser.command(
            "Runtime.evaluate",
            {"expression": expression, "awaitPromise": True, "returnByValue": True, "userGesture": True},
            self.session,
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserRefused(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    async def until(self, expression: str, *, patience: float = _PATIENCE) -> None:
        """Return once the expression is true; what the page shows is in the failure otherwise."""
        with trio.move_on_after(patience):
            while not await self.evaluate(expression):
                await trio.sleep(_POLL)
            return
        raise AssertionError(f"never true: {expression}\nThe page shows:\n{await self.text()}\n{self.complaints}")

    async def text(self) -> str:
        return str(await self.evaluate("document.body ? document.body.innerText : ''"))

    async def shows(self, text: str, *, patience: float = _PATIENCE) -> None:
        await self.until(f"!!document.body && document.body.innerText.includes({json.dumps(text)})", patience=patience)

    async def press(self, label: str) -> None:
        """Press the button or follow the link with this text, in the dialog if one is open."""
        found = f"""(() => {{
            const place = document.querySelector('dialog[open]') ?? document;
            const found = [...place.querySelectorAll('button, a')].find(
                (one) => one.innerText.trim() === {json.dumps(label)} && !one.disabled);
            if (found) found.click();
            return !!found;
        }})()"""
        await self.until(found)

    async def fill(self, label: str, value: str) -> None:
        """Type into the field whose label begins with this text."""
        found = f"""(() => {{
            const place = document.querySelector('dialog[open]') ?? document;
            const label = [...place.querySelectorAll('label')].find(
                (one) => one.innerText.trim().startsWith({json.dumps(label)}));
            const input = label?.querySelector('input, select, textarea');
            if (!input) return false;
            input.value = {json.dumps(value)};
            input.dispatchEvent(new Event('input', {{ bubbles: true }}));
            input.dispatchEvent(new Event('change', {{ bubbles: true }}));
            return true;
        }})()"""
        await self.until(found)

    async def type(self, text: str) -> None:
        """Type on the keyboard, into whatever has the focus."""
        for character in text:
            key = {"type": "char", "text": character}
            await self.browser.command("Input.dispatchKeyEvent", key, self.session)

    async def screenshot(self, path: Path) -> None:
        answer = await self.browser.command("Page.captureScreenshot", {"format": "png"}, self.session)
        path.write_bytes(b64decode(answer["data"]))


class Browser:
    def __init__(self, socket: WebSocketConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, trio.MemorySendChannel[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}

    async def open(self, url: str, *, dark: bool = False, width: int = 1280, height: int = 860) -> Page:
        target = await self.command("Target.createTarget", {"url": "about:blank"})
        attached = await self.command("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        page = Page(self, attached["sessionId"])
        self._pages[page.session] = page
        for domain in ("Page", "Runtime", "Log"):
            await self.command(f"{domain}.enable", {}, page.session)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.command("Emulation.setDeviceMetricsOverride", size, page.session)
        scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}
        await self.command("Emulation.setEmulatedMedia", scheme, page.session)
        await page.goto(url)
        return page

    async def command(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        send, receive = trio.open_memory_channel[dict[str, Any]](1)
        self._waiting[number] = send
        try:
            await self._socket.send_message(json.dumps(message))
            with trio.fail_after(_PATIENCE):
                answer = await receive.receive()
        finally:
            del self._waiting[number]
        if "error" in answer:
            raise BrowserRefused(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def listen(self) -> None:
        while True:
            self._heard(json.loads(await self._socket.get_message()))

    def _heard(self, message: dict[str, Any]) -> None:
        if "id" in message:
            if (waiting := self._waiting.get(message["id"])) is not None:
                waiting.send_nowait(message)
        elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
            parameters = message["params"]
            if message["method"] == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                page.complaints.append(details.get("exception", {}).get("description", details["text"]))
            elif message["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                entry = parameters["entry"]
                page.complaints.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Chromium, headless, with a profile of its own; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="svc-browser-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            ["chromium", *_OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            env={**os.environ, "HOME": profile},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            url = await _address(Path(profile) / "DevToolsActivePort")
            async with open_websocket_url(url, max_message_size=_MESSAGE) as socket, trio.open_nursery() as nursery:
                browser = Browser(socket)
                nursery.start_soon(browser.listen)
                yield browser
                nursery.cancel_scope.cancel()
        finally:
            process.kill()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
                await trio.to_thread.run_sync(process.wait)


async def _address(file: Path) -> str:
    """Chromium writes the port it chose, and the path, into this file once it listens."""
    with trio.fail_after(_PATIENCE):
        while True:
            lines = file.read_text().split() if file.is_file() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            await trio.sleep(_POLL)
