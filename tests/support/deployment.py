"""A service under attack: controller, PostgreSQL and simulated nodes as processes of their own, killed with SIGKILL.

What is true is asked of two sides that know nothing of each other: the API, and the files in which the simulated hosts
keep what they have. `Deployment.settled` compares them. Every random choice comes from a seed, which is printed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import trio
from trio_websocket import WebSocketConnection, open_websocket_url

from tests.support.small_disk import SmallDisk, small_disk
from tests.support.stack import Program, Stack

ENDED = {"succeeded", "failed", "cancelled"}
POLL = 0.1
Told = tuple[int, str, dict[str, Any]]
"""An event: its position, kind and data."""
GUARD = {"X-Service-Request": "1"}


class Unavailable(Exception):  # noqa: N818 - named for what it says
    """The service said `unavailable`, or nobody was there to answer."""


class Refused(Exception):  # noqa: N818 - named for what it says
    """Any other answer than the wanted one."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(f"{status}: {error}")
        self.code = error.get("code")


@dataclass
class Api:
    """A caller that tells apart what a caller must tell apart: done, not available, refused."""

    http: httpx.AsyncClient

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        try:
            answer = await self.http.request(method, f"/api/v1{path}", json=body, params=query or None)
        except httpx.TransportError as error:
            raise Unavailable(str(error)) from error
        if answer.is_success:
            return answer.json() if answer.content else None
        try:
            said = answer.json()["error"]
        except (ValueError, KeyError) as malformed:
            raise AssertionError(f"{answer.status_code} without an error: {answer.text[:500]}") from malformed
        if answer.status_code == 503 and said["code"] == "unavailable":
            raise Unavailable(said["message"])
        raise Refused(answer.status_code, said)

    async def insist(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Ask until it is done. For what is safe to repeat."""
        while True:
            try:
                return await self.call(method, path, body, **query)
            except Unavailable:
                await trio.sleep(POLL)

    async def everything(self, path: str, **query: Any) -> list[dict[str, Any]]:
        """All pages of a list."""
        found: list[dict[str, Any]] = []
        while True:
            page = await self.insist("GET", path, page=len(found) // 200 + 1, page_size=200, **query)
            found += page["items"]
            if len(found) >= page["total"] or not page["items"]:
                return found


@dataclass
class Deployment:
    stack: Stack
    fleet: Program
    random: random.Random
    image_id: str = ""
    project_id: str = ""
    disk: SmallDisk | None = None
    """The controller's own, where the deployment was asked to give it one."""
    orders: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Answers to orders by idempotency key, as they were first given."""

    def tls_context(self) -> ssl.SSLContext:
        """Trusts the controller's own authority."""
        return ssl.create_default_context(cafile=str(self.stack.controller_data / "tls" / "authority.pem"))

    @asynccontextmanager
    async def api(self) -> AsyncIterator[Api]:
        async with httpx.AsyncClient(
            base_url=self.stack.url,
            verify=self.tls_context(),
            headers={"Authorization": f"Bearer {self.stack.token}"},
            timeout=60.0,
            trust_env=False,
        ) as http:
            yield Api(http)

    def browser(self) -> httpx.AsyncClient:
        """Somebody without a token, who keeps cookies."""
        return httpx.AsyncClient(base_url=self.stack.url, verify=self.tls_context(), timeout=60.0, trust_env=False)

    @asynccontextmanager
    async def console(self, api: Api, vm_id: str) -> AsyncIterator[WebSocketConnection]:
        """The machine's serial line."""
        ticket = await api.call("POST", f"/vms/{vm_id}/console", {"kind": "serial"})
        url = f"wss://127.0.0.1:{self.stack.api_port}{ticket['url']}"
        async with open_websocket_url(url, ssl_context=self.tls_context()) as console:
            yield console

    def wish(self, key: str, **more: Any) -> dict[str, Any]:
        return {
            "name": key,
            "image_id": self.image_id,
            "project_id": self.project_id,
            "vcpus": 1,
            "memory_mib": 256,
            "disk_gib": 1,
            "access_mode": "user_sudo",
            "password": True,
            "idempotency_key": key,
        } | more

    async def order(self, api: Api, key: str, **more: Any) -> dict[str, Any]:
        """Order a machine as a billing system does: the same order again until it has been answered."""
        answer = await api.insist("POST", "/vms", self.wish(key, **more))
        self.orders.setdefault(key, answer)
        return dict(answer)

    async def settled(self, api: Api, within: float) -> list[dict[str, Any]]:
        """All machines, once no task is open any more; bounded in seconds."""
        with trio.move_on_after(within):
            while True:
                still = [
                    task for status in ("queued", "running") for task in await api.everything("/tasks", status=status)
                ]
                if not still and await self.all_online(api):
                    return await api.everything("/vms")
                await trio.sleep(POLL)
        raise AssertionError(f"not settled within {within:g} s: {still}\n{self.stack.controller.tail()}")

    async def all_online(self, api: Api) -> bool:
        return all(node["state"] == "online" for node in await api.everything("/nodes"))

    async def check_truth(self, api: Api, within: float = 60.0) -> dict[str, str]:
        """Compare the API with the hosts; gives each machine's status by its name.

        Every order has one machine, running or failed with a cause; a host has exactly the machines that the API
        places on it; an address is held by one machine and by nobody who is not there.
        """
        with trio.fail_after(within):
            machines = await self.settled(api, within)
            await self._addresses_settle(api, {vm["id"] for vm in machines if vm["status"] != "failed"})
        by_name = {vm["name"]: vm for vm in machines}
        assert len(by_name) == len(machines), "a name is there twice"
        hosts = self.hosts()
        on_hosts = [vm_id for host in hosts.values() for vm_id in host["machines"]]
        assert len(on_hosts) == len(set(on_hosts)), "a machine is on two hosts"
        built = {vm["id"]: vm for vm in machines if vm["status"] != "failed"}
        assert set(on_hosts) == set(built), (
            f"orphans {set(on_hosts) - set(built)}, missing {set(built) - set(on_hosts)}"
        )
        for name, host in hosts.items():
            for vm_id, machine in host["machines"].items():
                assert built[vm_id]["node_name"] == name
                assert machine["state"] == built[vm_id]["status"]
                carried = host["network"]["networks"][vm_id]["carried"]
                assert sorted(carried) == sorted(address["ip"] for address in built[vm_id]["addresses"])
            assert host["retained_disks"] == [], "a disk without a machine"
        for vm in machines:
            assert vm["status"] in ("running", "stopped") or (vm["status"] == "failed" and vm["status_reason"]), vm
        for key, answer in self.orders.items():
            assert by_name[key]["id"] == answer["vm"]["id"]
        return {name: vm["status"] for name, vm in by_name.items()}

    async def check_handles(self, api: Api) -> None:
        """Each order given once more is answered with the machine, the task and the password of the first time."""
        for key, first in self.orders.items():
            again = await api.insist("POST", "/vms", self.wish(key))
            assert again["replayed"] is True
            for handle in (("vm", "id"), ("task", "id")):
                assert again[handle[0]][handle[1]] == first[handle[0]][handle[1]]
            assert again["password"] in (first["password"], None)

    def hosts(self) -> dict[str, dict[str, Any]]:
        """What each simulated host has, by the node's name."""
        return {
            file.parent.name: json.loads(file.read_text())
            for file in sorted((self.stack.folder / "nodes").glob("*/simulated.json"))
        }

    @property
    def postmaster(self) -> int:
        pid_file = self.stack.controller_data / "postgresql" / "cluster" / "postmaster.pid"
        try:
            return int(pid_file.read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return 0

    def database_url(self, role: str = "svc", database: str = "svc") -> str:
        socket = self.stack.controller_data / "postgresql" / "socket"
        return f"postgresql://{role}@/{database}?host={socket}"

    def kill_postmaster(self) -> int:
        """The pid of what was killed; 0 where PostgreSQL is on its way back already."""
        if pid := self.postmaster:
            os.kill(pid, signal.SIGKILL)
        return pid

    async def restart_controller(self, **environment: str) -> None:
        self.stack.controller.start(**environment)
        await self.stack.healthy()

    async def read_events(self, events: list[Told], after: int | None, opened: trio.Event) -> None:
        """Append the events of one stream as (position, kind, data), until the stream ends."""
        async with self.api() as api:
            headers = {} if after is None else {"Last-Event-ID": str(after)}
            async with api.http.stream("GET", "/api/v1/events", headers=headers, timeout=None) as stream:
                assert stream.status_code == 200, stream.status_code
                opened.set()
                position, kind = 0, ""
                async for line in stream.aiter_lines():
                    name, _, value = line.partition(": ")
                    match name:
                        case "id":
                            position = int(value)
                        case "event":
                            kind = value
                        case "data":
                            events.append((position, kind, json.loads(value)))

    async def follow_events(self, events: list[Told]) -> None:
        """Read events as a browser does: from the last one seen on, again whenever the stream ends or breaks."""
        while True:
            with suppress(httpx.TransportError):
                await self.read_events(events, events[-1][0] if events else 0, trio.Event())
            await trio.sleep(POLL)

    async def watch_events(self, kind: str, opened: trio.Event, seen: trio.Event) -> None:
        """Set `seen` at the next event of a kind."""
        events: list[Told] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.read_events, events, None, opened)
            while not any(event[1] == kind for event in events):
                await trio.sleep(POLL)
            seen.set()
            nursery.cancel_scope.cancel()

    async def _addresses_settle(self, api: Api, holders: set[str]) -> None:
        """Wait until nothing is being released, then compare who holds addresses with who may."""
        while True:
            held = [
                allocation
                for pool in await api.everything("/pools")
                for allocation in await api.everything(f"/pools/{pool['id']}/allocations")
                if allocation["vm_id"] is not None
            ]
            if all(allocation["state"] == "allocated" for allocation in held):
                break
            await trio.sleep(POLL)
        assert sorted(allocation["vm_id"] for allocation in held) == sorted(holders)


def seeded(seed: int) -> random.Random:
    sys.stdout.write(f"seed {seed}\n")
    return random.Random(seed)


@asynccontextmanager
async def open_deployment(
    *,
    nodes: int = 3,
    seed: int = 1,
    delay: tuple[float, float] = (0.0, 0.0),
    environment: dict[str, str] | None = None,
    prepare: Callable[[Deployment], None] | None = None,
    disk_mib: int | None = None,
    heartbeat_seconds: int = 1,
) -> AsyncIterator[Deployment]:
    """A controller that is set up, `nodes` simulated nodes that take `delay` seconds for an operation, an image.

    `environment` is for controller and nodes; `prepare` may change the nodes' enrolments before they connect.
    With `disk_mib` the controller's data and log lie on a disk of that size. A node is lost after three heartbeats.
    """
    folder = Path(tempfile.mkdtemp(prefix="svc-test-", dir="/var/lib"))
    folder.chmod(0o755)
    stack = Stack(folder)
    stack.controller.command += ["--heartbeat", str(heartbeat_seconds)]
    stack.controller.environment |= environment or {}
    fleet = Program("nodes", [], folder / "nodes.log")
    house = Deployment(stack, fleet, seeded(seed))
    disk = ExitStack()
    try:
        if disk_mib is not None:
            house.disk = disk.enter_context(small_disk(stack.controller_data, disk_mib))
            stack.controller.log = stack.controller_data / "controller.log"
        await stack.start_controller()
        await stack.set_up()
        fleet.command = [
            *(sys.executable, "-m", "svc_nodeagent.simulated_cli", str(nodes)),
            *("--controller", stack.url, "--ca", str(stack.controller_data / "tls" / "authority.pem")),
            *("--data", str(folder / "nodes"), "--seed", str(seed), "--delay", str(delay[0]), str(delay[1])),
        ]
        fleet.environment = {"SVC_TOKEN": stack.token or ""} | (environment or {})
        async with house.api() as api:
            await _import_image(house, api)
            await _start_fleet(house, api, nodes, prepare)
        yield house
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
            if fleet.running():
                await fleet.kill()
            if stack.controller.running():
                await stack.controller.kill()
            if pid := house.postmaster:
                _end_postmaster(pid)
        disk.close()
        shutil.rmtree(folder, ignore_errors=True)


async def _start_fleet(house: Deployment, api: Api, nodes: int, prepare: Callable[[Deployment], None] | None) -> None:
    """Start the nodes and wait until the controller sees all of them; with `prepare`, stop them once for it first."""
    house.fleet.start()
    if prepare is not None:
        with trio.fail_after(60):
            while len(list((house.stack.folder / "nodes").glob("*/enrolment.json"))) < nodes:
                await trio.sleep(POLL)
        await house.fleet.kill()
        prepare(house)
        house.fleet.start()
    with trio.fail_after(60):
        while True:
            known = await api.everything("/nodes", state="online")
            if len(known) == nodes and all([await _inventoried(api, node["id"]) for node in known]):
                return
            await trio.sleep(POLL)


async def _inventoried(api: Api, node_id: str) -> bool:
    """Only a node that has said what it has takes machines."""
    return (await api.insist("GET", f"/nodes/{node_id}"))["health"]["inventory_at"] is not None


async def _import_image(house: Deployment, api: Api) -> None:
    image = await api.call(
        "POST",
        "/images",
        {
            "slug": "simulated",
            "name": "Simulated",
            "distribution": "none",
            "release": "1",
            "login_user": "user",
            "url": "https://images.example.test/none.qcow2",
            "digest": "0" * 64,
        },
    )
    house.image_id = image["id"]
    [project] = (await api.call("GET", "/projects"))["items"]
    house.project_id = project["id"]


def _end_postmaster(pid: int) -> None:
    """PostgreSQL's immediate shutdown: the postmaster takes its children along, which SIGKILL would leave behind."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGQUIT)
