"""Programs of jobs: what they say is in the log, and nothing of them outlives their job or their core."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from svc_actors.panel.jobs import INTERRUPTED, JobRun, JobStatus, get_job, read_lines
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from tests.panel.jobs.work import Held, Steps, ended, nothing, open_jobs, queue, states

DETACHED = """
import os, sys, time
print("begun", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1], "w") as file:
            file.write(f"{os.getppid()} {os.getpid()}\\n")
        os.rename(sys.argv[1], sys.argv[2])
        os.closerange(0, 100)
    time.sleep(1000)
time.sleep(1000)
"""
"""A program that starts one that leaves its session, closes its output and starts another; their ids are written to
the file of the second argument."""


def python(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", program, *map(str, arguments)]


async def until(true: Callable[[], bool]) -> None:
    with trio.fail_after(30):
        while not true():
            await trio.sleep(0.01)


def gone(pid: int) -> bool:
    """Also of one that has ended and that nobody waits for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def ids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()]


async def messages(database: Database, job_id: int) -> list[str]:
    return [line.message for line in await read_lines(database, job_id, after=0, limit=1_000_000)]


async def test_what_a_program_writes_is_in_the_log(panel_database: Database) -> None:
    said = (
        r"import sys; print('one\ntwo'); print('10 %\r100 %'); sys.stdout.flush(); sys.stderr.buffer.write(b'\xff\0!')"
    )

    async def work(run: JobRun) -> None:
        await run.program(python(said), seconds=30)

    async with open_jobs(panel_database, build=Steps(work=work)) as jobs:
        job = await ended(jobs, panel_database, await queue(panel_database, "build", "work"))

    assert job.status is JobStatus.SUCCEEDED
    assert await messages(panel_database, job.id) == ["one", "two", "100 %", "\ufffd\ufffd!"]


ADVISED = """error: Hash mismatch
note: This error originates from a subprocess, and is likely not a problem with pip.
  hint: `shop` was included because `app` depends on `shop`
[notice] A new release of pip is available
"""


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (python("print('disk full'); raise SystemExit(3)"), "ended with exit status 3: disk full"),
        (
            python(f"print({ADVISED!r}); raise SystemExit(1)"),
            "ended with exit status 1: error: Hash mismatch",
        ),
        (python("import os; os.kill(os.getpid(), 9)"), "was ended by signal 9"),
        (["/no/such/program", "--now"], "cannot be run: No such file or directory"),
    ],
)
async def test_a_program_that_fails_fails_its_step(panel_database: Database, command: list[str], told: str) -> None:
    async def work(run: JobRun) -> None:
        await run.program(command, seconds=30)

    async with open_jobs(panel_database, build=Steps(work=work, tidy=nothing)) as jobs:
        job = await ended(jobs, panel_database, await queue(panel_database, "build", "work", "tidy"))

    assert job.error is not None
    assert told in job.error.message
    assert await states(panel_database, job.id) == ["failed", "cancelled"]


