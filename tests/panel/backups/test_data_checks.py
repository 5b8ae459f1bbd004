"""The data of backups is read in shares, here and at targets; damage opens an alert until the share passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.panel.backups import data_check
from svc_actors.panel.backups.data_check_records import end_data_check, parts_of, round_parts, share_of
from svc_actors.panel.jobs import INTERRUPTED, get_job
from svc_common.errors import unavailable
from tests.panel.backups.test_targets import SERVER
from tests.support.restic import RecordedRestic, failing
from tests.support.site_backups import Backed

DUE = "UPDATE backup_data_checks SET next_run_at = now() - interval '1 minute'"


async def week(world: Backed) -> None:
    """All that is due in a week, job by job."""
    await world.panel.database.execute(DUE)
    await rounds(world)


async def rounds(world: Backed) -> None:
    while True:
        before = len(await world.jobs("backup.check_data"))
        await world.round()
        await world.quiet()
        if len(await world.jobs("backup.check_data")) == before:
            return


async def listed(world: Backed) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await world.root.get("/backups/data")).json()["items"]
    return found


async def alerts(world: Backed) -> list[str]:
    return [alert["message"] for alert in (await world.root.get("/alerts")).json()["items"]]


async def with_target(world: Backed) -> str:
    path = world.folder.parent / f"{world.folder.name}-disk"
    path.mkdir()
    (await world.root.post("/backups/targets/local", {"name": "disk", "path": str(path)})).raise_for_status()
    return str(path)


def test_parts_of_a_share_are_its_packs_and_few_enough_for_restic() -> None:
    packs = range(256)
    for parts in (4, 8, 12, 256):
        for share in range(1, 5):
            of_parts = {pack for part in round_parts(parts, [share]) for pack in packs if pack % parts == part - 1}
            assert of_parts == {pack for pack in packs if pack % 4 == share - 1}
    sizes = (0, 1, 4 << 30, 17 << 30, 1 << 40, 1 << 50)
    assert [parts_of(size, 4 << 30) for size in sizes] == [4, 4, 4, 8, 256, 256]
    assert [share_of(part) for part in (1, 4, 5, 256)] == [1, 4, 1, 4]


async def test_four_weeks_read_everything_here_and_at_each_target(world: Backed, restic: RecordedRestic) -> None:
    await with_target(world)
    (await world.root.post("/backups/targets/sftp", SERVER)).raise_for_status()
    await world.backup()
    await world.round()
    soon = await world.panel.database.fetchval(
        "SELECT bool_and(next_run_at BETWEEN now() AND now() + interval '7 days') FROM backup_data_checks"
    )
    at_once = list(restic.read)

    for _ in range(4):
        await week(world)
    places = {location for location, _, _ in restic.read}

    assert (soon, at_once) == (True, [])
    assert len(places) == 3
    for place in places:
        assert [part for location, part, _ in restic.read if location == place] == [1, 2, 3, 4]
    shown = {row["target"]: (row["share"], row["damaged"], row["error"]) for row in await listed(world)}
    assert shown == dict.fromkeys((None, "disk", "nas"), (1, [], None))
    assert world.left() == []
    assert not (world.folder / "backups" / "data").exists()


async def test_damage_opens_an_alert_until_the_share_passes(world: Backed, restic: RecordedRestic) -> None:
    disk = await with_target(world)
    await world.backup()
    await world.round()
    [at_disk] = [location for location in restic.repositories if location.startswith(disk)]
    restic.rotten = {(at_disk, 1)}

    await week(world)
    told = await alerts(world)
    await week(world)
    still = await alerts(world)
    reread = [part for location, part, _ in restic.read if location == at_disk]
    restic.rotten = set()
    (await world.root.post(f"/sites/{world.site}/backups/data-check")).raise_for_status()
    await rounds(world)

    [message] = told
    for words in (
        "ada.example.com",
        "at disk",
        at_disk,
        "5f5f5f5f",
        "share 1 of 4",
        "this server",
        "Remove that folder",
    ):
        assert words in message
    assert still == told
    assert reread == [1, 1, 2]
    assert await alerts(world) == []
    assert [row["damaged"] for row in await listed(world)] == [[], []]


async def test_damage_on_this_server_says_which_copies_are_whole(world: Backed, restic: RecordedRestic) -> None:
    await with_target(world)
    await world.backup()
    await world.round()
    [here] = [location for location in restic.repositories if "/repositories/" in location]
    restic.rotten = {(here, 1)}

    await week(world)

    [message] = await alerts(world)
    assert f"on this server ({here})" in message
    assert "No damage is known of the copies on disk." in message
    assert "docs/site-backups.md" in message


async def test_a_copy_without_a_named_pack_is_not_to_be_removed(world: Backed, restic: RecordedRestic) -> None:
    disk = await with_target(world)
    await world.backup()
    await world.round()
    [at_disk] = [location for location in restic.repositories if location.startswith(disk)]
    restic.rotten, restic.says = {(at_disk, 1)}, "restic names the tree c649d543"

    await week(world)

    [message] = await alerts(world)
    assert "Remove" not in message
    assert "docs/site-backups.md" in message


async def test_a_target_that_does_not_answer_is_no_damage_and_is_tried_the_next_day(
    world: Backed, restic: RecordedRestic
) -> None:
    disk = await with_target(world)
    await world.backup()
    await world.round()
    restic.before = failing("read_data", at=disk)

    await week(world)

    database = world.panel.database
    hours = await database.fetchval(
        "SELECT extract(epoch FROM next_run_at - now()) / 3600 FROM backup_data_checks WHERE target_id IS NOT NULL"
    )
    errors = [row["error"] for row in await listed(world) if row["target"] == "disk"]
    assert await alerts(world) == []
    assert 23 < hours <= 24
    assert "the disk says no" in errors[0]


async def test_a_large_repository_is_read_in_parts_and_goes_on_after_a_restart(
    world: Backed, restic: RecordedRestic, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.backup()
    [here] = restic.repositories
    (Path(here) / "pack").write_bytes(bytes(9 * 1024))
    monkeypatch.setattr(data_check, "PART_BYTES", 1024)
    database = world.panel.database
    await world.round()
    await database.execute(DUE)
    await world.round()
    await world.quiet()
    # The job of the second part is cut short by a restart.
    begun = trio.Event()

    async def hang(command: str, location: str) -> None:
        if command == "read_data":
            begun.set()
            await trio.sleep_forever()

    restic.before = hang
    await world.round()
    with trio.fail_after(60):
        await begun.wait()
    [job] = [job for job in await world.jobs("backup.check_data") if job["status"] == "running"]
    await world.root.post(f"/jobs/{job['id']}/cancel")
    await world.quiet()
    held = await database.fetchrow("SELECT unread, error FROM backup_data_checks")
    await database.execute(DUE)
    restic.before = failing("nothing")
    await rounds(world)

    assert held is not None
    assert (list(held["unread"]), held["error"]) == ([5, 9], "It was cancelled.")
    assert [(part, parts) for _, part, parts in restic.read] == [(1, 12), (5, 12), (9, 12)]


async def test_an_order_during_a_round_begins_anew_and_closes_the_alert(
    world: Backed, restic: RecordedRestic, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.backup()
    [here] = restic.repositories
    (Path(here) / "pack").write_bytes(bytes(9 * 1024))
    monkeypatch.setattr(data_check, "PART_BYTES", 1024)
    restic.rotten = {(here, 1)}
    await world.round()
    await world.panel.database.execute(DUE)
    await world.round()
    await world.quiet()
    open_before = len(await alerts(world))
    restic.rotten = set()
    # The order comes while the second of the three parts is read.
    begun, ordered = trio.Event(), trio.Event()

    async def hold(command: str, location: str) -> None:
        if command == "read_data":
            begun.set()
            await ordered.wait()

    restic.before = hold
    await world.round()
    with trio.fail_after(60):
        await begun.wait()
    (await world.root.post(f"/sites/{world.site}/backups/data-check")).raise_for_status()
    ordered.set()
    await world.quiet()
    still = len(await alerts(world))
    await rounds(world)

    assert (open_before, still) == (1, 1)
    assert [part for _, part, _ in restic.read] == [1, 5, 1, 5, 9]
    assert await alerts(world) == []
    assert [(row["share"], row["damaged"]) for row in await listed(world)] == [(2, [])]


async def test_an_order_during_a_reading_that_fails_is_not_lost(world: Backed, restic: RecordedRestic) -> None:
    await world.backup()
    await world.round()
    await world.panel.database.execute(DUE)
    begun, ordered = trio.Event(), trio.Event()

    async def fail(command: str, location: str) -> None:
        if command == "read_data":
            begun.set()
            await ordered.wait()
            raise unavailable("the disk says no")

    restic.before = fail
    await world.round()
    with trio.fail_after(60):
        await begun.wait()
    (await world.root.post(f"/sites/{world.site}/backups/data-check")).raise_for_status()
    ordered.set()
    await world.quiet()
    restic.before = failing("nothing")
    await rounds(world)

    assert [part for _, part, _ in restic.read] == [1]


async def test_a_target_that_has_more_than_this_server_is_cut_by_what_is_there(
    world: Backed, restic: RecordedRestic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a recovery: the backups are at the targets, and the repository here is empty."""
    disk = await with_target(world)
    (await world.root.post("/backups/targets/sftp", SERVER)).raise_for_status()
    backup = await world.backup()
    await world.backup()
    await world.round()
    await world.panel.database.execute(
        "UPDATE site_backups SET bytes = 9216, added_bytes = CASE WHEN id = $1 THEN 9216 ELSE 3072 END", backup["id"]
    )
    for at_disk in [Path(location) for location in restic.repositories if location.startswith(disk)]:
        (at_disk / "pack").write_bytes(bytes(5 * 1024))
    monkeypatch.setattr(data_check, "PART_BYTES", 1024)

    await week(world)

    parts = {location: parts for location, _, parts in restic.read}
    assert sorted(parts.values()) == [4, 8, 12]
    assert [parts[location] for location in parts if location.startswith(disk)] == [8]


