"""Deployments of applications: new code comes in the place of what runs once it answers, and the old one comes back."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from svc_webhost.confined_client import SiteFolder
from tests.panel.apps.test_apps_api import AppWorld
from tests.support.panel import open_panel
from tests.support.site_files import give, site_folder

ARCHIVE = "private/code.zip"


@dataclass
class Deployer:
    """Ada's application and its files."""

    world: AppWorld
    site: dict[str, Any]
    folder: SiteFolder

    def give(self, **files: str) -> None:
        """An archive with `app.py` and these files, underscores in their names for dots."""
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            for name, text in ({"app_py": "application"} | files).items():
                archive.writestr(name.replace("_", "."), text)
        give(self.folder, ARCHIVE, content.getvalue())

    async def deploy(self, **values: Any) -> dict[str, Any]:
        """The job, ended."""
        answer = await self.world.ada.post(f"/sites/{self.site['id']}/deploy", {"archive": ARCHIVE} | values)
        assert answer.status_code == 200, answer.text
        return await self.ended(answer.json()["id"])

    async def ended(self, job_id: int) -> dict[str, Any]:
        await self.world.panel.job_ended(job_id)
        job: dict[str, Any] = (await self.world.ada.get(f"/jobs/{job_id}")).json()
        return job

    async def deployments(self) -> list[tuple[int, str, bool]]:
        answer = await self.world.ada.get(f"/sites/{self.site['id']}/deployments")
        return [(one["number"], one["status"], one["live"]) for one in answer.json()]

    async def roll_back(self, **values: Any) -> Any:
        return await self.world.ada.post(f"/sites/{self.site['id']}/rollback", values)

    @property
    def code(self) -> list[str]:
        releases = self.folder.path / "releases"
        return sorted(os.listdir(releases)) if releases.exists() else []

    @property
    def served(self) -> str:
        """The folder of the application that visitors come to."""
        return self.world.apps.live[self.site["number"]].folder


@pytest.fixture
async def deployer(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Deployer]:
    if os.geteuid() != 0:  # Who cannot make accounts has the sites' files as themselves.
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    async with open_panel(panel_database, tmp_path, loops=["applications of sites", "jobs", "web server"]) as panel:
        world = AppWorld(panel, await panel.customer("ada@example.com"), await panel.customer("bob@example.com"))
        site = await world.site()
        made = Deployer(world, site, site_folder(tmp_path / "sites", site["number"]))
        made.give()
        yield made


async def test_each_deployment_has_a_folder_of_its_own_and_takes_the_place_of_what_runs(deployer: Deployer) -> None:
    await deployer.world.order(deployer.site, "start")
    before = deployer.served

    first = await deployer.deploy()
    of_first = deployer.served
    second = await deployer.deploy()

    assert (first["status"], second["status"]) == ("succeeded", "succeeded")
    assert (before, of_first, deployer.served) == (".", "releases/1", "releases/2")
    assert (deployer.folder.path / "releases/2/app.py").read_text() == "application"
    assert await deployer.deployments() == [(2, "ready", True), (1, "ready", False)]


async def test_a_stopped_application_is_started_by_its_deployment(deployer: Deployer) -> None:
    await deployer.deploy()

    shown = (await deployer.world.ada.get(f"/sites/{deployer.site['id']}/app")).json()

    assert shown["state"] == "running"
    assert deployer.served == "releases/1"


async def test_what_does_not_start_leaves_what_runs_and_nothing_of_itself(deployer: Deployer) -> None:
    await deployer.deploy()
    deployer.world.apps.refuses = "It ended: ModuleNotFoundError"

    failed = await deployer.deploy()
    deployer.world.apps.refuses = None
    await deployer.world.order(deployer.site, "restart")

    assert failed["status"] == "failed"
    assert "ModuleNotFoundError" in failed["error"]["message"]
    assert await deployer.deployments() == [(2, "failed", False), (1, "ready", True)]
    assert deployer.code == ["1"]
    assert deployer.served == "releases/1"


