"""A database that has lost commits is noticed, and nothing else is taken for one."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio

from svc_actors.controller.nodes.live_figures import record_live_figures
from svc_actors.controller.tasks.records import NewLine, log_tasks
from svc_actors.errors import ErrorCode, ServiceError
from svc_actors.store import (
    CommitMarks,
    Database,
    NewEvent,
    Record,
    SteppedBackError,
    Transaction,
    UniqueViolationError,
    events,
    exclusive,
    marked,
)
from svc_actors.store import marks as marks_of_store
from svc_actors.store.marks import FILE, Mark, deal_with_notice
from svc_actors.store.remembered_keys import KEYS_FOR, MOST_KEYS, Key
from tests.support.postgres_server import PATIENCE, answered

LOST = "UPDATE commit_marks SET value = value - 1"


class Steps:
    """What a service is asked to do on a database of the past."""

    def __init__(self) -> None:
        self.taken: list[tuple[datetime, list[Key]]] = []

    async def __call__(self, as_of: datetime, keys: Sequence[Key]) -> None:
        self.taken.append((as_of, list(keys)))


async def change(database: Database, name: str) -> None:
    async with database.transaction() as tx:
        await tx.execute("INSERT INTO locations (name) VALUES ($1)", name)


@asynccontextmanager
async def service(database_url: str, folder: Path, steps: Steps) -> AsyncIterator[Database]:
    async with Database.open(database_url, size=4) as database, marked(database, folder, steps):
        yield database


async def started(database_url: str, folder: Path) -> list[tuple[datetime, list[Key]]]:
    steps = Steps()
    async with service(database_url, folder, steps):
        pass
    return steps.taken


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


async def test_a_loss_that_was_dealt_with_meanwhile_is_not_told_again(database_url: str, tmp_path: Path) -> None:
    """A service that was cut off comes back once its successor serves: it stops, and its successor goes on."""
    async with service(database_url, tmp_path, Steps()) as database:
        await change(database, "one")
        async with Database.open(database_url, size=1) as other:
            await other.execute(LOST)
            await other.transact(deal_with_notice)
        with pytest.raises(ServiceError):
            async with database.session():
                pytest.fail("it is used")
        async with Database.open(database_url, size=1) as other:
            assert not await other.fetchval("SELECT EXISTS (SELECT FROM commit_marks WHERE slot = -1)")


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


async def test_a_new_connection_to_a_server_without_our_commits_is_used_for_nothing(
    database_url: str, tmp_path: Path
) -> None:
    async with service(database_url, tmp_path, Steps()) as database:
        await change(database, "one")
        async with Database.open(database_url, size=1) as other:
            await other.execute(LOST)
        with pytest.raises(ServiceError) as refused:
            async with database.session() as session:
                await session.execute("INSERT INTO locations (name) VALUES ('two')")
        assert refused.value.code is ErrorCode.UNAVAILABLE
        assert database.marks is not None
        assert database.marks.stepped_back.is_set()


async def stops(database_url: str, folder: Path, then: Callable[[Database], Awaitable[None]]) -> None:
    """A service that runs on a database that loses a commit ends; `then` is done after the loss."""

    async def serve() -> None:
        async with (
            Database.open(database_url) as database,
            exclusive(database, "controller"),
            marked(database, folder, Steps()),
        ):
            await change(database, "one")
            async with Database.open(database_url, size=1) as other:
                await other.execute(LOST)
            await then(database)
            await trio.sleep_forever()

    with trio.fail_after(PATIENCE), pytest.raises(ExceptionGroup) as ended:
        await serve()
    assert ended.group_contains(SteppedBackError)


async def test_a_service_stops_once_a_connection_has_shown_a_step_back(database_url: str, tmp_path: Path) -> None:

    async def connect(database: Database) -> None:
        with pytest.raises(ServiceError):
            async with database.session():
                pytest.fail("it is used")

    await stops(database_url, tmp_path, connect)


async def test_a_service_stops_when_the_holder_of_its_lock_sees_a_step_back(database_url: str, tmp_path: Path) -> None:
    """No connection is made anew: commits went to one server, and the lock is at another."""

    async def connect_nothing(database: Database) -> None:
        assert database.marks is not None
        assert not database.marks.stepped_back.is_set()

    await stops(database_url, tmp_path, connect_nothing)


async def test_a_service_elsewhere_deals_with_what_another_has_noticed(database_url: str, tmp_path: Path) -> None:
    """A standby takes the lock while the one that noticed ends: it knows nothing of what was lost."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    assert await started(database_url, theirs) == []

    async def connect(database: Database) -> None:
        assert database.marks is not None
        database.marks.note_key(("token:1", "order-7"))
        with pytest.raises(ServiceError):
            async with database.session():
                pytest.fail("it is used")

    await stops(database_url, ours, connect)
    async with Database.open(database_url, size=1) as other:
        assert await other.fetchval("SELECT fingerprint FROM idempotency_keys WHERE key = 'order-7'") == b""

    assert len(await started(database_url, theirs)) == 1
    assert await started(database_url, theirs) == []


