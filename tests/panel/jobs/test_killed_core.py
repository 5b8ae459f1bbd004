"""kill -9 of a core that holds jobs, again and again (with --full, 200 times)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from svc_actors.panel.jobs import INTERRUPTED, JobClass, JobStatus, get_job, read_lines
from svc_actors.store import Database
from tests.panel.jobs.work import nothing, open_jobs, queue, states
from tests.support.job_core import WRITERS

CLASSES = (JobClass.BACKUPS, JobClass.SYSTEM, JobClass.SITES, JobClass.SITES, JobClass.SITES)
FOLDER = Path(__file__).resolve().parents[3]


def programs_of(installation: str) -> list[int]:
    """The processes that belong to jobs of this installation and are not over."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"SVC_PANEL_JOB={installation}/".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def test_whenever_it_is_killed_its_jobs_are_failed_its_programs_gone_and_its_log_whole(
    panel_database: Database, panel_database_url: str, request: pytest.FixtureRequest
) -> None:
    kills = 200 if request.config.getoption("--full") else 3
    installation = str(await panel_database.fetchval("SELECT install_id FROM panel_installation"))
    interrupted: list[int] = []
    for _ in range(kills):
        queued = [await queue(panel_database, "hold", "prepare", "hold", "tidy", job_class=of) for of in CLASSES]
        core = await trio.lowlevel.open_process(
            [sys.executable, "-m", "tests.support.job_core", panel_database_url], stdout=subprocess.PIPE, cwd=FOLDER
        )
        try:
            with trio.fail_after(60):
                begun = b""
                while begun.count(b"\n") < len(queued):
                    assert core.stdout is not None
                    begun += await core.stdout.receive_some()
                while await panel_database.fetchval("SELECT min(last_seq) FROM jobs WHERE id = ANY($1)", queued) < 20:
                    await trio.sleep(0.01)
        finally:
            os.kill(core.pid, signal.SIGKILL)
            await core.wait()
        interrupted += queued

        with trio.fail_after(30):
            while programs_of(installation):
                await trio.sleep(0.01)

    async with open_jobs(panel_database, hold=nothing):
        assert await panel_database.fetchval("SELECT count(*) FROM jobs WHERE status IN ('queued', 'running')") == 0
    for job_id in interrupted:
        job = await get_job(panel_database, job_id)
        assert job is not None
        assert (job.status, job.error) == (JobStatus.FAILED, INTERRUPTED)
        assert await states(panel_database, job_id) == ["succeeded", "failed", "cancelled"]
        lines = await read_lines(panel_database, job_id, after=0, limit=1_000_000)
        assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
        assert [line.message.startswith("interrupted: core restarted") for line in lines].count(True) == 1
        for writer in range(WRITERS):
            said = [line.message for line in lines if line.message.startswith(f"{writer}:")]
            assert said == [f"{writer}:{number}" for number in range(1, len(said) + 1)]
