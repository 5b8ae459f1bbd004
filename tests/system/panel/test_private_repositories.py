"""Deployments from a private git repository, over SSH: by a key that no program of the site ever has."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.panel.imports.foreign_hosts import SystemForeignHosts
from svc_actors.store import Database
from svc_actors.webhooks.settings import WebhookSettings
from svc_common.outbound import networks
from tests.support.git_server import GitServer, bare_repository
from tests.support.processes import command_lines
from tests.support.real_apps import AppWorld, open_apps
from tests.support.sshd import Sshd, open_sshd
from tests.system.panel.test_deployments import deployed, source

pytestmark = [pytest.mark.system, pytest.mark.isolated]

FIRST_UID = 2_000_000_000
"""Of the accounts, one a site, by which OpenSSH runs."""


@dataclass(frozen=True)
class Private:
    world: AppWorld
    git: GitServer
    sshd: Sshd
    site: dict[str, Any]

    @property
    def url(self) -> str:
        return f"ssh://root@localhost:{self.sshd.port}{self.git.folder}/shop.git"

    @property
    def home(self) -> Path:
        account: str = self.site["account"]
        return self.world.nginx.folders.sites / account

    async def ask(self, **values: Any) -> dict[str, Any]:
        body = {"host": "localhost", "port": self.sshd.port} | values
        answer = await self.world.root.post(f"/sites/{self.site['id']}/deploy-keys", body)
        assert answer.status_code == 200, answer.text
        asked: dict[str, Any] = answer.json()
        return asked

    async def key(self) -> str:
        """The public half of one that is made, for the host's key that is shown."""
        [shown] = (await self.ask())["host_keys"]
        made: str = (await self.ask(host_key=shown["fingerprint"]))["key"]["public_key"]
        return made

    async def deployed(self, **values: Any) -> dict[str, Any]:
        return await deployed(self.world, self.site, git_url=self.url, **values)

    async def page(self) -> str:
        return (await self.world.nginx.visit("app.example")).text


@pytest.fixture
async def private(panel_database: Database, tmp_path: Path) -> AsyncIterator[Private]:
    settings = WebhookSettings(networks=networks("127.0.0.0/8, ::1"))
    async with open_apps(panel_database, settings, SystemForeignHosts()) as world, open_sshd(tmp_path / "sshd") as sshd:
        await sshd.start()
        site = await world.site("app.example", runtime="python", entry="app:application")
        yield Private(world, bare_repository(tmp_path), sshd, site)


async def test_a_branch_and_a_commit_are_fetched_by_the_key_that_the_host_was_given(private: Private) -> None:
    first = private.git.commit(source("one"))
    private.git.commit(source("two"))
    private.sshd.let_in(await private.key())

    newest, of_newest = await private.deployed(), await private.page()
    named, of_named = await private.deployed(git_ref=first), await private.page()

    assert (newest["status"], named["status"]) == ("succeeded", "succeeded"), (newest, named)
    assert (of_newest, of_named) == ("two", "one")
    assert not list(private.home.glob("releases/*/.git"))


def clients(port: int) -> Iterator[int]:
    """The users whose OpenSSH connects to it."""
    for pid, command in command_lines().items():
        words = command.split(b"\0")
        if words[0] == b"ssh" and str(port).encode() in words:
            with suppress(OSError):
                yield Path(f"/proc/{pid}").stat().st_uid


async def test_no_program_of_the_site_sees_the_key(private: Private, tmp_path: Path) -> None:
    private.git.commit(source("one"))
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    waits = f"touch {asked}; while [ ! -e {answered} ]; do sleep 0.05; done; exec git-upload-pack {tmp_path}/shop.git"
    private.sshd.let_in(f'command="{waits}" {await private.key()}')

    async with trio.open_nursery() as nursery:
        nursery.start_soon(private.deployed)
        with trio.fail_after(60):
            while not asked.exists():
                await trio.sleep(0.02)
        uids = set(clients(private.sshd.port))
        written = [file for file in private.home.rglob("*") if file.is_file() and b"PRIVATE KEY" in file.read_bytes()]
        answered.touch()

    assert uids == {FIRST_UID + private.site["number"]}
    assert written == []
    assert await private.page() == "one"


async def test_a_host_that_shows_another_key_is_told_nothing(private: Private) -> None:
    private.git.commit(source("one"))
    private.sshd.let_in(await private.key())
    await private.deployed()
    private.sshd.kill()
    await private.sshd.new_host_key()
    await private.sshd.start()

    job = await private.deployed()

    assert job["status"] == "failed"
    assert "presents another host key" in job["error"]["message"]
    assert await private.page() == "one"
    assert os.listdir(private.home / "releases") == ["1"]


@pytest.mark.parametrize(
    ("let_in", "repository", "ref", "said"),
    [
        (False, "shop.git", "main", "rejects the credentials of the account"),
        (True, "other.git", "main", "other.git"),
        (True, "shop.git", "no-such-branch", "couldn't find remote ref no-such-branch"),
    ],
    ids=["key", "repository", "ref"],
)
async def test_why_a_repository_is_not_fetched_is_told_as_its_host_says_it(
    private: Private, let_in: bool, repository: str, ref: str, said: str
) -> None:
    private.git.commit(source("one"))
    key = await private.key()
    if let_in:
        private.sshd.let_in(key)

    url = private.url.replace("shop.git", repository)
    job = await deployed(private.world, private.site, git_url=url, git_ref=ref)

    assert job["status"] == "failed"
    assert said in job["error"]["message"]
    assert not (private.home / "releases").exists() or os.listdir(private.home / "releases") == []
