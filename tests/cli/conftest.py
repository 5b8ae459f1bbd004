"""A controller over HTTPS on free ports, a simulated node, and `svc` as a person at it types it."""

from __future__ import annotations

import io
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import httpx
import pytest
import structlog
import trio

from svc.cli import following, profiles
from svc.cli.app import execute
from svc.cli.client import Client
from svc.cli.profiles import Profile, ProfileFile
from svc.controller.config import ControllerConfig
from svc.controller.services import Controller, ControllerLoop
from svc.service.controller.compose import open_controller
from svc_actors.mail import MailSettings
from svc_nodeagent.simulated import Behaviour
from svc_nodeagent.simulated_fleet import Fleet
from tests.support.configuration import local_config

EMAIL, PASSWORD = "ada@example.test", "Correct-Horse-42"
IMAGE = b"a disk" * 1000
SEEN: Final[tuple[ControllerLoop, ...]] = ("events", "node watch")


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def lines(self) -> list[str]:
        return self.out.splitlines()


class Keyboard(io.StringIO):
    """What a person types at a terminal."""

    def isatty(self) -> bool:
        return True


@dataclass
class Terminal:
    """A home folder and its environment."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    def variables(self, **more: str) -> dict[str, str]:
        own = {
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_CACHE_HOME": os.environ["SVC_TEST_CACHE"],
            "COLUMNS": "100",
            "PATH": os.environ["PATH"],
        }
        return own | self.environment | more

    async def svc(self, *arguments: str, typed: str | None = None, given: str = "", **more: str) -> Ended:
        """Run a command line in this process. `typed` is typed at a terminal; `given` comes from a pipe. One that waits
        for a task looks more often than every half second, which is longer than most of them take here."""
        out, err = io.StringIO(), io.StringIO()
        keyboard = io.StringIO(given) if typed is None else Keyboard(typed)
        with (
            mock.patch.dict(os.environ, self.variables(**more), clear=True),
            mock.patch.object(sys, "stdin", keyboard),
            mock.patch.object(following, "_POLL_SECONDS", 0.02),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            code = await execute(arguments)
        return Ended(code, out.getvalue(), err.getvalue())

    async def ok(self, *arguments: str, **more: str) -> Ended:
        ended = await self.svc(*arguments, **more)
        assert ended.code == 0, f"svc {' '.join(arguments)} ended with {ended.code}:\n{ended.err}"
        return ended


@dataclass
class House(Terminal):
    """A controller, and the terminal of its administrator."""

    url: str = ""
    operations_url: str = ""
    fingerprint: str = ""
    profile: Profile = field(default_factory=lambda: Profile(url=""))
    nodes: Path = Path()
    nursery: trio.Nursery | None = None
    services: Controller | None = None

    async def step(self, loop: ControllerLoop) -> None:
        """What a loop does again and again is done once."""
        assert self.services is not None
        await self.services.loops.step(loop)

    async def node(self, behaviour: Behaviour | None = None) -> None:
        """Join a simulated node, and wait until it is online."""
        assert self.nursery is not None
        fleet = Fleet(self.nodes, 1, behaviour=behaviour or Behaviour())
        headers = {"Authorization": f"Bearer {self.profile.token}"}
        context = ssl.create_default_context(cadata=self.profile.trusted)
        async with httpx.AsyncClient(
            verify=context, headers=headers, timeout=60, base_url=f"{self.url}/api/v1"
        ) as client:
            await fleet.enrol(client, lambda name: None)
        await self.nursery.start(fleet.run)
        with trio.fail_after(30):
            async with Client.open(self.profile) as client_:
                while not (await client_.call("GET", "/nodes", query={"state": "online"}))["items"]:
                    await trio.sleep(0.02)  # the node reports by itself; nothing is asserted by the pause

    async def image(self) -> None:
        """An image that machines can be made from."""
        await self.ok("image", "create", "tiny", "--name", "Tiny", "--distribution", "tiny", "--release", "1",
                      "--login-user", "tiny", "--source", "file")  # fmt: skip
        file = self.home / "tiny.qcow2"
        file.write_bytes(IMAGE)
        await self.ok("image", "upload", "tiny", str(file))

    async def machine(self, name: str, *further: str) -> Ended:
        sizes = ("--vcpus", "1", "--memory-mib", "128", "--disk-gib", "1")
        return await self.ok("vm", "create", name, "--image", "tiny", "--project", "default", *sizes, *further)


@pytest.fixture(scope="session", autouse=True)
def description_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The description of the commands is made once a test process."""
    os.environ["SVC_TEST_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal(tmp_path)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not answer is given up at once: commands do not pause before they ask again, nor is a database waited
    for that may just be starting."""
    monkeypatch.setattr("svc.cli.client._pause", lambda _: 0.0)
    monkeypatch.setattr("svc_actors.store.database.CONNECT_TIMEOUT", 0.1)


@pytest.fixture
async def house(database_url: str, tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(database_url, tmp_path) as opened:
        yield opened


@asynccontextmanager
async def open_house(
    database_url: str,
    folder: Path,
    mail: MailSettings | None = None,
    *,
    loops: Collection[ControllerLoop] = SEEN,
) -> AsyncIterator[House]:
    """Commands follow events, and nodes are seen as they come and go; what else is looked after in the background, a
    test names."""
    config = local_config(folder / "controller", mail=mail)
    with structlog.testing.capture_logs():  # the controller's log is no part of what a command prints
        async with opened_house(config, {"SVC_DATABASE_URL": database_url}, folder, loops) as house:
            yield house


@asynccontextmanager
async def opened_house(
    config: ControllerConfig, environ: dict[str, str], folder: Path, loops: Collection[ControllerLoop] | None = None
) -> AsyncIterator[House]:
    """With all loops, as a controller has them, unless they are named."""
    async with open_controller(config, environ, loops) as running, trio.open_nursery() as nursery:
        authority = (config.data_dir / "tls" / "authority.pem").read_text()
        profile = Profile(url=config.public_url, trusted=authority)
        guard = {"X-Service-Request": "1", "Origin": config.public_url}
        async with Client.open(profile) as client:
            body = {"token": running.setup_token, "email": EMAIL, "name": "Ada", "password": PASSWORD}
            await client.call("POST", "/setup", body=body, headers=guard)
            wanted = {"name": "tests", "scopes": ["admin"], "days": 1}
            token = (await client.call("POST", "/tokens", body=wanted, headers=guard))["token"]
        opened = House(
            folder / "home",
            url=config.public_url,
            operations_url=f"http://127.0.0.1:{config.operations_port}",
            fingerprint=running.fingerprint,
            profile=replace(profile, token=token),
            nodes=folder / "nodes",
            nursery=nursery,
            services=running.services,
        )
        opened.home.mkdir()
        profiles.save(opened.variables(), ProfileFile("house", {"house": opened.profile}))
        yield opened
        nursery.cancel_scope.cancel()
