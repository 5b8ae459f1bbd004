"""A panel with one of everything that it serves, what is wrong with it, and what happens to it in a drill.

Whether it is right is asked as visitors, resolvers, owners and their programs ask; what a part says of itself is not
looked at.
"""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import dns.asyncquery
import dns.exception
import dns.message
import httpx
import trio

from svc_webhost.databases import EngineKind
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import ServiceName
from svc_webhost.launcher_keeper import KeeperLauncher
from tests.support.databases import ask
from tests.support.panel_programs import PanelPrograms, shared_panel_programs
from tests.support.postgres_server import postmaster
from tests.support.stack import free_port
from tests.system.panel.sftp_clients import Clients

POLL = 0.1
"""Seconds between two looks at what happens outside of this process."""
OWNER = {"email": "ada@example.com", "password": "Correct-Horse-42"}
STATIC, PHP, APP = "static.example.com", "php.example.com", "app.example.com"
CHANGE, PAGE = "a change over the API", "the owner's page"
"""What needs core and web tier; everything else is there without them."""
ADDRESS = "127.0.0.1"
_ASKED_WITHIN = 5.0
_WORD = "kept-through-all-of-it"
_APP = """
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield b"an application"
"""
_PHP = """<?php
$database = new mysqli(null, '{user}', '{password}', '{name}', 0, '{socket}');
echo $database->query('SELECT word FROM kept')->fetch_row()[0];
"""
_TABLE = f"CREATE TABLE kept (word varchar(40)); INSERT INTO kept VALUES ('{_WORD}');"


@dataclass(frozen=True)
class Login:
    """Of a database: what `tests.support.databases.ask` is given."""

    kind: EngineKind
    socket: Path
    database: str
    user: str
    password: str


