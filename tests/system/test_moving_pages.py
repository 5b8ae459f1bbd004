"""Moving a machine in a real browser: which nodes could take it and how, how far it is, and where it is then."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
import trio

from svc_nodeagent.agent import Agent
from svc_nodeagent.config import AgentFolder
from svc_nodeagent.enrol import enrol_over
from svc_nodeagent.host import Report
from svc_nodeagent.journal import Journal
from svc_nodeagent.protocol import NodeOperation, OperationResult
from svc_nodeagent.simulated import SimulatedHost
from tests.support.browser import Page, open_browser
from tests.support.stack import Stack
from tests.system.test_machine_pages import add_system
from tests.system.test_pages import add_image, called, controller_with_pages, set_up

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]


class HeldHost(SimulatedHost):
    """Begins nothing while `free` is not set."""

    def __init__(self, name: str, host_uuid: UUID) -> None:
        super().__init__(name, host_uuid)
        self.free = trio.Event()
        self.free.set()

    async def perform(self, operation: NodeOperation, report: Report) -> OperationResult:
        await self.free.wait()
        return await super().perform(operation, report)


@asynccontextmanager
async def node(stack: Stack, page: Page, name: str) -> AsyncIterator[HeldHost]:
    """A node of this name, on line until the end of the block: several of this host's own agent would be one node."""
    token = (await called(page, "POST", "/nodes/bootstrap", {"name": name}))["token"]
    context = ssl.create_default_context(cafile=str(stack.controller_data / "tls" / "authority.pem"))
    folder, host = AgentFolder(stack.folder / name), HeldHost(name, uuid4())
    async with httpx.AsyncClient(base_url=f"{stack.url}/api/v1", verify=context, trust_env=False) as client:
        await enrol_over(client, folder, token=token, hostname=name, host=host.host_uuid)

    async with trio.open_nursery() as nursery:
        await nursery.start(Agent(folder, Journal.open(None)).run, lambda _: host)
        yield host
        nursery.cancel_scope.cancel()


async def fetched(page: Page, path: str) -> Any:
    return await page.evaluate(f"fetch({json.dumps('/api/v1' + path)}).then((answer) => answer.json())")


async def taken(page: Page, path: str, body: dict[str, Any]) -> None:
    """Ordered until it is taken: a machine that has just moved takes nothing while its old node still tidies up."""
    request = {
        "method": "POST",
        "headers": {"X-Service-Request": "1", "Content-Type": "application/json"},
        "body": json.dumps(body),
    }
    await page.until(f"fetch({json.dumps('/api/v1' + path)}, {json.dumps(request)}).then((answer) => answer.ok)")


async def is_on(page: Page, node: str, status: str) -> None:
    await page.until(f"document.querySelector('main a[href^=\"#/nodes/\"]')?.innerText === '{node}'")
    await page.until(f"document.querySelector('main .head .badge')?.innerText === '{status}'")
    await page.until("!document.querySelector('main progress')")


async def test_an_administrator_moves_a_machine_live_off_and_with_a_restart_and_reads_what_is_in_the_way() -> None:
    async with controller_with_pages() as stack, open_browser() as browser:
        page = await set_up(browser, stack)
        async with node(stack, page, "alpha"), node(stack, page, "beta") as beta:
            await page.press("Nodes")
            await page.until("document.querySelectorAll('td .badge.good').length === 2")
            await add_image(page)
            await add_system(page, "iso", "Installer", "b")
            nodes = {node["name"]: node["id"] for node in (await fetched(page, "/nodes"))["items"]}
            await page.press("Machines")
            await page.press("Create machine")
            await page.fill("Name", "first")
            await page.fill("Node", "alpha")
            await page.press("Create")
            await page.press("Done")
            await is_on(page, "alpha", "running")
            vm_id = str(await page.evaluate("location.hash")).rsplit("/", 1)[1]

            # No node can take it: each says why, for as long as it is read
            await called(page, "PATCH", f"/nodes/{nodes['beta']}", {"maintenance": True})
            await page.press("Migrate")
            await page.shows("No node can take it.")
            await page.until("document.querySelector('dialog dt')?.innerText === 'beta'")
            await page.until("document.querySelector('dialog dd')?.innerText.includes('maintenance')")
            await page.press("Done")
            await called(page, "PATCH", f"/nodes/{nodes['beta']}", {"maintenance": False})

            # Live, and how far it is while the other node is at it
            await page.press("Migrate")
            await page.shows("Live migration: it keeps running")
            beta.free = trio.Event()
            await page.press("Migrate")
            await page.until("!!document.querySelector('main p progress')")
            await page.until("document.querySelector('main p:has(progress)').innerText.includes('vm.migrate')")
            beta.free.set()
            await is_on(page, "beta", "running")

            # With a restart, and why not live
            [iso] = [image["id"] for image in await fetched(page, "/images") if image["kind"] == "iso"]
            await taken(page, f"/vms/{vm_id}/iso", {"image_id": iso})
            await page.shows("Installer")
            await page.until("!document.querySelector('main progress')")
            await page.press("Migrate")
            await page.shows("alpha, with a restart")
            await page.shows("Its guest is shut down, and started")
            await page.shows("cdrom: the machine's drive holds an ISO")
            await page.press("Migrate")
            await is_on(page, "alpha", "running")

            await taken(page, f"/vms/{vm_id}/shutdown", {})
            await is_on(page, "alpha", "stopped")
            await page.press("Migrate")
            await page.shows("beta, while it is off")
            await page.press("Migrate")
            await is_on(page, "beta", "stopped")

            assert [line for line in page.complaints if "Security" in line] == []
