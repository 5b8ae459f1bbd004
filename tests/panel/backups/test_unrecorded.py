"""Snapshots that the records do not know: a database that has gone back to an earlier day decides over none of them."""

from __future__ import annotations

from importlib.resources import files
from typing import Any
from uuid import UUID, uuid4

import pytest

from svc_actors.panel.backups.unrecorded import RecordedBackups, judge
from svc_webhost.restic import Snapshot
from tests.panel.backups.test_copies import bucket_of
from tests.panel.backups.test_targets import BUCKET
from tests.support.restic import RecordedRestic, failing
from tests.support.site_backups import Backed


async def go_back(world: Backed, *backups: dict[str, Any]) -> None:
    """To a database of before these backups."""
    ids = [each["id"] for each in backups]
    await world.panel.database.execute("DELETE FROM site_backups WHERE id = ANY($1::uuid[])", ids)


async def alerts(world: Backed) -> dict[str, str]:
    found = (await world.root.get("/alerts")).json()["items"]
    return {each["key"].partition(":")[0]: each["message"] for each in found}


def kept(*backups: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((f"backup-{each['id']}", "complete") for each in backups)


def local_of(restic: RecordedRestic) -> str:
    return next(location for location in restic.repositories if location.startswith("/"))


async def test_backups_made_after_the_day_of_the_database_stay_here_and_at_targets_and_are_listed(
    world: Backed, restic: RecordedRestic
) -> None:
    await world.root.post("/backups/targets/s3", BUCKET)
    first, second, third = [await world.backup() for _ in range(3)]
    await go_back(world, second, third)

    last = await world.backup()
    listed = {each["id"]: each for each in (await world.root.get("/backups")).json()["items"]}

    assert restic.held(local_of(restic)) == kept(first, second, third, last)
    assert restic.held(bucket_of(restic)) == kept(first, second, third, last)
    assert set(listed) == {each["id"] for each in (first, second, third, last)}
    adopted = listed[third["id"]]
    assert (adopted["cause"], adopted["status"], adopted["job_id"]) == ("adopted", "completed", None)
    assert [adopted[name] for name in ("files", "bytes", "databases")] == [
        third[name] for name in ("files", "bytes", "databases")
    ]
    assert [copy["error"] for copy in adopted["copies"]] == [None]
    assert "held 2 complete backups that the panel's records did not know" in (await alerts(world))["backups-adopted"]


async def test_an_adopted_backup_is_restored(world: Backed, restic: RecordedRestic) -> None:
    backup = await world.backup()
    before = world.tree()
    await go_back(world, backup)
    (world.home.path / "public/index.html").write_bytes(b"defaced")
    await world.backup()

    await world.done(await world.ada.post(f"/backups/{backup['id']}/restore", {}))

    assert world.tree() == before


async def test_what_a_target_alone_has_stays_there_and_an_alert_says_so(world: Backed, restic: RecordedRestic) -> None:
    await world.root.post("/backups/targets/s3", BUCKET)
    lost = await world.backup()
    await go_back(world, lost)
    restic.repositories[local_of(restic)].clear()

    last = await world.backup()

    assert restic.held(bucket_of(restic)) == kept(lost, last)
    assert "bucket holds 1 complete backups of ada.example.com" in (await alerts(world))["backups-unknown"]


async def test_what_had_expired_before_deletions_had_records_goes_at_the_target_as_it_used_to(
    world: Backed, restic: RecordedRestic
) -> None:
    """Here retention had removed it; the target had it until the next backup. What is newer than all records stays."""
    await world.root.post("/backups/targets/s3", BUCKET)
    expired, recorded = await world.backup(), await world.backup()
    migration = (files("svc_actors.store") / "migrations/panel/0049_backups_known.sql").read_text()
    await world.panel.database.execute(migration[migration.index("UPDATE") :])
    newer = await world.backup()
    await go_back(world, expired, newer)
    here = restic.repositories[local_of(restic)]
    for name in [name for name, tags in here.items() if tags in kept(expired, newer)]:
        del here[name]

    last = await world.backup()

    assert restic.held(bucket_of(restic)) == kept(recorded, newer, last)
    assert "bucket holds 1 complete backups" in (await alerts(world))["backups-unknown"]


async def test_a_complete_backup_whose_job_the_database_calls_failed_is_adopted(
    world: Backed, restic: RecordedRestic
) -> None:
    """A core that was killed after the snapshot was marked, or a database of before the backup was completed."""
    backup = await world.backup()
    await world.panel.database.execute(
        """UPDATE site_backups SET status = 'failed', error = 'interrupted', completed_at = NULL, files = NULL,
           configuration = NULL WHERE id = $1""",
        UUID(backup["id"]),
    )

    last = await world.backup()
    found = (await world.root.get(f"/backups/{backup['id']}")).json()

    assert restic.held(local_of(restic)) == kept(backup, last)
    assert (found["status"], found["error"], found["files"]) == ("completed", None, backup["files"])


async def test_a_backup_that_was_deleted_goes_also_where_that_failed_at_first(
    world: Backed, restic: RecordedRestic
) -> None:
    await world.root.post("/backups/targets/s3", BUCKET)
    backup = await world.backup()
    restic.before = failing("forget", at="s3:")
    await world.done(await world.ada.delete(f"/backups/{backup['id']}"))
    here, there = restic.held(local_of(restic)), restic.held(bucket_of(restic))
    restic.before = failing("forget", at="nowhere")

    last = await world.backup()

    assert (here, there) == ([], kept(backup))
    assert restic.held(bucket_of(restic)) == restic.held(local_of(restic)) == kept(last)
    assert await alerts(world) == {}


async def test_what_cannot_be_read_of_a_backup_without_a_record_does_not_end_the_next(
    world: Backed, restic: RecordedRestic
) -> None:
    backup = await world.backup()
    await go_back(world, backup)
    restic.before = failing("restore")

    last = await world.backup()

    assert last["status"] == "completed"
    assert restic.held(local_of(restic)) == kept(backup, last)


KNOWN, DELETED, UNKNOWN, INCOMPLETE, RUNNING = (uuid4() for _ in range(5))
SNAPSHOTS = {
    "completed": (f"backup-{KNOWN}", "complete"),
    "deleted": (f"backup-{DELETED}", "complete"),
    "unknown": (f"backup-{UNKNOWN}", "complete"),
    "unknown, its manifest": (f"backup-{UNKNOWN}", "manifest", "complete"),
    "incomplete": (f"backup-{INCOMPLETE}",),
    "incomplete, its manifest": (f"backup-{INCOMPLETE}", "manifest", "complete"),
    "of a job that runs": (f"backup-{RUNNING}",),
    "an operator's": ("before-upgrade",),
    "without a tag": (),
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_only_what_was_deleted_or_is_incomplete_is_removed(name: str) -> None:
    found = [Snapshot(id=each, tags=tags) for each, tags in SNAPSHOTS.items()]
    judged = judge(found, RecordedBackups(frozenset((KNOWN, RUNNING)), frozenset((DELETED,))))

    assert (name in {each.id for each in judged.superfluous}) == (
        name in ("deleted", "incomplete", "incomplete, its manifest")
    )
    assert list(judged.complete) == [UNKNOWN]


def test_records_that_are_lost_altogether_remove_nothing_that_is_complete() -> None:
    found = [Snapshot(id=each, tags=tags) for each, tags in SNAPSHOTS.items()]

    gone = judge(found, RecordedBackups(frozenset(), frozenset())).superfluous

    assert [each.id for each in gone if each.tags[-1:] == ("complete",) and "manifest" not in each.tags] == []
