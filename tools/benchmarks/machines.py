"""B2 and B3: an order over the API compared with `virsh define` and `virsh start` of the same guest, on this host's
libvirt.

Run as `python -m tools.benchmarks.machines`. The whole service runs as in production (HTTPS, controller, PostgreSQL,
agent). The guests' disk is blank, so that a started guest is idle and does not slow the next ones; our and libvirt's
work is measured, not the guest's boot. The peer's disks exist already and it has no network to set up: the ratio
includes everything that our machine gets beyond the domain (overlay, seed, tap, rules, record). Turns alternate, and
the median counts.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from uuid import uuid4

import trio

from svc.cli.client import Client
from svc.cli.failures import Exit, Failure
from tests.support.stack import open_stack
from tools.benchmarks import Ratio

ROUNDS = 7
CROWD = 100
CROWD_ROUNDS = 1
MEMORY_MIB = 64
SETTLE_SECONDS = 1.5
"""A guest that has just started is busy with its firmware, and must not slow the next turn."""
TOGETHER = 8
"""How many calls run at once, ours and virsh alike, when many are created."""


class Peer:
    """`virsh`, and the definition of one of our machines for it to define again under other names."""

    def __init__(self, folder: Path, definition: str, disk: Path) -> None:
        self._folder = folder
        self._disk = disk
        self._definition = re.sub(r"<interface .*?</interface>", '<interface type="user"/>', definition, flags=re.S)
        self.names: list[str] = []

    def prepare(self) -> Path:
        """A definition with a disk of its own, ready to be defined."""
        uuid = str(uuid4())
        name = f"svc-bench-{uuid[:8]}"
        folder = self._folder / name
        folder.mkdir()
        folder.chmod(0o777)
        disk = folder / "disk.qcow2"
        backing = ("-F", "qcow2", "-b", str(self._disk))
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *backing, str(disk)], check=True)
        disk.chmod(0o666)
        text = re.sub(r"<name>.*?</name>", f"<name>{name}</name>", self._definition)
        text = re.sub(r"<uuid>.*?</uuid>", f"<uuid>{uuid}</uuid>", text)
        text = re.sub(r"<metadata>.*?</metadata>|<metadata .*?</metadata>", "", text, flags=re.S)
        text = re.sub(r"<disk (?:(?!</disk>).)*seed\.iso.*?</disk>", "", text, flags=re.S)
        text = re.sub(r"<source file='[^']*disk-0\.qcow2'", f"<source file='{disk}'", text)
        text = re.sub(r"(<serial [^>]*>).*?</serial>", r"\1<target port='0'/></serial>", text, flags=re.S)
        path = folder / "domain.xml"
        path.write_text(text)
        self.names.append(name)
        return path

    async def define_and_start(self, definition: Path) -> None:
        await trio.run_process(["virsh", "-q", "define", str(definition)], capture_stdout=True)
        await trio.run_process(["virsh", "-q", "start", definition.parent.name], capture_stdout=True)

    async def remove(self) -> None:
        for name in self.names:
            await trio.run_process(
                ["virsh", "-q", "destroy", name], capture_stdout=True, capture_stderr=True, check=False
            )
            await trio.run_process(
                ["virsh", "-q", "undefine", name], capture_stdout=True, capture_stderr=True, check=False
            )
        self.names.clear()


@dataclass
class _End:
    """How the creation of a machine ended, once it has."""

    came: trio.Event = field(default_factory=trio.Event)
    status: str = ""

    def come(self, status: str) -> None:
        self.status = self.status or status
        self.came.set()


class Ours:
    """Orders over the API."""

    def __init__(self, client: Client, image_id: str, project_id: str) -> None:
        self._client = client
        self._wanted: dict[str, Any] = {
            "image_id": image_id,
            "project_id": project_id,
            "vcpus": 1,
            "memory_mib": MEMORY_MIB,
            "disk_gib": 1,
            "access_mode": "root_password",
            "password": True,
        }
        self._vms: list[tuple[str, str]] = []
        self._ended: dict[str, _End] = {}

    async def order(self) -> str:
        name = f"bench-{uuid4().hex[:8]}"
        created = await self._client.call("POST", "/vms", body=self._wanted | {"name": name})
        self._vms.append((created["vm"]["id"], name))
        return str(created["vm"]["id"])

    async def listen(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Receive machines' events as the dashboard does, instead of polling, which would slow the measured
        requests."""
        async with self._client.events() as stream:
            task_status.started()
            async for kind, event in stream:
                if kind == "vm" and (status := event["payload"]["status"]) in ("running", "failed"):
                    self._ended.setdefault(event["payload"]["id"], _End()).come(status)

    async def running(self, vm_id: str) -> None:
        end = self._ended.setdefault(vm_id, _End())
        await end.came.wait()
        if end.status != "running":
            raise RuntimeError(f"machine {vm_id} is {end.status}")

    async def _when_idle(self, method: str, path: str, body: dict[str, Any]) -> Any:
        while True:
            try:
                return await self._client.call(method, path, body=body)
            except Failure as failure:
                if failure.exit_code != Exit.NOT_READY:
                    raise
            await trio.sleep(0.2)

    async def remove(self) -> None:
        async def one(vm_id: str, name: str) -> None:
            gone = {"confirm": name, "destroy_disks": True}
            task = await self._when_idle("DELETE", f"/vms/{vm_id}", gone)
            while (await self._client.call("GET", f"/tasks/{task['id']}"))["ended_at"] is None:
                await trio.sleep(0.1)

        await _together([lambda vm=vm, name=name: one(vm, name) for vm, name in self._vms])  # type: ignore[misc]
        self._vms.clear()