async def test_a_service_that_serves_already_stops_for_what_another_has_noticed(
    database_url: str, tmp_path: Path
) -> None:
    notice = "INSERT INTO commit_marks SELECT gen_random_uuid(), -1, 0, now()"

    async def serve() -> None:
        async with (
            Database.open(database_url) as database,
            exclusive(database, "controller"),
            marked(database, tmp_path, Steps()),
        ):
            async with Database.open(database_url, size=1) as other:
                await other.execute(notice)
            await trio.sleep_forever()

    with trio.fail_after(PATIENCE), pytest.raises(ExceptionGroup) as ended:
        await serve()
    assert ended.group_contains(SteppedBackError)


async def test_a_lost_lock_is_retaken_where_nothing_is_lost(database_url: str, tmp_path: Path) -> None:
    """A planned switchover ends every session, and the server that answers next has all commits."""
    everyone = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> "
    async with (
        Database.open(database_url) as database,
        exclusive(database, "controller"),
        marked(database, tmp_path, Steps()),
    ):
        await change(database, "one")
        async with Database.open(database_url, size=1) as other:
            await other.execute(everyone + "pg_backend_pid()")
            with trio.fail_after(PATIENCE):
                while not await other.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE classid = 1398162180)"):
                    await trio.sleep(0.05)
        await answered(lambda: change(database, "two"))
        assert await database.fetchval("SELECT count(*) FROM locations WHERE name IN ('one', 'two')") == 2
    assert await started(database_url, tmp_path) == []


async def test_commits_that_were_not_acknowledged_raise_no_alarm(database_url: str, tmp_path: Path) -> None:
    async with service(database_url, tmp_path, Steps()) as database:
        await change(database, "one")
        for _ in range(3):
            with pytest.raises(UniqueViolationError):
                await change(database, "one")
        async with database.session():
            pass
    assert await started(database_url, tmp_path) == []


async def test_transactions_that_only_read_leave_no_mark(database_url: str, tmp_path: Path) -> None:
    async with service(database_url, tmp_path, Steps()) as database:
        async with database.transaction() as tx:
            await tx.fetch("SELECT name FROM locations")
        assert await database.fetchval("SELECT count(*) FROM commit_marks") == 0


async def live_figures(tx: Transaction) -> None:
    await record_live_figures(tx, [])


async def task_lines(tx: Transaction) -> None:
    await log_tasks(tx, [NewLine(uuid4(), "halfway", 50)])


async def an_event_of_a_line(tx: Transaction) -> None:
    with tx.unmarked():
        await events.append(tx, NewEvent(kind="task.log", subject="1", payload={}, administrators_only=True))


async def a_change_of_nothing(tx: Transaction) -> None:
    await tx.execute("UPDATE locations SET name = 'x' WHERE name = 'nowhere'")
    await tx.fetch("DELETE FROM locations WHERE name = 'nowhere' RETURNING id")


@pytest.mark.parametrize("work", [live_figures, task_lines, an_event_of_a_line, a_change_of_nothing])
async def test_the_loss_of_figures_and_lines_is_no_step_back(
    database_url: str, tmp_path: Path, work: Callable[[Transaction], Awaitable[None]]
) -> None:
    async with service(database_url, tmp_path, Steps()) as database:
        await database.transact(work)
        assert await database.fetchval("SELECT count(*) FROM commit_marks") == 0


async def started_task(tx: Transaction) -> None:
    await log_tasks(tx, [NewLine(uuid4(), None, starts=True)])


async def an_event(tx: Transaction) -> None:
    await live_figures(tx)
    await events.append(tx, NewEvent(kind="vm", subject="1", payload={}, administrators_only=True))


async def a_change_within_a_cte(tx: Transaction) -> None:
    await tx.execute(
        """WITH made AS (INSERT INTO locations (name) VALUES ('x') RETURNING id)
           DELETE FROM locations WHERE name = 'nowhere'"""
    )


@pytest.mark.parametrize("work", [started_task, an_event, a_change_within_a_cte])
async def test_a_transaction_that_changes_more_than_figures_leaves_a_mark(
    database_url: str, tmp_path: Path, work: Callable[[Transaction], Awaitable[None]]
) -> None:
    async with service(database_url, tmp_path, Steps()) as database:
        await database.transact(work)
        assert await database.fetchval("SELECT count(*) FROM commit_marks") == 1