async def test_a_program_gets_arguments_and_files_and_nothing_of_the_cores_environment(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SVC_DATABASE_URL", "postgresql://secret")
    (tmp_path / "input").write_text("given")
    shown = """
import os, sys
print(sys.argv[1:], sys.stdin.read(), os.getcwd(), sorted(os.environ))
print([name for name in os.listdir("/proc/self/fd") if int(name) > 3])
"""
    read: list[str] = []

    async def take(lines: list[str]) -> None:
        read.extend(lines)

    async def work(run: JobRun) -> None:
        command = python(shown, "$(id)", "; reboot")
        await run.program(
            command, seconds=30, environment={"WHO": "ada"}, folder=tmp_path, stdin=tmp_path / "input", read=take
        )

    async with open_jobs(panel_database, build=Steps(work=work)) as jobs:
        job = await ended(jobs, panel_database, await queue(panel_database, "build", "work"))

    names = ["LANG", "PATH", "SVC_PANEL_JOB", "WHO"]
    assert read == [f"['$(id)', '; reboot'] given {tmp_path} {names}", "[]"]
    assert await messages(panel_database, job.id) == []


async def test_a_program_that_runs_wild_does_not_fill_the_database(
    panel_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svc_actors.panel.jobs.run.MOST_OUTPUT", 10_000)

    async def work(run: JobRun) -> None:
        await run.program(python("for n in range(100_000): print('line', n)"), seconds=60)

    async with open_jobs(panel_database, build=Steps(work=work)) as jobs:
        job = await ended(jobs, panel_database, await queue(panel_database, "build", "work"))

    lines = await messages(panel_database, job.id)
    assert job.status is JobStatus.SUCCEEDED
    assert len(lines) < 20_000
    assert lines[0] == "line 0"
    assert "left out" in lines[-1]


async def test_a_program_past_its_time_is_ended_and_the_step_says_so(panel_database: Database, tmp_path: Path) -> None:
    async def work(run: JobRun) -> None:
        await run.program(python(DETACHED, tmp_path / "new", tmp_path / "ids"), seconds=1)

    async with open_jobs(panel_database, build=Steps(work=work)) as jobs:
        job = await ended(jobs, panel_database, await queue(panel_database, "build", "work"))

        assert job.error is not None
        assert job.error.code is ErrorCode.UNAVAILABLE
        assert "took longer than 1 seconds" in job.error.message
        if (tmp_path / "ids").exists():
            assert all(map(gone, ids_in(tmp_path / "ids")))


async def test_a_cancelled_job_leaves_nothing_of_its_program(panel_database: Database, tmp_path: Path) -> None:
    async def work(run: JobRun) -> None:
        await run.program(python(DETACHED, tmp_path / "new", tmp_path / "ids"), seconds=600)

    async with open_jobs(panel_database, build=Steps(work=work)) as jobs:
        job_id = await queue(panel_database, "build", "work")
        await until((tmp_path / "ids").exists)
        assert not any(map(gone, ids_in(tmp_path / "ids")))

        jobs.stop(job_id)
        job = await ended(jobs, panel_database, job_id)

        assert all(map(gone, ids_in(tmp_path / "ids")))
    assert job.status is JobStatus.CANCELLED


async def test_a_program_may_tidy_up_when_it_is_asked_to_stop(panel_database: Database, tmp_path: Path) -> None:
    tidy = """
import pathlib, signal, sys, time
def stop(*_):
    pathlib.Path(sys.argv[1]).unlink()
    raise SystemExit(0)
signal.signal(signal.SIGTERM, stop)
pathlib.Path(sys.argv[1]).touch()
while True: time.sleep(1)
"""

    async def work(run: JobRun) -> None:
        await run.program(python(tidy, tmp_path / "lock"), seconds=600)

    async with open_jobs(panel_database, build=Steps(work=work)) as jobs:
        job_id = await queue(panel_database, "build", "work")
        await until((tmp_path / "lock").exists)

        jobs.stop(job_id)
        await ended(jobs, panel_database, job_id)

    assert not (tmp_path / "lock").exists()


CORE = """
import sys, trio
from svc_webhost.programs import Program, run_program

async def take(lines):
    print(*lines, flush=True)

trio.run(run_program, Program(tuple(sys.argv[1:])), take)
"""


@pytest.mark.parametrize("victim", ["core", "core and subreaper"])
async def test_nothing_of_a_program_outlives_a_core_that_is_killed(tmp_path: Path, victim: str) -> None:
    command = python(CORE, *python(DETACHED, tmp_path / "new", tmp_path / "ids"))
    core = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        await until((tmp_path / "ids").exists)
        [subreaper] = children(core.pid)
        [program] = children(subreaper)
        descendants = [program, *ids_in(tmp_path / "ids")]

        core.kill()
        if victim == "core and subreaper":
            os.kill(subreaper, signal.SIGKILL)

        # Of a killed subreaper the program itself goes; the next core finds the rest.
        await until(lambda: all(map(gone, descendants if victim == "core" else [program])))
    finally:
        core.kill()
        core.communicate()
        for pid in ids_in(tmp_path / "ids"):
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Of all of its threads, which the kernel lists them by."""
    return [
        int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]


async def test_what_outlived_a_core_is_gone_before_its_jobs_are_called_failed_and_others_begin(
    panel_database: Database,
) -> None:
    held = Held()
    async with open_jobs(panel_database, build=Steps(hold=held.hold)):
        job_id = await queue(panel_database, "build", "hold")
        waiting = await queue(panel_database, "build", "look")
        await held.until(lambda: held.begun == [job_id])
    installation = await panel_database.fetchval("SELECT install_id FROM panel_installation")
    outlived = [
        subprocess.Popen(["sleep", "1000"], env={"SVC_PANEL_JOB": f"{whose}/{job_id}"}, start_new_session=True)
        for whose in (installation, "another-installation")
    ]
    seen: list[bool] = []

    async def look(run: JobRun) -> None:
        seen.extend(gone(process.pid) for process in outlived)

    try:
        async with open_jobs(panel_database, build=Steps(look=look)) as jobs:
            await ended(jobs, panel_database, waiting)

        failed = await get_job(panel_database, job_id)
    finally:
        for process in outlived:
            process.kill()
            process.wait()
    assert failed is not None
    assert failed.error == INTERRUPTED
    assert seen == [True, False]
