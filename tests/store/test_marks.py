"""A start on a database that has lost commits is noticed, and nothing else is taken for one."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest
import trio

from svc_actors.store import CommitMarks, Database, UniqueViolationError, marked
from svc_actors.store import marks as marks_of_store
from svc_actors.store.marks import FILE
from svc_actors.store.remembered_keys import Key
from svc_common.errors import ErrorCode, ServiceError
from tests.store.marked_service import LOST, Steps, change, service, started
from tests.support.postgres_server import PATIENCE


async def test_a_start_on_what_was_left_takes_no_step_back(database_url: str, tmp_path: Path) -> None:
    async with service(database_url, tmp_path, Steps()) as database:
        await change(database, "one")

    assert await started(database_url, tmp_path) == []
    assert await started(database_url, tmp_path) == []


async def test_a_start_on_a_database_that_lost_a_commit_takes_one_and_only_one(
    database_url: str, tmp_path: Path
) -> None:
    async with service(database_url, tmp_path, Steps()) as database:
        await change(database, "one")
        assert database.marks is not None
        database.marks.note_key(("token:1", "order-7"))
        before = await database.fetchval("SELECT max(at) FROM commit_marks")
    async with Database.open(database_url, size=1) as other:
        await other.execute(LOST)

    assert await started(database_url, tmp_path) == [(before, [("token:1", "order-7")])]
    assert await started(database_url, tmp_path) == []


async def test_a_step_back_that_was_not_finished_is_taken_again(database_url: str, tmp_path: Path) -> None:
    async with service(database_url, tmp_path, Steps()) as database:
        await change(database, "one")
    async with Database.open(database_url, size=1) as other:
        await other.execute(LOST)

    async def fail(as_of: datetime, keys: Sequence[Key]) -> None:
        raise OSError("the host went down")

    with pytest.raises(OSError, match="went down"):
        async with Database.open(database_url) as database, marked(database, tmp_path, fail):
            pytest.fail("it serves")
    assert len(await started(database_url, tmp_path)) == 1


class FullDisk:
    """Takes the place of `write_whole` on a disk without space."""

    def __call__(self, path: Path, content: bytes, *, mode: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_full_disk_stops_no_start_and_repeats_no_step_back(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service(database_url, tmp_path, Steps()) as database:
        await change(database, "one")
    async with Database.open(database_url, size=1) as other:
        await other.execute(LOST)
    with monkeypatch.context() as full:
        full.setattr("svc_actors.store.marks.write_whole", FullDisk())

        assert len(await started(database_url, tmp_path)) == 1
        assert await started(database_url, tmp_path) == []

    assert await started(database_url, tmp_path) == []


async def test_a_loss_after_one_that_was_dealt_with_is_noticed(database_url: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        async with service(database_url, tmp_path, Steps()) as database:
            await change(database, name)
        async with Database.open(database_url, size=1) as other:
            await other.execute(LOST + " WHERE slot >= 0")

        assert len(await started(database_url, tmp_path)) == 1
        assert await started(database_url, tmp_path) == []


async def test_a_file_that_cannot_be_read_stops_no_start(database_url: str, tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()

    assert await started(database_url, tmp_path) == []


async def test_what_another_service_has_dealt_with_is_dealt_with(database_url: str, tmp_path: Path) -> None:
    """It stands by on another host, with a data folder of its own."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    async with service(database_url, ours, Steps()) as database:
        await change(database, "one")
    async with Database.open(database_url, size=1) as other:
        await other.execute(LOST)
        await other.execute("INSERT INTO commit_marks SELECT gen_random_uuid(), -1, 0, now()")
    assert len(await started(database_url, theirs)) == 1

    assert await started(database_url, ours) == []


