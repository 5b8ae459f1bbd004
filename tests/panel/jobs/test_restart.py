"""A core that dies at any point: what ran is failed in so many words, and what waited runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
import trio.testing

from svc_actors.panel.jobs import INTERRUPTED, JobClass, JobRun, JobStatus, get_job, read_lines, steps_of
from svc_actors.store import Database
from tests.panel.jobs.work import Held, Steps, Told, ended, nothing, open_jobs, queue, states


@pytest.mark.parametrize(
    ("at", "left"),
    [
        ("first", ["failed", "cancelled", "cancelled"]),
        ("second", ["succeeded", "failed", "cancelled"]),
        ("third", ["succeeded", "succeeded", "failed"]),
    ],
)
async def test_what_ran_is_failed_and_what_waited_runs(panel_database: Database, at: str, left: list[str]) -> None:
    held = Held()
    steps: dict[str, Callable[[JobRun], Awaitable[None]]] = dict.fromkeys(("first", "second", "third"), nothing)
    async with open_jobs(panel_database, build=Steps(**{**steps, at: held.hold})):
        running = await queue(panel_database, "build", "first", "second", "third")
        waiting = await queue(panel_database, "build", "first", "second")
        await held.until(lambda: held.begun == [running])

    work = Told(**steps)
    async with open_jobs(panel_database, build=work) as jobs:
        failed = await get_job(panel_database, running)
        ran = await ended(jobs, panel_database, waiting)

    assert failed is not None
    assert failed.status is JobStatus.FAILED
    assert failed.error == INTERRUPTED
    assert failed.error.message == "interrupted: core restarted"
    of_it = (await steps_of(panel_database, [running]))[running]
    assert [step.status.value for step in of_it] == left
    assert [step.error for step in of_it if step.status is JobStatus.FAILED] == [INTERRUPTED]
    assert ran.status is JobStatus.SUCCEEDED
    assert work.ends == [(running, JobStatus.FAILED), (waiting, JobStatus.SUCCEEDED)]


async def test_every_class_and_every_slot_is_free_again(panel_database: Database) -> None:
    held = Held()
    classes = [*JobClass, JobClass.SITES, JobClass.SITES]
    async with open_jobs(panel_database, build=Steps(hold=held.hold)):
        first = [await queue(panel_database, "build", "hold", job_class=job_class) for job_class in classes]
        await held.until(lambda: len(held.now) == len(first))

    again = Held()
    async with open_jobs(panel_database, build=Steps(hold=again.hold)):
        second = [await queue(panel_database, "build", "hold", job_class=job_class) for job_class in classes]
        await again.until(lambda: again.now == set(second))

        assert [await states(panel_database, job_id) for job_id in first] == [["failed"]] * len(first)


async def test_a_core_that_dies_again_and_again_interrupts_each_job_once(panel_database: Database) -> None:
    queued = [await queue(panel_database, "build", "hold") for _ in range(5)]
    held = Held()
    for number in range(5):
        async with open_jobs(panel_database, build=Steps(hold=held.hold)):
            await held.until(partial(lambda number: len(held.begun) == number + 1, number))

    async with open_jobs(panel_database, build=Steps(hold=nothing)):
        found = [await get_job(panel_database, job_id) for job_id in queued]

    assert held.begun == queued
    assert [job.error for job in found if job is not None] == [INTERRUPTED] * 5
    for job_id in queued:
        assert len(await read_lines(panel_database, job_id, after=0, limit=10)) == 1


async def test_a_core_that_is_stopped_lets_its_jobs_end_and_begins_no_more(panel_database: Database) -> None:
    held = Held()
    async with open_jobs(panel_database, build=Steps(hold=held.hold)) as jobs:
        running = await queue(panel_database, "build", "hold")
        await held.until(lambda: held.begun == [running])
        waiting = await queue(panel_database, "build", "hold")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(jobs.drain, 30)
            await trio.testing.wait_all_tasks_blocked()
            held.release(running)

        assert await states(panel_database, running) == ["succeeded"]
        assert await states(panel_database, waiting) == ["queued"]


async def test_a_failure_is_told_by_webhook_in_its_own_transaction(panel_database: Database) -> None:
    held = Held()
    async with open_jobs(panel_database, build=Steps(hold=held.hold)):
        job_id = await queue(panel_database, "build", "hold")
        await held.until(lambda: held.begun == [job_id])
    async with open_jobs(panel_database):
        rows = await panel_database.fetch("SELECT * FROM webhook_events")

    [told] = [row for row in rows if row["event"] == "job.failed"]
    assert f'"subject":{{"kind":"job","id":"{job_id}"' in bytes(told["body"]).decode()
    assert "interrupted" not in bytes(told["body"]).decode()
