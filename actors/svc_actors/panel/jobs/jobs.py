"""The work of jobs: registered by kind, and hosted from the start of a job to its end.

A job is not resumed, because only its work knows what a killed program has left behind. When the core ends, for
whatever reason, the next core fails the running jobs with `interrupted: core restarted`, after it has ended their
programs; queued jobs then run.

Invariants:
- the end of a job, its consequences (`ended` of the work), the webhook of its failure and the start of the next job of
  the class are one transaction, however the job ends;
- an end is stored, however long the database is away; until then the job holds its slot.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, runtime_checkable
from uuid import UUID

import structlog
import trio

from svc_actors.panel.jobs.queue import JobQueue
from svc_actors.panel.jobs.records import (
    CHANNEL,
    INTERRUPTED,
    Job,
    JobClass,
    JobError,
    JobStatus,
    StartedJob,
    end_job,
    get_job,
    next_step,
    running_jobs,
)
from svc_actors.panel.jobs.run import MARK, JobRun
from svc_actors.panel.webhooks import Subject, WebhookEvent, emit
from svc_actors.runtime import ActorSystem, Draining, Ref
from svc_actors.store import Caller, Database, LoopAlert, Transaction, keep_running
from svc_actors.undelivered import refusal_in
from svc_common.errors import ErrorCode, ServiceError
from svc_webhost.programs import LeftBehindError, end_marked

LONGEST_SECONDS: Final = 6 * 3600.0
"""The deadline of jobs whose kind sets none."""
SWEEP: Final = 15.0
"""Seconds after which a queue looks for a job to start without an announcement, because an announcement may be lost
with a connection."""

log = structlog.get_logger(__name__)

StepWork = Callable[[JobRun], Awaitable[None]]


@runtime_checkable
class EndRecorder(Protocol):
    """Work with a method `ended` writes the consequences of a job's end, in the transaction of that end. It is called
    also for a job that was cancelled before it started, or that a restart interrupted. It only writes to the
    database."""

    async def ended(self, tx: Transaction, job: Job) -> None: ...


@runtime_checkable
class Steps(Protocol):
    """Work whose steps are not known beforehand has a method `step`, which returns the function of each step by the
    step's name."""

    def step(self, name: str) -> StepWork | None: ...


@dataclass(frozen=True)
class _Kind:
    work: object
    seconds: float
    irrevocable: str | None


