"""Kinds of jobs that tests register: work that does what a test says, when it says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import trio

from svc_actors.panel.jobs import Job, JobClass, JobRun, Jobs, JobStatus, NewJob, enqueue, get_job, steps_of
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database, Transaction
from tests.support.changes import Changes


class Held:
    """A step that goes on until it is let go. What is at it is told by `begun`, in this order."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.now: set[int] = set()
        self.most = 0
        self._changes = Changes()
        self._released: set[int] = set()

    async def hold(self, run: JobRun) -> None:
        self.begun.append(run.id)
        self.now.add(run.id)
        self.most = max(self.most, len(self.now))
        self._changes.tell()
        try:
            await self.until(lambda: run.id in self._released)
        finally:
            self.now.discard(run.id)
            self._changes.tell()

    def release(self, *job_ids: int) -> None:
        self._released.update(job_ids)
        self._changes.tell()

    async def until(self, true: Callable[[], bool]) -> None:
        await self._changes.until(true)


class Steps:
    """Work whose steps are the functions that it is given by name."""

    def __init__(self, **steps: Callable[[JobRun], Awaitable[None]]) -> None:
        vars(self).update(steps)


class Told(Steps):
    """As `Steps`, and takes down how its jobs ended."""

    def __init__(self, **steps: Callable[[JobRun], Awaitable[None]]) -> None:
        super().__init__(**steps)
        self.ends: list[tuple[int, JobStatus]] = []

    async def ended(self, tx: Transaction, job: Job) -> None:
        self.ends.append((job.id, job.status))


async def nothing(run: JobRun) -> None:
    await trio.lowlevel.checkpoint()


async def queue(
    database: Database,
    kind: str,
    *steps: str,
    job_class: JobClass = JobClass.SYSTEM,
    site: UUID | None = None,
    owner: UUID | None = None,
    **parameters: Any,
) -> int:
    """Queue a job as an operation does; of the class sites it is of a site in any case."""
    if job_class is JobClass.SITES and site is None:
        site = uuid4()
    new = NewJob(kind, f"A job of {kind}", job_class, steps, site, owner, parameters)
    job = await database.transact(lambda tx: enqueue(tx, new))
    assert job.status is JobStatus.QUEUED
    return job.id


async def ended(jobs: Jobs, database: Database, job_id: int) -> Job:
    """The job, once it has ended."""
    with jobs.watching(job_id) as changed, trio.fail_after(60):
        while (job := await get_job(database, job_id)) is None or job.status.open:
            await changed()
    return job


async def states(database: Database, job_id: int) -> list[str]:
    """How its steps stand, in order."""
    return [step.status.value for step in (await steps_of(database, [job_id]))[job_id]]


@asynccontextmanager
async def open_jobs(database: Database, **work: object) -> AsyncIterator[Jobs]:
    """A core that serves its queues, with work by kind. At the end of the block it is gone, as if it were killed:
    nothing is drained, and what runs stays running in the database."""
    async with ActorSystem.open() as actors, trio.open_nursery() as nursery:
        jobs = Jobs(database, actors)
        for kind, done_by in work.items():
            jobs.handle(kind, done_by)
        await nursery.start(jobs.run)
        yield jobs
        nursery.cancel_scope.cancel()
