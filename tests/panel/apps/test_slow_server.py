"""A server that takes longer than a request may wait: what was asked for goes on, and whoever asked is told so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from svc.panel.services import PanelLoop
from svc_actors.panel import host_work
from svc_actors.panel.host_work import HostWork
from svc_actors.store import Database
from svc_webhost.apps import App, AppError
from tests.panel.apps.test_apps_api import PYTHON
from tests.support.harness import Client
from tests.support.panel import PanelHarness, open_panel, recorded_host
from tests.support.site_apps import RecordedApps

ACTOR_ALERTS = "SELECT count(*) FROM alerts WHERE key LIKE 'actor:%'"


@dataclass
class SlowApps(RecordedApps):
    """Each start runs the release, waits for `answers`, and fails if it was stopped meanwhile."""

    began: trio.Event = field(default_factory=trio.Event)
    answers: trio.Event = field(default_factory=trio.Event)
    asked: int = 0

    async def start(self, app: App, variables: Mapping[str, str]) -> None:
        self.asked += 1
        self.began.set()
        await super().start(app, variables)
        await self.answers.wait()
        if app.release not in self.releases[app.account.number]:
            raise AppError("It was stopped while it started.")


@dataclass
class SlowWorld:
    panel: PanelHarness
    ada: Client
    apps: SlowApps
    site: dict[str, Any]

    async def app(self) -> dict[str, Any]:
        return cast(dict[str, Any], (await self.ada.get(f"/sites/{self.site['id']}/app")).json())


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SlowWorld]:
    apps = SlowApps()
    host = replace(recorded_host(), apps=apps)
    loops: Collection[PanelLoop] = ("alerts of actors", "applications of sites", "jobs", "web server")
    async with open_panel(panel_database, tmp_path, host, loops=loops) as panel:
        ada = await panel.customer("ada@example.com")
        made = await ada.post("/sites", PYTHON)
        monkeypatch.setattr(host_work, "HOST_PATIENCE", 0.05)
        yield SlowWorld(panel, ada, apps, made.json())


async def test_a_restart_that_takes_long_is_told_so_and_is_no_failure_of_the_service(
    world: SlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [await world.ada.post(f"/sites/{world.site['id']}/app/restart") for _ in range(8)]
    told = [answer.json()["error"] for answer in answers]

    assert {answer.status_code for answer in answers} == {503}
    assert {error["code"] for error in told} == {"unavailable"}
    for error in told:
        assert "has not finished" in error["message"]
        assert "SiteApp" not in str(error)
        assert world.site["id"] not in str(error)
    assert await world.panel.database.fetchval(ACTOR_ALERTS) == 0

    monkeypatch.undo()
    world.apps.answers.set()
    taken = await world.ada.post(f"/sites/{world.site['id']}/app/restart")
    assert taken.status_code == 200, taken.text
    # The orders that came while it was busy are one start more, not one for each.
    assert world.apps.asked <= 3


async def test_an_order_is_decided_while_the_server_still_carries_out_the_one_before(
    world: SlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_work, "HOST_PATIENCE", 60.0)
    answers: dict[str, int] = {}

    async def order(what: str) -> None:
        answers[what] = (await world.ada.post(f"/sites/{world.site['id']}/app/{what}")).status_code

    async with trio.open_nursery() as nursery:
        nursery.start_soon(order, "start")
        with trio.fail_after(60):
            while not world.apps.asked:
                await trio.sleep(0.005)
            nursery.start_soon(order, "stop")
            while await world.panel.database.fetchval("SELECT wanted_release FROM site_apps") is not None:
                await trio.sleep(0.005)
        under_way = dict(answers)
        world.apps.answers.set()

    assert under_way == {}
    assert answers == {"start": 200, "stop": 200}


async def test_a_release_that_is_starting_is_not_stopped_when_another_is_ordered_meanwhile(world: SlowWorld) -> None:
    number = world.site["number"]
    await world.ada.post(f"/sites/{world.site['id']}/app/restart")
    with trio.fail_after(60):
        await world.apps.began.wait()
    await world.ada.post(f"/sites/{world.site['id']}/app/restart")

    await world.panel.step("applications of sites")
    while_it_starts = set(world.apps.releases[number])
    world.apps.answers.set()
    with trio.fail_after(60):
        while world.apps.releases[number] != {2}:
            await world.panel.step("applications of sites")

    assert while_it_starts == {1}
    assert world.apps.live[number].release == 2
    assert (await world.app())["problem"] is None


async def test_a_stop_that_comes_while_it_starts_is_the_last_word(world: SlowWorld) -> None:
    started = await world.ada.post(f"/sites/{world.site['id']}/app/start")
    stopped = await world.ada.post(f"/sites/{world.site['id']}/app/stop")
    world.apps.answers.set()
    with trio.fail_after(60):
        while (await world.app())["state"] != "stopped" or world.apps.releases[world.site["number"]]:
            await trio.sleep(0.005)

    assert (started.status_code, stopped.status_code) == (503, 503)
    assert world.site["number"] not in world.apps.live


async def test_a_start_under_way_gets_time_to_end_when_the_service_stops(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps, drain = SlowApps(), HostWork.drain

    async def answer_when_drained(self: HostWork, deadline: float) -> None:
        apps.answers.set()
        await drain(self, deadline)

    monkeypatch.setattr(HostWork, "drain", answer_when_drained)
    async with open_panel(panel_database, tmp_path, replace(recorded_host(), apps=apps), loops=["web server"]) as panel:
        ada = await panel.customer("ada@example.com")
        site = (await ada.post("/sites", PYTHON)).json()
        monkeypatch.setattr(host_work, "HOST_PATIENCE", 0.05)
        await ada.post(f"/sites/{site['id']}/app/start")
        with trio.fail_after(60):
            await apps.began.wait()

    assert await panel_database.fetchval("SELECT live_release FROM site_apps") == 1
