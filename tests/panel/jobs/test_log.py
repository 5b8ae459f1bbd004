"""The log of a job, polled with `after`: never a line twice, never one left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from svc_actors.panel.jobs import JobRun, read_lines
from svc_actors.store import Database
from tests.panel.jobs.work import Held, Steps, ended, nothing, open_jobs, queue
from tests.support.changes import Changes
from tests.support.panel import open_panel

WRITERS = 4


class Looks:
    """How often calls of the API have read a log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._changes = Changes()
        monkeypatch.setattr("svc.panel.jobs.read_lines", self._read)

    async def _read(self, *arguments: Any, **named: Any) -> Any:
        lines = await read_lines(*arguments, **named)
        self.count += 1
        self._changes.tell()
        return lines

    async def reach(self, count: int) -> None:
        await self._changes.until(lambda: self.count >= count)


async def test_no_line_is_repeated_or_left_out_while_four_write_and_cores_die(panel_database: Database) -> None:
    written: set[str] = set()

    async def chatter(run: JobRun) -> None:
        async def write(writer: int) -> None:
            number = 0
            while True:
                number += 1
                line = f"{writer}:{number}"
                await run.log(line)
                written.add(line)

        async with trio.open_nursery() as nursery:
            for writer in range(WRITERS):
                nursery.start_soon(write, writer)

    seen: dict[int, list[tuple[int, str]]] = {}

    async def poll(job_id: int, until: int) -> None:
        lines = seen.setdefault(job_id, [])
        while len(lines) < until:
            after = lines[-1][0] if lines else 0
            lines += [
                (line.seq, line.message) for line in await read_lines(panel_database, job_id, after=after, limit=7)
            ]
            await trio.lowlevel.checkpoint()

    for _ in range(3):
        async with open_jobs(panel_database, build=Steps(chatter=chatter)):
            job_id = await queue(panel_database, "build", "chatter")
            await poll(job_id, 100)
    async with open_jobs(panel_database, build=Steps(chatter=nothing)):
        for job_id in seen:
            total = await panel_database.fetchval("SELECT max(seq) FROM job_lines WHERE job_id = $1", job_id)
            await poll(job_id, total)

    assert len(seen) == 3
    for lines in seen.values():
        assert [seq for seq, _ in lines] == list(range(1, len(lines) + 1))
        said = [message for _, message in lines[:-1]]
        assert len(set(said)) == len(said)
        for writer in range(WRITERS):
            numbers = [int(message.partition(":")[2]) for message in said if message.startswith(f"{writer}:")]
            assert numbers == list(range(1, len(numbers) + 1))
        assert lines[-1][1].startswith("interrupted: core restarted")
    assert written <= {message for lines in seen.values() for _, message in lines}


async def test_waiting_for_a_line_ends_when_it_comes(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, looks = Held(), Looks(monkeypatch)

    async def speak(run: JobRun) -> None:
        await held.hold(run)
        await run.log("at last")
        await trio.sleep_forever()

    async with open_panel(
        panel_database, tmp_path, work={"build": Steps(speak=speak)}, loops=["events", "jobs"]
    ) as panel:
        root = await panel.administrator()
        job_id = await queue(panel_database, "build", "speak")
        await held.until(lambda: held.begun == [job_id])
        answers: list[list[dict[str, object]]] = []

        async def wait() -> None:
            answers.append((await root.get(f"/jobs/{job_id}/log?wait=25")).json())

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                nursery.start_soon(wait)
                await looks.reach(2)
                held.release(job_id)

        panel.services.jobs.stop(job_id)
        await ended(panel.services.jobs, panel_database, job_id)

    assert [[(line["seq"], line["step"], line["message"]) for line in lines] for lines in answers] == [
        [(1, 1, "at last")],
        [(1, 1, "at last")],
    ]


async def test_waiting_ends_with_the_job_and_with_its_time(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, looks = Held(), Looks(monkeypatch)
    async with open_panel(
        panel_database, tmp_path, work={"build": Steps(hold=held.hold)}, loops=["events", "jobs"]
    ) as panel:
        root = await panel.administrator()
        job_id = await queue(panel_database, "build", "hold")
        await held.until(lambda: held.begun == [job_id])
        answers: list[object] = []

        async def wait(seconds: int) -> None:
            answers.append((await root.get(f"/jobs/{job_id}/log?wait={seconds}")).json())

        began = trio.current_time()
        await wait(1)
        waited = trio.current_time() - began
        before = looks.count
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, 25)
                await looks.reach(before + 1)
                held.release(job_id)
            looked_again = looks.count > before + 1
            await wait(25)

    assert waited >= 1
    assert looked_again
    assert answers == [[], [], []]


@pytest.mark.parametrize("query", ["after=-1", "wait=26", "wait=soon", "after=1&after=2"])
async def test_what_is_no_place_in_a_log_is_refused(panel_database: Database, tmp_path: Path, query: str) -> None:
    async with open_panel(panel_database, tmp_path, loops=["events", "jobs"]) as panel:
        root = await panel.administrator()

        refused = await root.get(f"/jobs/1/log?{query}")

    assert refused.json()["error"]["code"] == "invalid"


async def test_a_line_holds_what_a_program_may_say(panel_database: Database) -> None:
    async def work(run: JobRun) -> None:
        await run.log("nul \0 and \udcff", "two\nlines", "", "x" * 100_000)

    async with open_jobs(panel_database, build=Steps(work=work)) as jobs:
        job = await ended(jobs, panel_database, await queue(panel_database, "build", "work"))

    lines = [line.message for line in await read_lines(panel_database, job.id, after=0, limit=10)]
    assert lines == ["nul \ufffd and ?", "two", "lines", "", "x" * 4000]
