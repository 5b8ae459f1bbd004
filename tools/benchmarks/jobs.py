"""B8: the panel's jobs a second, from the call that queues one to its stored end, beside pgbench's inserts.

Run as `python -m tools.benchmarks.jobs`. A job has one step, which does nothing; jobs of all classes and of a few sites
are queued by four callers, each in a transaction of its own with its event. So a job is two commits with events, and at
most six run at a time. The peer is one client that inserts one row a commit. A flush takes 2 ms, as on a disk that
is no RAM disk.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from uuid import uuid4

import trio

from svc_actors.panel.jobs import Job, JobClass, JobRun, Jobs, NewJob, enqueue
from svc_actors.runtime import ActorSystem
from svc_actors.store import (
    PANEL_SCHEMA,
    Database,
    EventLog,
    Transaction,
    embedded,
    enter_lane,
    known_migrations,
    migrate,
)
from svc_actors.store.embedded import PROGRAMS
from svc_actors.store.lanes import Lane
from tools.benchmarks import Ratio

ROUNDS, JOBS, CALLERS, SITES, PGBENCH_SECONDS = 5, 600, 4, 8, 2
FLUSH = {"commit_delay": "2000", "commit_siblings": "0"}
INSERT = "INSERT INTO inserted (kind, title, parameters) VALUES ('bench', 'A job', '{}');\n"
TABLE = """CREATE TABLE inserted (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind text NOT NULL,
                                  title text NOT NULL, parameters jsonb NOT NULL, at timestamptz DEFAULT now())"""


class Nothing:
    """Work of one step; `done` once as many jobs have ended as are expected."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self.done = trio.Event()

    async def step(self, run: JobRun) -> None:
        await trio.lowlevel.checkpoint()

    async def ended(self, tx: Transaction, job: Job) -> None:
        self._left -= 1
        if self._left == 0:
            self.done.set()


async def jobs_a_second(database: Database) -> float:
    work = Nothing(JOBS)
    sites = [uuid4() for _ in range(SITES)]
    numbers = iter(range(JOBS))
    classes = itertools.cycle(JobClass)

    async def call() -> None:
        enter_lane(Lane.ORDERS)
        for number in numbers:
            new = NewJob("bench", "A job", next(classes), ("step",), site_id=sites[number % SITES])
            await database.transact(lambda tx, new=new: enqueue(tx, new))  # type: ignore[misc]

    async with ActorSystem.open() as actors, trio.open_nursery() as nursery:
        await nursery.start(EventLog(database).run)
        jobs = Jobs(database, actors)
        jobs.handle("bench", work)
        await nursery.start(jobs.run)
        began = perf_counter()
        for _ in range(CALLERS):
            nursery.start_soon(call)
        await work.done.wait()
        took = perf_counter() - began
        await jobs.drain(10)
        nursery.cancel_scope.cancel()
    return JOBS / took


async def inserts_a_second(url: str, script: Path) -> float:
    command = [str(PROGRAMS / "pgbench"), "-n", "-c", "1", "-T", str(PGBENCH_SECONDS), "-f", str(script), url]
    ran = await trio.run_process(command, capture_stdout=True, stderr=subprocess.DEVNULL)
    found = re.search(r"^tps = ([0-9.]+)", ran.stdout.decode(), re.MULTILINE)
    assert found is not None
    return float(found[1])


async def measure_both() -> tuple[list[float], list[float]]:
    ours, peer = [], []
    with tempfile.TemporaryDirectory(prefix="svc-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        script = folder / "insert.sql"
        script.write_text(INSERT)
        async with (
            embedded(folder / "postgresql", settings=FLUSH) as url,
            Database.open(url, lanes={Lane.READING: 1, Lane.ORDERS: CALLERS, Lane.BACKGROUND: 8}) as database,
        ):
            await migrate(database, known_migrations(PANEL_SCHEMA))
            await database.execute(TABLE)
            for _ in range(ROUNDS):
                ours.append(await jobs_a_second(database))
                peer.append(await inserts_a_second(url, script))
    return ours, peer


def measure() -> list[Ratio]:
    ours, peer = trio.run(measure_both)
    return [Ratio("B8 jobs : pgbench's inserts", median(ours), median(peer), "/s", goal=0.25, higher_is_better=True)]


def main() -> None:
    for row in measure():
        print(f"{row.name}: {row.ours:,.0f} : {row.peer:,.0f} {row.unit} = {row.ratio:.2f} (goal {row.goal})")


if __name__ == "__main__":
    main()
