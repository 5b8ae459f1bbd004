"""Copies of backups in a bucket of S3, with the real restic: whole, and told in plain words where they cannot be."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.store import Database
from svc_webhost.restic import SystemRestic, driver
from tests.support.s3 import BUCKET, S3, shared_s3
from tests.support.site_backups import Backed, open_backed
from tests.support.site_files import give

pytestmark = [pytest.mark.system, pytest.mark.isolated]


@pytest.fixture
async def world(panel_database: Database, tmp_path: Path) -> AsyncIterator[Backed]:
    async with open_backed(panel_database, tmp_path, SystemRestic()) as world:
        yield world


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with shared_s3(tmp_path_factory.mktemp("s3") / "server") as server:
        yield server


@pytest.fixture
async def s3(s3_server: S3) -> S3:
    """With an empty bucket."""
    await s3_server.start_anew()
    return s3_server


async def test_what_opens_a_repository_restores_a_site_from_its_copy_byte_for_byte(
    world: Backed, s3: S3, tmp_path: Path
) -> None:
    await targeted(world, s3.target | {"prefix": "sites/of/ada"})
    give(world.home, "private/large.bin", os.urandom(3 << 20)).chmod(0o600)
    before = world.tree()

    backup = await world.backup()
    (key,) = (await world.root.get("/backups/keys")).json()
    exported = (await world.root.post(f"/backups/keys/{key['id']}/export")).json()
    environment = {
        **os.environ,
        "RESTIC_REPOSITORY": f"s3:{s3.url}/{BUCKET}/sites/of/ada/{key['id']}",
        "RESTIC_PASSWORD": exported["key"],
        "AWS_ACCESS_KEY_ID": s3.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.secret_key,
    }
    checked = await trio.run_process(["restic", "--no-cache", "check", "--read-data"], env=environment, check=False)
    restore = ["restic", "--no-cache", "restore", "latest", "--target", str(tmp_path / "restored")]
    await trio.run_process([*restore, "--include", "/site"], env=environment)

    assert backup["copies"][0]["error"] is None
    assert checked.returncode == 0
    restored = tmp_path / "restored" / "site"
    assert {
        str(path.relative_to(restored)): (path.lstat().st_mode, path.lstat().st_uid, path.read_bytes())
        for path in restored.rglob("*")
        if path.is_file()
    } == {name: seen for name, seen in before.items() if isinstance(seen[2], bytes)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"secret_key": "a-secret-that-is-wrong"}, "The secret key is not the one of the access key."),
        ({"access_key": "AKIANOBODY"}, "The bucket's server does not know the access key."),
        ({"bucket": "nobodys-bucket"}, "There is no such bucket."),
    ],
)
async def test_what_a_bucket_refuses_is_told_in_plain_words_without_the_secret(
    world: Backed, s3: S3, change: dict[str, str], words: str
) -> None:
    await targeted(world, s3.target | change)

    backup = await world.backup()
    log = (await world.ada.get(f"/jobs/{backup['job_id']}/log")).text
    (target,) = (await world.root.get("/backups/targets")).json()

    assert backup["status"] == "completed"
    assert target["last_error"].startswith(words)
    assert words in log
    assert not any((s3.target | change)["secret_key"] in told for told in (log, str(target), str(backup)))
    assert await s3.buckets() == [BUCKET]
    assert await world.events() == ["backup.completed", "backup.remote_failed"]


async def test_a_bucket_that_dies_mid_way_has_every_backup_after_the_next_one(
    world: Backed, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "STALLED_SECONDS", 6.0)
    await targeted(world, s3.target)
    give(world.home, "private/large.bin", os.urandom(48 << 20))

    answer = await world.ada.post(f"/sites/{world.site}/backups")
    await arriving(s3)
    await s3.program.kill()
    job = await world.ended(answer)
    died = await world.newest()
    await s3.start()
    (world.home.path / "private" / "large.bin").unlink()
    whole = await world.backup()
    first = (await world.ada.get(f"/backups/{died['id']}")).json()

    assert (job["status"], died["status"]) == ("succeeded", "completed")
    assert died["copies"][0]["error"]
    assert [backup["copies"][0]["error"] for backup in (first, whole)] == [None, None]
    assert len([name for name in await s3.objects() if "/snapshots/" in name]) == 2
    assert await world.events() == ["backup.completed", "backup.remote_failed", "backup.completed"]


async def test_a_bucket_that_hangs_holds_no_backup_up_and_catches_up_once_it_answers(
    world: Backed, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "STALLED_SECONDS", 10.0)
    await targeted(world, s3.target)
    give(world.home, "private/large.bin", os.urandom(48 << 20))

    answer = await world.ada.post(f"/sites/{world.site}/backups")
    await arriving(s3)
    s3.hang()
    await world.done(answer)
    stalled = await world.newest()
    monkeypatch.setattr(driver, "ANSWER_SECONDS", 3.0)
    unanswered = await world.backup()
    s3.go_on()
    monkeypatch.undo()
    whole = await world.backup()
    found = [(await world.ada.get(f"/backups/{each['id']}")).json() for each in (stalled, unanswered, whole)]

    assert "restic copy made no progress for 10 seconds" in stalled["copies"][0]["error"]
    assert "restic snapshots made no progress for 3 seconds" in unanswered["copies"][0]["error"]
    assert [each["copies"][0]["error"] for each in found] == [None] * 3
    assert await world.events() == ["backup.completed", "backup.remote_failed"] * 2 + ["backup.completed"]


async def targeted(world: Backed, wanted: dict[str, str]) -> dict[str, Any]:
    answer = await world.root.post("/backups/targets/s3", wanted)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def arriving(s3: S3) -> None:
    """A part of what is copied is there."""
    with trio.fail_after(240):
        while not any("/data/" in name for name in await s3.objects()):
            await trio.sleep(0.01)  # restic writes it outside of this process.
