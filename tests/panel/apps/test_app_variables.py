"""What an application finds in its environment: set over the API, and read by nobody but the application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from svc_actors.store import Database
from tests.panel.apps.test_apps_api import PYTHON, AppWorld
from tests.support.panel import open_panel
from tests.support.site_apps import RecordedApps

SECRET = "a marker that nobody may read"


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[AppWorld]:
    async with open_panel(panel_database, tmp_path, loops=["jobs", "web server"]) as panel:
        yield AppWorld(panel, await panel.customer("ada@example.com"), await panel.customer("bob@example.com"))


async def put(world: AppWorld, site: dict[str, Any], **variables: str | None) -> list[str]:
    answer = await world.ada.call("PUT", f"/sites/{site['id']}/env", {"variables": variables})
    assert answer.status_code == 200, answer.text
    return [variable["name"] for variable in answer.json()]


async def test_they_are_there_from_the_next_start_on(world: AppWorld) -> None:
    site = await world.site()
    await put(world, site, MODE="one")
    await world.order(site, "start")

    names = await put(world, site, MODE="two", EMPTY="")
    running = world.apps.variables[site["number"]]
    await world.order(site, "restart")

    assert names == ["EMPTY", "MODE"]
    assert running == {"MODE": "one"}
    assert world.apps.variables[site["number"]] == {"MODE": "two", "EMPTY": ""}


async def test_the_set_is_replaced_and_null_keeps_a_value(world: AppWorld) -> None:
    site = await world.site()
    await put(world, site, KEPT="as it was", CHANGED="one", GONE="x")

    names = await put(world, site, KEPT=None, CHANGED="two")
    await world.order(site, "start")
    refused = await world.ada.call("PUT", f"/sites/{site['id']}/env", {"variables": {"KEPT": None, "NEVER": None}})

    assert names == ["CHANGED", "KEPT"]
    assert world.apps.variables[site["number"]] == {"KEPT": "as it was", "CHANGED": "two"}
    assert refused.status_code == 400
    assert "NEVER" in refused.json()["error"]["message"]
    assert (await world.ada.get(f"/sites/{site['id']}/env")).json() != []


async def test_a_value_is_in_no_answer_record_or_log(
    world: AppWorld, panel_database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    site = await world.site()
    answers = [await world.ada.call("PUT", f"/sites/{site['id']}/env", {"variables": {"TOKEN": SECRET}})]
    answers += [await world.ada.call("PUT", f"/sites/{site['id']}/env", {"variables": {"SVC_X": SECRET}})]
    await world.order(site, "start")
    answers += [await world.ada.get(f"/sites/{site['id']}/{path}") for path in ("env", "app", "")]
    rows = await world.panel.audit()
    stored = [str(dict(row)) for row in await panel_database.fetch("SELECT * FROM app_variables")]

    assert [answer.status_code for answer in answers[:2]] == [200, 400]
    assert [row["details"] for row in rows if row["operation"] == "app.env_set"] == [{"changed": ["TOKEN"]}, None]
    assert len(stored) == 1
    for told in (*(answer.text for answer in answers), str(rows), *stored, capsys.readouterr().out):
        assert SECRET not in told


async def test_a_sealed_value_that_is_moved_to_another_name_does_not_open(
    world: AppWorld, panel_database: Database
) -> None:
    site = await world.site()
    await put(world, site, TOKEN=SECRET)
    await panel_database.execute("UPDATE app_variables SET name = 'SHOWN'")

    failed = await world.ada.post(f"/sites/{site['id']}/app/start")

    assert failed.status_code == 503
    assert site["number"] not in world.apps.variables


@pytest.mark.parametrize(
    "variables",
    [
        {"1A": "x"},
        {"A-B": "x"},
        {"": "x"},
        {"SVC_APP_SOCKET": "x"},
        {"LISTEN_FDS": "x"},
        {"A": "x\x00y"},
        {"A": "x" * 16_385},
        {f"A{number}": "x" * 16_000 for number in range(5)},
        {f"A{number}": "x" for number in range(201)},
        {"A": 1},
    ],
    ids=["digit", "dash", "blank", "own", "systemd", "NUL", "long", "together", "many", "number"],
)
async def test_what_is_no_environment_is_refused_and_changes_nothing(
    world: AppWorld, variables: dict[str, Any]
) -> None:
    site = await world.site()
    await put(world, site, BEFORE="x")

    refused = await world.ada.call("PUT", f"/sites/{site['id']}/env", {"variables": variables})

    assert refused.status_code == 400
    assert [one["name"] for one in (await world.ada.get(f"/sites/{site['id']}/env")).json()] == ["BEFORE"]


async def test_they_are_of_applications_and_of_nobody_else(world: AppWorld) -> None:
    site = await world.site()
    static = (await world.ada.post("/sites", {"domain": "static.example.com", "type": "static"})).json()

    none = [
        await world.ada.get(f"/sites/{static['id']}/env"),
        await world.ada.call("PUT", f"/sites/{static['id']}/env", {"variables": {"A": "x"}}),
    ]
    foreign = [
        await world.bob.get(f"/sites/{site['id']}/env"),
        await world.bob.call("PUT", f"/sites/{site['id']}/env", {"variables": {"A": "x"}}),
    ]

    assert {answer.status_code for answer in none} == {409}
    assert {answer.status_code for answer in foreign} == {404}


async def test_what_comes_back_after_a_restart_of_the_core_has_them(panel_database: Database, tmp_path: Path) -> None:
    async with open_panel(panel_database, tmp_path, loops=["jobs", "web server"]) as panel:
        first = AppWorld(panel, await panel.customer("ada@example.com"), await panel.customer("bob@example.com"))
        site = (await first.ada.post("/sites", PYTHON)).json()
        await put(first, site, TOKEN="there")
        await first.order(site, "start")

    async with open_panel(panel_database, tmp_path, loops=["jobs", "web server"]) as panel:
        apps = cast(RecordedApps, panel.host.apps)
        await panel.step("applications of sites")

        assert apps.variables[site["number"]] == {"TOKEN": "there"}
