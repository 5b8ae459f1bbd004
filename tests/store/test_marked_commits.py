"""A commit leaves a mark, unless all that it changes may be lost; no mark makes one commit wait for another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from svc_actors.controller.nodes.live_figures import record_live_figures
from svc_actors.controller.tasks.records import NewLine, log_tasks
from svc_actors.store import CommitMarks, NewEvent, Transaction, events
from svc_actors.store.marks import Mark
from tests.store.marked_service import Steps, change, service, started


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
