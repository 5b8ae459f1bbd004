"""A whole service on one machine, as a new operator would set it up: controller, node, image, machine, boot on screen.

Nothing here has a way in of its own: after starting the two programs, everything goes over the public API with the
token that the first step makes. A second run finds what the first one made. The data folder is outside the clone
because QEMU runs as a user that cannot enter a home directory.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import trio
from rich.console import Console
from trio_websocket import ConnectionClosed, open_websocket_url

from svc.cli import profiles, tasks
from svc.cli.client import API_PREFIX, Client
from svc.cli.failures import Exit, Failure
from svc.cli.profiles import Profile, ProfileFile, tls_context

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv" / "bin"
DEMO_IMAGE = Path(os.environ.get("SVC_IMAGES") or Path.home() / ".cache/svc/images") / "demo.qcow2"
EMAIL = "admin@example.test"
MACHINE = "demo"
BOOT_DEADLINE = 120.0
SAY = Console(stderr=True, highlight=False)


class Service:
    """One of our programs, running detached from the terminal; its pid and its log are in the data folder."""

    def __init__(self, name: str, data: Path, command: list[str]) -> None:
        self.name = name
        self.command = command
        self.log = data / f"{name}.log"
        self._pid_file = data / f"{name}.pid"

    def pid(self) -> int | None:
        """The pid while the program runs; the command is compared, since a pid may have been given to another."""
        try:
            pid = int(self._pid_file.read_text())
            running = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ValueError):
            return None
        return pid if self.command[1].encode() in running else None

    def start(self) -> None:
        if self.pid() is not None:
            return
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
            )
        self._pid_file.write_text(str(process.pid))

    async def stop(self) -> None:
        pid = self.pid()
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        with trio.move_on_after(30):
            while self.pid() is not None:
                _reap()
                await trio.sleep(0.1)
        if self.pid() is not None:
            SAY.print(f"{self.name} did not stop within 30 s; killing it", style="yellow")
            os.kill(pid, signal.SIGKILL)
        self._pid_file.unlink(missing_ok=True)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return


class Demo:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.environment = dict(os.environ)
        self.controller_data = data / "controller"
        self.node_data = data / "node"
        self.url = "https://127.0.0.1:8443"
        self.controller = Service(
            "controller",
            data,
            [
                str(BIN / "svc"),
                "serve",
                "controller",
                "--data",
                str(self.controller_data),
                "--public-host",
                "127.0.0.1",
            ],
        )
        self.node = Service("node", data, [str(BIN / "svc-nodeagent"), "run", "--data", str(self.node_data)])

    async def up(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True, mode=0o755)
        with SAY.status("starting PostgreSQL and the controller"):
            self.controller.start()
            await self._until_healthy()
        profile = Profile(url=self.url, trusted=(self.controller_data / "tls" / "authority.pem").read_text())
        profile, password = await self._signed_in(profile)
        async with Client.open(profile) as client:
            await self._join_node(client)
            await self._import_image(client)
            secret = await self._machine(client)
            await self._watch_boot(client)
        self._tell(password, secret)

    async def down(self) -> None:
        """Shut the demo machine down while somebody can still tell its node to, then stop the programs."""
        stored = profiles.load(self.environment).profiles.get("demo")
        if stored is not None and self.controller.pid() is not None:
            async with Client.open(stored) as client:
                for vm in (await client.call("GET", "/vms", query={"status": "running"}))["items"]:
                    SAY.print(f"shutting {vm['name']} down")
                    task = await client.call("POST", f"/vms/{vm['id']}/shutdown", body={})
                    await tasks.wait(client, task["id"], timeout=100)
        await self.node.stop()
        await self.controller.stop()
        SAY.print("stopped")

    async def _until_healthy(self) -> None:
        async with httpx.AsyncClient(timeout=2.0) as http:
            with trio.move_on_after(60):
                while self.controller.pid() is not None:
                    try:
                        if (await http.get("http://127.0.0.1:8445/healthz")).is_success:
                            return
                    except httpx.TransportError:
                        await trio.sleep(0.2)
                    _reap()
        raise Failure(Exit.UNAVAILABLE, "the controller did not start", f"its log is {self.controller.log}")

    async def _signed_in(self, profile: Profile) -> tuple[Profile, str | None]:
        """The profile `demo`, made by setting the controller up the first time round."""
        stored = profiles.load(self.environment)
        known = stored.profiles.get("demo")
        if known is not None and known.trusted == profile.trusted:
            return known, None
        password = secrets.token_urlsafe(12) + "-A1"
        async with Client.open(profile) as client:
            token = (self.controller_data / "setup-token").read_text().strip()
            body = {"token": token, "email": EMAIL, "name": "Administrator", "password": password}
            guard = {"X-Service-Request": "1", "Origin": self.url}
            await client.call("POST", "/setup", body=body, headers=guard)
            wanted = {"name": "demo", "scopes": ["admin"], "days": 0}
            created = await client.call("POST", "/tokens", body=wanted, headers=guard)
        SAY.print(f"administrator {EMAIL}, password {password}", soft_wrap=True)
        profile = profile.model_copy(update={"token": created["token"]})
        profiles.save(self.environment, ProfileFile(current="demo", profiles=stored.profiles | {"demo": profile}))
        return profile, password

    async def _join_node(self, client: Client) -> None:
        with SAY.status("joining this host as a node"):
            if not (await client.call("GET", "/nodes"))["items"]:
                wanted = {"name": os.uname().nodename.split(".")[0].lower() or "node-1"}
                bootstrap = await client.call("POST", "/nodes/bootstrap", body=wanted)
                environment = self.environment | {
                    "SVC_CONTROLLER": self.url,
                    "SVC_TOKEN": bootstrap["token"],
                    "SVC_FINGERPRINT": bootstrap["fingerprint"],
                }
                enrol = [str(BIN / "svc-nodeagent"), "enrol", "--data", str(self.node_data)]
                await trio.run_process(enrol, env=environment)
            self.node.start()
            with trio.fail_after(60):
                while not (await client.call("GET", "/nodes", query={"state": "online"}))["items"]:  # noqa: ASYNC110
                    await trio.sleep(0.3)

    async def _import_image(self, client: Client) -> None:
        images = await client.call("GET", "/images")
        image = next((image for image in images if image["slug"] == "demo"), None)
        if image is not None and image["digest"] is not None:
            return
        with SAY.status("importing the demo image"):
            wanted = {
                "slug": "demo",
                "name": "Demo Linux",
                "distribution": "demo",
                "release": "1",
                "login_user": "debian",
                "format": "qcow2",
                "source": "file",
            }
            image = image or await client.call("POST", "/images", body=wanted)
            await client.call(
                "PUT",
                f"/images/{image['id']}/file",
                content=_chunks(DEMO_IMAGE),
                headers={"Content-Type": "application/octet-stream"},
            )

    async def _machine(self, client: Client) -> str | None:
        """The password of a machine made just now; None where it was there already."""
        found = (await client.call("GET", "/vms", query={"q": MACHINE}))["items"]
        vm = next((vm for vm in found if vm["name"] == MACHINE), None)
        if vm is None:
            wanted = {
                "name": MACHINE,
                "image_id": await _id(client, "/images", "slug", "demo"),
                "project_id": await _id(client, "/projects", "name", "default"),
                "vcpus": 1,
                "memory_mib": 256,
                "disk_gib": 1,
                "access_mode": "root_password",
                "password": True,
                "idempotency_key": "demo-machine",
            }
            SAY.print("creating the machine `demo`")
            created = await client.call("POST", "/vms", body=wanted)
            self.vm_id = created["vm"]["id"]
            SAY.print(f"its root password is {created['password']}", soft_wrap=True)
            return str(created["password"])
        self.vm_id = vm["id"]
        SAY.print("the machine `demo` is here already")
        if vm["status"] == "stopped":
            await client.call("POST", f"/vms/{vm['id']}/start", body={})
        return None

    async def _watch_boot(self, client: Client) -> None:
        """Stream the serial console to this terminal until the guest asks who is there."""
        with trio.fail_after(BOOT_DEADLINE):
            while (vm := await client.call("GET", f"/vms/{self.vm_id}"))["status"] != "running":
                if vm["status"] == "failed":
                    raise Failure(Exit.TASK_FAILED, f"the machine failed: {vm['status_reason']}")
                await trio.sleep(0.2)
        ticket = await self._ticket(client)
        url = f"wss://{urlsplit(self.url).netloc}{API_PREFIX}/console/ws/{ticket['ticket']}"
        seen = b""
        with trio.move_on_after(BOOT_DEADLINE) as patience:
            async with open_websocket_url(url, ssl_context=tls_context(client.profile)) as socket:
                await socket.send_message(b"\r")
                try:
                    while b"login:" not in seen:
                        message = await socket.get_message()
                        data = message if isinstance(message, bytes) else message.encode()
                        seen = (seen + data)[-4096:]
                        sys.stdout.buffer.write(data)
                        sys.stdout.buffer.flush()
                except ConnectionClosed as closed:
                    raise Failure(Exit.UNAVAILABLE, f"the console closed: {closed.reason}") from closed
        if patience.cancelled_caught:
            raise Failure(Exit.WAIT_TIMED_OUT, f"no login prompt within {BOOT_DEADLINE:g} s")

    async def _ticket(self, client: Client) -> dict[str, Any]:
        """A console ticket; a node that is only just coming back is waited for."""
        with trio.fail_after(60):
            while True:
                try:
                    answer = await client.call("POST", f"/vms/{self.vm_id}/console", body={"kind": "serial"})
                    return dict(answer)
                except Failure as failure:
                    if failure.exit_code != Exit.UNAVAILABLE:
                        raise
                await trio.sleep(0.5)

    def _tell(self, password: str | None, machine_password: str | None) -> None:
        print("\n")
        print(f"Dashboard      {self.url}/")
        print(f"Administrator  {EMAIL}, password {password or 'as printed by the first run'}")
        print(f"Machine        {MACHINE}, root, password {machine_password or 'as printed by the first run'}")
        print(f"Console        {BIN / 'svc'} vm console {MACHINE}   (Ctrl-] leaves)")
        print(f"In a browser   {self.url}/console/{self.vm_id}?kind=vnc")
        print("Stop           tools/run --stop")


async def _id(client: Client, collection: str, field: str, value: str) -> str:
    answer: Any = await client.call("GET", collection)
    rows = answer["items"] if isinstance(answer, dict) else answer
    return str(next(row["id"] for row in rows if row[field] == value))


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    async with await trio.open_file(path, "rb") as file:
        while chunk := await file.read(1 << 20):
            yield chunk


@asynccontextmanager
async def _interruptible() -> AsyncIterator[trio.Event]:
    stop = trio.Event()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                async for _ in signals:
                    stop.set()

            nursery.start_soon(wait)
            yield stop
            nursery.cancel_scope.cancel()


async def run(arguments: argparse.Namespace) -> None:
    demo = Demo(arguments.data.resolve())
    if arguments.stop:
        await demo.down()
        return
    await demo.up()
    if arguments.detach:
        return
    SAY.print("\nCtrl-C stops it.", style="dim")
    async with _interruptible() as stop:
        await stop.wait()
    await demo.down()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/run", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("/var/lib/svc"), help="where everything is kept")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--detach", action="store_true", help="return once the machine has booted")
    group.add_argument("--stop", action="store_true", help="shut the machines down and stop everything")
    try:
        trio.run(run, parser.parse_args())
    except Failure as failure:
        failure.show()
        raise SystemExit(failure.exit_code) from None


if __name__ == "__main__":
    main()
