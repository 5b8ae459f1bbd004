"""A controller and node agents as their own processes, driven as an operator drives them: over HTTPS and by `svc`.

The data folder is outside the clone, since QEMU runs as a user of its own. Whatever a test leaves on the host is
removed at the end, also after a failure.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import trio

from svc.cli import following, transfer
from svc.cli.client import Client
from svc.cli.profiles import Profile
from svc.cli.work import Work, WorkKind
from tests.support import host
from tests.support.acceleration import tell_of_kvm
from tests.support.image_paths import IMAGES

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv" / "bin"


_claims: list[ExitStack] = []


def free_port(row: int = 1) -> int:
    """The first of so many ports in a row, for TCP and UDP of both families. They are below those that the kernel gives
    to outgoing connections, so that they stay free until they are used, and while what listened on one is being
    restarted. Tests of other processes are not given them: each holds a name for each among the abstract Unix sockets,
    which are of the same network namespace as ports (unix(7))."""
    while True:
        first = secrets.randbelow(12_000) + 20_000
        with ExitStack() as claims:
            if all(_claimed(port, claims) for port in range(first, first + row)):
                _claims.append(claims.pop_all())
                return first


def _claimed(port: int, claims: ExitStack) -> bool:
    claim = claims.enter_context(socket.socket(socket.AF_UNIX))
    try:
        claim.bind(f"\0svc-test-port-{port}")
    except OSError:
        return False
    return not any(
        _is_taken(family, kind, port)
        for family in (socket.AF_INET, socket.AF_INET6)
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
    )


def _is_taken(family: socket.AddressFamily, kind: socket.SocketKind, port: int) -> bool:
    try:
        with socket.socket(family, kind) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(("", port))
    except OSError as error:
        return error.errno == errno.EADDRINUSE  # Rather than a machine without this family.
    return False


class Program:
    """A program of ours that can be started, stopped in order, and killed."""

    def __init__(self, name: str, command: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.command = command
        self.log = log
        self.environment = environment or {}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        assert self.process is None or self.process.poll() is not None, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=dict(os.environ) | self.environment | environment,
            )

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await trio.to_thread.run_sync(self.process.wait)

    async def ended(self, timeout: float) -> int:
        """The exit status once the program has ended by itself (a fault point killed it, say)."""
        assert self.process is not None
        with trio.fail_after(timeout):
            return await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)

    async def stop(self, timeout: float = 30.0) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return await self.ended(timeout)
        except trio.TooSlowError:
            await self.kill()
            raise AssertionError(f"{self.name} did not stop within {timeout:g} s:\n{self.tail()}") from None

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""


class Stack:
    """One controller, and node agents beside it, under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = f"t{secrets.token_hex(2)[:3]}"
        """What begins the names of its domains, taps and tables: another agent of this host is left alone."""
        self.api_port, self.gateway_port, self.operations_port = free_port(), free_port(), free_port()
        self.controller_data = folder / "controller"
        self.at("127.0.0.1")
        self.password = "Correct-horse-" + secrets.token_hex(4)
        self.email = "root@example.test"
        self.token: str | None = None

    def at(self, address: str) -> None:
        """Where nodes and callers reach the controller; before it is started."""
        self.url = f"https://{address}:{self.api_port}"
        self.controller = Program(
            "controller",
            [
                *(str(BIN / "svc"), "serve", "controller"),
                *("--data", str(self.controller_data)),
                *("--public-host", address),
                *("--api-port", str(self.api_port)),
                *("--gateway-port", str(self.gateway_port)),
                *("--operations-port", str(self.operations_port)),
            ],
            self.folder / "controller.log",
        )

    @property
    def profile(self) -> Profile:
        trusted = (self.controller_data / "tls" / "authority.pem").read_text()
        return Profile(url=self.url, token=self.token, trusted=trusted)

    async def start_controller(self) -> None:
        self.controller.start()
        await self.healthy()

    async def healthy(self, timeout: float = 180.0) -> None:
        with trio.move_on_after(timeout):
            async with httpx.AsyncClient(timeout=2.0) as http:
                while self.controller.running():
                    try:
                        if (await http.get(f"http://127.0.0.1:{self.operations_port}/healthz")).is_success:
                            return
                    except httpx.TransportError:
                        pass
                    await trio.sleep(0.1)  # the outside world is asked again; nothing is asserted by it
        raise AssertionError(f"the controller is not healthy:\n{self.controller.tail()}")

    async def set_up(self) -> None:
        """The first administrator, from the setup token that the controller left, and an API token of theirs."""
        guard = {"X-Service-Request": "1", "Origin": self.url}
        token = (self.controller_data / "setup-token").read_text().strip()
        async with self.client() as client:
            await client.call(
                "POST",
                "/setup",
                body={"token": token, "email": self.email, "name": "Root", "password": self.password},
                headers=guard,
            )
            created = await client.call(
                "POST", "/tokens", body={"name": "system tests", "scopes": ["admin"], "days": 30}, headers=guard
            )
        self.token = created["token"]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with Client.open(self.profile) as client:
            yield client

    @asynccontextmanager
    async def node(self, name: str) -> AsyncIterator[Program]:
        """This host as a node that is online; gives its agent, which is stopped at the end."""
        agent = await self._enrol_node(name)
        try:
            await self.node_online(name)
            yield agent
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 40):
                await agent.stop()

    async def enrol(self, name: str) -> None:
        """Join this host as a node, as the bootstrap's command does, without installing anything."""
        async with self.client() as client:
            bootstrap = await client.call("POST", "/nodes/bootstrap", body={"name": name})
        data = self.folder / name
        environment = {
            "SVC_CONTROLLER": self.url,
            "SVC_TOKEN": bootstrap["token"],
            "SVC_FINGERPRINT": bootstrap["fingerprint"],
        }
        await trio.run_process(
            [str(BIN / "svc-nodeagent"), "enrol", "--data", str(data)], env=dict(os.environ) | environment
        )

    async def _enrol_node(self, name: str) -> Program:
        await self.enrol(name)
        data = self.folder / name
        await tell_of_kvm(data / "host")
        command = [str(BIN / "svc-nodeagent"), "run", "--data", str(data), "--prefix", self.prefix]
        agent = Program(name, command, self.folder / f"{name}.log")
        agent.start()
        return agent

    async def node_online(self, name: str, timeout: float = 180.0) -> dict[str, Any]:
        shown: list[dict[str, Any]] = []
        with trio.move_on_after(timeout):
            async with self.client() as client:
                while True:
                    shown = (await client.call("GET", "/nodes"))["items"]
                    for node in shown:
                        if node["name"] == name and node["state"] == "online":
                            detail = await client.call("GET", f"/nodes/{node['id']}")
                            if detail["capacity"] is not None:
                                return dict(detail)
                    await trio.sleep(0.2)
        states = {node["name"]: node["state"] for node in shown}
        raise AssertionError(f"{name} is not online within {timeout:g} s: {states}\n{self.controller.tail(20)}")

    async def own_network(self) -> None:
        """New machines get addresses that no other service on this host gives out."""
        cidr = f"10.78.{secrets.randbelow(256)}.0/24"
        async with self.client() as client:
            pool = {"name": "tests", "cidr": cidr}
            await client.call("POST", "/networks", body={"name": "tests", "default": True, "pool": pool})

    async def import_demo_image(self) -> dict[str, Any]:
        words = {"slug": "demo", "name": "Demo Linux", "distribution": "demo", "release": "1"}
        return await self.import_image(IMAGES / "demo.qcow2", **words)

    async def import_image(self, file: Path, **words: str) -> dict[str, Any]:
        """A custom image whose file the controller keeps."""
        async with self.client() as client:
            wanted = {"login_user": "debian", "format": "qcow2", "source": "file"}
            image = await client.call("POST", "/images", body=wanted | words)
            return dict(await transfer.upload(client, "PUT", f"/images/{image['id']}/file", file))

    async def task(self, client: Client, answer: dict[str, Any], timeout: float = 300.0) -> dict[str, Any]:
        task = answer.get("task", answer)
        return await following.wait(client, Work(WorkKind.TASK, task["id"]), timeout=timeout)

    def cli_environment(self) -> dict[str, str]:
        """What makes `svc` talk to this stack as its administrator, with no profile."""
        return dict(os.environ) | {
            "SVC_URL": self.url,
            "SVC_TOKEN": self.token or "",
            "SVC_CA": str(self.controller_data / "tls" / "authority.pem"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
        }


@asynccontextmanager
async def fresh_controller(**environment: str) -> AsyncIterator[Stack]:
    """A controller that nobody has set up yet; where the block fails, the end of its log is told."""
    with tempfile.TemporaryDirectory(prefix="svc-test-", dir="/var/lib") as folder:
        Path(folder).chmod(0o755)
        stack = Stack(Path(folder))
        stack.controller.environment |= environment
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
async def open_stack() -> AsyncIterator[Stack]:
    folder = Path(tempfile.mkdtemp(prefix="svc-test-", dir="/var/lib"))
    folder.chmod(0o755)
    stack = Stack(folder)
    try:
        await stack.start_controller()
        await stack.set_up()
        yield stack
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 60):
            if stack.controller.running():
                await stack.controller.stop()
        host.clear(stack.prefix)
        shutil.rmtree(folder, ignore_errors=True)