@asynccontextmanager
async def _both() -> AsyncIterator[tuple[Ours, Peer]]:
    async with open_stack() as stack, stack.node("bench"), stack.client() as client:
        [node] = (await client.call("GET", "/nodes"))["items"]
        disk = stack.folder / "blank.qcow2"
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", str(disk), "1M"], check=True)
        disk.chmod(0o644)
        room = {"cpu": 100.0, "memory": 10.0, "disk": 100.0}
        await client.call("PATCH", f"/nodes/{node['id']}", body={"overcommit": room})
        image = await stack.import_image(disk, slug="blank", name="Blank", distribution="none", release="1")
        pull = await client.call("POST", f"/images/{image['id']}/pull", body={"node_id": node["id"]})
        await stack.task(client, pull)
        [project] = (await client.call("GET", "/projects"))["items"]
        ours = Ours(client, image["id"], project["id"])
        async with trio.open_nursery() as nursery:
            await nursery.start(ours.listen)
            first = await ours.order()
            await ours.running(first)
            definition = (await trio.run_process(["virsh", "dumpxml", "--inactive", first], capture_stdout=True)).stdout
            peer = Peer(stack.folder, definition.decode(), disk)
            try:
                yield ours, peer
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 300):
                    await peer.remove()
                    await ours.remove()
                nursery.cancel_scope.cancel()


async def _together(calls: list[Callable[[], Awaitable[object]]]) -> None:
    limit = trio.CapacityLimiter(TOGETHER)

    async def one(call: Callable[[], Awaitable[object]]) -> None:
        async with limit:
            await call()

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(one, call)


async def _measure() -> list[Ratio]:
    accepted, ran, peers = [], [], []
    crowd_ours, crowd_peers = [], []
    async with _both() as (ours, peer):
        for _ in range(ROUNDS):
            await trio.sleep(SETTLE_SECONDS)
            began = perf_counter()
            vm_id = await ours.order()
            accepted.append(perf_counter() - began)
            await ours.running(vm_id)
            ran.append(perf_counter() - began)
            definition = peer.prepare()
            await trio.sleep(SETTLE_SECONDS)
            began = perf_counter()
            await peer.define_and_start(definition)
            peers.append(perf_counter() - began)
        await peer.remove()
        await ours.remove()
        for _ in range(CROWD_ROUNDS):

            async def order() -> None:
                await ours.running(await ours.order())

            began = perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(CROWD):
                    nursery.start_soon(order)
            crowd_ours.append(perf_counter() - began)
            await ours.remove()
            definitions = [peer.prepare() for _ in range(CROWD)]
            began = perf_counter()
            await _together([lambda d=d: peer.define_and_start(d) for d in definitions])  # type: ignore[misc]
            crowd_peers.append(perf_counter() - began)
            await peer.remove()
    define_start = median(peers)
    return [
        Ratio("B2 POST /vms accepted : virsh define+start", median(accepted), define_start, "s", 0.1, False),
        Ratio("B3 create -> running : virsh define+start", median(ran), define_start, "s", 1.2, False),
        Ratio(f"B3 {CROWD} at once : virsh", median(crowd_ours), median(crowd_peers), "s", 1.2, False),
    ]


def measure() -> list[Ratio]:
    return trio.run(_measure)


if __name__ == "__main__":
    for row in measure():
        print(f"{row.name}: {row.ours:.3f} / {row.peer:.3f} {row.unit} = {row.ratio:.2f}")
