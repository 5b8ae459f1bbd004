"""A core that holds jobs, as a process to be killed: `python -m tests.support.job_core URL`.

It serves the queues of the panel's database at URL. Each job of the kind `hold` has four writers add lines to its log,
as `<writer>:<number>`, beside a program that lasts; none of them ends by itself. The ids of jobs that have begun are
printed, a line each. A job of the kind `chatter` has as many write the same as fast as they can, `AT_ONCE` lines
at a time.
"""

from __future__ import annotations

import itertools
import sys

import trio

from svc_actors.panel.jobs import JobRun, Jobs
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database

WRITERS = 4
AT_ONCE = 250
PROGRAM = ("sleep", "100000")


class Hold:
    async def prepare(self, run: JobRun) -> None:
        await run.log("prepared")

    async def hold(self, run: JobRun) -> None:
        async with trio.open_nursery() as nursery:
            for writer in range(WRITERS):
                nursery.start_soon(self._write, run, writer)
            nursery.start_soon(self._program, run)
            print(run.id, flush=True)

    async def tidy(self, run: JobRun) -> None:
        raise AssertionError("what is held does not end")

    async def _write(self, run: JobRun, writer: int) -> None:
        number = 0
        while True:
            number += 1
            await run.log(f"{writer}:{number}")

    async def _program(self, run: JobRun) -> None:
        await run.program(PROGRAM, seconds=100_000)


class Chatter:
    async def write(self, run: JobRun) -> None:
        async with trio.open_nursery() as nursery:
            for writer in range(WRITERS):
                nursery.start_soon(self._write, run, writer)

    async def _write(self, run: JobRun, writer: int) -> None:
        for first in itertools.count(1, AT_ONCE):
            await run.log(*[f"{writer}:{number}" for number in range(first, first + AT_ONCE)])


async def main() -> None:
    async with (
        Database.open(sys.argv[1], size=6) as database,
        ActorSystem.open() as actors,
        trio.open_nursery() as nursery,
    ):
        jobs = Jobs(database, actors)
        jobs.handle("hold", Hold())
        jobs.handle("chatter", Chatter())
        await nursery.start(jobs.run)


if __name__ == "__main__":
    trio.run(main)
