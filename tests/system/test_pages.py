"""The pages in a real browser, over HTTPS, with a simulated node: what a person sees and does."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio

from tests.system.browser import Browser, Page, open_browser
from tests.system.stack import BIN, ROOT, Program, Stack

pytestmark = pytest.mark.system

TERMINAL_TEXT = "[...document.querySelectorAll('.xterm-rows > div')].map((row) => row.textContent).join('\\n')"


@asynccontextmanager
async def fresh_controller() -> AsyncIterator[Stack]:
    """A controller that nobody has set up yet, with its pages built."""
    await trio.run_process([str(ROOT / "tools" / "build-dashboard")])
    with tempfile.TemporaryDirectory(prefix="svc-test-", dir="/var/lib") as folder:
        Path(folder).chmod(0o755)
        stack = Stack(Path(folder))
        await stack.start_controller()
        try:
            yield stack
        except Exception as error:
            error.add_note(f"The controller's log ends:\n{stack.controller.tail()}")
            raise
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
                await stack.controller.stop()


@asynccontextmanager
async def simulated_node(stack: Stack, *, token: str, fingerprint: str) -> AsyncIterator[None]:
    data = stack.folder / "simulated"
    joining = {"SVC_CONTROLLER": stack.url, "SVC_TOKEN": token, "SVC_FINGERPRINT": fingerprint}
    agent = [str(BIN / "svc-nodeagent")]
    await trio.run_process([*agent, "enrol", "--data", str(data)], env=dict(os.environ) | joining)
    program = Program("simulated", [*agent, "run", "--data", str(data), "--simulated"], stack.folder / "simulated.log")
    program.start()
    try:
        yield
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 30):
            await program.stop()


async def called(page: Page, method: str, path: str, body: dict[str, Any]) -> Any:
    """Call the API as the page does, with its session."""
    request = {
        "method": method,
        "headers": {"X-Service-Request": "1", "Content-Type": "application/json"},
        "body": json.dumps(body),
    }
    return await page.evaluate(
        f"fetch({json.dumps('/api/v1' + path)}, {json.dumps(request)}).then((answer) => answer.json())"
    )


async def set_up(browser: Browser, stack: Stack) -> Page:
    page = await browser.open(stack.url + "/")
    await page.fill("Setup token", (stack.controller_data / "setup-token").read_text().strip())
    await page.fill("Your name", "Ada")
    await page.fill("Email", stack.email)
    await page.fill("Password", stack.password)
    await page.press("Create the administrator")
    await page.shows("Latest tasks")
    return page


async def console_text(page: Page, text: str) -> None:
    await page.until(f"({TERMINAL_TEXT}).includes({json.dumps(text)})")


async def test_a_person_sets_up_adds_a_node_makes_a_machine_and_sees_its_consoles() -> None:
    async with fresh_controller() as stack, open_browser() as browser:
        page = await set_up(browser, stack)

        await page.press("Nodes")
        await page.press("Add a node")
        await page.fill("Name", "alpha")
        await page.press("Make a token")
        await page.until("!!document.querySelector('.secret code')")
        command = await page.evaluate("document.querySelector('.secret code').innerText")
        token, fingerprint = (re.search(rf"{name}=(\S+)", command) for name in ("SVC_TOKEN", "SVC_FINGERPRINT"))
        assert token is not None
        assert fingerprint is not None
        await page.press("Done")
        async with simulated_node(stack, token=token[1], fingerprint=fingerprint[1]):
            await page.until("!!document.querySelector('td .badge.good')")  # online, without a reload

            image = {
                "slug": "demo",
                "name": "Demo Linux",
                "distribution": "demo",
                "release": "1",
                "login_user": "debian",
                "format": "qcow2",
                "source": "url",
                "url": "https://example.com/demo.qcow2",
                "digest": "a" * 64,
            }
            assert (await called(page, "POST", "/images", image))["slug"] == "demo"
            await page.press("Machines")
            await page.press("Create a machine")
            await page.fill("Name", "first")
            await page.press("Create")
            await page.shows("It is shown this once")
            await page.press("Done")
            await page.until("document.querySelector('main .head .badge')?.innerText === 'running'")

            machine_id = str(await page.evaluate("location.hash")).rsplit("/", 1)[1]
            serial = await browser.open(f"{stack.url}/console/{machine_id}?kind=serial")
            await console_text(serial, "login:")
            await serial.type("hello")
            await console_text(serial, "login: hello")

            screen = await browser.open(f"{stack.url}/console/{machine_id}?kind=vnc")
            await screen.shows("connected")
            await screen.until("document.querySelector('#console canvas')?.width === 64")

            await page.press("Force stop")
            await page.fill("Type", "first")
            await page.press("Force stop")
            await page.until("document.querySelector('main .head .badge')?.innerText === 'stopped'")
            await serial.shows("disconnected")
            await page.press("Start")
            await page.until("document.querySelector('main .head .badge')?.innerText === 'running'")
            await serial.shows("connected")  # by itself, with a new ticket

            await page.press("Sign out")
            await page.shows("Sign in")
            await serial.shows("You are signed out")
            assert [
                line for line in page.complaints + serial.complaints + screen.complaints if "Security" in line
            ] == []


async def test_a_page_never_runs_what_is_not_its_own() -> None:
    """The browser itself refuses an inline script, on each of the pages."""
    async with fresh_controller() as stack, open_browser() as browser:
        console = f"/console/{UUID(int=1)}"
        for path in ("/", console, f"{console}?kind=serial"):
            page = await browser.open(stack.url + path)
            await page.until("document.readyState === 'complete'")
            await page.evaluate(
                "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
            )
            assert await page.evaluate("window.ran ?? 0") == 0
