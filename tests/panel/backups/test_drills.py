"""Drills: a backup is restored where nobody reaches it, compared, and nothing of it is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from svc_actors.panel.backups.drill_records import end_drill
from svc_actors.panel.jobs import INTERRUPTED, JobStatus, get_job
from svc_common.errors import ServiceError, unavailable
from svc_webhost.databases import DatabaseName, EngineKind
from tests.support.recorded_databases import RecordedDatabases
from tests.support.restic import RecordedRestic
from tests.support.site_backups import Backed


async def drills(world: Backed) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await world.root.get("/backups/drills")).json()["items"]
    return found


async def alerts(world: Backed) -> list[str]:
    found = (await world.root.get("/alerts")).json()["items"]
    return [alert["message"] for alert in found]


async def with_database(world: Backed) -> RecordedDatabases:
    server = cast(RecordedDatabases, world.panel.host.databases[EngineKind.MARIADB])
    number = await world.panel.database.fetchval("SELECT number FROM sites WHERE id = $1", world.site)
    name = DatabaseName(f"s{number}_shop")
    await world.panel.database.execute(
        "INSERT INTO databases (site_id, engine, name, status) VALUES ($1, 'mariadb', $2, 'active')", world.site, name
    )
    await server.ensure()
    server.contents[name] = "INSERT INTO orders VALUES (7);"
    return server


async def test_a_drill_tries_all_of_a_backup_and_leaves_nothing(world: Backed) -> None:
    server = await with_database(world)
    await world.backup()
    before, databases = world.tree(), dict(server.contents)

    answer = await world.root.post("/backups/drills", {"site": str(world.site)})
    job = await world.done(answer)
    (drill,) = await drills(world)

    assert answer.json()["status"] == "queued"
    assert (drill["status"], drill["cause"], drill["domain"]) == ("succeeded", "manual", "ada.example.com")
    assert (drill["entries"], drill["databases"]) == (len(before), 1)
    assert [step["status"] for step in job["steps"]] == ["succeeded"] * 6
    assert len(server.loaded) == 1
    assert (world.tree(), server.contents) == (before, databases)
    assert world.left() == []


async def test_a_drill_that_finds_something_wrong_opens_an_alert_until_one_succeeds(
    world: Backed, restic: RecordedRestic
) -> None:
    await world.backup()

    def damage(tree: Path) -> None:
        (tree / "public" / "index.html").write_bytes(b"<h1>Adb</h1>")

    restic.damage = damage
    failed = await world.ended(await world.root.post("/backups/drills"))
    told = await alerts(world)
    restic.damage = lambda tree: None
    await world.done(await world.root.post("/backups/drills"))

    assert failed["status"] == "failed"
    assert [drill["status"] for drill in await drills(world)] == ["succeeded", "failed"]
    assert ["public/index.html: has another content" in message for message in told] == [True]
    assert await alerts(world) == []
    assert world.left() == []


async def test_a_database_that_is_another_once_it_is_loaded_fails_the_drill_and_is_removed(world: Backed) -> None:
    server = await with_database(world)
    await world.backup()
    held = set(server.contents)

    async def spoil(method: str) -> None:
        for name in set(server.contents) - held if method == "dump" else ():
            server.contents[name] = "INSERT INTO orders VALUES (8);"

    server.before = spoil
    job = await world.ended(await world.root.post("/backups/drills"))

    assert "differs from what was backed up after loading" in job["error"]["message"]
    assert set(server.contents) == held


async def test_there_are_never_two_drills_and_customers_begin_none(world: Backed, restic: RecordedRestic) -> None:
    nothing_there = await world.root.post("/backups/drills")
    await world.backup()
    begun, go_on = trio.Event(), trio.Event()

    async def before(command: str, location: str) -> None:
        begun.set()
        await go_on.wait()

    restic.before = before
    first = await world.root.post("/backups/drills")
    with trio.fail_after(60):
        await begun.wait()
    second = await world.root.post("/backups/drills")
    foreign = [await world.ada.post("/backups/drills"), await world.ada.get("/backups/drills")]
    go_on.set()

    assert nothing_there.status_code == 404
    assert second.status_code == 409
    assert [answer.status_code for answer in foreign] == [403, 403]
    assert (await world.ended(first))["status"] == "succeeded"


async def test_one_is_made_every_week_unless_that_is_off(world: Backed) -> None:
    await world.backup()
    database = world.panel.database
    due = "UPDATE backup_drill_plan SET next_run_at = now() - interval '1 minute'"
    await world.round()
    not_due = await drills(world)

    await database.execute(due)
    await world.root.call("PUT", "/backups/drills/plan", {"frequency": "off"})
    await world.round()
    off = await drills(world)
    await world.root.call("PUT", "/backups/drills/plan", {"frequency": "weekly"})
    await world.round()
    (made,) = await drills(world)
    await world.job(made["job_id"])
    plan = (await world.root.get("/backups/drills/plan")).json()
    later = await database.fetchval("SELECT next_run_at > now() + interval '6 days' FROM backup_drill_plan")

    assert (not_due, off) == ([], [])
    assert made["cause"] == "scheduled"
    assert (plan["frequency"], later) == ("weekly", True)


async def test_backups_of_deleted_sites_alone_are_not_tried_and_go_after_their_time(world: Backed) -> None:
    await world.done(await world.ada.delete(f"/sites/{world.site}", {"confirm": "ada.example.com"}))
    database = world.panel.database
    await database.execute("UPDATE backup_drill_plan SET next_run_at = now() - interval '1 minute'")
    await database.execute("UPDATE backup_repositories SET kept_until = now() - interval '1 second'")

    await world.round()
    later = await database.fetchval("SELECT next_run_at > now() + interval '6 days' FROM backup_drill_plan")

    assert (await drills(world), later) == ([], True)
    assert list((world.folder / "backups" / "repositories").iterdir()) == []


async def test_a_drill_that_cannot_be_ordered_holds_nothing_else_up(
    world: Backed, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.done(await world.ada.delete(f"/sites/{world.site}", {"confirm": "ada.example.com"}))
    await world.panel.database.execute("UPDATE backup_repositories SET kept_until = now() - interval '1 second'")

    async def refused(tx: object) -> None:
        raise unavailable("The drill says no.")

    monkeypatch.setattr("svc_actors.panel.backups.backups.start_due_drill", refused)
    failed = []
    for name, work in world.backups().rounds().items():
        try:
            await work()
        except ServiceError as error:
            failed.append((name, error.message))

    assert failed == [("drills of backups", "The drill says no.")]
    assert list((world.folder / "backups" / "repositories").iterdir()) == []


async def test_what_a_kill_left_of_a_drill_is_removed_and_it_is_made_again(world: Backed) -> None:
    server = await with_database(world)
    await world.backup()
    job = await world.ended(await world.root.post("/backups/drills"))
    scratch = DatabaseName("s1_drill4711x0")
    server.contents[scratch] = "half of it"
    database = world.panel.database
    await database.execute(
        """UPDATE backup_drills SET status = 'pending', ended_at = NULL, cause = 'scheduled',
                                    scratch = ARRAY['mariadb s1_drill4711x0']"""
    )
    killed = await get_job(database, job["id"])
    assert killed is not None

    await database.transact(lambda tx: end_drill(tx, replace(killed, status=JobStatus.FAILED, error=INTERRUPTED)))
    await world.round()
    again, first = await drills(world)
    await world.job(again["job_id"])

    assert (first["status"], first["error"]) == ("failed", INTERRUPTED.message)
    assert again["cause"] == "scheduled"
    assert scratch not in server.contents
    assert await alerts(world) == []


def spoil_index(tree: Path) -> None:
    (tree / "public" / "index.html").write_bytes(b"<h1>Adb</h1>")


async def test_the_success_of_another_site_does_not_close_the_alert_of_one(
    world: Backed, restic: RecordedRestic
) -> None:
    await world.backup()
    await world.done(await world.bob.post(f"/sites/{world.other_site}/backups"))
    restic.damage = spoil_index
    await world.ended(await world.root.post("/backups/drills", {"site": str(world.site)}))
    restic.damage = lambda tree: None

    await world.done(await world.root.post("/backups/drills", {"site": str(world.other_site)}))
    after_another = await alerts(world)
    await world.done(await world.root.post("/backups/drills", {"site": str(world.site)}))

    assert ["backup of ada.example.com failed its restore drill" in message for message in after_another] == [True]
    assert await alerts(world) == []


async def test_the_alert_of_a_site_goes_with_the_site(world: Backed, restic: RecordedRestic) -> None:
    await world.backup()
    restic.damage = spoil_index
    await world.ended(await world.root.post("/backups/drills"))
    told = await alerts(world)

    await world.done(await world.ada.delete(f"/sites/{world.site}", {"confirm": "ada.example.com"}))

    assert len(told) == 1
    assert await alerts(world) == []


async def test_a_scheduled_drill_that_somebody_cancelled_is_tried_again_the_next_day(
    world: Backed, restic: RecordedRestic
) -> None:
    await world.backup()
    database = world.panel.database
    begun = trio.Event()

    async def before(command: str, location: str) -> None:
        begun.set()
        await trio.sleep_forever()

    restic.before = before
    await database.execute("UPDATE backup_drill_plan SET next_run_at = now() - interval '1 minute'")
    await world.round()
    (made,) = await drills(world)
    with trio.fail_after(60):
        await begun.wait()
    cancelled = await world.root.post(f"/jobs/{made['job_id']}/cancel")
    job = await world.job(made["job_id"])
    hours = await database.fetchval("SELECT extract(epoch FROM next_run_at - now()) / 3600 FROM backup_drill_plan")

    assert (cancelled.status_code, job["status"]) == (200, "cancelled"), cancelled.text
    assert 23 < hours <= 24
    assert await alerts(world) == []
