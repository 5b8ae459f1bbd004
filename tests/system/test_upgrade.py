"""The controller and an agent replaced under a running guest on this host's libvirt, while orders go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from svc.cli.client import Client
from svc.cli.failures import Exit, Failure
from svc_nodeagent.protocol import PROTOCOL_VERSION
from tests.support import host
from tests.support.figures import report_figure
from tests.support.releases import installed, kept_release, launched, wheel_of
from tests.support.stack import BIN, Stack, open_stack
from tests.support.terminal import serial_console

pytestmark = pytest.mark.system

PASSWORD = "Staple-battery-7-horse"
TRY_AGAIN = {int(Exit.UNAVAILABLE), int(Exit.NOT_READY), int(Exit.CONFLICT)}
BEFORE = PROTOCOL_VERSION - 1
LONGEST_ABSENCE = 30.0
"""In seconds; a person gives up. How long it is, against the five seconds that are wanted, is in docs/upgrades.md."""


def speaks_the_version_before(text: str) -> str:
    spoken = "SPOKEN: Final = Versions(PROTOCOL_VERSION - 1, PROTOCOL_VERSION)"
    changed = text.replace(spoken, f"SPOKEN: Final = Versions({BEFORE}, {BEFORE})")
    assert changed != text
    return changed


@asynccontextmanager
async def launched_node(stack: Stack, data: Path) -> AsyncIterator[int]:
    """The enrolled agent as its launcher runs it, whose process id is given."""
    with launched(data, "--prefix", stack.prefix) as launcher:
        await stack.node_online(data.name)
        yield launcher.pid


def stop_agent(launcher: int) -> None:
    """Stop the agent in order; its launcher starts the current release."""
    (agent,) = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    os.kill(int(agent), signal.SIGTERM)


async def until_agent(client: Client, node_id: str, version: str) -> None:
    with trio.fail_after(60):
        while True:
            node = await client.call("GET", f"/nodes/{node_id}")
            if node["state"] == "online" and node["agent"]["version"] == version:
                return
            await trio.sleep(0.1)


async def machine(stack: Stack, client: Client, name: str, image_id: str) -> dict[str, Any]:
    [project] = (await client.call("GET", "/projects"))["items"]
    created = await client.call(
        "POST",
        "/vms",
        body={
            "name": name,
            "image_id": image_id,
            "project_id": project["id"],
            "vcpus": 1,
            "memory_mib": 256,
            "disk_gib": 1,
            "access_mode": "root_password",
            "set_password": PASSWORD,
        },
    )
    await stack.task(client, created)
    return dict(created["vm"])


class Orders:
    """Somebody who starts and stops one machine without end, and asks again whatever could not be taken."""

    def __init__(self, stack: Stack, vm_id: str) -> None:
        self.stack, self.vm_id = stack, vm_id
        self.taken: list[str] = []
        self.over = trio.Event()

    async def run(self) -> None:
        async with self.stack.client() as client:
            while not self.over.is_set():
                try:
                    if self.taken and await self._open(client, self.taken[-1]):
                        continue
                    vm = await client.call("GET", f"/vms/{self.vm_id}")
                    order = ("start", {}) if vm["status"] == "stopped" else ("force-stop", {"confirm": vm["name"]})
                    answer = await client.call("POST", f"/vms/{self.vm_id}/{order[0]}", body=order[1])
                    self.taken.append(answer["id"])
                except Failure as failure:
                    if failure.exit_code not in TRY_AGAIN:
                        raise
                finally:
                    await trio.sleep(0.2)

    async def _open(self, client: Client, task_id: str) -> bool:
        return (await client.call("GET", f"/tasks/{task_id}"))["status"] in ("queued", "running")

    async def until_taken(self, more: int) -> None:
        wanted = len(self.taken) + more
        with trio.fail_after(60):
            while len(self.taken) < wanted:
                await trio.sleep(0.1)


async def away(stack: Stack, over: trio.Event) -> float:
    """The longest time in which the API answered nobody, in seconds."""
    longest, last = 0.0, trio.current_time()
    async with httpx.AsyncClient(verify=False, timeout=1.0, base_url=stack.url) as http:
        while not over.is_set():
            try:
                if (await http.get("/api/v1/setup/status")).is_success:
                    now = trio.current_time()
                    longest, last = max(longest, now - last), now
            except httpx.TransportError:
                pass
            await trio.sleep(0.05)
    return longest


def qemu_of(stack: Stack, vm_id: str) -> str:
    """The process of a guest: another one after any restart."""
    return subprocess.run(
        ["pgrep", "-f", f"guest={stack.prefix}-{vm_id}"], check=True, capture_output=True, text=True
    ).stdout.strip()


async def test_controller_and_agent_are_replaced_under_a_running_guest_and_no_order_is_lost() -> None:
    async with open_stack() as stack:
        data = stack.folder / "alpha"
        await stack.enrol("alpha")
        files = stack.folder / "files"
        before = kept_release(files, "0.0.8", wheel_of("0.0.8", {"protocol/versions.py": speaks_the_version_before}))
        old = kept_release(files, "0.0.9", wheel_of("0.0.9"))
        releases = installed(data, before)
        async with launched_node(stack, data) as launcher, stack.client() as client, trio.open_nursery() as nursery:
            await stack.own_network()
            image = await stack.import_demo_image()
            keeper = await machine(stack, client, "keeper", image["id"])
            busy = await machine(stack, client, "busy", image["id"])
            process = qemu_of(stack, keeper["id"])
            [node] = (await client.call("GET", "/nodes"))["items"]
            agent = {"version": "0.0.8", "protocol": BEFORE, "release": before.name, "upgrade": "available"}
            assert node["agent"] == agent

            orders = Orders(stack, busy["id"])
            nursery.start_soon(orders.run)
            await orders.until_taken(2)

            # The controller, with an agent that speaks the version before.
            replaced, gaps = trio.Event(), list[float]()

            async def watch() -> None:
                gaps.append(await away(stack, replaced))

            nursery.start_soon(watch)
            await orders.until_taken(1)
            await stack.controller.stop()
            await stack.start_controller()
            await stack.node_online("alpha")
            await orders.until_taken(2)
            replaced.set()

            # The agent by hand, as a package does it, to one that can replace itself.
            releases.switch(releases.install(old.wheel))
            stop_agent(launcher)
            await until_agent(client, node["id"], "0.0.9")
            await orders.until_taken(2)

            # And by the controller.
            upgraded = await trio.run_process(
                [str(BIN / "svc"), "-o", "json", "node", "upgrade", "alpha", "--wait"],
                env=stack.cli_environment(),
                capture_stdout=True,
            )
            assert json.loads(upgraded.stdout)["status"] == "succeeded"
            shown = await client.call("GET", f"/nodes/{node['id']}")
            assert shown["agent"]["upgrade"] == "current"
            await orders.until_taken(2)
            orders.over.set()

            tasks = [await stack.task(client, {"id": task_id}) for task_id in orders.taken]
            assert {task["status"] for task in tasks} == {"succeeded"}
            assert qemu_of(stack, keeper["id"]) == process
            assert (await client.call("GET", f"/vms/{keeper['id']}"))["status"] == "running"
            assert host.pings(keeper["primary_ip"])
            async with serial_console(client, keeper["id"]) as terminal:
                await terminal.log_in("root", PASSWORD)
                assert (await terminal.run("true")).endswith("\n0")
        with trio.fail_after(60):
            while not gaps:
                await trio.sleep(0.05)
        report_figure(f"a controller replaced: the API was away for {gaps[0]:.1f} s")
        assert gaps[0] < LONGEST_ABSENCE