@pytest.mark.parametrize(
    ("archive", "said"),
    [(b"no archive", "archive"), (None, "code.zip")],
    ids=["no archive", "not there"],
)
async def test_what_cannot_be_unpacked_leaves_what_runs(deployer: Deployer, archive: bytes | None, said: str) -> None:
    await deployer.deploy()
    (deployer.folder.path / ARCHIVE).unlink()
    if archive is not None:
        give(deployer.folder, ARCHIVE, archive)

    failed = await deployer.deploy()

    assert failed["status"] == "failed"
    assert said in failed["error"]["message"]
    assert deployer.code == ["1"]
    assert deployer.served == "releases/1"


async def test_an_archive_without_the_folder_of_the_application_is_told(deployer: Deployer) -> None:
    await deployer.world.ada.patch(f"/sites/{deployer.site['id']}/app", {"folder": "shop"})

    failed = await deployer.deploy()

    assert failed["status"] == "failed"
    assert "The code has no folder shop" in failed["error"]["message"]
    assert deployer.code == []


async def test_five_are_kept_besides_what_runs_and_the_owners_own_files(deployer: Deployer) -> None:
    give(deployer.folder, "releases/notes.txt")
    for _ in range(6):
        await deployer.deploy()
    await deployer.roll_back(deployment=2)

    await deployer.deploy()
    await deployer.deploy()

    assert [number for number, status, _ in await deployer.deployments() if status == "ready"] == [8, 7, 6, 5, 4]
    assert deployer.code == ["4", "5", "6", "7", "8", "notes.txt"]


async def test_a_rollback_runs_the_one_before_or_the_one_that_is_named(deployer: Deployer) -> None:
    for _ in range(3):
        await deployer.deploy()

    before = await deployer.roll_back()
    of_before = deployer.served
    forward = await deployer.roll_back(deployment=3)
    rows = [row for row in await deployer.world.panel.audit() if row["operation"] == "app.rollback"]

    assert (before.status_code, forward.status_code) == (200, 200)
    assert (of_before, deployer.served) == ("releases/2", "releases/3")
    assert [row["details"] for row in rows] == [{"from": 3, "to": 2}, {"from": 2, "to": 3}]


async def test_a_rollback_to_what_is_not_there_changes_nothing(deployer: Deployer) -> None:
    await deployer.deploy()

    none = await deployer.roll_back()
    unknown = await deployer.roll_back(deployment=7)

    assert (none.status_code, unknown.status_code) == (409, 409)
    assert "the running release was left as it is" in none.json()["error"]["message"]
    assert deployer.served == "releases/1"


async def test_a_rollback_that_does_not_start_leaves_what_runs(deployer: Deployer) -> None:
    await deployer.deploy()
    await deployer.deploy()
    deployer.world.apps.refuses = "It ended"

    failed = await deployer.roll_back()
    deployer.world.apps.refuses = None
    await deployer.world.order(deployer.site, "restart")

    assert failed.status_code == 503
    assert deployer.served == "releases/2"
    assert await deployer.deployments() == [(2, "ready", True), (1, "ready", False)]


async def test_after_a_stop_and_a_start_the_same_code_runs(deployer: Deployer) -> None:
    await deployer.deploy()
    await deployer.world.order(deployer.site, "stop")

    await deployer.world.order(deployer.site, "start")

    assert deployer.served == "releases/1"


async def test_one_is_built_at_a_time(deployer: Deployer) -> None:
    path, body = f"/sites/{deployer.site['id']}/deploy", {"archive": ARCHIVE}
    first = await deployer.world.ada.post(path, body)
    second = await deployer.world.ada.post(path, body)
    await deployer.ended(first.json()["id"])

    assert second.status_code == 409
    assert "already" in second.json()["error"]["message"]
    assert [number for number, _, _ in await deployer.deployments()] == [1]


async def test_one_that_is_cancelled_is_in_nobodys_way(deployer: Deployer) -> None:
    begun = await deployer.world.ada.post(f"/sites/{deployer.site['id']}/deploy", {"archive": ARCHIVE})
    await deployer.world.ada.post(f"/jobs/{begun.json()['id']}/cancel")
    await deployer.ended(begun.json()["id"])

    again = await deployer.deploy()

    assert again["status"] == "succeeded"


