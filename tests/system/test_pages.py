"""The pages in a real browser, over HTTPS, with a simulated node: what a person sees and does."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from svc_nodeagent.agent import Agent
from svc_nodeagent.config import AgentFolder
from svc_nodeagent.journal import Journal
from svc_nodeagent.protocol import PROTOCOL_VERSION, Versions
from svc_nodeagent.simulated import SimulatedHost
from tests.support.authenticator import Authenticator
from tests.support.browser import Browser, Page, open_browser
from tests.support.figures import report_figure
from tests.support.stack import BIN, ROOT, Program, Stack, fresh_controller

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

TERMINAL_TEXT = "[...document.querySelectorAll('.xterm-rows > div')].map((row) => row.textContent).join('\\n')"


@asynccontextmanager
async def controller_with_pages() -> AsyncIterator[Stack]:
    await trio.run_process([str(ROOT / "tools" / "build-dashboard")])
    async with fresh_controller() as stack:
        yield stack


@asynccontextmanager
async def simulated_node(stack: Stack, *, token: str, fingerprint: str) -> AsyncIterator[None]:
    data = stack.folder / "simulated"
    joining = {"SVC_CONTROLLER": stack.url, "SVC_TOKEN": token, "SVC_FINGERPRINT": fingerprint}
    agent = [str(BIN / "svc-nodeagent")]
    await trio.run_process([*agent, "enrol", "--data", str(data)], env=dict(os.environ) | joining)
    async with running_node(stack):
        yield


@asynccontextmanager
async def running_node(stack: Stack) -> AsyncIterator[None]:
    """The node that has joined, until the end of the block."""
    command = [str(BIN / "svc-nodeagent"), "run", "--data", str(stack.folder / "simulated"), "--simulated"]
    program = Program("simulated", command, stack.folder / "simulated.log")
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


async def add_node(page: Page) -> tuple[str, str]:
    """The token and the fingerprint that the page gives for a new node."""
    await page.press("Nodes")
    await page.press("Add node")
    await page.fill("Name", "alpha")
    await page.press("Create token")
    await page.until("!!document.querySelector('.secret code')")
    command = await page.evaluate("document.querySelector('.secret code').innerText")
    token, fingerprint = (re.search(rf"{name}=(\S+)", command) for name in ("SVC_TOKEN", "SVC_FINGERPRINT"))
    assert token is not None
    assert fingerprint is not None
    await page.press("Done")
    return token[1], fingerprint[1]


async def add_image(page: Page) -> None:
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


async def create_machine(page: Page, name: str) -> None:
    await page.press("Machines")
    await page.press("Create machine")
    await page.fill("Name", name)
    await page.press("Create")
    await page.shows("It is shown only once")
    await page.press("Done")
    await page.until("document.querySelector('main .head .badge')?.innerText === 'running'")


async def console_text(page: Page, text: str) -> None:
    await page.until(f"({TERMINAL_TEXT}).includes({json.dumps(text)})")


async def console_is(page: Page, state: str) -> None:
    await page.until(f"document.querySelector('.state')?.textContent.trim() === {json.dumps(state)}", patience=60)


async def test_a_person_sets_up_adds_a_node_makes_a_machine_and_sees_its_consoles() -> None:
    async with controller_with_pages() as stack, open_browser() as browser:
        page = await set_up(browser, stack)

        token, fingerprint = await add_node(page)
        async with simulated_node(stack, token=token, fingerprint=fingerprint):
            await page.until("!!document.querySelector('td .badge.good')")  # online, without a reload

            await add_image(page)
            await create_machine(page, "first")

            machine_id = str(await page.evaluate("location.hash")).rsplit("/", 1)[1]
            serial = await browser.open(f"{stack.url}/console/{machine_id}?kind=serial")
            await console_text(serial, "login:")
            await serial.type("hello")
            await console_text(serial, "login: hello")

            screen = await browser.open(f"{stack.url}/console/{machine_id}?kind=vnc")
            await console_is(screen, "connected")
            await screen.until("document.querySelector('#console canvas')?.width === 64")

            await page.press("Force stop")
            await page.fill("Type", "first")
            await page.press("Force stop")
            await page.until("document.querySelector('main .head .badge')?.innerText === 'stopped'")
            await console_is(serial, "disconnected")
            await page.press("Start")
            await page.until("document.querySelector('main .head .badge')?.innerText === 'running'")
            await console_is(serial, "connected")  # by itself, with a new ticket
            await console_is(screen, "connected")

            await stack.controller.stop()
            await console_is(serial, "disconnected")
            await console_is(screen, "disconnected")
            await stack.start_controller()
            began = trio.current_time()
            await console_is(serial, "connected")
            await console_is(screen, "connected")
            report_figure(f"the pages' consoles were back {trio.current_time() - began:.1f} s after the controller")

            await page.press("Sign out")
            await page.shows("Sign in")
            await serial.shows("You are signed out")
            assert [
                line for line in page.complaints + serial.complaints + screen.complaints if "Security" in line
            ] == []


def row(text: str) -> str:
    """The row of a table that holds this text, as an expression; undefined where there is none."""
    return f"[...document.querySelectorAll('main tr')].find((one) => one.innerText.includes({json.dumps(text)}))"


async def row_says(page: Page, text: str, *words: str) -> None:
    for word in words:
        await page.until(f"!!({row(text)})?.innerText.includes({json.dumps(word)})")


async def press_in_row(page: Page, text: str, label: str) -> None:
    button = f"[...({row(text)})?.querySelectorAll('button') ?? []].find((one) => one.innerText.trim() === '{label}')"
    await page.until(f"!!({button}) && (({button}).click(), true)")


async def attach(page: Page, ip: str, pool: str) -> None:
    await page.press("Attach address")
    await page.fill("Address", ip)
    option = f"[...document.querySelector('dialog [name=pool_id]').options].find((one) => one.text.includes('{pool}'))"
    await page.fill("Pool", str(await page.evaluate(f"({option}).value")))
    await page.press("Attach")
    await row_says(page, ip, "allocated")


async def network_status(page: Page, status: str) -> None:
    found = "[...document.querySelectorAll('main .head')].find((head) => head.innerText.startsWith('Networking'))"
    await page.until(f"({found})?.querySelector('.badge')?.innerText === '{status}'")


async def test_a_person_looks_after_networks_addresses_groups_and_allowances() -> None:
    async with controller_with_pages() as stack, open_browser() as browser:
        page = await set_up(browser, stack)
        token, fingerprint = await add_node(page)
        async with simulated_node(stack, token=token, fingerprint=fingerprint):
            await page.until("!!document.querySelector('td .badge.good')")
            await add_image(page)
            await create_machine(page, "first")

            await page.press("Networks")
            await page.press("Add pool")
            await page.fill("Name", "extra")
            await page.fill("Block", "198.51.100.0/28")
            await page.press("Add pool")
            await row_says(page, "198.51.100.0/28", "extra", "nat")
            await page.press("extra")
            await row_says(page, "198.51.100.0", "by the pool itself")
            await page.press("Block address")
            await page.fill("Address", "198.51.100.9")
            await page.fill("Why", "on a list of spammers")
            await page.press("Block")
            await row_says(page, "198.51.100.9", "blocked", "on a list of spammers")
            await page.press("Reserve")
            await page.fill("Address", "198.51.100.9")
            await page.fill("Why", "a printer")
            await page.press("Reserve")
            await page.until("!!document.querySelector('dialog .failure')?.innerText.includes('198.51.100.9')")
            await page.press("Cancel")
            await press_in_row(page, "198.51.100.9", "Unblock")
            await page.until(f"!({row('198.51.100.9')})")

            await page.press("Security groups")
            await page.press("Create security group")
            await page.fill("Name", "web")
            await page.press("Create")
            await page.shows("No rules")
            await page.press("+ SSH")
            await row_says(page, "TCP 22", "accept", "anybody")
            await page.press("Add rule")
            await page.fill("Port", "8000")
            await page.fill("Last port", "8010")
            await page.fill("Other side", "203.0.113.0/24")
            await page.press("Add rule")
            await row_says(page, "TCP 8000 to 8010", "203.0.113.0/24")

            await page.press("Machines")
            await page.press("first")
            await network_status(page, "applied")
            await page.press("Set security groups")
            await page.until("!!document.querySelector('dialog input[type=checkbox]')")
            await page.evaluate("document.querySelector('dialog input[type=checkbox]').click()")
            await page.press("Apply")
            await page.until("!!document.querySelector('main .facts a[href^=\"#/security-groups/\"]')")
            await network_status(page, "applied")  # by itself: the node was told
            await attach(page, "198.51.100.5", "extra")
            await network_status(page, "applied")
            await press_in_row(page, "198.51.100.5", "Detach")
            await page.press("Detach")
            await page.until(f"!({row('198.51.100.5')})")  # the host has let it go
            await page.shows("no allowance")
            await attach(page, "198.51.100.6", "extra")
            await network_status(page, "applied")

            await page.press("Plans")
            await page.press("Traffic policy")
            await page.fill("Allowance a month", "500")
            await page.press("Save")
            await page.until("!!document.querySelector('dialog')?.innerText.includes('in force')")
            await page.press("Done")
            await page.press("Traffic")
            await row_says(page, "first", "no allowance")
            await page.press("Nodes")
            await page.press("alpha")
            await page.shows("The host agrees with the records.")
        await page.until("document.querySelector('main .head .badge')?.innerText === 'offline'")
        await page.press("first")
        await press_in_row(page, "198.51.100.6", "Detach")
        await page.press("Detach")
        await row_says(page, "198.51.100.6", "releasing")
        await network_status(page, "waiting")  # what is not confirmed is not free
        await page.press("extra")
        await press_in_row(page, "198.51.100.6", "Force free")
        await page.fill("Why", "the node burned down")
        await page.fill("Type", "198.51.100.6")
        await page.press("Force free")
        await page.until(f"!({row('198.51.100.6')})")
        assert [line for line in page.complaints if "Security" in line] == []


def left_behind(state: Path, before: str, vm_id: str) -> None:
    """Have a simulated host keep the machine that it had, under ids that no record knows."""
    kept = json.loads(before)
    [network] = [each for each in kept["network"]["networks"].values()]
    renamed = before.replace('"first"', '"left-behind"')
    for known in (vm_id, *(nic["nic_id"] for nic in network["spec"]["nics"])):
        renamed = renamed.replace(known, str(uuid4()))
    for nic in network["spec"]["nics"]:
        renamed = renamed.replace(nic["mac"], "52:54:00:0a:0b:0c")
    state.write_text(renamed)


@asynccontextmanager
async def agent_here(data: Path, *, speaking: Versions) -> AsyncIterator[None]:
    """An agent in this process, for another release's behaviour."""
    agent = Agent(AgentFolder(data), Journal.open(None), versions=speaking)
    async with trio.open_nursery() as nursery:
        await nursery.start(agent.run, lambda _: SimulatedHost("alpha", uuid4()))
        yield
        nursery.cancel_scope.cancel()