async def test_a_new_database_has_lost_nothing(database_url: str, tmp_path: Path) -> None:
    async with service(database_url, tmp_path, Steps()) as database:
        await change(database, "one")
    async with Database.open(database_url, size=1) as other:
        await other.execute("DELETE FROM commit_marks")
        assert not await other.fetchval("SELECT count(*) FROM event")

    assert await started(database_url, tmp_path) == []


async def test_numbers_of_lost_commits_that_others_used_since_hide_nothing(database_url: str, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    async with service(database_url, ours, Steps()) as database:
        await change(database, "one")
    async with Database.open(database_url, size=1) as other:
        await other.execute(LOST)
    async with service(database_url, theirs, Steps()) as database:
        for name in ("two", "three", "four"):
            await change(database, name)

    assert await started(database_url, theirs) == []
    assert len(await started(database_url, ours)) == 1


async def test_a_copied_data_folder_is_another_service_after_one_comparison(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, ours, theirs = tmp_path / "machine-id", tmp_path / "ours", tmp_path / "theirs"
    monkeypatch.setattr("svc_actors.store.marks.MACHINE", machine)
    machine.write_text("one\n")
    ours.mkdir()
    async with service(database_url, ours, Steps()) as database:
        await change(database, "one")
    shutil.copytree(ours, theirs)
    machine.write_text("two\n")
    async with Database.open(database_url, size=1) as other:
        await other.execute(LOST)

    assert len(await started(database_url, theirs)) == 1
    assert await started(database_url, theirs) == []

    holders = [json.loads((folder / FILE).read_bytes())["holder"] for folder in (ours, theirs)]
    assert holders[0] != holders[1]
    async with service(database_url, theirs, Steps()) as database:
        await change(database, "two")
    again = json.loads((theirs / FILE).read_bytes())["holder"]
    assert again == holders[1], "a restart on the same host is the same service"


async def test_a_file_that_is_older_than_the_database_raises_no_alarm(database_url: str, tmp_path: Path) -> None:
    """The service was killed before it wrote its file, or its host was put back."""
    async with service(database_url, tmp_path, Steps()) as database:
        await change(database, "one")
        assert database.marks is not None
        await database.marks.write()
        old = (tmp_path / FILE).read_bytes()
        await change(database, "two")
    (tmp_path / FILE).write_bytes(old)

    assert await started(database_url, tmp_path) == []
    async with service(database_url, tmp_path, Steps()) as database:
        await change(database, "three")
    assert await started(database_url, tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"[]", b'{"holder": 1}', b'{"holder": "x", "marks": [], "keys": []}'])
async def test_a_file_that_cannot_be_understood_stops_no_start(
    database_url: str, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / FILE).write_bytes(content)

    assert await started(database_url, tmp_path) == []


async def test_the_file_is_written_while_the_service_runs(database_url: str, tmp_path: Path) -> None:
    async with service(database_url, tmp_path, Steps()) as database:
        await change(database, "one")
        with trio.fail_after(PATIENCE):
            while not any(CommitMarks.load(tmp_path)._seen.values()):
                await trio.sleep(0.05)


async def test_commits_that_were_not_acknowledged_raise_no_alarm(database_url: str, tmp_path: Path) -> None:
    async with service(database_url, tmp_path, Steps()) as database:
        await change(database, "one")
        for _ in range(3):
            with pytest.raises(UniqueViolationError):
                await change(database, "one")
        async with database.session():
            pass
    assert await started(database_url, tmp_path) == []


async def test_a_start_at_a_standby_finds_nothing_lost(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An advisory lock is given by a standby as well."""
    async with service(database_url, tmp_path, Steps()) as database:
        await change(database, "one")
    async with Database.open(database_url, size=1) as other:
        await other.execute(LOST)
    at_standby = marks_of_store._READ.replace("pg_is_in_recovery()", "true")
    monkeypatch.setattr(marks_of_store, "_READ", at_standby)

    with pytest.raises(ServiceError) as refused:
        await started(database_url, tmp_path)

    assert refused.value.code is ErrorCode.UNAVAILABLE
