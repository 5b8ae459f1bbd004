"""Diagnosis and repairs over the API, with a server that does what it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from svc_actors.panel.repairs import Repair
from svc_actors.store import Database
from svc_webhost.databases import DatabaseError, DatabaseName, EngineKind
from svc_webhost.site_rights import WrongRights
from tests.panel.sites.world import World, world_of
from tests.support.dns import RecordedNameServer
from tests.support.harness import Client
from tests.support.panel_php import RecordedPhp
from tests.support.recorded_databases import RecordedDatabases

SIX = ["permissions", "configuration", "runtime", "certificate", "dns", "database"]


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(panel_database, tmp_path) as made:
        yield made


async def diagnosed(world: World, site: dict[str, Any]) -> dict[str, Any]:
    answer = await world.ada.get(f"/sites/{site['id']}/diagnose")
    assert answer.status_code == 200, answer.text
    return cast(dict[str, Any], answer.json())


async def faults(world: World, site: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found = await diagnosed(world, site)
    return {check["name"]: check["findings"] for check in found["checks"] if check["state"] != "healthy"}


async def repaired(world: World, site: dict[str, Any], repair: str) -> tuple[dict[str, Any], list[str]]:
    """The job when it has ended, and its log."""
    answer = await world.ada.post(f"/sites/{site['id']}/repair", {"repair": repair})
    assert answer.status_code == 200, answer.text
    assert answer.json()["kind"] == "site.repair"
    job = await world.job_of(world.ada, answer.json())
    lines = (await world.ada.get(f"/jobs/{job['id']}/log")).json()
    return job, [line["message"] for line in lines]


def test_there_are_six_repairs() -> None:
    assert [repair.value for repair in Repair] == SIX


async def test_a_healthy_site_is_diagnosed_so_and_no_repair_changes_it(world: World) -> None:
    site = await world.create("a.example", type="php")
    told, started = len(world.web.applied), len(cast(RecordedPhp, world.panel.host.php).started)

    found = await diagnosed(world, site)
    ended = [await repaired(world, site, repair) for repair in SIX]

    assert found["healthy"] is True
    assert found["site_id"] == site["id"]
    assert [check["name"] for check in found["checks"]] == SIX
    assert {check["state"] for check in found["checks"]} == {"healthy"}
    assert {job["status"] for job, _ in ended} == {"succeeded"}
    assert {tuple(log) for _, log in ended} == {("Nothing is wrong; nothing was changed.",)}
    assert len(world.web.applied) == told
    assert len(cast(RecordedPhp, world.panel.host.php).started) == started


async def test_files_get_their_owner_back(world: World) -> None:
    site = await world.create("a.example")
    world.accounts.wrong[f"s{site['number']}"] = [WrongRights("public/index.php belongs to 0:0.")]

    before = await faults(world, site)
    job, log = await repaired(world, site, "permissions")

    assert before == {
        "permissions": [{"evidence": "public/index.php belongs to 0:0.", "repair": "permissions"}],
    }
    assert job["status"] == "succeeded"
    assert log == ["Found: public/index.php belongs to 0:0.", "Mended: public/index.php belongs to 0:0."]
    assert (await diagnosed(world, site))["healthy"] is True


async def test_a_site_that_lost_its_folder_is_not_made_empty_by_a_repair(world: World) -> None:
    """Also where something else is wrong with it, which the repair would help with."""
    site = await world.create("a.example")
    account = f"s{site['number']}"
    world.accounts.wrong[account] = [
        WrongRights("This server has no user."),
        WrongRights("The folder public is gone: restore the site from a backup.", mendable=False, lost=True),
    ]
    made = []

    async def before(step: str) -> None:
        made.append(step)

    world.accounts.before = before
    found = await faults(world, site)
    job, _ = await repaired(world, site, "permissions")

    assert [each["repair"] for each in found["permissions"]] == ["permissions", None]
    assert job["status"] == "failed"
    assert "restore the site from a backup" in job["error"]["message"]
    assert made == []


async def test_what_no_repair_helps_with_is_said_and_left(world: World) -> None:
    site = await world.create("a.example")
    world.accounts.wrong[f"s{site['number']}"] = [WrongRights("public/x is another's.", mendable=False)]

    before = await faults(world, site)
    job, log = await repaired(world, site, "permissions")

    assert before == {"permissions": [{"evidence": "public/x is another's.", "repair": None}]}
    assert job["status"] == "failed"
    assert job["error"]["code"] == "conflict"
    assert log[0] == "Found: public/x is another's."
    assert "nothing was changed" in log[1]


async def test_a_repair_mends_what_it_can_also_where_it_is_told_last(world: World) -> None:
    site = await world.create("a.example")
    world.accounts.wrong[f"s{site['number']}"] = [
        *(WrongRights(f"public/{number} is another's.", mendable=False) for number in range(21)),
        WrongRights("5,000 more of the kind.", count=5000),
    ]

    before = (await faults(world, site))["permissions"]
    job, log = await repaired(world, site, "permissions")

    assert before[20:] == [{"evidence": "5,001 more of the kind.", "repair": "permissions"}]
    assert "Mended: 5,001 more of the kind." in log
    assert job["status"] == "failed"
    assert job["error"]["message"].startswith("Some faults remain")


async def test_an_operator_has_turns_of_his_own(world: World) -> None:
    """A customer who asks all the time keeps nobody from finding out what is wrong with her site."""
    site = await world.create("a.example")
    await world.ada.post("/databases", {"site_id": site["id"], "name": "shop", "user": "ada"})
    engine = cast(RecordedDatabases, world.panel.host.databases[EngineKind.MARIADB])
    looks, both = 0, trio.Event()

    async def meet(method: str) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            both.set()
        await both.wait()

    engine.before = meet
    answers = []

    async def ask(by: Client) -> None:
        answer = await by.get(f"/sites/{site['id']}/diagnose")
        answers.append([check["state"] for check in answer.json()["checks"]])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, world.ada)
        nursery.start_soon(ask, world.root)

    assert answers == [["healthy"] * 6] * 2


async def test_the_web_server_gets_the_site_again_and_no_other(world: World) -> None:
    site, other = await world.create("a.example"), await world.create("b.example")
    world.web.sites[site["number"]] = replace_domain(world, "a.example", "hacked.example")
    world.web.sites[other["number"]] = replace_domain(world, "b.example", "kept.example")

    before = await faults(world, site)
    job, log = await repaired(world, site, "configuration")

    assert list(before) == ["configuration"]
    assert job["status"] == "succeeded"
    assert log[-1].startswith("Mended: ")
    assert world.served("a.example") is not None
    assert world.served("kept.example") is not None, "another site was touched"


def replace_domain(world: World, domain: str, by: str) -> Any:
    server = world.served(domain)
    assert server is not None
    return server.model_copy(update={"domain": by})


async def test_php_whose_configuration_was_lost_or_that_was_stopped_is_started_anew(world: World) -> None:
    site = await world.create("a.example", type="php")
    php = cast(RecordedPhp, world.panel.host.php)
    (first,) = php.pools
    php.lost.add(first)

    lost = await faults(world, site)
    configured, _ = await repaired(world, site, "configuration")
    second = world.served("a.example")
    php.pools.clear()
    stopped = await faults(world, site)
    started, _ = await repaired(world, site, "runtime")

    assert list(lost) == ["configuration"]
    assert list(stopped) == ["runtime"]
    assert (configured["status"], started["status"]) == ("succeeded", "succeeded")
    assert first not in php.pools
    assert second != world.served("a.example"), "the web server goes over to the new PHP"
    assert (await diagnosed(world, site))["healthy"] is True


async def test_a_zone_is_served_as_it_is_recorded(world: World) -> None:
    site = await world.create("a.example")
    pointed = await world.ada.post(f"/sites/{site['id']}/dns/point", {})
    assert pointed.status_code == 200, pointed.text
    server = cast(RecordedNameServer, world.panel.host.name_server)
    zone = server.zones["a.example"]
    assert zone is not None
    # The serial stays: what watches zones does not look into this one.
    server.zones["a.example"] = replace(zone, records=frozenset())

    before = await faults(world, site)
    job, _ = await repaired(world, site, "dns")

    assert [each["evidence"].endswith(" A 203.0.113.80 is not served.") for each in before["dns"]] == [True]
    assert job["status"] == "succeeded"
    assert server.answers("a.example", "A") == {"203.0.113.80"}


async def test_database_users_get_back_what_they_may_do(world: World) -> None:
    site = await world.create("a.example")
    created = await world.ada.post("/databases", {"site_id": site["id"], "name": "shop", "user": "ada"})
    assert created.status_code == 201, created.text
    engine = cast(RecordedDatabases, world.panel.host.databases[EngineKind.MARIADB])
    [name] = engine.accounts
    verifier = engine.accounts[name].verifier

    healthy = await faults(world, site)
    engine.accounts[name].access.clear()
    revoked = await faults(world, site)
    granted, _ = await repaired(world, site, "database")
    again = dict(engine.accounts[name].access)
    engine.accounts.clear()
    dropped = await faults(world, site)
    made, _ = await repaired(world, site, "database")
    engine.contents.pop(DatabaseName(created.json()["database"]["name"]))
    gone = await faults(world, site)
    refused, _ = await repaired(world, site, "database")

    assert healthy == {}
    assert [each["repair"] for each in revoked["database"]] == ["database"]
    assert again
    assert [each["repair"] for each in dropped["database"]] == ["database"]
    assert (granted["status"], made["status"], refused["status"]) == ("succeeded", "succeeded", "failed")
    assert engine.accounts[name].verifier == verifier
    assert [each["repair"] for each in gone["database"]] == [None]
    assert engine.contents == {}, "an empty database in the place of one that is gone hides that"


async def test_what_does_not_answer_keeps_nobody_waiting(world: World) -> None:
    site = await world.create("a.example")
    await world.ada.post("/databases", {"site_id": site["id"], "name": "shop", "user": "ada"})
    engine = cast(RecordedDatabases, world.panel.host.databases[EngineKind.MARIADB])

    async def hang(method: str) -> None:
        await trio.sleep_forever()

    engine.before = hang
    began = trio.current_time()
    hung = await diagnosed(world, site)
    took = trio.current_time() - began

    async def fail(method: str) -> None:
        raise DatabaseError("it is away")

    engine.before = fail
    away = await faults(world, site)

    assert took < 2
    assert hung["healthy"] is False
    assert [check["name"] for check in hung["checks"] if check["state"] == "unknown"] == ["database"]
    assert "it is away" in away["database"][0]["evidence"]


async def test_a_repair_takes_its_name_and_nothing_else(world: World) -> None:
    site = await world.create("a.example")
    path = f"/sites/{site['id']}/repair"

    answers = [
        await world.ada.post(path, {}),
        await world.ada.post(path, {"repair": "everything"}),
        await world.ada.post(path, {"repair": "permissions", "path": "/etc"}),
        await world.ada.post(path, {"repair": ["permissions"]}),
    ]
    foreign = await world.bob.post(path, {"repair": "permissions"})
    unseen = await world.bob.get(f"/sites/{site['id']}/diagnose")

    assert [answer.status_code for answer in answers] == [400] * 4
    assert (foreign.status_code, unseen.status_code) == (404, 404)


async def test_a_site_that_is_not_finished_is_neither_diagnosed_nor_repaired(world: World) -> None:
    site = await world.create("a.example")
    await world.panel.database.execute("UPDATE sites SET status = 'failed', reason = 'x' WHERE domain = 'a.example'")

    looked = await world.ada.get(f"/sites/{site['id']}/diagnose")
    repaired = await world.ada.post(f"/sites/{site['id']}/repair", {"repair": "runtime"})

    assert (looked.status_code, repaired.status_code) == (409, 409)