async def test_anothers_application_is_not_there_and_a_site_without_one_has_none(deployer: Deployer) -> None:
    static = (await deployer.world.ada.post("/sites", {"domain": "static.example.com", "type": "static"})).json()
    path = f"/sites/{deployer.site['id']}"

    foreign = [
        await deployer.world.bob.get(f"{path}/deployments"),
        await deployer.world.bob.post(f"{path}/deploy", {"archive": ARCHIVE}),
        await deployer.world.bob.post(f"{path}/rollback"),
    ]
    none = await deployer.world.ada.post(f"/sites/{static['id']}/deploy", {"archive": ARCHIVE})

    assert {answer.status_code for answer in foreign} == {404}
    assert none.status_code == 409


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"archive": None}, "archive"),
        ({"git_url": "https://git.example/shop.git"}, "archive"),
        ({"git_ref": "main"}, "git_ref"),
        ({"archive": None, "git_url": "https://ada:secret@git.example/shop.git"}, "git_url"),
        ({"archive": None, "git_url": "http://git.example/shop.git"}, "git_url"),
        ({"archive": None, "git_url": "ext::sh -c id"}, "git_url"),
        ({"archive": None, "git_url": "ssh://git@git.example:99999/shop.git"}, "git_url"),
        ({"archive": None, "git_url": "https://git.example:0/shop.git"}, "git_url"),
        ({"archive": None, "git_url": "ssh://-oProxyCommand=id@git.example/shop.git"}, "git_url"),
        ({"archive": None, "git_url": "git@-oProxyCommand=id:shop.git"}, "git_url"),
        ({"archive": None, "git_url": "file:///etc/shadow"}, "git_url"),
        ({"archive": None, "git_url": "https://git.example/shop.git", "git_ref": "--upload-pack=id"}, "git_ref"),
        ({"archive": None, "git_url": "https://git.example/shop.git", "git_ref": "main:other"}, "git_ref"),
        ({"archive": None, "git_url": "https://git.example/shop.git", "git_ref": "a..b"}, "git_ref"),
    ],
)
async def test_code_comes_from_one_place_that_is_named_in_full(
    deployer: Deployer, values: dict[str, Any], field: str
) -> None:
    refused = await deployer.world.ada.post(f"/sites/{deployer.site['id']}/deploy", {"archive": ARCHIVE} | values)

    assert refused.status_code == 400
    assert field in refused.json()["error"]["message"]
    assert await deployer.deployments() == []


@pytest.mark.parametrize(
    ("runtime", "values", "field"),
    [
        ("python", {"build": "npm"}, "build"),
        ("node", {"build": "pip"}, "build"),
        ("node", {"build": "uv"}, "build"),
        ("node", {"build": "make"}, "build"),
        ("node", {"build_script": "build"}, "build_script"),
        ("python", {"build": "pip", "build_script": "build"}, "build_script"),
        ("python", {"build": "uv", "build_script": "build"}, "build_script"),
        ("node", {"build": "npm", "build_script": "--ignore"}, "build_script"),
        ("node", {"build": "npm", "build_script": "build; id"}, "build_script"),
        ("node", {"build": "npm", "build_script": ""}, "build_script"),
    ],
)
async def test_a_build_is_one_of_the_runtime_and_has_no_command(
    deployer: Deployer, runtime: str, values: dict[str, Any], field: str
) -> None:
    entry = {"python": "app:application", "node": "server.js"}[runtime]
    site = await deployer.world.site(domain="other.example.com", runtime=runtime, entry=entry)

    refused = await deployer.world.ada.post(f"/sites/{site['id']}/deploy", {"archive": ARCHIVE} | values)
    listed = await deployer.world.ada.get(f"/sites/{site['id']}/deployments")

    assert refused.status_code == 400
    assert field in refused.json()["error"]["message"]
    assert listed.json() == []


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "169.254.169.254", "10.0.0.1:8443", "localhost"])
async def test_a_repository_is_not_fetched_from_this_server_or_a_private_network(deployer: Deployer, host: str) -> None:
    await deployer.deploy()

    failed = await deployer.deploy(archive=None, git_url=f"https://{host}/shop.git")

    assert failed["status"] == "failed"
    assert "is not an address of the public Internet" in failed["error"]["message"]
    assert deployer.served == "releases/1"
    assert deployer.code == ["1"]
