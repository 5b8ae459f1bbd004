"""Deployments of real applications under visitors: no request fails, whatever becomes of the new code."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tempfile
import time
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from uv import find_uv_bin

from svc_actors.panel.apps import deploying
from svc_actors.store import Database
from svc_actors.webhooks.settings import WebhookSettings
from svc_common.outbound import networks
from svc_webhost.accounts import SiteAccount
from tests.support.certificates import self_signed
from tests.support.figures import report_figure
from tests.support.git_server import GitServer, git_server
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
    """The same bytes for the same files, at any second: locks have a hash of what is packed."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return content.getvalue()


def wheel(version: str = "one point zero") -> bytes:
    """A package `installed_by_pip`, as pip takes it without asking anybody."""
    info = "installed_by_pip-1.0.dist-info"
    return zipped(
        {
            "installed_by_pip.py": f"VERSION = '{version}'",
            f"{info}/METADATA": "Metadata-Version: 2.1\nName: installed-by-pip\nVersion: 1.0\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": f"installed_by_pip.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
        }
    )


async def deploy(world: AppWorld, site: dict[str, Any], files: dict[str, str | bytes], **values: Any) -> dict[str, Any]:
    """The job of deploying these files, ended."""
    home = world.nginx.folders.sites / site["account"]
    archive = home / "code.zip"
    archive.write_bytes(zipped(files))
    uid = SiteAccount(site["number"]).uid
    os.chown(home, uid, uid)
    os.chown(archive, uid, uid)
    return await deployed(world, site, archive="code.zip", **values)


async def deployed(world: AppWorld, site: dict[str, Any], **values: Any) -> dict[str, Any]:
    """The job, ended."""
    answer = await world.root.post(f"/sites/{site['id']}/deploy", values)
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
            assert job["status"] == "succeeded", job["error"]
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

    assert job["status"] == "succeeded", job["error"]
    assert page.text == f"one point zero {SiteAccount(site['number']).uid}"


def uv_project(folder: Path, version: str = "1.0") -> dict[str, str | bytes]:
    """Of an application that needs the package of `wheel`, which comes with its code, with the lock that uv makes."""
    package = "wheels/installed_by_pip-1.0-py3-none-any.whl"
    wanted = f"""
[project]
name = "shop"
version = "{version}"
requires-python = ">=3.11"
dependencies = ["installed_by_pip"]
[tool.uv.sources]
installed_by_pip = {{path = "{package}"}}
"""
    (folder / package).parent.mkdir()
    (folder / package).write_bytes(wheel())
    (folder / "pyproject.toml").write_text(wanted)
    subprocess.run(
        [find_uv_bin(), "lock", "--quiet", "--offline", "--python", "/usr/bin/python3"], cwd=folder, check=True
    )
    lock = (folder / "uv.lock").read_text()
    return {"app.py": USES_A_PACKAGE, package: wheel(), "pyproject.toml": wanted, "uv.lock": lock}


async def test_uv_installs_what_the_lock_names(world: AppWorld, tmp_path: Path) -> None:
    site = await world.site("app.example", runtime="python", entry="app:application", memory_mib=128)

    job = await deploy(world, site, uv_project(tmp_path), build="uv")
    page = await world.nginx.visit("app.example")

    assert job["status"] == "succeeded", job["error"]
    assert page.text == f"one point zero {SiteAccount(site['number']).uid}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"wheels/installed_by_pip-1.0-py3-none-any.whl": wheel("two")}, "Hash mismatch"),
        ({"uv.lock": None}, "Unable to find lockfile"),
        ({"pyproject.toml": "[project]\nname = 'shop'\nversion = '1.0'\nrequires-python = '>=3.11'"}, "needs to be"),
        ({"pyproject.toml": None}, "No `pyproject.toml` found"),
        ({"app.py": "raise RuntimeError('not today')"}, "not today"),
    ],
    ids=["package", "no lock", "old lock", "no project", "start"],
)
async def test_an_application_that_uv_does_not_build_leaves_what_visitors_see(
    world: AppWorld, tmp_path: Path, change: dict[str, str | bytes | None], said: str
) -> None:
    site = await world.site("app.example", runtime="python", entry="app:application")
    await deploy(world, site, python("one"))

    files = {name: data for name, data in (uv_project(tmp_path) | change).items() if data is not None}
    job = await deploy(world, site, files, build="uv")
    log = (await world.root.get(f"/jobs/{job['id']}/log")).json()

    assert job["status"] == "failed"
    assert said in job["error"]["message"] + " ".join(line["message"] for line in log)
    assert (await world.nginx.visit("app.example")).text == "one"
    assert os.listdir(world.nginx.folders.sites / site["account"] / "releases") == ["1"]


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


