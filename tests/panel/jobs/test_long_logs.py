"""A log that is written as fast as it can be while cores die, and polled by several readers (with --full, a million
lines)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from svc.panel.jobs import LOG_PAGE
from svc_actors.panel.jobs import get_job, read_lines
from svc_actors.store import Database
from tests.panel.jobs.work import nothing, open_jobs, queue
from tests.support.figures import report_figure
from tests.support.job_core import WRITERS

READERS = 3
CORES = 5
_WRITTEN = "SELECT last_seq FROM jobs WHERE id = $1"
FOLDER = Path(__file__).resolve().parents[3]


@dataclass
class Reader:
    """Asks for what comes after the last line that it has, until the job has ended and there is no more."""

    database: Database
    after: int = 0
    said: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(WRITERS), 0))
    """By writer, the number of its last line."""
    interruptions: int = 0

    async def read(self, job_id: int) -> None:
        while True:
            job = await get_job(self.database, job_id)
            lines = await read_lines(self.database, job_id, after=self.after, limit=LOG_PAGE)
            for line in lines:
                assert line.seq == self.after + 1, "a gap or a repeat"
                self.after = line.seq
                writer, _, number = line.message.partition(":")
                if writer == "interrupted":
                    self.interruptions += 1
                else:
                    assert int(number) == self.said[int(writer)] + 1, "what one has written is in its order, and all"
                    self.said[int(writer)] += 1
            if not lines and job is not None and not job.status.open:
                return


@asynccontextmanager
async def core(url: str) -> AsyncIterator[None]:
    """A core that is killed at the end of the block."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "tests.support.job_core", url], stdout=subprocess.DEVNULL, cwd=FOLDER
    )
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()


async def test_no_reader_misses_a_line_or_has_one_twice_while_four_write_and_cores_die(
    panel_database: Database, panel_database_url: str, request: pytest.FixtureRequest
) -> None:
    lines = 1_000_000 if request.config.getoption("--full") else 50_000
    began = time.monotonic()
    readers: list[Reader] = []
    async with trio.open_nursery() as nursery:
        for _ in range(CORES):
            job_id = await queue(panel_database, "chatter", "write")
            of_job = [Reader(panel_database) for _ in range(READERS)]
            for reader in of_job:
                nursery.start_soon(reader.read, job_id)
            readers += of_job
            async with core(panel_database_url):
                with trio.fail_after(120):
                    while await panel_database.fetchval(_WRITTEN, job_id) < lines / CORES or not of_job[0].after:
                        await trio.sleep(0.01)  # It is written outside of this process.
        async with open_jobs(panel_database, chatter=nothing):
            pass  # The last core's job is failed by the next one.
    seconds = time.monotonic() - began
    total = await panel_database.fetchval("SELECT sum(last_seq) FROM jobs")
    report_figure(f"{total} lines to {READERS} readers, {CORES} cores killed, in {seconds:.1f} s")

    assert total >= lines
    assert [reader.interruptions for reader in readers] == [1] * len(readers)
    assert sum(reader.after for reader in readers) == READERS * total
    assert all(min(reader.said.values()) > 0 for reader in readers)
