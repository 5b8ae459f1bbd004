"""When tasks run, and when they do not: their times, overlaps, limits, suspensions, and restarts of the core."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from svc_actors.panel.schedules import scheduler
from svc_actors.panel.schedules.records import KEPT_RUNS, write_ended, write_started
from svc_actors.panel.schedules.scheduler import LONGEST_OUTPUT
from svc_actors.store import Database
from svc_webhost.site_tasks import SiteScript, SiteVisit, Take
from tests.panel.schedules.world import BEGIN, Held, ScheduleWorld, open_schedules
from tests.support.site_tasks import Task


async def test_a_task_runs_at_its_times(world: ScheduleWorld, clock: MockClock) -> None:
    made = await world.create()

    await world.pass_time(clock, minutes=5)
    await world.runs_once(made, "succeeded")
    await world.pass_time(clock, minutes=5)
    runs = await world.runs_once(made, "succeeded", "succeeded")
    following = (await world.ada.get(f"/schedules/{made['id']}")).json()["next_run_at"]

    assert [run["due_at"] for run in runs] == ["2026-11-22T12:10:00Z", "2026-11-22T12:05:00Z"]
    assert following == "2026-11-22T12:15:00Z"


async def test_a_url_is_asked_of_the_site_itself(world: ScheduleWorld) -> None:
    made = await world.create(kind="url", path="/wp-cron.php?doing_wp_cron")

    await world.ada.post(f"/schedules/{made['id']}/run")
    [run] = await world.runs_once(made, "succeeded")

    assert world.tasks.begun == [SiteVisit("ada.example.com", "/wp-cron.php?doing_wp_cron", secure=False)]
    assert run["exit_status"] == 200


async def test_what_never_stops_writing_is_stopped(world: ScheduleWorld) -> None:
    async def write(task: Task, take: Take) -> int:
        while True:
            await take(["y" * 1023] * 1024)

    world.tasks.act = write
    made = await world.create()

    await world.ada.post(f"/schedules/{made['id']}/run")
    [run] = await world.runs_once(made, "failed")
    output = (await world.ada.get(f"/schedules/{made['id']}/runs/{run['id']}")).json()["output"]

    assert output.splitlines()[-1] == "It wrote more than 16 MiB and was stopped."


async def test_what_is_disabled_does_not_run(world: ScheduleWorld, clock: MockClock) -> None:
    await world.create(enabled=False)
    other = await world.create(name="other")

    await world.pass_time(clock, minutes=5)
    await world.runs_once(other, "succeeded")

    assert len(world.tasks.begun) == 1


async def test_one_that_is_due_while_it_runs_is_skipped(world: ScheduleWorld, clock: MockClock) -> None:
    held = Held()
    world.tasks.act = held
    made = await world.create()

    await world.pass_time(clock, minutes=5)
    await world.until_begun()
    await world.pass_time(clock, minutes=5)
    await world.runs_once(made, "skipped", "running")
    by_hand = await world.ada.post(f"/schedules/{made['id']}/run")
    held.release.set()

    await world.runs_once(made, "skipped", "succeeded")
    assert by_hand.status_code == 409
    assert len(world.tasks.begun) == 1


async def test_one_that_takes_too_long_is_stopped(world: ScheduleWorld, clock: MockClock) -> None:
    world.tasks.act = Held()
    made = await world.create(time_limit_seconds=60)

    await world.ada.post(f"/schedules/{made['id']}/run")
    await world.until_begun()
    await world.pass_time(clock, seconds=61)
    [run] = await world.runs_once(made, "timed_out")
    log = (await world.ada.get(f"/schedules/{made['id']}/runs/{run['id']}")).json()

    assert world.tasks.cut == world.tasks.begun
    assert "longer than 60 seconds" in log["output"]


async def test_a_failure_is_told_with_the_end_of_what_was_written(world: ScheduleWorld) -> None:
    async def act(task: Task, take: Take) -> int:
        await take(["first line", *(["x" * 1000] * 100)])
        await take(["a \0 in it", "last line"])
        return 3

    world.tasks.act = act
    made = await world.create()

    await world.ada.post(f"/schedules/{made['id']}/run")
    [run] = await world.runs_once(made, "failed")
    output = (await world.ada.get(f"/schedules/{made['id']}/runs/{run['id']}")).json()["output"]

    assert run["exit_status"] == 3
    assert output.endswith("x\na \N{REPLACEMENT CHARACTER} in it\nlast line")
    assert "first line" not in output
    assert len(output) <= LONGEST_OUTPUT + 4


async def test_what_cannot_be_begun_has_failed_and_the_scheduler_goes_on(world: ScheduleWorld) -> None:
    async def act(task: Task, take: Take) -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    world.tasks.act = act
    made = await world.create()

    for statuses in (["failed"], ["failed", "failed"]):
        await world.ada.post(f"/schedules/{made['id']}/run")
        await world.runs_once(made, *statuses)

    [run, _] = await world.runs(made)
    assert run["exit_status"] is None


async def test_of_its_runs_the_last_are_kept(world: ScheduleWorld) -> None:
    made = await world.create()
    schedule, due = made["id"], BEGIN - timedelta(days=1)
    await world.panel.database.execute(
        """INSERT INTO schedule_runs (schedule_id, status, due_at, ended_at)
           SELECT $1, 'succeeded', $2, $2 FROM generate_series(1, $3)""",
        schedule,
        due,
        KEPT_RUNS,
    )

    asked = (await world.ada.post(f"/schedules/{schedule}/run")).json()
    await world.runs_once(made, *["succeeded"] * KEPT_RUNS)

    assert (await world.runs(made))[0]["id"] == asked["id"]


async def test_for_a_site_that_a_recovery_has_not_brought_back_nothing_begins_by_its_time(
    world: ScheduleWorld, clock: MockClock
) -> None:
    made = await world.create()
    await world.panel.database.execute("INSERT INTO recovery_sites (site_id) VALUES ($1)", world.site)
    await world.pass_time(clock, minutes=7)
    await next_due(world, made["id"], after="2026-11-22T12:05:00Z")
    lost = await world.runs(made)
    await world.panel.database.execute("UPDATE recovery_sites SET status = 'recovered', recovered_at = now()")
    await world.pass_time(clock, minutes=5)
    await world.runs_once(made, "succeeded")

    assert lost == []


async def test_for_a_suspended_site_nothing_runs_and_what_runs_is_ended(world: ScheduleWorld, clock: MockClock) -> None:
    world.tasks.act = Held()
    made = await world.create()
    await world.ada.post(f"/schedules/{made['id']}/run")
    await world.until_begun()

    await world.ada.post(f"/sites/{world.site}/suspend", {"suspended": True, "reason": "unpaid"})
    await world.runs_once(made, "stopped")
    by_hand = await world.ada.post(f"/schedules/{made['id']}/run")
    await world.pass_time(clock, minutes=7)
    due = await next_due(world, made["id"], after="2026-11-22T12:05:00Z")
    await world.ada.post(f"/sites/{world.site}/suspend", {"suspended": False})
    await world.pass_time(clock, minutes=5)
    await world.until_begun(2)

    assert world.tasks.cut == world.tasks.begun[:1]
    assert by_hand.status_code == 409
    assert due == "2026-11-22T12:10:00Z"
    assert [run["status"] for run in await world.runs(made)] == ["running", "stopped"]


async def next_due(world: ScheduleWorld, schedule_id: str, *, after: str) -> str:
    with trio.fail_after(60):
        while (due := (await world.ada.get(f"/schedules/{schedule_id}")).json()["next_run_at"]) == after:
            await trio.sleep(0.005)
    return str(due)


async def test_a_run_that_a_core_left_is_called_interrupted(panel_database: Database, tmp_path: Path) -> None:
    async with open_schedules(panel_database, tmp_path) as first:
        first.tasks.act = Held()
        made = await first.create()
        await first.ada.post(f"/schedules/{made['id']}/run")
        await first.until_begun()

    async with open_schedules(panel_database, tmp_path, at=BEGIN + timedelta(seconds=30)) as second:
        runs = await second.runs(made)

        assert [run["status"] for run in runs] == ["interrupted"]
        assert second.tasks.begun == []


async def test_what_a_restart_made_late_runs_once(panel_database: Database, tmp_path: Path) -> None:
    async with open_schedules(panel_database, tmp_path) as first:
        made = await first.create(cron="* * * * *")

    async with open_schedules(panel_database, tmp_path, at=BEGIN + timedelta(minutes=8)) as second:
        [run] = await second.runs_once(made, "succeeded")

        assert run["due_at"] == "2026-11-22T12:01:00Z"
        assert len(second.tasks.begun) == 1


async def test_what_was_due_long_ago_is_recorded_as_missed_and_not_made_up_for(
    panel_database: Database, tmp_path: Path
) -> None:
    async with open_schedules(panel_database, tmp_path) as first:
        made = await first.create(cron="5 * * * *")

    async with open_schedules(panel_database, tmp_path, at=BEGIN + timedelta(hours=5)) as second:
        [run] = await second.runs_once(made, "missed")
        following = (await second.ada.get(f"/schedules/{made['id']}")).json()["next_run_at"]

        assert run["due_at"] == "2026-11-22T12:05:00Z"
        assert following == "2026-11-22T17:05:00Z"
        assert second.tasks.begun == []


async def test_a_customer_with_many_tasks_leaves_room_for_another(world: ScheduleWorld) -> None:
    held = Held()
    world.tasks.act = held
    made = [await world.create(name=str(number), cron="0 0 1 1 *") for number in range(6)]

    for schedule in made:
        await world.ada.post(f"/schedules/{schedule['id']}/run")
    await world.until_begun(4)
    statuses = [(await world.runs(schedule))[0]["status"] for schedule in made]
    held.release.set()
    for schedule in made:
        await world.runs_once(schedule, "succeeded")

    assert sorted(statuses) == ["queued"] * 2 + ["running"] * 4
    assert len(world.tasks.begun) == 6


async def test_a_script_is_the_sites_own_and_has_its_limits(world: ScheduleWorld) -> None:
    await world.panel.database.execute("UPDATE sites SET memory_mib = 64, processes = 8")
    made = await world.create()

    await world.ada.post(f"/schedules/{made['id']}/run")
    await world.runs_once(made, "succeeded")
    [script] = world.tasks.begun
    number = await world.panel.database.fetchval("SELECT number FROM sites")

    assert isinstance(script, SiteScript)
    assert script.account.number == number
    assert (script.limits.memory_mib, script.limits.processes) == (64, 8)


async def waiting_behind_four(world: ScheduleWorld, held: Held) -> dict[str, Any]:
    """A task that was queued while its owner's places are taken."""
    world.tasks.act = held
    for name in ("one", "two", "three", "four"):
        other = await world.create(name=name, path=f"private/{name}.py")
        await world.ada.post(f"/schedules/{other['id']}/run")
    await world.until_begun(4)
    waiting = await world.create(name="late")
    await world.ada.post(f"/schedules/{waiting['id']}/run")
    await world.runs_once(waiting, "queued")
    return waiting