def npm_package(name: str, script: str) -> bytes:
    """A package as `npm pack` makes one."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        description = json.dumps({"name": name, "version": "1.0.0"})
        for member, text in (("package.json", description), ("index.js", script)):
            entry = tarfile.TarInfo(f"package/{member}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return content.getvalue()


def node_project(package: bytes, **scripts: str) -> dict[str, str | bytes]:
    """Of an application that needs the package `said`, which comes with its code, as a lock of npm's has it."""
    wanted = {"name": "shop", "version": "1.0.0", "dependencies": {"said": "file:said-1.0.0.tgz"}}
    checksum = base64.b64encode(hashlib.sha512(package).digest()).decode()
    locked = {"version": "1.0.0", "resolved": "file:said-1.0.0.tgz", "integrity": f"sha512-{checksum}"}
    lock = {
        "name": "shop",
        "version": "1.0.0",
        "lockfileVersion": 3,
        "packages": {"": wanted, "node_modules/said": locked},
    }
    return {
        "package.json": json.dumps(wanted | {"scripts": scripts}),
        "package-lock.json": json.dumps(lock),
        "said-1.0.0.tgz": package,
    }


NPM = {"build": "npm", "build_script": "build"}
SAID = npm_package("said", "exports.said = 'one point zero';")
MAKES_THE_SERVER = """
const { said } = require("said");
const code = `require("node:http").createServer((request, answer) =>
    answer.end("${said}, " + process.getuid())).listen(3000);`;
require("node:fs").writeFileSync("server.js", code);
"""


async def test_npm_installs_what_the_lock_names_and_runs_the_script_that_builds(world: AppWorld) -> None:
    site = await world.site("app.example", runtime="node", entry="server.js", memory_mib=512)
    files = node_project(SAID, build="node make.js") | {"make.js": MAKES_THE_SERVER}

    job = await deploy(world, site, files, build="npm", build_script="build")
    page = await world.nginx.visit("app.example")

    assert job["status"] == "succeeded", job["error"]
    assert page.text == f"one point zero, {SiteAccount(site['number']).uid}"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"said-1.0.0.tgz": npm_package("said", "other")}, "EINTEGRITY"),
        ({"package-lock.json": "{}"}, "npm ci"),
        ({"make.js": "throw new Error('no such page')"}, "no such page"),
        ({"make.js": "console.log('nothing made')"}, "nothing made"),
    ],
    ids=["package", "lock", "script", "start"],
)
async def test_a_node_application_that_is_not_built_leaves_what_visitors_see(
    world: AppWorld, files: dict[str, str | bytes], said: str
) -> None:
    site = await world.site("app.example", runtime="node", entry="server.js")
    await deploy(world, site, {"server.js": NODE.replace("{version}", "one")})

    project = node_project(SAID, build="node make.js")
    job = await deploy(world, site, project | files, build="npm", build_script="build")
    log = (await world.root.get(f"/jobs/{job['id']}/log")).text

    assert job["status"] == "failed"
    assert said in log
    assert (await world.nginx.visit("app.example")).text == "one"
    assert os.listdir(world.nginx.folders.sites / site["account"] / "releases") == ["1"]


