"""Deploy keys: made for a host whose own key was confirmed, and told by their public halves alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from svc_actors.store import Database
from tests.panel.apps.test_apps_api import PYTHON
from tests.support.git_hosts import KEY, OTHER, GitHosts
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel, recorded_host

HOST = "93.184.216.34"
URL = f"git@{HOST}:ada/shop.git"


@dataclass(frozen=True)
class World:
    panel: PanelHarness
    hosts: GitHosts
    ada: Client
    bob: Client
    path: str

    async def make(self, **values: Any) -> httpx.Response:
        return await self.ada.post(f"{self.path}/deploy-keys", {"host": HOST} | values)

    async def made(self, **values: Any) -> dict[str, Any]:
        answer = await self.make(host_key=self.hosts.shown[0].fingerprint, **values)
        assert answer.status_code == 200, answer.text
        key: dict[str, Any] = answer.json()["key"]
        return key

    async def keys(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = (await self.ada.get(f"{self.path}/deploy-keys")).json()
        return listed

    async def delete(self, key: dict[str, Any]) -> httpx.Response:
        return await self.ada.call("DELETE", f"{self.path}/deploy-keys/{key['id']}")

    async def deploy(self, url: str) -> httpx.Response:
        return await self.ada.post(f"{self.path}/deploy", {"git_url": url})


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    hosts = GitHosts()
    async with open_panel(
        panel_database,
        tmp_path,
        replace(recorded_host(), foreign_hosts=hosts),
        loops=["applications of sites", "jobs", "web server"],
    ) as panel:
        ada, bob = await panel.customer("ada@example.com"), await panel.customer("bob@example.com")
        site = (await ada.post("/sites", PYTHON)).json()
        yield World(panel, hosts, ada, bob, f"/sites/{site['id']}")


async def test_a_host_shows_its_keys_before_there_is_one_for_it(world: World) -> None:
    asked = await world.make()
    before = await world.keys()

    made = await world.made()

    assert asked.json() == {"host_keys": [{"type": "ssh-ed25519", "fingerprint": KEY.fingerprint}], "key": None}
    assert before == []
    assert made["public_key"].startswith("ssh-ed25519 ")
    assert (made["host"], made["port"], made["host_key"]) == (HOST, 22, KEY.fingerprint)
    assert await world.keys() == [made]


async def test_another_host_key_than_the_one_that_was_confirmed_makes_nothing(world: World) -> None:
    refused = await world.make(host_key=OTHER.fingerprint)

    assert refused.status_code == 409
    assert await world.keys() == []


async def test_the_pair_stays_where_a_host_has_a_new_key_and_each_host_has_one(world: World) -> None:
    first = await world.made()
    world.hosts.shown = [OTHER]

    same = await world.made()
    other = await world.made(port=2222)

    assert (same["public_key"], same["host_key"]) == (first["public_key"], OTHER.fingerprint)
    assert other["public_key"] != first["public_key"]
    assert await world.keys() == [same, other]


async def test_a_site_has_ten_keys_at_most(world: World) -> None:
    for port in range(10):
        await world.made(port=2200 + port)

    refused = await world.make(port=22, host_key=KEY.fingerprint)
    known = await world.make(port=2200, host_key=KEY.fingerprint)

    assert (refused.status_code, known.status_code) == (409, 200)
    assert len(await world.keys()) == 10


async def test_the_private_half_is_sealed_and_told_to_nobody(world: World, panel_database: Database) -> None:
    await world.made()

    row = await panel_database.fetchrow("SELECT * FROM app_deploy_keys")
    audited = await panel_database.fetchval("SELECT string_agg(details::text, ' ') FROM audit")

    assert row is not None
    assert b"PRIVATE" not in row["sealed_private_key"]
    assert "PRIVATE" not in str(await world.keys()) + audited
    assert HOST in audited


async def test_a_private_repository_needs_a_key_for_its_host(world: World) -> None:
    without = await world.deploy(URL)
    await world.made()

    elsewhere = await world.deploy("ssh://git@93.184.216.35/ada/shop.git")
    other_port = await world.deploy(f"ssh://git@{HOST}:2222/ada/shop.git")
    there = await world.deploy(URL)

    assert [answer.status_code for answer in (without, elsewhere, other_port, there)] == [409, 409, 409, 200]
    assert "deploy-key-make" in without.json()["error"]["hint"]
    assert "93.184.216.35" in elsewhere.json()["error"]["message"]


async def test_a_key_is_forgotten_when_it_is_deleted(world: World) -> None:
    key = await world.made()

    answers = [await world.delete(key), await world.delete(key)]

    assert [answer.status_code for answer in answers] == [200, 404]
    assert await world.keys() == []
    assert (await world.deploy(URL)).status_code == 409


async def test_a_host_within_the_providers_networks_is_not_asked(world: World) -> None:
    refused = [await world.make(host=host) for host in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "localhost")]

    assert {answer.status_code for answer in refused} == {400}
    assert world.hosts.asked == []


async def test_anothers_key_is_not_there(world: World) -> None:
    key = await world.made()

    answers = [
        await world.bob.get(f"{world.path}/deploy-keys"),
        await world.bob.post(f"{world.path}/deploy-keys", {"host": HOST}),
        await world.bob.call("DELETE", f"{world.path}/deploy-keys/{key['id']}"),
    ]

    assert {answer.status_code for answer in answers} == {404}
    assert len(world.hosts.asked) == 1
