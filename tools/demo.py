"""A whole service on one machine, set up as a new operator would: controller, node, image, machine, boot on screen.

It uses no private interface: after starting the two programs, everything goes over the public API with the token that
the first step creates. A second run finds what the first one created, and resumes after one that failed, so it can be
repeated until it succeeds. The data folder is outside the clone because QEMU runs as a user that cannot enter a home
directory.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import trio
from demonstration import BIN, DEFAULT_DATA, SAY, CommandLine, main, require_free, require_room, require_root
from program import Program, reap
from trio_websocket import ConnectionClosed

from svc.cli import following, profiles, transfer
from svc.cli.client import Client
from svc.cli.failures import Exit, Failure
from svc.cli.profiles import Profile, ProfileFile
from svc.cli.websocket import open_patiently
from svc.cli.work import Work, WorkKind

DEMO_IMAGE = Path(os.environ.get("SVC_IMAGES") or Path.home() / ".cache/svc/images") / "demo.qcow2"
EMAIL = "admin@example.test"
MACHINE = "demo"
PROJECT = "default"
BUILDING = ("vm.create", "vm.reinstall")
"""Operations of tasks after which a machine is built."""
POLL = 0.3
DEFAULT_PORT = 8443
PROGRAM_DEADLINE = 180.0
"""For a program that runs and is not ready yet: a busy host takes a minute."""
BOOT_DEADLINE = 300.0
NEEDED_GIB = 2


class Demo:
    """`port` is the API's; the two after it are the node gateway's and that of /metrics and /healthz."""

    def __init__(self, data: Path, port: int) -> None:
        self.data = data
        self.url = f"https://127.0.0.1:{port}"
        self.ports = {port: "the API", port + 1: "nodes", port + 2: "/metrics and /healthz"}
        self.profile_name = "demo" if data == DEFAULT_DATA else f"demo-{data.name}"
        self.controller_data, self.node_data = data / "controller", data / "node"
        serve = [str(BIN / "svc"), "serve", "controller", "--public-host", "127.0.0.1"]
        serve += ["--rescue-system", str(DEMO_IMAGE.with_name("rescue.tar"))]
        node = [str(BIN / "svc-nodeagent"), "run"]
        if port != DEFAULT_PORT:
            for name, number in zip(("api", "gateway", "operations"), self.ports, strict=True):
                serve += [f"--{name}-port", str(number)]
            node += ["--prefix", f"d{port % 1000:03}"]  # distinct from another agent on this host
        self.controller = Program("controller", data, [*serve, "--data", str(self.controller_data)])
        self.node = Program("node", data, [*node, "--data", str(self.node_data)])
        self.health = f"http://127.0.0.1:{port + 2}/healthz"
        self.vm_id = ""

    async def up(self) -> None:
        self._check_host()
        restarted = datetime.now(UTC) if self.controller.pid() is None else None
        with SAY.status("starting PostgreSQL and the controller"):
            self.controller.start()
            await self._until_healthy()
        authority = (self.controller_data / "tls" / "authority.pem").read_text()
        profile, password = await self._signed_in(Profile(url=self.url, trusted=authority))
        async with Client.open(profile) as client:
            await self._join_node(client, restarted)
            await self._import_image(client)
            machine_password: str | None = None
            try:
                machine_password = await self._machine(client)
                await self._watch_boot(client)
            finally:
                if self.vm_id:
                    self._tell(password, machine_password)

    async def down(self) -> None:
        """Shut the machines down while the service can still order it, then stop the programs."""
        stored = profiles.load(os.environ).profiles.get(self.profile_name)
        if stored is not None and self.controller.pid() is not None and self.node.pid() is not None:
            try:
                async with Client.open(stored) as client:
                    for vm in await everything(client, "/vms", status="running"):
                        SAY.print(f"shutting {vm['name']} down")
                        task = await client.call("POST", f"/vms/{vm['id']}/shutdown", body={})
                        await following.wait(client, Work(WorkKind.TASK, task["id"]), timeout=100)
            except Failure as failure:
                SAY.print(f"a machine stays as it is: {failure.message}", style="yellow")
        await self.node.stop()
        await self.controller.stop()
        SAY.print("stopped; the data stays in " + str(self.data), soft_wrap=True)

    def _check_host(self) -> None:
        """Report in advance what would fail halfway."""
        require_root("drives the host's libvirt and firewall")
        require_room(self.data, NEEDED_GIB)
        if self.controller.pid() is None:
            require_free(self.ports, "--port chooses other ports")

    async def _until_healthy(self) -> None:
        async with httpx.AsyncClient(timeout=2.0, trust_env=False) as http:
            with trio.move_on_after(PROGRAM_DEADLINE):
                while self.controller.pid() is not None:
                    try:
                        if (await http.get(self.health)).is_success:
                            return
                    except httpx.TransportError:
                        pass  # it does not listen yet
                    await trio.sleep(0.2)
                    reap()
        raise Failure(Exit.UNAVAILABLE, "the controller did not start", f"its log is {self.controller.log}")

    async def _signed_in(self, profile: Profile) -> tuple[Profile, str | None]:
        """The profile of this service, created by setting the controller up the first time."""
        stored = profiles.load(os.environ)
        known = stored.profiles.get(self.profile_name)
        if known is not None and known.trusted == profile.trusted:
            return known, None
        try:
            token = (self.controller_data / "setup-token").read_text().strip()
        except FileNotFoundError:
            what = f"{self.data} is set up already, and this account has no profile for it"
            hint = f"sign in with `svc login {self.url} --name {self.profile_name}`, or choose another --data DIR"
            raise Failure(Exit.UNAUTHENTICATED, what, hint) from None
        password = secrets.token_urlsafe(12) + "-A1a"
        # Shown before it is used: whatever happens next, the user can sign in.
        SAY.print(f"administrator {EMAIL}, password {password}", soft_wrap=True)
        async with Client.open(profile) as client:
            body = {"token": token, "email": EMAIL, "name": "Administrator", "password": password}
            guard = {"X-Service-Request": "1", "Origin": self.url}
            await client.call("POST", "/setup", body=body, headers=guard)
            wanted = {"name": self.profile_name, "scopes": ["admin"], "days": 0}
            created = await client.call("POST", "/tokens", body=wanted, headers=guard)
        profile = replace(profile, token=created["token"])
        kept = {**stored.profiles, self.profile_name: profile}
        profiles.save(os.environ, ProfileFile(current=self.profile_name, profiles=kept))
        return profile, password

    async def _join_node(self, client: Client, restarted: datetime | None) -> None:
        """Wait until a node is connected. For half a minute after the controller was `restarted`, the records still
        show nodes as online that were before."""
        with SAY.status("joining this host as a node"):
            if not (self.node_data / "enrolment.json").exists():
                await self._enrol(client)
            self.node.start()
            with trio.move_on_after(PROGRAM_DEADLINE):
                while self.node.pid() is not None:
                    nodes = await everything(client, "/nodes", state="online")
                    if any(restarted is None or _connected_at(node) >= restarted for node in nodes):
                        return
                    reap()
                    await trio.sleep(0.3)
        raise Failure(Exit.UNAVAILABLE, "the node did not come up", f"its log is {self.node.log}")

    async def _enrol(self, client: Client) -> None:
        for node in await everything(client, "/nodes", state="pending"):
            SAY.print(f"removing the node {node['name']}, whose joining was cut short")
            await client.call("DELETE", f"/nodes/{node['id']}")
        wanted = {"name": os.uname().nodename.split(".")[0].lower() or "node-1"}
        bootstrap = await client.call("POST", "/nodes/bootstrap", body=wanted)
        environment = dict(os.environ) | {
            "SVC_CONTROLLER": self.url,
            "SVC_TOKEN": bootstrap["token"],
            "SVC_FINGERPRINT": bootstrap["fingerprint"],
        }
        enrol = [str(BIN / "svc-nodeagent"), "enrol", "--data", str(self.node_data)]
        if (await trio.run_process(enrol, env=environment, check=False)).returncode != 0:
            raise Failure(Exit.UNAVAILABLE, "this host could not join as a node", "run tools/run again")

    async def _import_image(self, client: Client) -> None:
        images = await client.call("GET", "/images")
        image = next((image for image in images if image["slug"] == "demo"), None)
        with DEMO_IMAGE.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if image is not None and image["digest"] == digest:
            return
        wanted = {"slug": "demo", "name": "Demo Linux", "distribution": "demo", "release": "1"}
        wanted |= {"login_user": "debian", "format": "qcow2", "source": "file"}
        image = image or await client.call("POST", "/images", body=wanted)
        await transfer.upload(client, "PUT", f"/images/{image['id']}/file", DEMO_IMAGE)

    async def _machine(self, client: Client) -> str | None:
        """The password of a machine created just now; None if it existed already. A machine that was ever built is
        waited for and started, whatever its state, and never deleted; one whose creation failed is replaced by a new
        one."""
        vm = await _demo_machine(client)
        if vm is None:
            return await self._create(client)
        SAY.print(f"the machine {MACHINE} is here already")
        self.vm_id = vm["id"]
        with trio.move_on_after(BOOT_DEADLINE):
            while (vm := await client.call("GET", f"/vms/{self.vm_id}"))["status"] != "running":
                if vm["status"] == "deleting":
                    SAY.print(f"the machine {MACHINE} is being deleted; a new one is made then", style="yellow")
                    await self._until_gone(client)
                    return await self._create(client)
                refused = vm["status"] in ("stopped", "failed") and not await self._start(client)
                if refused and vm["status"] == "failed" and await _never_built(client, self.vm_id):
                    why = vm["status_reason"] or "its creation failed"
                    SAY.print(f"replacing the machine {MACHINE}: {why}", style="yellow", soft_wrap=True)
                    await self._remove(client, vm)
                    return await self._create(client)
                await trio.sleep(POLL)
            return None
        raise Failure(
            Exit.WAIT_TIMED_OUT,
            f"the machine {MACHINE} is {vm['status']}: {vm['status_reason'] or 'its node has not said why'}",
            f"nothing was deleted; look at svc vm tasks {MACHINE}, and run tools/run again",
        )

    async def _start(self, client: Client) -> bool:
        """False if it cannot be started now: another task runs, its node is away, or it was never built."""
        try:
            task = await client.call("POST", f"/vms/{self.vm_id}/start", body={})
        except Failure as failure:
            if failure.exit_code in (Exit.CONFLICT, Exit.UNAVAILABLE):
                return False
            raise
        await following.wait(client, Work(WorkKind.TASK, task["id"]), timeout=BOOT_DEADLINE)
        return True

    async def _create(self, client: Client) -> str:
        projects = await everything(client, "/projects")
        project = next((project for project in projects if project["name"] == PROJECT), None)
        if project is None:
            raise Failure(
                Exit.NOT_FOUND,
                f"there is no project {PROJECT}, in which the machine {MACHINE} is made; no machine was made",
                f"svc project create {PROJECT}, then run tools/run again",
            )
        wanted = {"name": MACHINE, "project_id": project["id"], "image": "demo", "access_mode": "root_password"}
        # The key is for this one order and its retries on a broken connection; a later run orders anew.
        wanted |= {"vcpus": 1, "memory_mib": 256, "disk_gib": 1, "password": True, "idempotency_key": str(uuid4())}
        SAY.print(f"creating the machine {MACHINE}")
        created = await client.call("POST", "/vms", body=wanted)
        self.vm_id = created["vm"]["id"]
        SAY.print(f"its root password is {created['password']}", soft_wrap=True)
        await following.wait(client, Work(WorkKind.TASK, created["task"]["id"]), timeout=BOOT_DEADLINE)
        return str(created["password"])

    async def _remove(self, client: Client, vm: dict[str, Any]) -> None:
        task = await client.call("DELETE", f"/vms/{vm['id']}", body={"confirm": MACHINE})
        await following.wait(client, Work(WorkKind.TASK, task["id"]), timeout=BOOT_DEADLINE)
        await self._until_gone(client)

    async def _until_gone(self, client: Client) -> None:
        with trio.move_on_after(BOOT_DEADLINE):
            while await _demo_machine(client) is not None:
                await trio.sleep(POLL)
            return
        raise Failure(Exit.WAIT_TIMED_OUT, f"the machine {MACHINE} is still being deleted", "run tools/run again")

    async def _watch_boot(self, client: Client) -> None:
        """Show the serial console on this terminal until the guest's login prompt."""
        await self._until_running(client)
        seen = b""
        with trio.move_on_after(BOOT_DEADLINE) as patience:
            async with AsyncExitStack() as stack:
                console = await open_patiently(stack, client, self.vm_id, "serial", within=PROGRAM_DEADLINE)
                await console.send_message(b"\r")
                try:
                    # The console first repeats earlier output, including prompts of earlier boots.
                    while not seen.rstrip().endswith(b"login:"):
                        message = await console.get_message()
                        data = message if isinstance(message, bytes) else message.encode()
                        seen = (seen + data)[-4096:]
                        sys.stdout.buffer.write(data)
                        sys.stdout.buffer.flush()
                except ConnectionClosed as closed:
                    raise Failure(Exit.UNAVAILABLE, f"the console closed: {closed.reason}") from closed
        if patience.cancelled_caught:
            why = (await client.call("GET", f"/vms/{self.vm_id}"))["status_reason"] or "its console may say why"
            raise Failure(
                Exit.WAIT_TIMED_OUT,
                f"no login prompt within {BOOT_DEADLINE:g} s: {why}",
                f"everything is left running; svc vm force-stop {MACHINE}, svc vm start {MACHINE} boots it anew",
            )

    async def _until_settled(self, client: Client) -> dict[str, Any]:
        """A node that has just come back must first report the state of its machines."""
        vm: dict[str, Any] = {}
        with trio.move_on_after(BOOT_DEADLINE):
            while (vm := await client.call("GET", f"/vms/{self.vm_id}"))["status"] not in ("running", "failed"):
                await trio.sleep(0.3)
        return vm

    async def _until_running(self, client: Client) -> None:
        vm = await self._until_settled(client)
        if vm.get("status") != "running":
            why = vm.get("status_reason") or f"it is {vm.get('status')}"
            raise Failure(Exit.TASK_FAILED, f"the machine {MACHINE} does not run: {why}")

    def _tell(self, password: str | None, machine_password: str | None) -> None:
        svc = f"{BIN / 'svc'}" + ("" if self.profile_name == "demo" else f" --profile {self.profile_name}")
        again = f"password as shown by the first run; a new one: {svc}"
        admin = f"password {password}" if password else f"{again} person set-password {EMAIL}"
        root = f"password {machine_password}" if machine_password else f"{again} vm reset-password {MACHINE}"
        print("\n")
        authority = self.controller_data / "tls" / "authority.pem"
        print(f"Dashboard      {self.url}/  (the browser has to be told to trust {authority})")
        print(f"Administrator  {EMAIL}, {admin}")
        print(f"Machine        {MACHINE}, root, {root}")
        print(f"Console        {svc} vm console {MACHINE}   (Ctrl-] leaves)")
        print(f"In a browser   {self.url}/console/{self.vm_id}?kind=vnc")
        data = "" if self.data == DEFAULT_DATA else f" --data {self.data}"
        print(f"Stop           tools/run --stop{data}", flush=True)


