"""The whole path on this host's libvirt, over HTTPS only: setup, node, image, machine, consoles, power, delete."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import asyncvnc
import pytest
import trio

from svc.cli.client import Client
from tests.support import host
from tests.support.stack import BIN, Stack, open_stack
from tests.support.terminal import serial_console

pytestmark = pytest.mark.system

PASSWORD = "Staple-battery-7-horse"


@asynccontextmanager
async def viewer_port(stack: Stack, name: str) -> AsyncIterator[int]:
    """`svc vm vnc`, as a person with a VNC viewer runs it."""
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(
                trio.run_process,
                [str(BIN / "svc"), "vm", "vnc", name],
                stdout=subprocess.PIPE,
                env=stack.cli_environment(),
                check=False,
            )
        )
        line = await process.stdout.receive_some(200)
        yield int(line.decode().strip().rpartition(":")[2])
        process.terminate()


def look(port: int) -> tuple[int, int, int]:
    """Width and height of the screen, and how many of its pixels are lit, as an RFB client sees it."""

    async def capture() -> tuple[int, int, int]:
        async with asyncvnc.connect("127.0.0.1", port) as client:
            pixels = await asyncio.wait_for(client.screenshot(), 30)
            height, width = pixels.shape[:2]
            return width, height, int((pixels[:, :, :3].max(axis=2) > 64).sum())

    return asyncio.run(capture())


async def create(client: Client, image_id: str) -> dict[str, object]:
    [project] = (await client.call("GET", "/projects"))["items"]
    created = await client.call(
        "POST",
        "/vms",
        body={
            "name": "first",
            "image_id": image_id,
            "project_id": project["id"],
            "vcpus": 1,
            "memory_mib": 256,
            "disk_gib": 1,
            "access_mode": "root_password",
            "set_password": PASSWORD,
        },
    )
    assert created["password_chosen"] is True
    assert PASSWORD not in str(created)
    return dict(created)


async def test_a_machine_from_order_to_removal() -> None:
    async with open_stack() as stack, stack.node("alpha"):
        await stack.own_network()
        image = await stack.import_demo_image()
        async with stack.client() as client:
            [node] = (await client.call("GET", "/nodes"))["items"]
            pulled = await client.call("POST", f"/images/{image['id']}/pull", body={"node_id": node["id"]})
            await stack.task(client, pulled)
            assert [i["image_id"] for i in await client.call("GET", f"/nodes/{node['id']}/images")] == [image["id"]]

            created = await create(client, image["id"])
            vm_id = str(created["vm"]["id"])  # type: ignore[index]
            await stack.task(client, created)
            vm = await client.call("GET", f"/vms/{vm_id}")
            assert vm["status"] == "running"
            address = vm["primary_ip"]

            async with serial_console(client, vm_id) as terminal:
                await terminal.expect("Linux version")
                await terminal.expect("login: ")
                await terminal.log_in("root", PASSWORD)
                gateway = (await terminal.run("ip route | sed -n 's/^default via \\([0-9.]*\\).*/\\1/p'")).split()[0]
                assert (await terminal.run(f"ping -c 2 -W 3 {gateway}")).endswith("\n0")
            assert host.pings(address)

            async with viewer_port(stack, "first") as port:
                width, height, lit = await trio.to_thread.run_sync(look, port)
            assert width >= 640
            assert height >= 400
            assert lit > 200, "the screen is black"

            await stack.task(client, await client.call("POST", f"/vms/{vm_id}/shutdown", body={}))
            assert (await client.call("GET", f"/vms/{vm_id}"))["status"] == "stopped"
            await stack.task(client, await client.call("POST", f"/vms/{vm_id}/start", body={}))
            assert (await client.call("GET", f"/vms/{vm_id}"))["status"] == "running"
            async with serial_console(client, vm_id) as terminal:
                await terminal.expect("login: ")

            gone = {"confirm": "first", "destroy_disks": True}
            await stack.task(client, await client.call("DELETE", f"/vms/{vm_id}", body=gone))
            assert (await client.call("GET", "/vms"))["total"] == 0
            for pool in (await client.call("GET", "/pools"))["items"]:
                assert pool["allocated_count"] == 0
                assert pool["releasing_count"] == 0
        assert host.domains(stack.prefix) == set()
        assert host.taps(stack.prefix) == set()
        assert host.routes_to(address) == []
        assert address not in host.ruleset()
        assert host.machine_files(stack.folder / "alpha", vm_id) == []
