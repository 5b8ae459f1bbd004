"""What is recorded of copies at targets, in which order they are made, and folders whose disk is not mounted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from svc_common.errors import ErrorCode
from svc_webhost.restic import StalledError
from tests.panel.backups.test_targets import BUCKET
from tests.support.restic import RecordedRestic, failing
from tests.support.site_backups import Backed


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    disk = tmp_path.parent / f"{tmp_path.name}-disk"
    disk.mkdir()
    return disk


async def copies(world: Backed, backup: dict[str, Any]) -> list[str | None]:
    """The error of each copy of a backup."""
    found = (await world.root.get(f"/backups/{backup['id']}")).json()["copies"]
    return [copy["error"] for copy in found]


async def add_disk(world: Backed, disk: Path) -> None:
    answer = await world.root.post("/backups/targets/local", {"name": "disk", "path": str(disk)})
    assert answer.status_code == 201, answer.text


def unmount(disk: Path) -> Path:
    """What the folder is without its disk; answers where the disk's own folder is meanwhile."""
    kept = disk.with_name(f"{disk.name}-unmounted")
    disk.rename(kept)
    disk.mkdir()
    return kept


def bucket_of(restic: RecordedRestic) -> str:
    return next(location for location in restic.repositories if location.startswith("s3:"))


async def test_a_backup_that_is_on_no_target_is_not_recorded_as_copied(world: Backed, restic: RecordedRestic) -> None:
    lost = await world.backup()
    (local,) = restic.repositories
    restic.repositories[local].clear()
    await world.root.post("/backups/targets/s3", BUCKET)

    last = await world.backup()

    assert restic.held(bucket_of(restic)) == [(f"backup-{last['id']}", "complete")]
    assert await copies(world, last) == [None]
    (error,) = await copies(world, lost)
    assert error is not None
    assert "no longer in its repository" in error


@pytest.mark.parametrize("command", ["init", "copy"])
async def test_what_a_target_has_lost_is_not_called_copied_also_when_the_next_copy_fails(
    world: Backed, restic: RecordedRestic, command: str
) -> None:
    await world.root.post("/backups/targets/s3", BUCKET)
    early = await world.backup()
    before = await copies(world, early)
    del restic.repositories[bucket_of(restic)]
    restic.before = failing(command, at="s3:")

    last = await world.backup()

    assert before == [None]
    assert await copies(world, early) == []
    assert ["the disk says no" in str(error) for error in await copies(world, last)] == [True]


async def test_a_new_target_gets_the_newest_backup_first(world: Backed, restic: RecordedRestic) -> None:
    first, second = await world.backup(), await world.backup()
    await world.root.post("/backups/targets/s3", BUCKET)

    third = await world.backup()
    order = [tags[0] for tags in restic.repositories[bucket_of(restic)].values()]

    assert order == [f"backup-{each['id']}" for each in (third, second, first)]
    assert [await copies(world, each) for each in (first, second, third)] == [[None]] * 3


async def test_a_target_is_asked_what_it_holds_before_a_copy_and_after(world: Backed, restic: RecordedRestic) -> None:
    """And not again: at a target that is far away each question takes seconds."""
    await world.root.post("/backups/targets/s3", BUCKET)
    await world.backup()
    asked: list[str] = []

    async def before(command: str, location: str) -> None:
        if location.startswith("s3:"):
            asked.append(command)

    restic.before = before
    last = await world.backup()

    assert await copies(world, last) == [None]
    assert asked == ["snapshots", "unlock", "copy", "snapshots"]


