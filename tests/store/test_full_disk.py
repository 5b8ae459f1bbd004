"""A database whose disk is full: who sends a statement is told so, what was acknowledged stays, and space heals it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
import trio.testing

from svc_actors.store import Database, disk_full, keep_running
from svc_actors.store.loops import LONGEST_AWAY
from svc_common.errors import ErrorCode, ServiceError

FULL = "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE disk_full; END $$"
FILL = "CREATE TRIGGER full_disk BEFORE INSERT ON notes FOR EACH ROW EXECUTE FUNCTION full_disk()"


@pytest.fixture
async def notes(database: Database) -> Database:
    """A table that PostgreSQL has no space for until its trigger is dropped."""
    await database.execute("CREATE TABLE notes (number int PRIMARY KEY)")
    await database.execute("INSERT INTO notes VALUES (1)")
    await database.execute(FULL)
    await database.execute(FILL)
    return database


async def test_a_change_on_a_full_disk_is_unavailable_says_why_and_when_to_come_again(notes: Database) -> None:
    with pytest.raises(ServiceError) as refused:
        await notes.execute("INSERT INTO notes VALUES (2)")

    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert refused.value.details == {"reason": "disk_full", "retry_after": 5}
    assert "full" in refused.value.message
    assert await notes.fetchval("SELECT array_agg(number) FROM notes") == [1]


async def test_a_background_loop_goes_on_soon_after_however_long_the_disk_was_full(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rounds: list[float] = []
    written = trio.Event()

    async def loop() -> None:
        rounds.append(trio.current_time())
        if len(rounds) <= 20:
            raise disk_full()
        written.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_running, "notes", loop)
        with trio.fail_after(200):
            await written.wait()
        nursery.cancel_scope.cancel()

    assert max(after - before for before, after in pairwise(rounds)) <= LONGEST_AWAY