async def test_a_person_sees_what_agents_need_and_decides_about_machines_that_no_record_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with controller_with_pages() as stack, open_browser() as browser:
        page = await set_up(browser, stack)
        token, fingerprint = await add_node(page)
        data = stack.folder / "simulated"
        async with simulated_node(stack, token=token, fingerprint=fingerprint):
            await page.until("!!document.querySelector('td .badge.good')")
            await row_says(page, "alpha", version("svc"))
            await add_image(page)
            await create_machine(page, "first")
            [machine] = (await page.evaluate("fetch('/api/v1/vms').then((answer) => answer.json())"))["items"]
            before = (data / "simulated.json").read_text()
            await page.press("Delete")
            await page.fill("Type", "first")
            await page.press("Delete")
            await page.press("Machines")
            await page.until(f"!({row('first')})")
        await page.press("Nodes")
        await page.press("alpha")
        await page.until("document.querySelector('main .head .badge')?.innerText === 'offline'")

        async with agent_here(data, speaking=Versions(1, 1)):
            await page.shows("speaks protocol 1")
        monkeypatch.setattr("svc_nodeagent.agent.agent_version", lambda: "0.0.9")
        async with agent_here(data, speaking=Versions(PROTOCOL_VERSION - 1, PROTOCOL_VERSION - 1)):
            await page.until("document.querySelector('main .head .badge')?.innerText === 'online'")
            await page.shows(f"protocol {PROTOCOL_VERSION - 1}")
            await page.press("Nodes")
            await row_says(page, "alpha", "0.0.9", "by hand")
            await page.press("alpha")

        left_behind(data / "simulated.json", before, machine["id"])
        async with running_node(stack):
            await row_says(page, "left-behind", "unknown", "running", "vCPU", "Adopt")
            await press_in_row(page, "left-behind", "Discard")
            await page.press("Cancel")
            await press_in_row(page, "left-behind", "Adopt")
            await page.until("!!document.querySelector('dialog [name=project_id] option')")
            await page.press("Adopt")
            await page.until("!document.querySelector('main').innerText.includes('Machines to decide about')")
            await row_says(page, "left-behind", "running")
        assert [line for line in page.complaints if "Security" in line] == []


