"""A database whose disk is full: who sends a statement is told so, what was acknowledged stays, and space heals it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from svc_actors.errors import ErrorCode, ServiceError
from svc_actors.store import Database, keep_running
from svc_actors.store.loops import LONGEST_AWAY

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
    notes: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    written = trio.Event()

    async def pass_over(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 20:
            await notes.execute("DROP TRIGGER full_disk ON notes")

    async def loop() -> None:
        await notes.execute("INSERT INTO notes VALUES (2)")
        written.set()
        await trio.sleep_forever()

    monkeypatch.setattr("svc_actors.store.loops.trio", SimpleNamespace(sleep=pass_over, current_time=trio.current_time))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_running, "notes", loop)
        with trio.fail_after(20):
            await written.wait()
        nursery.cancel_scope.cancel()

    assert len(pauses) == 20
    assert max(pauses) <= LONGEST_AWAY