class Jobs:
    """One per process. It runs in the composer's nursery once all work is registered."""

    def __init__(self, database: Database, actors: ActorSystem, *, alert: LoopAlert | None = None) -> None:
        self._database = database
        self._actors = actors
        self._alert = alert
        self._kinds: dict[str, _Kind] = {}
        self._hosted: dict[int, JobRun] = {}
        self._watchers: dict[int, set[trio.Event]] = {}
        self._woken = {job_class: trio.Event() for job_class in JobClass}
        self._emptied = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._context = copy_context()
        self.draining = False
        self._installation = UUID(int=0)
        actors.register(JobQueue, lambda key: JobQueue(JobClass(key), database, self))

    def handle(
        self, kind: str, work: object, *, seconds: float = LONGEST_SECONDS, irrevocable: str | None = None
    ) -> None:
        """Register the work of a kind of jobs: the method of `work` with the name of a step does it, given a `JobRun`.

        A step fails by raising ServiceError. `seconds` is the deadline of the whole job. `irrevocable` says why such a
        job cannot be cancelled. See `EndRecorder` for the consequences of its end.
        """
        if kind in self._kinds:
            raise ValueError(f"the kind {kind} is registered already")
        self._kinds[kind] = _Kind(work, seconds, irrevocable)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fail the jobs that an earlier core left running, then serve the queues until cancelled."""
        self._installation = await self._database.fetchval("SELECT install_id FROM panel_installation")
        await self._fail_interrupted()
        async with trio.open_nursery() as nursery:
            self._nursery, self._context = nursery, copy_context()
            with self._database.announcements.listener(CHANNEL, self._wake):
                for job_class in JobClass:
                    serve = partial(self._serve, job_class)
                    nursery.start_soon(keep_running, f"jobs of the class {job_class}", serve, self._alert)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._nursery = None

    async def drain(self, deadline: float) -> None:
        """Shut down: start no jobs, and wait at most `deadline` seconds for the running ones. The next start of the
        core fails those that have not ended."""
        self.draining = True
        with trio.move_on_after(deadline):
            while self._hosted:
                self._emptied = trio.Event()
                await self._emptied.wait()

    async def cancel(self, caller: Caller, job_id: int) -> Job | None:
        """See `JobQueue.cancel`. None if the job does not exist."""
        job = await get_job(self._database, job_id)
        if job is None:
            return None
        return await self.queue_of(job.job_class).ask(JobQueue.cancel, caller, job_id)

    def queue_of(self, job_class: JobClass) -> Ref[JobQueue]:
        return self._actors.ref(JobQueue, job_class.value)

    @contextmanager
    def watching(self, job_id: int) -> Iterator[Callable[[], Awaitable[None]]]:
        """Gives a function that waits until the job's state or log may have changed since its last call, or since the
        block was entered."""
        # The event is created before the caller reads the job, so that a change between the caller's read and its wait
        # is not missed.
        watchers = self._watchers.setdefault(job_id, set())
        watcher = trio.Event()
        watchers.add(watcher)

        async def changed() -> None:
            nonlocal watcher
            await watcher.wait()
            watchers.discard(watcher)
            watcher = trio.Event()
            watchers.add(watcher)

        try:
            yield changed
        finally:
            watchers.discard(watcher)
            if not watchers:
                self._watchers.pop(job_id, None)

    def changed(self, job_id: int) -> None:
        """Called after a change of the job was committed."""
        for watcher in self._watchers.get(job_id, ()):
            watcher.set()

    def hosts(self, job_id: int) -> bool:
        return job_id in self._hosted

    def host(self, started: StartedJob) -> None:
        """Start the work of a job that is recorded as running, once. If this process is ending already, the next core
        fails the job."""
        if self._nursery is None:
            return
        job = started.job
        if self.hosts(job.id):
            log.error("job.begun_twice", job_id=job.id, kind=job.kind)
            return
        self._hosted[job.id] = run = JobRun(started, self._database, self.changed, self._installation)
        # This is called from an actor's handler. Without a context of its own, the work would run with the handler's
        # context variables.
        self._context.run(partial(self._nursery.start_soon, self._host, run, name=f"job {job.id} {job.kind}"))
        self.changed(job.id)

    def ended(self, job_id: int) -> None:
        """Called once the end of a hosted job is stored."""
        run = self._hosted.pop(job_id, None)
        if run is not None and run.job.site_id is not None:
            # With the end, the queue has already started the next job of its own class. A job of another class may be
            # waiting for the same site, so the other queues are woken.
            for job_class in JobClass:
                if job_class is not run.job.job_class:
                    self._woken[job_class].set()
        self.changed(job_id)
        if not self._hosted:
            self._emptied.set()

    def stop(self, job_id: int) -> None:
        run = self._hosted.get(job_id)
        if run is not None:
            run.cancel_requested = True
            run.scope.cancel()

    def irrevocable(self, kind: str) -> str | None:
        found = self._kinds.get(kind)
        return found.irrevocable if found is not None else None

    async def end(self, tx: Transaction, job_id: int, status: JobStatus, error: JobError | None) -> Job | None:
        """Write the end of an open job and its consequences. None if it had ended already."""
        job = await end_job(tx, job_id, status, error)
        if job is None:
            return None
        if job.error is not None:
            # Without the error's message, which may repeat output of a program that the customer wrote.
            data = {
                "kind": job.kind,
                "code": job.error.code.value,
                "site_id": str(job.site_id) if job.site_id else None,
            }
            await emit(tx, WebhookEvent.JOB_FAILED, subject=Subject("job", str(job.id), job.title), data=data)
        kind = self._kinds.get(job.kind)
        if kind is not None and isinstance(kind.work, EndRecorder):
            try:
                async with tx.savepoint():
                    await kind.work.ended(tx, job)
            except Exception as error:
                # A defect in `ended` is rolled back to the savepoint and logged; the job still ends and frees its slot.
                if isinstance(error, ServiceError) and error.code is ErrorCode.UNAVAILABLE:
                    raise  # The database's error: the whole transaction is retried.
                log.exception("job.end_crashed", job_id=job.id, kind=job.kind)
        return job

    async def _fail_interrupted(self) -> None:
        """End the programs of an earlier core's jobs, then record these jobs as failed: so when a job is recorded as
        failed, or the next job starts, no such program is running."""
        try:
            ended = await end_marked(MARK, f"{self._installation}/")
        except LeftBehindError as error:
            log.error("job.programs_left", error=str(error))
        else:
            if ended:
                log.warning("job.programs_ended", processes=ended)
        for each in await running_jobs(self._database):
            job = each.job
            await self._database.transact(partial(self.end, job_id=job.id, status=JobStatus.FAILED, error=INTERRUPTED))
            log.warning("job.interrupted", job_id=job.id, kind=job.kind)

    def _wake(self, job_class: str) -> None:
        self._woken[JobClass(job_class)].set()

    async def _serve(self, job_class: JobClass) -> None:
        while True:
            woken = self._woken[job_class] = trio.Event()
            try:
                await self.queue_of(job_class).ask(JobQueue.start_next)
            except Draining:
                await trio.sleep_forever()  # The core is ending: no job starts, and this loop is cancelled.
            with trio.move_on_after(SWEEP):
                await woken.wait()
                # While all slots are taken: the end of a job of this class starts the next one.
                while self._full(job_class):
                    woken = self._woken[job_class] = trio.Event()
                    await woken.wait()

    def _full(self, job_class: JobClass) -> bool:
        return sum(run.job.job_class is job_class for run in self._hosted.values()) >= job_class.slots

    async def _host(self, run: JobRun) -> None:
        began = trio.current_time()
        status, error = await self._work(run)
        # Until the queue has stored the end, the job stays in `_hosted` and so keeps its slot.
        queue = self.queue_of(run.job.job_class)
        await run.persist(lambda: queue.ask(JobQueue.end, run.id, status, error))
        log.info(
            "job.ended",
            job_id=run.id,
            kind=run.job.kind,
            status=status.value,
            error_code=error.code.value if error is not None else None,
            seconds=round(trio.current_time() - began, 3),
        )

    async def _work(self, run: JobRun) -> tuple[JobStatus, JobError | None]:
        """Do the steps one after the other. Returns how the job ends."""
        kind = self._kinds.get(run.job.kind)
        if kind is None:
            return _failed(f"This version of the service does not know how to do {run.job.kind}.")
        with trio.move_on_after(kind.seconds) as deadline, run.scope:
            try:
                for position, step in enumerate(run.steps, 1):
                    run.position = position
                    run.step_error = None
                    named = kind.work.step(step) if isinstance(kind.work, Steps) else None
                    work: StepWork | None = named or getattr(kind.work, step, None)
                    if work is None:
                        return _failed(f"This version of the service does not know the step {step}.")
                    await work(run)
                    # The last step's end is written together with the job's, in the transaction of `end`.
                    if run.position < len(run.steps):
                        done = partial(
                            next_step,
                            job_id=run.id,
                            position=run.position,
                            progress=run.part_done(100),
                            error=run.step_error,
                        )
                        await run.transact(done)
                        self.changed(run.id)
                return JobStatus.SUCCEEDED, None
            except Exception as error:  # A defect fails only the job that meets it, not the queues with all others.
                if (refusal := refusal_in(error)) is not None:
                    return JobStatus.FAILED, JobError.of(refusal)
                log.exception("job.crashed", job_id=run.id, kind=run.job.kind, step=run.steps[run.position - 1])
                return _failed("The service failed while doing this.", "Ask its administrator: its log has the cause.")
        if deadline.cancelled_caught and not run.cancel_requested:
            hours = kind.seconds / 3600
            message = f"The job took longer than {hours:.1f} hours and was stopped."
            return JobStatus.FAILED, JobError(ErrorCode.UNAVAILABLE, message)
        return JobStatus.CANCELLED, None


def _failed(message: str, hint: str | None = None) -> tuple[JobStatus, JobError]:
    return JobStatus.FAILED, JobError(ErrorCode.INTERNAL, message, hint)
