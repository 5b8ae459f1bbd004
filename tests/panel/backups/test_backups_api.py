"""Backups over the API: made in steps, seen by their owner alone, and complete or not there."""

from __future__ import annotations

import os

import trio

from svc_actors.panel.jobs.queue import MOST_WAITING_OF_SITE
from tests.support.restic import RecordedRestic, failing
from tests.support.site_backups import Backed
from tests.support.site_files import give

STEPS = [
    *("plan", "manifest", "reserve_disk", "dump_databases", "verify_dumps"),
    *("snapshot", "check", "copy", "retention"),
]


async def test_a_backup_is_a_job_whose_steps_are_seen_and_ends_as_a_completed_backup(world: Backed) -> None:
    answer = await world.ada.post(f"/sites/{world.site}/backups")
    job = await world.ended(answer)
    backup = await world.newest()

    assert answer.status_code == 200
    assert answer.json()["status"] == "queued"
    assert [step["name"] for step in job["steps"]] == STEPS
    assert job["status"] == "succeeded"
    assert (backup["status"], backup["cause"], backup["files"]) == ("completed", "manual", 3)
    assert backup["bytes"] == len("<h1>Ada</h1>") + 256 + len("hush")
    assert await world.events() == ["backup.completed"]
    assert world.left() == []


async def test_what_is_no_file_of_the_sites_is_left_out_and_named(world: Backed) -> None:
    os.mkfifo(world.home.path / "public" / "pipe")

    job = await world.ended(await world.ada.post(f"/sites/{world.site}/backups"))
    lines = (await world.ada.get(f"/jobs/{job['id']}/log")).json()

    assert job["status"] == "succeeded"
    assert any("public/pipe" in line["message"] for line in lines)


async def test_what_an_import_has_in_a_site_until_it_is_used_is_in_no_backup(
    world: Backed, restic: RecordedRestic
) -> None:
    give(world.home, "private/.svc-import/files/public/index.html", b"not judged")
    give(world.home, "private/.svc-import/shop.sql", b"a dump")
    await world.backup()

    (tree,) = restic.trees.values()
    assert {"private/secret.txt"} == {name for name in tree["files"] if name.startswith("private/")}
    assert not any(".svc-import" in entry["p"] for entry in tree["listed"])


async def test_a_second_backup_of_a_site_is_refused_while_one_is_pending(world: Backed) -> None:
    await world.panel.database.execute(
        "INSERT INTO backup_repositories (site_id, domain, sealed_key) VALUES ($1, 'ada.example.com', '\\x00')",
        world.site,
    )
    await world.panel.database.execute(
        """INSERT INTO jobs (kind, title, class, site_id, status, started_at)
           VALUES ('test', 'test', 'backups', $1, 'running', now())""",
        world.site,
    )
    await world.panel.database.execute(
        """INSERT INTO site_backups (repository_id, cause, job_id)
           SELECT backup_repositories.id, 'manual', jobs.id FROM backup_repositories, jobs WHERE kind = 'test'"""
    )

    answer = await world.ada.post(f"/sites/{world.site}/backups")

    job = await world.panel.database.fetchval("SELECT id FROM jobs WHERE kind = 'test'")
    assert answer.status_code == 409
    assert answer.json()["error"]["hint"] == f"Follow its job, {job}."


async def test_a_customer_sees_and_touches_their_own_backups_alone(world: Backed) -> None:
    backup = await world.backup()
    path = f"/backups/{backup['id']}"

    foreign = [
        await world.bob.get(path),
        await world.bob.delete(path),
        await world.bob.post(f"{path}/restore"),
        await world.bob.post(f"/sites/{world.site}/backups"),
        await world.bob.get(f"/sites/{world.site}/backups/schedule"),
    ]

    assert [answer.status_code for answer in foreign] == [404] * 5
    assert (await world.bob.get("/backups")).json()["total"] == 0
    assert (await world.ada.get("/backups")).json()["total"] == 1