async def test_a_reading_that_a_restart_cut_short_is_due_again_at_once(world: Backed, restic: RecordedRestic) -> None:
    await world.backup()
    await world.round()
    await world.panel.database.execute(DUE)
    restic.before = failing("read_data")
    await world.round()
    await world.quiet()
    [job] = await world.jobs("backup.check_data")
    database = world.panel.database
    await database.execute("UPDATE backup_data_checks SET job_id = $1, error = NULL", job["id"])
    await database.execute(DUE)
    failed = await get_job(database, job["id"])
    assert failed is not None

    await database.transact(lambda tx: end_data_check(tx, replace(failed, error=INTERRUPTED)))
    held = await database.fetchrow("SELECT job_id, error, unread, next_run_at < now() AS due FROM backup_data_checks")
    restic.before = failing("nothing")
    await rounds(world)

    assert held is not None
    assert dict(held) == {"job_id": None, "error": None, "unread": [1], "due": True}
    assert [part for _, part, _ in restic.read] == [1]


async def test_customers_neither_see_nor_order_readings(world: Backed) -> None:
    await world.backup()

    answers = [await world.ada.get("/backups/data"), await world.ada.post(f"/sites/{world.site}/backups/data-check")]
    without = await world.root.post(f"/sites/{world.other_site}/backups/data-check")

    assert [answer.status_code for answer in answers] == [403, 403]
    assert without.status_code == 404


async def test_an_alert_about_a_target_goes_with_it(world: Backed, restic: RecordedRestic) -> None:
    disk = await with_target(world)
    await world.backup()
    await world.round()
    [at_disk] = [location for location in restic.repositories if location.startswith(disk)]
    restic.rotten = {(at_disk, 1)}
    await week(world)
    open_before = len(await alerts(world))
    [target] = (await world.root.get("/backups/targets")).json()

    (await world.root.delete(f"/backups/targets/{target['id']}")).raise_for_status()

    assert open_before == 1
    assert await alerts(world) == []
    assert [row["target"] for row in await listed(world)] == [None]