@dataclass
class DrilledPanel:
    panel: PanelPrograms
    sftp: Clients
    sites: Mapping[str, dict[str, Any]]
    login: str
    postgresql: Login
    browser: httpx.Cookies

    @property
    def launcher(self) -> KeeperLauncher:
        return KeeperLauncher(HostFolders(self.panel.data))

    async def wrong(self) -> list[str]:
        """What somebody would complain of; empty when all is well."""
        problems: list[str] = []

        async def look(what: str) -> None:
            if (problem := await self._problem(what)) is not None:
                problems.append(f"{what}: {problem}")

        async with trio.open_nursery() as nursery:
            for what in self._asked:
                nursery.start_soon(look, what)
        return problems

    async def right(self, within: float) -> float:
        """Seconds until everything has been right, each asked for again until it is; all of it is right at the end."""
        began = trio.current_time()
        last: dict[str, object] = {}

        async def look(what: str) -> None:
            while (problem := await self._problem(what)) is not None:
                last[what] = problem
                await trio.sleep(POLL)
            last.pop(what, None)

        with trio.move_on_after(within) as deadline:
            async with trio.open_nursery() as nursery:
                for what in self._asked:
                    nursery.start_soon(look, what)
        seconds = trio.current_time() - began
        assert not deadline.cancelled_caught, f"after {within:g} s: {last}\n{self.panel.core.tail()}"
        assert await self.wrong() == []
        return seconds

    @property
    def _asked(self) -> Mapping[str, tuple[Callable[[], Awaitable[object]], object]]:
        """What is asked for, by what it is called, and the answer when it is well."""
        return {
            "static site": (partial(self._shown, STATIC, STATIC), True),
            "PHP with MariaDB": (partial(self._shown, PHP, _WORD), True),
            "application": (partial(self._shown, APP, "an application"), True),
            "DNS": (self._address, ADDRESS),
            "SFTP": (self._listed, True),
            "PostgreSQL of a customer": (self._read, _WORD),
            CHANGE: (self._changed, True),
            PAGE: (self._own_sites, sorted(self.sites)),
        }

    async def _problem(self, what: str) -> object | None:
        look, wanted = self._asked[what]
        found: object = f"no answer within {_ASKED_WITHIN:g} s"
        with trio.move_on_after(_ASKED_WITHIN):
            try:
                found = await look()
            except (OSError, httpx.HTTPError, dns.exception.DNSException, EOFError) as error:
                found = repr(error)
        return None if found == wanted else found

    async def alerts(self) -> list[str]:
        """The keys of those that are open."""
        async with self.panel.client() as root:
            return [each["key"] for each in (await root.get("/alerts")).json()["items"]]

    async def told(self) -> list[str]:
        """What the owner of the sites reads in their alerts."""
        return [each["message"] for each in (await self._browsed("/alerts")).json()["items"]]

    async def log(self, source: str) -> str:
        """What an operator reads in a log of the server."""
        async with self.panel.client() as root:
            read = await root.get("/server/logs/read", params={"source": source, "limit": 1000})
        return "\n".join(read.json()["lines"])

    @property
    def postmaster(self) -> int:
        """The process of the panel's own PostgreSQL; 0 while there is none."""
        return postmaster(self.panel.data / "postgresql")

    async def keeper_answers(self) -> bool:
        """Asked without the launcher, which would start one."""
        try:
            async with await trio.open_unix_socket(str(HostFolders(self.panel.data).keeper_socket)):
                return True
        except OSError:
            return False

    async def main_process(self, service: str) -> int:
        return (await self.launcher.processes())[ServiceName(service)]

    async def kill(self, service: str) -> int:
        """Its main process alone; gives what it was."""
        pid = await self.main_process(service)
        os.kill(pid, signal.SIGKILL)
        return pid

    def service_of(self, domain: str, kind: str) -> str:
        """The name of the service of a site that begins so; it is on the disk, whoever holds it."""
        begins = f"site-{self.sites[domain]['number']}-{kind}"
        [found] = (self.panel.data / "run" / "keeper").glob(f"{begins}*.json")
        return found.stem

    async def cut_power(self) -> None:
        """Every process ends at once, and what a boot does not bring back is gone: control groups, the boot that the
        known process numbers are of, and these numbers. PID 1 may reap orphans seconds later, and until then knotd and
        PostgreSQL take the number in a PID file of theirs for one of a program that runs, and do not start."""
        killed: set[int] = set()
        for program in (self.panel.core, self.panel.web):
            assert program.process is not None
            os.kill(program.process.pid, signal.SIGKILL)
        with trio.fail_after(30):
            while pids := list(_processes_of(self.panel.folder)):
                for pid in pids:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                killed.update(pids)
                await trio.sleep(0.01)
            for program in (self.panel.core, self.panel.web):
                await program.kill()
            while any(os.path.exists(f"/proc/{pid}") for pid in killed):
                await trio.sleep(0.01)
        for recorded in (self.panel.data / "run" / "keeper").glob("*.json"):
            state = json.loads(recorded.read_text())
            for group in state["groups"]:
                await _removed(group)
            recorded.write_text(json.dumps(state | {"boot": str(uuid4())}))

    async def restart_application(self) -> None:
        """As its owner does who has mended it: another release takes the place of what runs."""
        async with self.panel.client() as root:
            answer = await root.post(f"/sites/{self.sites[APP]['id']}/app/restart", json={})
        assert answer.is_success, answer.text

    async def start(self) -> None:
        """What a supervisor does: whichever of the two does not run is started."""
        if not self.panel.core.running():
            await self.panel.start()
        if not self.panel.web.running():
            await self.panel.start_web()

    async def _shown(self, domain: str, text: str) -> bool | str:
        page = await self.panel.visit(domain)
        return (page.status_code == 200 and text in page.text) or f"{page.status_code} {page.text[:200]}"

    async def _address(self) -> str:
        question = dns.message.make_query(f"{STATIC}.", "A")
        answer = await dns.asyncquery.tcp(question, "127.0.0.1", port=self.panel.dns_port, timeout=_ASKED_WITHIN)
        return " ".join(rdata.to_text() for rrset in answer.answer for rdata in rrset)

    async def _listed(self) -> bool | str:
        listed = await self.sftp.sftp(self.login, "ls -1 public")
        return "index.html" in listed["out"] or str(listed["err"])[-200:]

    async def _read(self) -> str:
        of = self.postgresql
        answer = await ask(of.kind, of.socket, "SELECT word FROM kept;", of.database, of.user, of.password)
        return answer.out if answer.ok else answer.err

    async def _changed(self) -> bool | str:
        """Something new is acknowledged, and visitors see it."""
        path = f"/{uuid4()}"
        async with self.panel.client() as root:
            redirect = {"path": path, "target": "https://example.net/"}
            changed = await root.post(f"/sites/{self.sites[STATIC]['id']}/redirects", json=redirect)
        if not changed.is_success:
            return f"{changed.status_code} {changed.text[:200]}"
        seen = await self.panel.visit(STATIC, path)
        return seen.status_code == 301 or f"acknowledged, and visitors see {seen.status_code}"

    async def _own_sites(self) -> list[str] | str:
        listed = await self._browsed("/sites")
        if not listed.is_success:
            return f"{listed.status_code} {listed.text[:200]}"
        return sorted(site["domain"] for site in listed.json()["items"])

    async def _browsed(self, path: str) -> httpx.Response:
        """As the owner of the sites, through the web tier."""
        origin = f"https://localhost:{self.panel.port}"
        headers = {"Origin": origin, "X-Service-Request": "1"}
        async with httpx.AsyncClient(verify=False, headers=headers, cookies=self.browser) as ada:
            return await ada.get(f"{origin}/api/v1{path}")


