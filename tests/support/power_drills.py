"""What happens to this host in a drill: its power goes, a QEMU is killed, a definition is lost.

Only what carries the stack's own prefix is touched. libvirtd goes on, since the host has others' guests too: what it
would have forgotten in a power cut (why its guests are off) it is made to forget by defining them anew.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio

from svc.cli.client import Client
from svc.cli.failures import Failure
from tests.support import host
from tests.support.figures import report_figure
from tests.support.stack import Program, Stack, open_stack

POLL = 0.2


def virsh(*arguments: str) -> str:
    return subprocess.run(("virsh", "-q", *arguments), check=True, capture_output=True, text=True).stdout


def domain(stack: Stack, vm_id: str) -> str:
    return f"{stack.prefix}-{vm_id}"


def state(stack: Stack, vm_id: str) -> str:
    """As libvirt says it; empty where it has no such domain."""
    said = subprocess.run(
        ("virsh", "-q", "domstate", domain(stack, vm_id)), capture_output=True, text=True, check=False
    )
    return said.stdout.strip()


async def kill_qemu(stack: Stack, vm_id: str) -> None:
    """As the kernel does that is out of memory. Returns once libvirt has seen it."""
    pid = int(Path(f"/run/libvirt/qemu/{domain(stack, vm_id)}.pid").read_text())
    os.kill(pid, signal.SIGKILL)
    with trio.fail_after(30):
        while Path(f"/proc/{pid}").exists() and state(stack, vm_id) == "running":
            await trio.sleep(0.05)


async def power_cut(stack: Stack, agent: Program, machines: list[str]) -> None:
    """Agent and guests die, taps, routes and rules are gone, and libvirt knows no more than its files say."""
    await agent.kill()
    for vm_id in machines:
        await kill_qemu(stack, vm_id)
    for vm_id in machines:
        with trio.fail_after(30):
            while state(stack, vm_id) != "shut off":
                await trio.sleep(0.05)
        definition = stack.folder / "definition.xml"
        definition.write_text(virsh("dumpxml", "--inactive", domain(stack, vm_id)))
        virsh("undefine", domain(stack, vm_id))
        virsh("define", str(definition))
    host.clear_network(stack.prefix)


@asynccontextmanager
async def seconds_until_right(what: str) -> AsyncIterator[None]:
    """Reports how long the block took: what an operator waits for."""
    began = time.monotonic()
    yield
    report_figure(f"{what}: right again after {time.monotonic() - began:.1f} s")


async def until(condition: Callable[[], Awaitable[bool]], within: float) -> None:
    with trio.fail_after(within):
        while True:
            try:
                if await condition():
                    return
            except Failure:
                pass  # The controller has only just noticed that the agent is away, or is back.
            await trio.sleep(POLL)


@contextmanager
def small_file_system(folder: Path, mib: int) -> Iterator[None]:
    """A file system of its own at `folder`, which somebody else's files fill soon."""
    folder.mkdir(parents=True)
    subprocess.run(("mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=755", "tmpfs", str(folder)), check=True)
    try:
        yield
    finally:
        subprocess.run(("umount", "--lazy", str(folder)), check=True)


def fill(folder: Path, left_mib: int) -> Path:
    """A file in `folder` that leaves `left_mib` of its file system free."""
    filesystem = os.statvfs(folder)
    filler = folder / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, filesystem.f_bavail * filesystem.f_frsize - left_mib * 1024 * 1024)
    return filler


@asynccontextmanager
async def drill() -> AsyncIterator[tuple[Stack, Program, Client, dict[str, Any]]]:
    """A stack with this host as its node and the demo image."""
    async with open_stack() as stack, stack.node("alpha") as agent:
        await stack.own_network()
        image = await stack.import_demo_image()
        async with stack.client() as client:
            await make_room(client)
            yield stack, agent, client, image


async def make_room(client: Client) -> None:
    """The only node takes more machines than its processors would let it."""
    [node] = (await client.call("GET", "/nodes"))["items"]
    await client.call("PATCH", f"/nodes/{node['id']}", body={"overcommit": {"cpu": 32}})


async def create(
    stack: Stack, client: Client, image: dict[str, Any], name: str, *, password: str | None = None
) -> dict[str, Any]:
    [project] = (await client.call("GET", "/projects"))["items"]
    body = {
        "name": name,
        "image_id": image["id"],
        "project_id": project["id"],
        "vcpus": 1,
        "memory_mib": 128,
        "disk_gib": 1,
        "access_mode": "root_password",
    }
    body |= {"set_password": password} if password else {"password": True}
    created = await client.call("POST", "/vms", body=body)
    await stack.task(client, created)
    return dict(created["vm"])


async def create_all(stack: Stack, client: Client, image: dict[str, Any], names: list[str]) -> list[dict[str, Any]]:
    """As `create`, several at once; in the order of the names."""
    made: dict[str, dict[str, Any]] = {}
    at_once = trio.CapacityLimiter(4)

    async def make(name: str) -> None:
        async with at_once:
            made[name] = await create(stack, client, image, name)

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(make, name)
    return [made[name] for name in names]


async def show(client: Client, vm_id: str) -> dict[str, Any]:
    return dict(await client.call("GET", f"/vms/{vm_id}"))


async def alerts(client: Client, key: str) -> list[dict[str, Any]]:
    return [each for each in (await client.call("GET", "/alerts"))["items"] if each["key"] == key]