async def test_older_backups_are_copied_for_a_bounded_time_and_go_on_with_the_next(
    world: Backed, restic: RecordedRestic, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await world.backup()
    await world.root.post("/backups/targets/s3", BUCKET)
    with monkeypatch.context() as patched:
        patched.setattr("svc_actors.panel.backups.copies.CATCH_UP_SECONDS", 0.0)
        second = await world.backup()
    at_once = restic.held(bucket_of(restic))
    known = [await copies(world, each) for each in (first, second)]

    third = await world.backup()

    assert at_once == [(f"backup-{second['id']}", "complete")]
    assert known == [[], [None]]
    assert [await copies(world, each) for each in (first, second, third)] == [[None]] * 3


async def test_an_older_backup_that_cannot_be_copied_leaves_the_new_one_copied(
    world: Backed, restic: RecordedRestic
) -> None:
    early = await world.backup()
    await world.root.post("/backups/targets/s3", BUCKET)
    asked: list[str] = []

    async def before(command: str, location: str) -> None:
        if command == "copy":
            asked.append(location)
        await failing("copy" if len(asked) == 2 else "nothing", at="s3:")(command, location)

    restic.before = before
    last = await world.backup()

    assert await copies(world, last) == [None]
    assert ["the disk says no" in str(error) for error in await copies(world, early)] == [True]
    assert "backup.remote_failed" not in await world.events()


async def test_a_target_that_hangs_in_the_midst_of_older_backups_is_waited_for_once(
    world: Backed, restic: RecordedRestic
) -> None:
    _, late = await world.backup(), await world.backup()
    await world.root.post("/backups/targets/s3", BUCKET)
    asked: list[str] = []

    async def before(command: str, location: str) -> None:
        if location.startswith("s3:"):
            asked.append(command)
            if asked.count("copy") == 2:
                raise StalledError(ErrorCode.UNAVAILABLE, "restic copy came no further and was stopped.")

    restic.before = before
    last = await world.backup()
    asked_of_hanging = asked[:]
    restic.before = failing("nothing")
    await world.backup()

    assert asked_of_hanging[-1] == "copy"
    assert asked_of_hanging.count("copy") == 2
    assert [await copies(world, each) for each in (late, last)] == [[None]] * 2


async def test_nothing_is_written_where_a_disk_is_not_mounted(world: Backed, disk: Path) -> None:
    await add_disk(world, disk)
    early = await world.backup()
    kept = unmount(disk)

    missed = await world.backup()
    written = list(disk.iterdir())
    disk.rmdir()
    kept.rename(disk)
    last = await world.backup()

    assert [f"{disk} is not mounted" in str(copy["error"]) for copy in missed["copies"]] == [True]
    assert written == []
    assert (await world.events()).count("backup.remote_failed") == 1
    assert [await copies(world, each) for each in (early, missed, last)] == [[None]] * 3


async def test_a_folder_from_before_there_were_markers_goes_on_and_gets_one(world: Backed, disk: Path) -> None:
    await add_disk(world, disk)
    await world.backup()
    (marker,) = disk.glob(".svc-target-*")
    marker.unlink()
    await world.panel.database.execute("UPDATE backup_targets SET settings = settings - 'marked'")
    kept = unmount(disk)

    missed = await world.backup()
    written = list(disk.iterdir())
    disk.rmdir()
    kept.rename(disk)
    last = await world.backup()
    marked = marker.exists()
    marker.unlink()
    without = await world.backup()

    assert ["is not mounted" in str(copy["error"]) for copy in missed["copies"]] == [True]
    assert written == []
    assert ([copy["error"] for copy in last["copies"]], marked) == ([None], True)
    assert ["is not mounted" in str(copy["error"]) for copy in without["copies"]] == [True]


async def test_a_folder_from_before_that_never_held_anything_is_taken(world: Backed, disk: Path) -> None:
    await add_disk(world, disk)
    for marker in disk.glob(".svc-target-*"):
        marker.unlink()
    await world.panel.database.execute("UPDATE backup_targets SET settings = settings - 'marked'")

    backup = await world.backup()

    assert [copy["error"] for copy in backup["copies"]] == [None]
    assert len(list(disk.glob(".svc-target-*"))) == 1


async def test_a_copy_for_which_the_disk_of_the_target_has_no_room_is_not_begun(
    world: Backed, disk: Path, restic: RecordedRestic, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_disk(world, disk)
    monkeypatch.setattr("svc_actors.panel.backups.local_target.free_bytes_of", lambda folder: 1 << 20)

    backup = await world.backup()

    assert backup["status"] == "completed"
    assert ["1,048,576 are free" in str(copy["error"]) for copy in backup["copies"]] == [True]
    assert [
        held for location in restic.repositories if location.startswith(str(disk)) for held in restic.held(location)
    ] == []