async def test_a_customer_sees_and_changes_only_what_is_theirs() -> None:
    async with controller_with_pages() as stack, open_browser() as browser:
        page = await set_up(browser, stack)
        token, fingerprint = await add_node(page)
        async with simulated_node(stack, token=token, fingerprint=fingerprint):
            await page.until("!!document.querySelector('td .badge.good')")
            await add_image(page)
            await create_machine(page, "first")
            person = {"email": "eve@example.test", "name": "Eve", "role": "customer", "password": "Correct-horse-99"}
            user = await called(page, "POST", "/users", person)
            projects = (await page.evaluate("fetch('/api/v1/projects').then((answer) => answer.json())"))["items"]
            [project] = [project for project in projects if project["name"] == "default"]
            await called(page, "POST", f"/projects/{project['id']}/members", {"user_id": user["id"]})
            await page.press("Sign out")
            await page.fill("Email", person["email"])
            await page.fill("Password", person["password"])
            await page.press("Sign in")
            await page.shows("Latest tasks")
            assert not {"Networks", "Plans", "Nodes"} & set((await page.text()).splitlines())
            await page.press("Machines")
            await page.press("first")
            await network_status(page, "applied")
            shown = (await page.text()).splitlines()
            assert "1 of 1 in its plan" in shown
            assert not {"Rate cap", "Node"} & set(shown)
            await page.press("Attach address")
            await page.until("!!document.querySelector('dialog [name=family]')")
            assert await page.evaluate("!!document.querySelector('dialog [name=ip]')")
            await page.press("Attach")
            await page.until("!!document.querySelector('dialog .failure')?.innerText.includes('IPv4')")
            await page.press("Cancel")
            await page.press("Traffic")
            await row_says(page, "first", "no allowance")


