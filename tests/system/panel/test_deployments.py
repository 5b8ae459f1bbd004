"""Deployments of real applications under visitors: no request fails, whatever becomes of the new code."""

from __future__ import annotations

import io
import os
import time
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from svc_actors.host.accounts import SiteAccount
from svc_actors.panel.apps import deploying
from svc_actors.store import Database
from tests.support.figures import report_figure
from tests.support.real_apps import AppWorld, open_apps

pytestmark = [pytest.mark.system, pytest.mark.isolated]

WSGI = """
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield b"{version}"
"""
NODE = 'require("node:http").createServer((request, answer) => answer.end("{version}")).listen(3000);'
USES_A_PACKAGE = """
import os, installed_by_pip
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield f"{installed_by_pip.VERSION} {os.getuid()}".encode()
"""


@pytest.fixture
async def world(panel_database: Database) -> AsyncIterator[AppWorld]:
    async with open_apps(panel_database) as world:
        yield world


def zipped(files: dict[str, str | bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def wheel() -> bytes:
    """A package `installed_by_pip`, as pip takes it without asking anybody."""
    info = "installed_by_pip-1.0.dist-info"
    return zipped(
        {
            "installed_by_pip.py": "VERSION = 'one point zero'",
            f"{info}/METADATA": "Metadata-Version: 2.1\nName: installed-by-pip\nVersion: 1.0\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": f"installed_by_pip.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
        }
    )


async def deploy(world: AppWorld, site: dict[str, Any], files: dict[str, str | bytes], **values: Any) -> dict[str, Any]:
    """The job, ended."""
    home = world.nginx.folders.sites / site["account"]
    archive = home / "code.zip"
    archive.write_bytes(zipped(files))
    uid = SiteAccount(site["number"]).uid
    os.chown(home, uid, uid)
    os.chown(archive, uid, uid)
    answer = await world.root.post(f"/sites/{site['id']}/deploy", {"archive": "code.zip"} | values)
    assert answer.status_code == 200, answer.text
    with trio.fail_after(120):
        while True:
            job: dict[str, Any] = (await world.root.get(f"/jobs/{answer.json()['id']}")).json()
            if job["status"] not in ("queued", "running"):
                return job
            await trio.sleep(0.05)


def python(version: str) -> dict[str, str | bytes]:
    return {"app.py": WSGI.format(version=version)}


@pytest.mark.parametrize(
    ("runtime", "entry", "file", "source"),
    [("python", "app:application", "app.py", WSGI), ("node", "server.js", "server.js", NODE)],
)
async def test_twenty_deployments_lose_no_request(
    world: AppWorld, runtime: str, entry: str, file: str, source: str
) -> None:
    site = await world.site("app.example", runtime=runtime, entry=entry)
    versions = [f"v{number}" for number in range(20)]
    await deploy(world, site, {file: source.replace("{version}", versions[0])})

    async with world.visitor("app.example") as answers:
        for version in versions[1:]:
            job = await deploy(world, site, {file: source.replace("{version}", version)})
            assert job["status"] == "succeeded", job
        began = time.monotonic()
        await world.root.post(f"/sites/{site['id']}/rollback")
        report_figure(f"a rollback of {runtime}: {time.monotonic() - began:.1f} s")
        seen = len(answers)
        with trio.fail_after(60):
            while len(answers) < seen + 5:
                await trio.sleep(0.05)

    assert set(answers) <= set(versions)
    assert answers[-1] == "v18"


async def test_what_pip_installs_is_there_for_the_application_alone(world: AppWorld) -> None:
    site = await world.site("app.example", runtime="python", entry="app:application")
    package = "wheels/installed_by_pip-1.0-py3-none-any.whl"
    files: dict[str, str | bytes] = {"app.py": USES_A_PACKAGE, package: wheel(), "requirements.txt": f"./{package}"}

    job = await deploy(world, site, files, build="pip")
    page = await world.nginx.visit("app.example")

    assert job["status"] == "succeeded", job
    assert page.text == f"one point zero {SiteAccount(site['number']).uid}"


@pytest.mark.parametrize(
    ("files", "build", "said"),
    [
        ({"requirements.txt": "./nothing.whl"}, "pip", "The build failed"),
        ({"app.py": "raise RuntimeError('not today')"}, "none", "not today"),
        ({"app.py": "application = None"}, "none", "was not started"),
    ],
    ids=["build", "start", "answer"],
)
async def test_code_that_does_not_come_up_leaves_what_visitors_see(
    world: AppWorld, files: dict[str, str | bytes], build: str, said: str
) -> None:
    site = await world.site("app.example", runtime="python", entry="app:application")
    await deploy(world, site, python("one"))

    async with world.visitor("app.example") as answers:
        job = await deploy(world, site, python("two") | files, build=build)
        seen = len(answers)
        with trio.fail_after(60):
            while len(answers) < seen + 3:
                await trio.sleep(0.05)

    assert job["status"] == "failed"
    assert said in job["error"]["message"]
    assert set(answers) == {"one"}
    assert os.listdir(world.nginx.folders.sites / site["account"] / "releases") == ["1"]


async def test_a_build_that_hangs_is_ended(world: AppWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    site = await world.site("app.example", runtime="python", entry="app:application")
    await deploy(world, site, python("one"))
    monkeypatch.setattr(deploying, "BUILD_SECONDS", 0.5)

    job = await deploy(world, site, python("two") | {"requirements.txt": "./nothing.whl"}, build="pip")

    assert job["status"] == "failed"
    assert "took longer than" in job["error"]["message"]
    assert (await world.nginx.visit("app.example")).text == "one"
    assert os.listdir(world.nginx.folders.sites / site["account"] / "releases") == ["1"]