async def test_commits_at_the_same_time_do_not_wait_for_each_other(database_url: str, tmp_path: Path) -> None:
    async with service(database_url, tmp_path, Steps()) as database:
        both = trio.Event()

        async def hold(number: int) -> None:
            async with database.transaction() as tx:
                await tx.execute("INSERT INTO locations (name) VALUES ($1)", f"held-{number}")
                await both.wait()

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(hold, number)
            await change(database, "free")
            both.set()
        assert await database.fetchval("SELECT count(*) FROM commit_marks") <= 4
    assert await started(database_url, tmp_path) == []


class Standby:
    """Answers as a server does that is not promoted yet, without any commit of ours."""

    async def rows(self, sql: str, args: tuple[object, ...], limit: int) -> list[Record]:
        row: Any = {"standby": True, "pending": False, "dealt": 0, "slots": [], "marks": []}
        return [row]

    async def command(self, sql: str, args: tuple[object, ...]) -> str:
        raise AssertionError("a standby takes no changes")


async def test_a_standby_that_lags_has_lost_nothing_and_is_not_used(tmp_path: Path) -> None:
    marks = CommitMarks.load(tmp_path)
    mark = marks.draw()
    marks.committed(mark)

    with pytest.raises(Exception, match="standby"):
        await marks.examine(Standby())
    assert not marks.stepped_back.is_set()


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


def test_the_newest_keys_are_kept(tmp_path: Path) -> None:
    marks = CommitMarks.load(tmp_path)
    for number in range(MOST_KEYS + 3):
        marks.note_key(("token:1", str(number)))
    marks.forget_key(("token:1", str(MOST_KEYS)))

    assert len(marks.keys) == MOST_KEYS - 1
    assert marks.keys[0] == ("token:1", "3")


def test_who_orders_much_has_no_order_of_another_forgotten(tmp_path: Path) -> None:
    marks = CommitMarks.load(tmp_path)
    marks.note_key(("token:1", "order-7"))

    for number in range(MOST_KEYS + 3):
        marks.note_key(("token:2", str(number)))

    assert len(marks.keys) == MOST_KEYS
    assert ("token:1", "order-7") in marks.keys
    assert ("token:2", "2") not in marks.keys
    assert ("token:2", str(MOST_KEYS + 2)) in marks.keys


def test_keys_are_remembered_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their answers were kept no longer: another order with the same key is a new one."""
    clock = [1_000_000.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    marks = CommitMarks.load(tmp_path)
    marks.note_key(("token:1", "old"))
    clock[0] += KEYS_FOR - 1
    marks.note_key(("token:1", "new"))
    trio.run(marks.write)
    assert CommitMarks.load(tmp_path).keys == [("token:1", "old"), ("token:1", "new")]

    clock[0] += 2

    assert marks.keys == CommitMarks.load(tmp_path).keys == [("token:1", "new")]


def test_a_file_of_the_release_before_has_keys_without_a_time(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps({"holder": str(uuid4()), "marks": {"0": 3}, "keys": [["token:1", "k"]]}))

    assert CommitMarks.load(tmp_path).keys == [("token:1", "k")]


def test_an_order_does_not_count_all_keys(tmp_path: Path) -> None:
    marks = CommitMarks.load(tmp_path)
    for number in range(MOST_KEYS):
        marks.note_key((f"token:{number % 2}", str(number)))
    calls = []

    def count(frame: Any, event: str, argument: object) -> None:
        calls.append(event)

    sys.setprofile(count)
    try:
        marks.note_key(("token:3", "one more"))
    finally:
        sys.setprofile(None)

    assert len(calls) < 100


def test_no_row_is_written_for_longer_than_a_minute_of_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a snapshot is open all versions of a row stay, and each write goes through them."""
    clock = [1_000_020.0]
    monkeypatch.setattr("trio.current_time", lambda: clock[0])
    marks = CommitMarks.load(tmp_path)

    def commit_two_at_a_time() -> set[int]:
        drawn: list[Mark] = [marks.draw(), marks.draw()]
        for mark in drawn:
            marks.committed(mark)
            marks.put_back(mark)
        return {mark.slot for mark in drawn}

    slots = []
    for _ in range(60):
        late = marks.draw()
        slots.append(commit_two_at_a_time())
        assert commit_two_at_a_time() == slots[-1]
        clock[0] += 60
        marks.put_back(late)

    assert len(set.union(*slots)) == 2 * 60, "each minute has its own"
    assert {marks.draw().slot, marks.draw().slot} & slots[0], "after an hour the same ones"