async def test_an_administrator_looks_after_what_a_billing_system_has_ordered() -> None:
    async with controller_with_pages() as stack, open_browser() as browser:
        page = await set_up(browser, stack)
        token, fingerprint = await add_node(page)
        async with simulated_node(stack, token=token, fingerprint=fingerprint):
            await page.until("!!document.querySelector('td .badge.good')")
            await add_image(page)
            ordered = {
                "idempotency_key": "order-1",
                "integration": "whmcs",
                "external_ref": "hosting-77",
                "customer_email": "eve@example.test",
                "customer_name": "Eve",
                "name": "web-77",
                "plan_slug": "small",
                "image_slug": "demo",
            }
            assert "service" in await called(page, "POST", "/provision/services", ordered)

            await page.press("Services")
            await row_says(page, "hosting-77", "whmcs", "active", "eve@example.test", "web-77")
            await page.press("hosting-77")
            await page.press("Suspend")
            await page.fill("How", "network_isolate")
            await page.fill("Reason", "unpaid since June")
            await page.press("Suspend")
            await page.shows("network isolate")
            await page.shows("unpaid since June")
            await page.press("Unsuspend")
            await page.press("Unsuspend")
            await page.until("document.querySelector('main .head .badge')?.innerText === 'active'")
            await page.press("Services")
            await page.press("Settings")
            await page.fill("How", "network_isolate")
            await page.press("Save")
            await page.until("!document.querySelector('dialog')")

            catalogue = await page.evaluate("fetch('/api/v1/provision/catalogue').then((answer) => answer.json())")
            assert catalogue["suspend_mode"] == "network_isolate"

            await page.press("Activity")
            await page.press("Verify")
            await page.press("Verify")
            await page.shows("It is as it was sealed.")
            await page.press("Done")
            await page.press("Export")
            await page.fill("Operation", "service.suspend")
            await page.press("Export")
            await page.shows("1 entry is in audit.jsonl")


async def test_a_person_signs_in_with_a_code_besides_the_password() -> None:
    async with controller_with_pages() as stack, open_browser() as browser:
        page = await set_up(browser, stack)
        await page.press(stack.email)
        await page.press("Set up a second factor")
        await page.fill("Your password", stack.password)
        await page.press("Continue")
        await page.until("!!document.querySelector('main .secret code')")
        phone = Authenticator(await page.evaluate("document.querySelector('main .secret code').innerText"), time.time())
        await page.until("document.querySelector('.qr').naturalWidth > 100")
        await page.press("Enter code")
        await page.fill("Code", phone.code())
        await page.press("Confirm")
        await page.until("!!document.querySelector('dialog .secret code')")
        codes = (await page.evaluate("document.querySelector('dialog .secret code').innerText")).split()
        await page.press("Done")
        await page.shows("Recovery codes left")
        await page.press("Sign out")
        await page.fill("Email", stack.email)
        await page.fill("Password", stack.password)
        await page.press("Sign in")
        await page.shows("the code that your authenticator shows")

        await page.fill("Code", phone.code())
        await page.press("Sign in")
        await page.shows("was used before")
        await page.fill("Code", codes[0])
        await page.press("Sign in")

        await page.shows("Latest tasks")
        await page.press(stack.email)
        await page.until("[...document.querySelectorAll('dd')].some((fact) => fact.innerText === '9')")


async def test_a_page_never_runs_what_is_not_its_own() -> None:
    """The browser itself refuses an inline script, on each of the pages."""
    async with controller_with_pages() as stack, open_browser() as browser:
        console = f"/console/{UUID(int=1)}"
        for path in ("/", console, f"{console}?kind=serial"):
            page = await browser.open(stack.url + path)
            await page.until("document.readyState === 'complete'")
            await page.evaluate(
                "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
            )
            assert await page.evaluate("window.ran ?? 0") == 0