async def test_a_backup_that_fails_anywhere_says_why_and_leaves_nothing_that_looks_complete(
    world: Backed, restic: RecordedRestic
) -> None:
    for command in ("scan", "backup", "settle", "check"):
        restic.before = failing(command)

        job = await world.ended(await world.ada.post(f"/sites/{world.site}/backups"))
        backup = await world.newest()

        assert job["status"] == "failed"
        assert "the disk says no" in job["error"]["message"]
        assert (backup["status"], backup["error"]) == ("failed", job["error"]["message"])
        assert not any("complete" in tags for held in restic.repositories.values() for tags in held.values())
        assert world.left() == []
    assert await world.events() == ["backup.failed"] * 4


async def test_what_a_failed_backup_left_is_gone_with_the_next_one(world: Backed, restic: RecordedRestic) -> None:
    restic.before = failing("check")
    await world.ended(await world.ada.post(f"/sites/{world.site}/backups"))
    restic.before = failing("nothing")

    await world.backup()

    (repository,) = restic.repositories.values()
    assert len(repository) == 1


async def test_a_repository_is_checked_once_a_day_and_after_each_backup_that_failed(
    world: Backed, restic: RecordedRestic
) -> None:
    checked: list[str] = []

    async def before(command: str, location: str) -> None:
        checked.extend([command] if command == "check" else [])

    restic.before = before
    await world.backup()
    await world.backup()
    restic.before = failing("settle")
    await world.ended(await world.ada.post(f"/sites/{world.site}/backups"))
    restic.before = before
    await world.backup()

    assert len(checked) == 2


async def test_a_site_that_is_changed_while_it_is_backed_up_has_a_manifest_of_its_own_and_comes_back(
    world: Backed, restic: RecordedRestic
) -> None:
    restic.busy = True
    before = world.tree()
    backup = await world.backup()
    (world.home.path / "public" / "index.html").write_bytes(b"defaced")

    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore"))

    assert [("manifest" in tags) for tags in restic.held(next(iter(restic.repositories)))] == [False, True]
    assert world.tree() == before


async def test_a_backup_that_is_deleted_is_gone_from_the_repository_and_from_the_list(
    world: Backed, restic: RecordedRestic
) -> None:
    backup = await world.backup()

    job = await world.ended(await world.ada.delete(f"/backups/{backup['id']}"))

    assert job["status"] == "succeeded"
    assert (await world.ada.get("/backups")).json()["total"] == 0
    assert [held for held in restic.repositories.values() if held] == []


async def test_a_backup_whose_job_a_restart_ended_has_failed_and_says_so(world: Backed) -> None:
    await world.backup()
    row = await world.panel.database.fetchrow("SELECT repository_id FROM site_backups")
    assert row is not None
    await world.panel.database.execute(
        "INSERT INTO site_backups (repository_id, cause, job_id) VALUES ($1, 'final', 4711)", row["repository_id"]
    )

    await world.round()
    backup = await world.newest()

    assert (backup["status"], backup["error"]) == ("failed", "interrupted: core restarted")


async def test_no_site_fills_the_queue_and_others_are_taken_meanwhile(world: Backed, restic: RecordedRestic) -> None:
    backup = await world.backup()
    path, begun, go_on = f"/backups/{backup['id']}/restore", trio.Event(), trio.Event()

    async def before(command: str, location: str) -> None:
        begun.set()
        await go_on.wait()

    restic.before = before
    running = await world.ada.post(path, {"path": "public"})
    with trio.fail_after(60):
        await begun.wait()
    waiting = [await world.ada.post(path, {"path": "public"}) for _ in range(MOST_WAITING_OF_SITE)]

    refused = await world.ada.post(path, {"path": "public"})
    other = await world.bob.post(f"/sites/{world.other_site}/backups")
    go_on.set()
    jobs = [await world.ended(answer) for answer in (running, *waiting, other)]
    taken = await world.ended(await world.ada.post(path, {"path": "public"}))

    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limited"
    assert "10 jobs of this site are already queued" in refused.json()["error"]["message"]
    assert {job["status"] for job in (*jobs, taken)} == {"succeeded"}
