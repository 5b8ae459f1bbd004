"""A service that runs on a database that has lost commits stops, and goes on where none is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.store import CommitMarks, Database, Record, SteppedBackError, exclusive, marked
from svc_actors.store.marks import settle_losses
from svc_common.errors import ErrorCode, ServiceError
from tests.store.marked_service import LOST, Steps, change, service, started
from tests.support.postgres_server import PATIENCE, answered


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


async def test_a_loss_that_was_dealt_with_meanwhile_is_not_told_again(database_url: str, tmp_path: Path) -> None:
    """A service that was cut off comes back once its successor serves: it stops, and its successor goes on."""
    async with service(database_url, tmp_path, Steps()) as database:
        await change(database, "one")
        async with Database.open(database_url, size=1) as other:
            await other.execute(LOST)
            await other.transact(settle_losses)
        with pytest.raises(ServiceError):
            async with database.session():
                pytest.fail("it is used")
        async with Database.open(database_url, size=1) as other:
            assert not await other.fetchval("SELECT EXISTS (SELECT FROM commit_marks WHERE slot = -1)")


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