@contextmanager
def drilled_panel(folder: Path) -> Iterator[DrilledPanel]:
    """All of it runs and is right. `folder` is for the clients of SFTP."""
    port = free_port()
    with shared_panel_programs(("--sftp-port", str(port))) as panel:
        yield trio.run(_furnished, panel, Clients(folder, port))


async def _furnished(panel: PanelPrograms, sftp: Clients) -> DrilledPanel:
    await panel.start_web()
    await panel.customer(OWNER["email"])
    sites = {
        STATIC: await panel.site(STATIC),
        PHP: await panel.site(PHP, type="php"),
        APP: await panel.site(APP, type="app", runtime="python", entry="app:application"),
    }
    sftp.prepare()
    async with panel.client() as root:

        async def done(method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
            answer = await root.request(method, path, json=body)
            assert answer.is_success, f"{method} {path}: {answer.text}"
            found: dict[str, Any] = answer.json()
            return found

        async def database(kind: EngineKind) -> Login:
            wanted = {"site_id": sites[PHP]["id"], "name": "shop", "engine": kind.value, "user": "ada"}
            made = await done("POST", "/databases", wanted)
            of, given = made["database"], made["login"]
            login = Login(kind, Path(of["socket"]), of["name"], given["user"]["name"], given["password"])
            written = await ask(kind, login.socket, _TABLE, login.database, login.user, login.password)
            assert written.ok, written
            return login

        mariadb, postgresql = await database(EngineKind.MARIADB), await database(EngineKind.POSTGRESQL)
        page = _PHP.format(user=mariadb.user, password=mariadb.password, name=mariadb.database, socket=mariadb.socket)
        for domain, path, content in ((PHP, "public/index.php", page), (APP, "app.py", _APP)):
            wanted = {"path": path, "content": content, "replace": True}
            await done("PUT", f"/sites/{sites[domain]['id']}/files/content", wanted)
        await done("POST", f"/sites/{sites[APP]['id']}/app/start", {})
        await done("POST", f"/sites/{sites[STATIC]['id']}/dns/point", {})
        access = await done("POST", f"/sites/{sites[STATIC]['id']}/sftp", {"name": "ada", "keys": [sftp.public_key]})
        sftp.trust([key["public_key"] for key in (await root.get("/sftp/host-keys")).json()["keys"]])
    origin = f"https://localhost:{panel.port}"
    async with httpx.AsyncClient(verify=False, headers={"Origin": origin, "X-Service-Request": "1"}) as browser:
        signed_in = await browser.post(f"{origin}/api/v1/auth/login", json=OWNER)
        assert signed_in.is_success, signed_in.text
        drilled = DrilledPanel(panel, sftp, sites, access["login"], postgresql, browser.cookies)
    await drilled.right(180)
    return drilled


async def _removed(group: str) -> None:
    """Of a control group whose processes have been killed: the kernel holds it until the last has ended whole, which is
    after its mounts are gone."""
    with trio.fail_after(30):
        while True:
            try:
                os.rmdir(group)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                await trio.sleep(0.01)  # The kernel ends them outside of this process.


def _processes_of(folder: Path) -> Iterator[int]:
    """All that see the panel's own /etc, or anything else in its folder: what the core started, and what that did."""
    mark = str(folder).encode()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if mark in Path("/proc", entry, "mountinfo").read_bytes():
                yield int(entry)