async def test_a_build_has_the_memory_of_its_site_that_no_process_has_in_its_size_included(world: AppWorld) -> None:
    site = await world.site("app.example", runtime="node", entry="server.js", memory_mib=256)
    fills = """
    for (const file of ["/tmp/a", "/dev/shm/b"])
        for (let written = 0; written < 200; written++)
            require("node:fs").appendFileSync(file, Buffer.alloc(1 << 20, "x"));
    console.log("had " + "it");
    """

    job = await deploy(world, site, node_project(SAID, build="node make.js") | {"make.js": fills}, **NPM)
    log = (await world.root.get(f"/jobs/{job['id']}/log")).text

    assert job["status"] == "failed"
    assert "added 1 package" in log
    assert "had it" not in log


@dataclass(frozen=True)
class WithGit:
    world: AppWorld
    git: GitServer
    site: dict[str, Any]

    @property
    def releases(self) -> Path:
        account: str = self.site["account"]
        return self.world.nginx.folders.sites / account / "releases"

    async def deployed(self, **values: Any) -> dict[str, Any]:
        return await deployed(self.world, self.site, git_url=self.git.url, **values)

    async def commits(self) -> list[str | None]:
        """Of the deployments, the newest first."""
        listed = await self.world.root.get(f"/sites/{self.site['id']}/deployments")
        return [one["git_commit"] for one in listed.json()]


@pytest.fixture
async def with_git(panel_database: Database) -> AsyncIterator[WithGit]:
    # Sites' accounts read the certificate, as they do the system's authorities: pytest's own folders are closed.
    with tempfile.TemporaryDirectory(prefix="svc-git-") as name:
        Path(name).chmod(0o755)
        tls = self_signed(Path(name))
        trusted = WebhookSettings(networks=networks("127.0.0.0/8, ::1"), ca_file=tls.certificate)
        async with open_apps(panel_database, trusted) as world:
            with git_server(Path(name), tls) as git:
                yield WithGit(world, git, await world.site("app.example", runtime="python", entry="app:application"))


def source(version: str) -> dict[str, str]:
    return {"app.py": WSGI.format(version=version)}


async def test_a_branch_a_tag_and_a_commit_of_a_repository_are_deployed(with_git: WithGit) -> None:
    first = with_git.git.commit(source("one"), tag="v1.0")
    second = with_git.git.commit(source("two"))
    third = with_git.git.commit(source("three"))
    visit = partial(with_git.world.nginx.visit, "app.example")

    jobs, pages = [], []
    for ref in ({}, {"git_ref": "v1.0"}, {"git_ref": second}, {"git_ref": "main"}):
        jobs.append(await with_git.deployed(**ref))
        pages.append((await visit()).text)

    assert [job["status"] for job in jobs] == ["succeeded"] * 4, jobs
    assert pages == ["three", "one", "two", "three"]
    assert await with_git.commits() == [third, second, first, third]
    assert not list(with_git.releases.glob("*/.git"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"git_ref": "no-such-branch"}, "couldn't find remote ref no-such-branch"),
        ({"git_ref": "main", "git_url": "https://localhost:{port}/nothing.git"}, "not found"),
        ({"git_ref": "main", "git_url": "https://127.0.0.1:{port}/shop.git"}, "SSL"),
    ],
    ids=["ref", "repository", "certificate of another name"],
)
async def test_what_git_cannot_fetch_leaves_what_runs(with_git: WithGit, values: dict[str, str], said: str) -> None:
    with_git.git.commit(source("one"))
    await with_git.deployed()
    port = with_git.git.url.split(":")[2].split("/")[0]
    asked = {name: value.replace("{port}", port) for name, value in values.items()}

    job = await deployed(with_git.world, with_git.site, **({"git_url": with_git.git.url} | asked))

    assert job["status"] == "failed"
    assert said in job["error"]["message"]
    assert (await with_git.world.nginx.visit("app.example")).text == "one"
    assert os.listdir(with_git.releases) == ["1"]
