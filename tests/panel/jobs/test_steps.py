"""What a job's steps say, however the job ends."""

from __future__ import annotations

import trio

from svc_actors.panel.jobs import JobRun, JobStatus, read_lines, steps_of
from svc_actors.runtime import MailboxFull
from svc_actors.store import Database
from svc_common.errors import ErrorCode, conflict, unavailable
from tests.panel.jobs.work import Held, Steps, Told, ended, nothing, open_jobs, queue, states


async def test_steps_are_written_down_before_the_first_runs(panel_database: Database) -> None:
    held = Held()
    async with open_jobs(panel_database, build=Steps(fetch=held.hold, unpack=nothing)) as jobs:
        job_id = await queue(panel_database, "build", "fetch", "unpack")

        await held.until(lambda: held.begun == [job_id])
        under_way = await states(panel_database, job_id)
        held.release(job_id)
        job = await ended(jobs, panel_database, job_id)

    assert under_way == ["running", "queued"]
    assert await states(panel_database, job_id) == ["succeeded", "succeeded"]
    assert (job.status, job.progress, job.error) == (JobStatus.SUCCEEDED, 100, None)


async def test_the_failing_step_carries_the_error_and_every_later_one_is_cancelled(panel_database: Database) -> None:
    async def refuse(run: JobRun) -> None:
        raise conflict("The folder is not empty.", hint="Empty it.")

    work = Told(look=nothing, unpack=refuse, check=nothing, tidy=nothing)
    async with open_jobs(panel_database, build=work) as jobs:
        job = await ended(jobs, panel_database, await queue(panel_database, "build", "look", "unpack", "check", "tidy"))

    assert job.status is JobStatus.FAILED
    assert job.error is not None
    assert (job.error.code, job.error.message, job.error.hint) == (
        ErrorCode.CONFLICT,
        "The folder is not empty.",
        "Empty it.",
    )
    steps = (await steps_of(panel_database, [job.id]))[job.id]
    assert [step.status.value for step in steps] == ["succeeded", "failed", "cancelled", "cancelled"]
    assert [step.error for step in steps] == [None, job.error, None, None]
    [line] = await read_lines(panel_database, job.id, after=0, limit=10)
    assert line.message == "The folder is not empty. Empty it."
    assert work.ends == [(job.id, JobStatus.FAILED)]


async def test_a_defect_fails_its_job_without_its_text_and_the_next_job_runs(panel_database: Database) -> None:
    async def crash(run: JobRun) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nothing, run)
            raise KeyError("/secret/path")

    async with open_jobs(panel_database, build=Steps(crash=crash, work=nothing)) as jobs:
        failed = await ended(jobs, panel_database, await queue(panel_database, "build", "crash"))
        done = await ended(jobs, panel_database, await queue(panel_database, "build", "work"))

    assert failed.error is not None
    assert failed.error.code is ErrorCode.INTERNAL
    assert "secret" not in f"{failed.error.message}{failed.error.hint}"
    assert done.status is JobStatus.SUCCEEDED


async def test_of_several_parts_that_are_refused_at_once_the_job_tells_the_first(panel_database: Database) -> None:
    async def refuse_twice(_: JobRun) -> None:
        async def refuse(message: str) -> None:
            raise unavailable(message)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refuse, "The disk is away.")
            nursery.start_soon(refuse, "The disk is away.")

    async with open_jobs(panel_database, work=Steps(work=refuse_twice)) as jobs:
        job = await ended(jobs, panel_database, await queue(panel_database, "work", "work"))
    assert job.error is not None
    assert (job.error.code, job.error.message) == (ErrorCode.UNAVAILABLE, "The disk is away.")


async def test_a_job_whose_actor_takes_nothing_now_names_nothing_internal(panel_database: Database) -> None:
    async def ask(_: JobRun) -> None:
        raise MailboxFull("Site:f6078936", 256)

    async with open_jobs(panel_database, work=Steps(work=ask)) as jobs:
        job = await ended(jobs, panel_database, await queue(panel_database, "work", "work"))
    assert job.error is not None
    assert job.error.code is ErrorCode.UNAVAILABLE
    assert "nothing was done" in job.error.message
    assert job.error.hint == "Try again in 1 s."
    assert "Site:" not in str(job.error)


async def test_what_this_version_does_not_know_how_to_do_fails(panel_database: Database) -> None:
    async with open_jobs(panel_database, build=Steps(work=nothing)) as jobs:
        no_kind = await ended(jobs, panel_database, await queue(panel_database, "paint", "work"))
        no_step = await ended(jobs, panel_database, await queue(panel_database, "build", "work", "wait"))

    assert no_kind.error is not None
    assert "paint" in no_kind.error.message
    assert no_step.error is not None
    assert "wait" in no_step.error.message
    assert await states(panel_database, no_step.id) == ["succeeded", "failed"]


async def test_an_error_in_what_the_end_means_leaves_the_job_ended_and_its_slot_free(panel_database: Database) -> None:
    class Wrong(Told):
        async def ended(self, tx: object, job: object) -> None:
            raise ZeroDivisionError

    async with open_jobs(panel_database, wrong=Wrong(work=nothing), right=Steps(work=nothing)) as jobs:
        wrong = await ended(jobs, panel_database, await queue(panel_database, "wrong", "work"))
        right = await ended(jobs, panel_database, await queue(panel_database, "right", "work"))

    assert (wrong.status, right.status) == (JobStatus.SUCCEEDED, JobStatus.SUCCEEDED)


async def test_progress_is_of_the_whole_job_and_never_goes_back(panel_database: Database) -> None:
    seen: list[int] = []

    async def half(run: JobRun) -> None:
        for percent in (50, 20, 250):
            await run.progress(percent)
            seen.append(await panel_database.fetchval("SELECT progress FROM jobs WHERE id = $1", run.id))

    async with open_jobs(panel_database, build=Steps(first=half, second=half)) as jobs:
        job = await ended(jobs, panel_database, await queue(panel_database, "build", "first", "second"))

    assert seen == [25, 25, 50, 75, 75, 99]
    assert job.progress == 100


async def test_a_job_that_takes_too_long_is_stopped_and_says_so(panel_database: Database) -> None:
    async with open_jobs(panel_database) as jobs:
        jobs.handle("build", Steps(wait=Held().hold, tidy=nothing), seconds=0.05)

        job = await ended(jobs, panel_database, await queue(panel_database, "build", "wait", "tidy"))

    assert job.error is not None
    assert "took longer" in job.error.message
    assert await states(panel_database, job.id) == ["failed", "cancelled"]
