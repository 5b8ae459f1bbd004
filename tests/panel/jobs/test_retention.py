"""Jobs that ended long ago go; others stay, however old they are."""

from __future__ import annotations

from svc_actors.panel.jobs import JobRun
from svc_actors.panel.jobs.retention import forget_old_jobs
from svc_actors.store import Database
from tests.panel.jobs.work import Steps, ended, open_jobs, queue


async def speak(run: JobRun) -> None:
    await run.log("done")


async def test_what_ended_ninety_days_ago_goes_with_its_log(panel_database: Database) -> None:
    async with open_jobs(panel_database, build=Steps(speak=speak)) as jobs:
        done = [await queue(panel_database, "build", "speak") for _ in range(45)]
        for job_id in done:
            await ended(jobs, panel_database, job_id)
    waiting = await queue(panel_database, "build", "speak")
    await panel_database.execute("UPDATE jobs SET created_at = created_at - interval '91 days'")
    await panel_database.execute("UPDATE jobs SET ended_at = ended_at - interval '91 days' WHERE id <> $1", done[0])

    removed = await forget_old_jobs(panel_database)

    assert removed == 44
    for table in ("jobs", "job_steps", "job_lines"):
        column = "id" if table == "jobs" else "job_id"
        left = {row["id"] for row in await panel_database.fetch(f"SELECT {column} AS id FROM {table}")}
        assert left == {done[0], waiting} - ({waiting} if table == "job_lines" else set())
