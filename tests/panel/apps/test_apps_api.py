"""Applications by the API: what is served, their starts and stops, and what becomes of them with their site."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from svc_actors.store import Database
from svc_webhost.apps import AppInterface
from svc_webhost.nginx import App as ServedApp
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel
from tests.support.served import RecordedServing
from tests.support.site_apps import RecordedApps

PYTHON = {"domain": "app.example.com", "type": "app", "runtime": "python", "entry": "app:application"}


@dataclass
class AppWorld:
    panel: PanelHarness
    ada: Client
    bob: Client

    @property
    def apps(self) -> RecordedApps:
        return cast(RecordedApps, self.panel.host.apps)

    async def site(self, **values: Any) -> dict[str, Any]:
        answer = await self.ada.post("/sites", PYTHON | values)
        assert answer.status_code == 201, answer.text
        return cast(dict[str, Any], answer.json())

    async def order(self, site: dict[str, Any], action: str) -> dict[str, Any]:
        answer = await self.ada.post(f"/sites/{site['id']}/app/{action}")
        assert answer.status_code == 200, answer.text
        return cast(dict[str, Any], answer.json())

    async def look(self) -> None:
        """The panel compares the records with what runs, and what it starts and stops is done."""
        await self.panel.step("applications of sites")


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[AppWorld]:
    async with open_panel(panel_database, tmp_path, loops=["jobs", "web server"]) as panel:
        yield AppWorld(panel, await panel.customer("ada@example.com"), await panel.customer("bob@example.com"))


async def test_a_site_is_served_by_its_application_once_that_is_started(world: AppWorld) -> None:
    site = await world.site(interface="asgi", folder="private/shop", health_path="/health")
    before = (await world.ada.get(f"/sites/{site['id']}/app")).json()

    started = await world.order(site, "start")
    again = await world.order(site, "start")
    served = cast(RecordedServing, world.panel.host.web).sites[site["number"]].serves
    app = world.apps.live[site["number"]]

    assert (before["state"], before["release"]) == ("stopped", None)
    assert (started["state"], started["release"], again["release"]) == ("running", 1, 1)
    assert isinstance(served, ServedApp)
    assert served.socket.endswith(f"/run/apps/{site['account']}.sock")
    assert (app.interface, app.folder, app.health_path) == (AppInterface.ASGI, "private/shop", "/health")


async def test_a_restart_is_a_release_of_its_own_and_the_one_before_is_stopped(world: AppWorld) -> None:
    site = await world.site()
    await world.order(site, "start")
    changed = await world.ada.patch(f"/sites/{site['id']}/app", {"entry": "shop.wsgi:application"})
    unchanged = world.apps.live[site["number"]].entry

    restarted = await world.order(site, "restart")
    await world.look()

    assert changed.json()["entry"] == "shop.wsgi:application"
    assert unchanged == "app:application"
    assert restarted["release"] == 2
    assert world.apps.releases[site["number"]] == {2}
    assert world.apps.live[site["number"]].entry == "shop.wsgi:application"


async def test_one_that_does_not_start_leaves_what_runs_and_says_why(world: AppWorld) -> None:
    site = await world.site()
    await world.order(site, "start")
    world.apps.refuses = "It ended: ModuleNotFoundError"

    failed = await world.ada.post(f"/sites/{site['id']}/app/restart")
    shown = (await world.ada.get(f"/sites/{site['id']}/app")).json()
    world.apps.refuses = None
    mended = await world.order(site, "restart")

    assert failed.status_code == 503
    assert "ModuleNotFoundError" in failed.json()["error"]["message"]
    assert (shown["state"], shown["release"], shown["problem"]) == ("running", 1, "It ended: ModuleNotFoundError")
    assert (mended["release"], mended["problem"]) == (3, None)


async def test_a_first_start_that_fails_leaves_it_stopped(world: AppWorld) -> None:
    site = await world.site()
    world.apps.refuses = "There is no app.py"

    failed = await world.ada.post(f"/sites/{site['id']}/app/start")
    shown = (await world.ada.get(f"/sites/{site['id']}/app")).json()

    assert failed.status_code == 503
    assert (shown["state"], shown["problem"]) == ("stopped", "There is no app.py")


async def test_a_stop_sends_visitors_away_and_ends_it(world: AppWorld) -> None:
    site = await world.site()
    await world.order(site, "start")

    stopped = await world.order(site, "stop")
    hidden = site["number"] not in world.apps.live
    await world.look()

    assert (stopped["state"], stopped["release"]) == ("stopped", None)
    assert not world.apps.releases[site["number"]]
    assert hidden


async def test_while_its_site_is_suspended_it_is_stopped_and_comes_back_with_it(world: AppWorld) -> None:
    site = await world.site()
    await world.order(site, "start")

    await world.ada.post(f"/sites/{site['id']}/suspend", {"suspended": True, "reason": "unpaid"})
    await world.look()
    suspended = set(world.apps.releases[site["number"]])
    refused = await world.ada.post(f"/sites/{site['id']}/app/restart")
    await world.ada.post(f"/sites/{site['id']}/suspend", {"suspended": False})
    await world.look()

    assert suspended == set()
    assert refused.status_code == 409
    assert world.apps.releases[site["number"]] == {1}


async def test_with_its_site_it_is_deleted(world: AppWorld) -> None:
    site = await world.site()
    await world.order(site, "start")

    job = (await world.ada.delete(f"/sites/{site['id']}", {"confirm": site["domain"]})).json()
    await world.panel.job_ended(job["id"])
    await world.look()

    assert not world.apps.releases.get(site["number"])
    assert site["number"] not in world.apps.live


async def test_after_a_restart_of_the_core_what_shall_run_runs(panel_database: Database, tmp_path: Path) -> None:
    async with open_panel(panel_database, tmp_path, loops=["applications of sites", "jobs", "web server"]) as panel:
        first = AppWorld(panel, await panel.customer("ada@example.com"), await panel.customer("bob@example.com"))
        site = await first.site()
        await first.order(site, "start")

    async with open_panel(panel_database, tmp_path, loops=["applications of sites", "jobs", "web server"]) as panel:
        apps = cast(RecordedApps, panel.host.apps)
        with trio.fail_after(60):
            await apps.went_over.wait()

        assert apps.live[site["number"]].release == 1


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"entry": "app"}, "entry"),
        ({"entry": "--help:x"}, "entry"),
        ({"entry": "../app:application"}, "entry"),
        ({"entry": "os:system('id')"}, "entry"),
        ({"runtime": "node", "entry": "app:application"}, "entry"),
        ({"runtime": "node", "entry": "-e.js"}, "entry"),
        ({"runtime": "node", "entry": "/etc/x.js"}, "entry"),
        ({"runtime": "ruby"}, "runtime"),
        ({"runtime": None}, "runtime"),
        ({"folder": "../s1002"}, "folder"),
        ({"health_path": "/a b"}, "health_path"),
        ({"type": "static"}, "runtime"),
    ],
)
async def test_what_is_no_application_is_refused(world: AppWorld, values: dict[str, Any], field: str) -> None:
    answer = await world.ada.post("/sites", PYTHON | values)

    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]
    assert (await world.ada.get("/sites")).json()["items"] == []


async def test_a_site_of_another_type_has_none_and_anothers_is_not_there(world: AppWorld) -> None:
    site = await world.site()
    static = (await world.ada.post("/sites", {"domain": "static.example.com", "type": "static"})).json()

    none = await world.ada.post(f"/sites/{static['id']}/app/start")
    foreign = [
        await world.bob.get(f"/sites/{site['id']}/app"),
        await world.bob.get(f"/sites/{site['id']}/app/logs"),
        await world.bob.patch(f"/sites/{site['id']}/app", {"entry": "mine:app"}),
        *[await world.bob.post(f"/sites/{site['id']}/app/{action}") for action in ("start", "stop", "restart")],
    ]

    assert none.status_code == 409
    assert {answer.status_code for answer in foreign} == {404}


async def test_what_it_wrote_is_read_on_from_a_cursor(world: AppWorld, tmp_path: Path) -> None:
    site = await world.site()
    folder = tmp_path / "logs" / "sites" / site["account"]
    folder.mkdir(parents=True)
    (folder / "app.log").write_text("booted\n")

    first = (await world.ada.get(f"/sites/{site['id']}/app/logs")).json()
    with (folder / "app.log").open("a") as log:
        log.write("a warning\n")
    then = (await world.ada.get(f"/sites/{site['id']}/app/logs?after={first['cursor']}")).json()
    sources = (await world.ada.get(f"/sites/{site['id']}/logs/sources")).json()

    assert (first["lines"], then["lines"]) == (["booted"], ["a warning"])
    assert "app" in {source["source"] for source in sources}


async def test_its_orders_are_audited(world: AppWorld) -> None:
    site = await world.site()
    for action in ("start", "restart", "stop"):
        await world.order(site, action)
    await world.ada.patch(f"/sites/{site['id']}/app", {"entry": "b:app"})

    rows = [row["operation"] for row in await world.panel.audit() if row["operation"].startswith("app.")]

    assert rows == ["app.start", "app.restart", "app.stop", "app.update"]
