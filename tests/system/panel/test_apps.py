"""Real applications through a real nginx: what they answer, as whom they run, and what visitors see of changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from tests.support.processes import command_lines
from tests.support.real_apps import AppWorld, open_apps

pytestmark = [pytest.mark.system, pytest.mark.isolated]

WSGI = """
import os
version = open("version").read()
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield f"{version} {os.getuid()} {environ['HTTP_HOST']} {os.listdir('..')}".encode()
"""
ASGI = """
version = open("version").read()
async def application(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": f"{version} asgi {scope['path']}".encode()})
"""
NODE = """
const fs = require("node:fs"), http = require("node:http");
const version = fs.readFileSync("version", "utf8");
const words = () => `${version} ${process.getuid()} ${fs.readdirSync("..")}`;
http.createServer((request, answer) => answer.end(words())).listen(3000);
"""
SAYS_ITS_ENVIRONMENT = """
import os
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield f"{os.environ.get('TOKEN')} {sum(name.startswith('SVC_APP_V') for name in os.environ)}".encode()
"""
NODE_SAYS_ITS_ENVIRONMENT = """
const http = require("node:http");
const own = Object.keys(process.env).filter((name) => name.startsWith("SVC_APP_V")).length;
http.createServer((request, answer) => answer.end(`${process.env.TOKEN} ${own}`)).listen(3000);
"""
FILES = {"app.py": WSGI, "asgi.py": ASGI, "server.js": NODE}


@pytest.fixture
async def world(panel_database: Database) -> AsyncIterator[AppWorld]:
    async with open_apps(panel_database) as world:
        yield world


async def app_site(world: AppWorld, domain: str, **values: Any) -> dict[str, Any]:
    """With the files of every application of these tests."""
    site = await world.site(domain, **values)
    for name, text in FILES.items():
        world.write(site, name, text)
    return site


@pytest.mark.parametrize(
    ("runtime", "entry", "interface", "said"),
    [
        ("python", "app:application", "wsgi", "one {uid} app.example"),
        ("python", "asgi:application", "asgi", "one asgi /some/path"),
        ("node", "server.js", "wsgi", "one {uid} {account}"),
    ],
)
async def test_an_application_answers_as_its_site_and_sees_no_other(
    world: AppWorld, runtime: str, entry: str, interface: str, said: str
) -> None:
    other = await app_site(world, "other.example", runtime="node", entry="server.js")
    site = await app_site(world, "app.example", runtime=runtime, entry=entry, interface=interface)

    before = await world.nginx.visit("app.example")
    app = await world.started(site)
    page = await world.nginx.visit("app.example", "/some/path")
    restarted = await world.started(site, "restart")
    again = await world.nginx.visit("app.example", "/some/path")

    assert before.status_code == 502
    assert (app["state"], app["release"], restarted["release"]) == ("running", 1, 2)
    assert page.text == again.text
    assert page.text.startswith(said.format(uid=SiteAccount(site["number"]).uid, account=site["account"]))
    assert other["account"] not in page.text


@pytest.mark.parametrize(
    ("runtime", "entry", "file"), [("python", "app:application", "app.py"), ("node", "server.js", "server.js")]
)
async def test_a_restart_loses_no_request_and_a_failed_one_changes_nothing(
    world: AppWorld, runtime: str, entry: str, file: str
) -> None:
    site = await app_site(world, "app.example", runtime=runtime, entry=entry)
    await world.started(site)

    async with world.visitor("app.example") as answers:
        for version in ("two", "three"):
            world.write(site, "version", version)
            await world.started(site, "restart")
        world.write(site, "version", "four")
        world.write(
            site, entry.split(":")[0].removesuffix(".js") + (".py" if runtime == "python" else ".js"), "throw()"
        )
        failed = await world.order(site, "restart")
        seen = len(answers)
        with trio.fail_after(60):
            while len(answers) < seen + 10:
                await trio.sleep(0.05)
    shown = (await world.root.get(f"/sites/{site['id']}/app")).json()

    assert set(answers) == {"one", "two", "three"}
    assert answers[-1] == "three"
    assert failed.status_code == 503
    assert "Error: " in failed.json()["error"]["message"]
    assert (shown["state"], shown["release"]) == ("running", 3)
    assert "Error: " in shown["problem"]


@pytest.mark.parametrize(
    ("runtime", "entry", "file", "source"),
    [
        ("python", "app:application", "app.py", SAYS_ITS_ENVIRONMENT),
        ("node", "server.js", "server.js", NODE_SAYS_ITS_ENVIRONMENT),
    ],
)
async def test_variables_reach_the_application_and_nobody_else(
    world: AppWorld, runtime: str, entry: str, file: str, source: str
) -> None:
    site = await app_site(world, "app.example", runtime=runtime, entry=entry)
    other = await app_site(world, "other.example", runtime=runtime, entry=entry)
    world.write(site, file, source)

    await world.set_variables(site, TOKEN="marker-5f21c7")
    await world.started(site)
    first = (await world.nginx.visit("app.example")).text
    await world.set_variables(site, TOKEN="second value")
    meanwhile = (await world.nginx.visit("app.example")).text
    commands = command_lines()
    [kept] = world.nginx.folders.apps.glob(f"{site['account']}-*.variables")
    status = kept.stat()
    await world.started(site, "restart")
    second = (await world.nginx.visit("app.example")).text
    await world.order(site, "stop")
    await world.nothing_runs(site)

    assert (first, meanwhile, second) == ("marker-5f21c7 0", "marker-5f21c7 0", "second value 0")
    assert not any(b"marker-5f21c7" in command for command in commands.values())
    assert (status.st_mode & 0o777, status.st_uid) == (0o400, SiteAccount(site["number"]).uid)
    assert status.st_uid != SiteAccount(other["number"]).uid
    with trio.fail_after(60):
        while list(world.nginx.folders.apps.glob("*.variables*")):
            await trio.sleep(0.05)  # They go once the application's service has ended.


async def test_a_suspended_site_runs_nothing_and_a_deleted_one_leaves_nothing(world: AppWorld) -> None:
    site = await app_site(world, "app.example", runtime="python", entry="app:application")
    await world.started(site)

    await world.root.post(f"/sites/{site['id']}/suspend", {"suspended": True, "reason": "unpaid"})
    suspended = await world.nginx.visit("app.example")
    await world.nothing_runs(site)
    await world.root.post(f"/sites/{site['id']}/suspend", {"suspended": False})
    with trio.fail_after(60):
        while (back := await world.nginx.visit("app.example")).status_code != 200:
            await trio.sleep(0.05)
    await world.root.delete(f"/sites/{site['id']}", {"confirm": "app.example"})
    await world.nothing_runs(site)

    assert suspended.status_code == 503
    assert back.text.startswith("one ")
    with trio.fail_after(60):
        while list(world.nginx.folders.apps.iterdir()):
            await trio.sleep(0.05)