async def everything(client: Client, path: str, **query: str) -> list[dict[str, Any]]:
    """All pages of a list."""
    found: list[dict[str, Any]] = []
    for page in itertools.count(1):
        answer = await client.call("GET", path, query={**query, "page": page, "page_size": 200})
        rows = answer["items"]
        found += rows
        if not rows or len(found) >= answer["total"]:
            break
    return found


async def _demo_machine(client: Client) -> dict[str, Any] | None:
    return next((vm for vm in await everything(client, "/vms", q=MACHINE) if vm["name"] == MACHINE), None)


async def _never_built(client: Client, vm_id: str) -> bool:
    """Whether its tasks prove that it was never built; a machine without such tasks, or built in another way, is not
    replaced."""
    tasks = await everything(client, f"/vms/{vm_id}/tasks")
    ends = {task["status"] for task in tasks if task["op"] in BUILDING}
    return "failed" in ends and ends.isdisjoint(("succeeded", "running", "queued"))


def _connected_at(node: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(node["connected_at"] or "1970-01-01T00:00:00Z")


LINE = CommandLine(
    program="tools/run",
    description="A whole service on this machine.",
    port=DEFAULT_PORT,
    port_help="the API's port; the two after it are taken too",
    detach_help="return once the machine has booted",
    stop_help="shut the machines down and stop everything",
    interrupted="interrupted; tools/run goes on where it was, tools/run --stop stops everything",
)

if __name__ == "__main__":
    main(LINE, Demo)
