"""Access accounts by the API: who has one, what the SFTP server is told of, and what is kept."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from svc_actors.store import Database
from svc_webhost.sftp import AccessKind
from tests.panel.sites.world import World, world_of
from tests.support.panel_sftp import RecordedSftp

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGmHrTbKGPpCAh0w0H4Cq0jLyEYJIcQZDuTzzVYhvJxN ada@laptop"


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(panel_database, tmp_path, loops=["access by SFTP", "events"]) as made:
        yield made


def server(world: World) -> RecordedSftp:
    return cast(RecordedSftp, world.panel.host.sftp)


async def access(world: World, site: dict[str, Any], **body: Any) -> dict[str, Any]:
    answer = await world.ada.post(f"/sites/{site['id']}/sftp", {"name": "ada"} | body)
    assert answer.status_code == 201, answer.text
    return cast(dict[str, Any], answer.json())


async def test_an_account_is_known_to_the_server_when_it_is_answered(world: World) -> None:
    site = await world.create("a.example")

    made = await access(world, site, folder="public/shop", keys=[KEY])

    login = server(world).logins[made["login"]]
    assert made["login"] == f"{site['account']}-ada"
    assert (login.account.name, login.folder, login.keys) == (site["account"], "public/shop", (KEY,))
    assert made["keys"][0]["comment"] == "ada@laptop"
    assert (made["has_password"], made["password"], login.password_hash) == (False, None, None)
    listed = (await world.ada.get(f"/sites/{site['id']}/sftp")).json()
    assert [each["login"] for each in listed] == [made["login"]]


async def test_a_password_that_is_made_up_is_shown_once_and_kept_as_its_hash(world: World) -> None:
    site = await world.create("a.example")

    made = await access(world, site)

    kept = cast(str, server(world).logins[made["login"]].password_hash)
    assert kept.startswith("$y$")
    checked = subprocess.run(  # noqa: ASYNC221 - crypt(3) by another program's hand
        ["perl", "-e", "print crypt($ARGV[0], $ARGV[1])", "--", made["password"], kept], capture_output=True, check=True
    )
    assert checked.stdout.decode() == kept
    assert made["password"] not in (await world.ada.get(f"/sites/{site['id']}/sftp")).text
    assert made["password"] not in str(await world.panel.audit())


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "root:x"},
        {"name": "a\nb"},
        {"name": "-a"},
        {"folder": "/etc"},
        {"folder": "../private"},
        {"folder": "public/../../x"},
        {"folder": "public/.."},
        {"password": "short"},
        {"keys": ['command="sh" ' + KEY]},
        {"keys": [KEY.replace("AAAAC3", "AAAAB3")]},
        {"keys": ["ssh-dss AAAAC3NzaC1lZDI1NTE5AAAAIGmHrTbKGPpCAh0w0H4Cq0jLyEYJIcQZDuTzzVYhvJxN"]},
    ],
    ids=str,
)
async def test_what_no_server_should_be_told_is_invalid(world: World, wrong: dict[str, Any]) -> None:
    site = await world.create("a.example")

    answer = await world.ada.post(f"/sites/{site['id']}/sftp", {"name": "ada"} | wrong)

    assert answer.status_code == 400, answer.text
    assert server(world).logins == {}


async def test_credentials_are_changed_and_sessions_end_with_them(world: World) -> None:
    site = await world.create("a.example")
    made = await access(world, site, password="A-first-password")
    path = f"/sites/{site['id']}/sftp/{made['id']}"
    before = server(world).logins[made["login"]].password_hash

    changed = await world.ada.patch(path, {"new_password": True})
    by_key = await world.ada.patch(path, {"keys": [KEY], "password": None})
    none = await world.ada.patch(path, {"keys": []})

    assert changed.json()["password"]
    assert before != server(world).logins[made["login"]].password_hash
    assert (by_key.json()["has_password"], len(by_key.json()["keys"])) == (False, 1)
    assert none.status_code == 409
    assert server(world).ended == [made["login"]] * 2


async def test_nobody_signs_in_to_a_site_that_is_suspended_or_deleted(world: World) -> None:
    site = await world.create("a.example")
    made = await access(world, site)
    until = server(world).told.until

    await world.root.post(f"/sites/{site['id']}/suspend", {"reason": "late"})
    await until(lambda: server(world).logins == {})
    await world.root.post(f"/sites/{site['id']}/suspend", {"suspended": False})
    await until(lambda: made["login"] in server(world).logins)
    await world.root.post(f"/accounts/{world.ada_id}/suspend", {"reason": "late"})
    await until(lambda: server(world).logins == {})
    await world.root.post(f"/accounts/{world.ada_id}/unsuspend", {})
    await until(lambda: made["login"] in server(world).logins)
    job = await world.delete(site)

    assert job["status"] == "succeeded"
    assert server(world).logins == {}
    assert await world.panel.database.fetchval("SELECT count(*) FROM sftp_accounts") == 0


async def test_a_server_that_cannot_be_told_is_told_later(world: World) -> None:
    site = await world.create("a.example")
    server(world).refuses = "it does not start"

    refused = await world.ada.post(f"/sites/{site['id']}/sftp", {"name": "ada"})
    server(world).refuses = None
    await world.panel.services.sftp.agree()

    assert refused.status_code == 503
    assert "recorded" in refused.json()["error"]["message"]
    assert list(server(world).logins) == [f"{site['account']}-ada"]


async def test_an_account_of_another_is_none(world: World) -> None:
    site = await world.create("a.example")
    made = await access(world, site)
    own = await world.create("b.example", world.bob)

    answers = [
        await world.bob.get(f"/sites/{site['id']}/sftp"),
        await world.bob.post(f"/sites/{site['id']}/sftp", {"name": "bob"}),
        await world.bob.patch(f"/sites/{own['id']}/sftp/{made['id']}", {"new_password": True}),
        await world.bob.delete(f"/sites/{own['id']}/sftp/{made['id']}", {}),
    ]

    assert {answer.status_code for answer in answers} == {404}


async def test_names_and_numbers_of_accounts_are_bounded(world: World) -> None:
    site = await world.create("a.example")
    path = f"/sites/{site['id']}/sftp"
    for number in range(20):
        await world.ada.post(path, {"name": f"n{number}", "keys": [KEY]})

    further = await world.ada.post(path, {"name": "further", "keys": [KEY]})
    await world.ada.delete(f"{path}/{(await world.ada.get(path)).json()[0]['id']}", {})
    twice = await world.ada.post(path, {"name": "n7", "keys": [KEY]})

    assert (further.status_code, twice.status_code) == (409, 409)
    assert len(server(world).logins) == 19


async def test_a_shell_is_for_sites_that_are_allowed_one(world: World) -> None:
    site = await world.create("a.example")
    path = f"/sites/{site['id']}"
    wanted = {"name": "ada", "kind": "shell", "keys": [KEY]}

    refused = await world.ada.post(f"{path}/sftp", wanted)
    by_herself = await world.ada.patch(path, {"shell": True})
    switched = await world.root.patch(path, {"shell": True, "processes": 30})
    made = await world.ada.post(f"{path}/sftp", wanted)
    in_a_folder = await world.ada.post(f"{path}/sftp", wanted | {"name": "b", "folder": "public"})
    login = server(world).logins[made.json()["login"]]
    await world.root.patch(path, {"shell": False})

    assert (refused.status_code, by_herself.status_code, in_a_folder.status_code) == (403, 403, 400)
    assert (site["shell"], switched.json()["shell"]) == (False, True)
    assert (login.kind, login.limits.processes) == (AccessKind.SHELL, 30)
    assert server(world).logins == {}


async def test_a_plan_allows_shells_to_all_sites_of_those_who_have_it(world: World) -> None:
    site = await world.create("a.example")
    plan = (await world.root.post("/plans", {"name": "Developer", "shell": True})).json()
    await world.root.post(f"/accounts/{world.ada_id}/plan", {"plan": "Developer"})

    made = await access(world, site, kind="shell", keys=[KEY])
    known = made["login"] in server(world).logins
    await world.root.patch(f"/plans/{plan['id']}", {"shell": False})

    assert plan["shell"] is True
    assert known
    assert server(world).logins == {}
    assert (await world.ada.get(f"/sites/{site['id']}")).json()["shell"] is False