async def test_a_task_that_is_edited_while_it_waits_runs_as_edited(world: ScheduleWorld) -> None:
    held = Held()
    waiting = await waiting_behind_four(world, held)

    edited = await world.ada.patch(f"/schedules/{waiting['id']}", {"path": "private/new.py"})
    held.release.set()

    await world.runs_once(waiting, "succeeded")
    assert edited.status_code == 200, edited.text
    last = world.tasks.begun[-1]
    assert isinstance(last, SiteScript)
    assert last.path == "private/new.py"


async def test_a_task_that_is_disabled_while_it_waits_does_not_run(world: ScheduleWorld) -> None:
    held = Held()
    waiting = await waiting_behind_four(world, held)

    await world.ada.patch(f"/schedules/{waiting['id']}", {"enabled": False})
    held.release.set()

    await world.runs_once(waiting, "stopped")
    assert len(world.tasks.begun) == 4


async def test_a_run_whose_output_cannot_be_written_ends_without_it_and_its_task_goes_on(
    world: ScheduleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await world.create(), await world.create(name="second")
    real, failed = write_ended, trio.Event()

    async def fail_once(*arguments: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise ValueError("a text that no database takes")
        await real(*arguments)

    monkeypatch.setattr(scheduler, "write_ended", fail_once)
    await world.ada.post(f"/schedules/{first['id']}/run")
    await failed.wait()
    await world.ada.post(f"/schedules/{second['id']}/run")
    await world.runs_once(second, "succeeded")
    [run] = await world.runs_once(first, "succeeded")
    output = (await world.ada.get(f"/schedules/{first['id']}/runs/{run['id']}")).json()["output"]
    await world.ada.post(f"/schedules/{first['id']}/run")
    await world.runs_once(first, "succeeded", "succeeded")

    assert output == scheduler._NOT_RECORDED


async def test_a_run_that_cannot_be_recorded_pauses_and_is_not_started_anew(
    world: ScheduleWorld, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await world.create(), await world.create(name="second")
    starts, ends, started = list[int](), list[int](), trio.Event()

    async def start(tx: Any, run_id: int, *rest: Any) -> bool:
        starts.append(run_id)
        started.set()
        if run_id == starts[0]:
            raise ValueError("a defect")
        return await write_started(tx, run_id, *rest)

    async def end(tx: Any, run_id: int, *rest: Any) -> None:
        ends.append(run_id)
        if len(ends) == 1:
            raise ValueError("a defect")
        await write_ended(tx, run_id, *rest)

    monkeypatch.setattr(scheduler, "write_started", start)
    monkeypatch.setattr(scheduler, "write_ended", end)
    await world.ada.post(f"/schedules/{first['id']}/run")
    await started.wait()
    await world.ada.post(f"/schedules/{second['id']}/run")
    await world.runs_once(second, "succeeded")
    await world.pass_time(clock, seconds=31)
    await world.runs_once(first, "failed")

    assert len(starts) == len(set(starts)) == 2
    assert ends.count(starts[0]) == 2
    assert len(world.tasks.begun) == 1
