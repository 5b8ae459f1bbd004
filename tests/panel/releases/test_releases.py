"""A newer release of the panel is shown, prepared next to the one that runs, and ordered to be tried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from svc_actors.panel.releases.manifest import FILE, ReleaseError
from svc_actors.panel.releases.own import OwnRelease
from svc_actors.panel.releases.watch import ReleaseWatch
from svc_actors.panel.releases.work import STEPS
from svc_actors.store import Database
from svc_webhost.releases.layout import Outcome
from tests.panel.releases.world import World, opened
from tests.support.own_releases import RUNNING
from tests.support.panel import open_panel, recorded_host


async def test_what_is_offered_is_shown_and_nothing_is_installed_by_looking(world: World) -> None:
    before = await world.show()
    manifest = world.offer()
    job = await world.ordered("look")
    after = await world.show()

    assert (before["running"]["version"], before["offered"], before["looked_at"]) == ("1.0.0", None, None)
    assert job["status"] == "succeeded"
    assert after["offered"]["version"] == "1.1.0"
    assert after["offered"]["problem"] is None
    assert after["offered"]["size"] == manifest.archive.size
    assert world.releases.names() == [RUNNING]


async def test_a_release_is_prepared_beside_what_runs_and_ordered_to_be_tried(world: World) -> None:
    manifest = world.offer()

    job = await world.ordered()
    shown = await world.settled()

    [name] = [each for each in world.releases.names() if each != RUNNING]
    taken = world.releases.take_order("this-boot")
    assert (job["status"], [step["name"] for step in job["steps"]]) == ("succeeded", list(STEPS))
    assert name == f"1.1.0-{manifest.archive.sha256[:12]}"
    assert taken is not None
    assert (taken.job, taken.release, taken.before) == (job["id"], name, RUNNING)
    assert world.begun == ["switch"]
    assert world.releases.current() == RUNNING
    assert (shown["last"]["state"], shown["job_id"]) == ("trial", job["id"])
    assert [each.name for each in world.releases.releases.iterdir() if ".part" in each.name] == []


async def test_a_release_that_is_kept_is_told_once_and_the_next_may_come(world: World) -> None:
    world.offer()
    job = await world.ordered()
    refused = await world.root.post("/updates/panel/install")
    ends(world, kept=True)

    shown = [await world.settled() for _ in range(2)][-1]

    assert refused.status_code == 409
    assert (shown["last"]["state"], shown["job_id"]) == ("kept", None)
    assert await world.told() == [
        {"job_id": job["id"], "packages": "svc-panel", "security": 0, "failed": 0, "silent_sites": 0}
    ]
    rows = await world.panel.database.fetch("SELECT details FROM audit WHERE operation = 'release.tried'")
    assert [row["details"]["kept"] for row in rows] == [True]


async def test_a_release_that_was_given_up_opens_an_alert_with_the_reason_until_one_is_kept(world: World) -> None:
    world.offer()
    await world.ordered()
    ends(world, kept=False, reason="its core does not start", silent=("a.example.com",))
    shown = await world.settled()
    alerts = await world.alerts()

    world.offer("1.2.0")
    await world.ordered()
    ends(world, kept=True)
    await world.settled()

    assert (shown["last"]["state"], shown["last"]["reason"]) == ("returned", "its core does not start")
    assert shown["last"]["silent_sites"] == ["a.example.com"]
    assert "its core does not start" in alerts[0]
    assert await world.alerts() == []
    assert len(await world.told()) == 1


def ends(world: World, *, kept: bool, reason: str | None = None, silent: tuple[str, ...] = ()) -> None:
    """As the program that switches ends a trial."""
    trial = world.releases.take_order("this-boot")
    assert trial is not None
    world.releases.write_outcome(Outcome(trial.job, trial.release, trial.before, kept, reason, silent))
    world.releases.end_trial()


async def test_where_the_program_that_switches_does_not_start_the_order_is_taken_back(
    panel_database: Database, tmp_path: Path, own: OwnRelease
) -> None:
    async def fail() -> None:
        raise ReleaseError("systemd does not answer")

    host = replace(recorded_host(), own_release=replace(own, begin_switch=fail))
    async with open_panel(
        panel_database,
        tmp_path,
        host,
        update_source=str(tmp_path / "offers"),
        loops=["jobs", "releases of the panel", "trials of releases"],
    ) as panel:
        world = World(panel, await panel.administrator(), tmp_path, own, [])
        world.offer()
        job = await world.ordered()
        shown = await world.settled()

    assert job["error"]["message"] == "The release was not started: systemd does not answer."
    assert not own.releases.ordered()
    assert (shown["last"]["state"], shown["job_id"]) == ("refused", None)


async def test_it_waits_for_other_jobs_and_is_not_tried_where_they_do_not_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc_actors.panel.releases.work._JOBS_SECONDS", 0.2)
    monkeypatch.setattr("svc_actors.panel.releases.work._PAUSE", 0.05)
    await world.panel.database.execute(
        """INSERT INTO jobs (kind, title, class, status, parameters, started_at)
           VALUES ('x', 'x', 'backups', 'running', '{}', now())"""
    )
    world.offer()

    job = await world.ordered()

    assert "Other jobs were still running" in job["error"]["message"]
    assert world.begun == []
    assert not world.releases.ordered()


async def test_an_order_that_a_core_left_behind_is_not_taken_up_by_the_next(
    panel_database: Database, tmp_path: Path, own: OwnRelease
) -> None:
    async with opened(panel_database, tmp_path, own) as world:
        world.offer()
        await world.ordered()
        assert world.releases.ordered()
    async with opened(panel_database, tmp_path, own, "other@example.com") as world:
        shown = await world.settled()

    assert not own.releases.ordered()
    assert (shown["last"]["state"], shown["job_id"]) == ("returned", None)
    assert "did not start" in shown["last"]["reason"]


async def test_while_updates_are_off_no_release_is_looked_for_or_installed(world: World) -> None:
    world.offer()
    await world.root.patch("/updates", {"mode": "off"})
    refused = [await world.root.post(f"/updates/panel/{order}") for order in ("look", "install")]
    await ReleaseWatch(world.panel.database, world.own, offered=True).look_daily()

    assert [answer.status_code for answer in refused] == [409, 409]
    assert await world.panel.database.fetchval("SELECT count(*) FROM jobs") == 0


async def test_where_a_source_is_named_it_is_looked_at_each_day_and_nothing_is_installed(world: World) -> None:
    world.offer()
    unnamed = ReleaseWatch(world.panel.database, world.own, offered=False)
    watch = ReleaseWatch(world.panel.database, world.own, offered=True)
    await unnamed.look_daily()
    none = await world.panel.database.fetchval("SELECT count(*) FROM jobs")
    for _ in range(2):
        await watch.look_daily()
    await world.panel.jobs_ended()
    await watch.look_daily()

    rows = await world.panel.database.fetch("SELECT kind FROM jobs")
    assert none == 0
    assert [row["kind"] for row in rows] == ["release.look"]
    assert (await world.show())["offered"]["version"] == "1.1.0"


async def test_a_daily_look_that_fails_is_shown_and_fails_no_job(world: World) -> None:
    (world.offers / FILE).write_text("rubbish")
    await ReleaseWatch(world.panel.database, world.own, offered=True).look_daily()
    [job] = (await world.root.get("/jobs")).json()["items"]
    ended = await world.ended(job)

    assert ended["status"] == "succeeded"
    assert "not signed by a key" in (await world.show())["look_error"]


async def test_a_panel_that_its_package_did_not_install_has_no_other_release(
    panel_database: Database, tmp_path: Path
) -> None:
    async with open_panel(
        panel_database, tmp_path, loops=["jobs", "releases of the panel", "trials of releases"]
    ) as panel:
        root = await panel.administrator()
        shown = (await root.get("/updates/panel")).json()
        refused = await root.post("/updates/panel/install")

    assert shown["running"] is None
    assert refused.status_code == 409


async def test_they_are_administrators_alone(world: World) -> None:
    ada = await world.panel.customer()
    answers = [await ada.get("/updates/panel"), await ada.post("/updates/panel/install")]

    assert {answer.status_code for answer in answers} == {403}
