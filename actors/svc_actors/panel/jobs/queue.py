"""Decides which jobs run: one queue for each class, with the slots of that class.

Turns. The jobs of a site, or of a person if a job has no site, are a flow, served in the order in which they were
queued. A free slot goes to the person with the fewest running jobs. Among several such persons it goes to the one who
was served longest ago, and among that person's flows to the flow that was served longest ago. So a hundred jobs of one
site delay others for no longer than one job takes. If a class has several slots, its last free one goes only to a
person without a running job: however many long jobs one person has, another person's job starts at once. A class with
one slot cannot keep one free: there everybody waits for the running job, but not for a second job of the same person.

Invariants:
- a class never has more running jobs than slots;
- one person's jobs never hold all slots of a class that has more than one;
- two jobs of one site never run at the same time, whatever their classes: an index prevents it; a staging copy counts
  as its live site;
- no job of a site starts while a push to the site still has to be undone;
- this process hosts every job that is running in the database: others were failed at the start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol
from uuid import UUID

from svc_actors.panel.jobs.records import (
    Job,
    JobClass,
    JobError,
    JobStatus,
    StartedJob,
    lock_job,
    running_jobs,
    start_jobs,
    write_lines,
)
from svc_actors.runtime import Actor
from svc_actors.store import Caller, Database, Queryable, Target, Transaction, UniqueViolationError, audit
from svc_common.errors import conflict, not_found, rate_limited

ONE_AT_A_SITE: Final = "jobs_one_at_a_site"
"""The unique index that prevents two running jobs of the same site, whatever their classes."""

MOST_WAITING_OF_SITE: Final = 10
MOST_WAITING_OF_CUSTOMER: Final = 30


@dataclass(frozen=True)
class WaitingJob:
    """The first job of a flow. Each start of a job gets a number, its turn; the turn of a flow or person is the number
    of their last start, 0 for none yet."""

    id: int
    site_id: UUID | None
    owner_id: UUID | None
    owner_turn: int
    flow_turn: int


@dataclass(frozen=True)
class RunningJob:
    id: int
    job_class: JobClass
    site_id: UUID | None
    owner_id: UUID | None


def pick(job_class: JobClass, waiting: Sequence[WaitingJob], running: Sequence[RunningJob]) -> list[int]:
    """The waiting jobs to start now, in this order."""
    busy = {job.site_id for job in running if job.site_id is not None}
    held = Counter(job.owner_id for job in running if job.job_class is job_class)
    left = list(waiting)
    begin: list[int] = []
    while held.total() < job_class.slots:
        is_last = job_class.slots > 1 and held.total() == job_class.slots - 1
        holders = {owner for owner, jobs in held.items() if jobs and owner is not None} if is_last else set()
        free = [job for job in left if job.site_id not in busy and job.owner_id not in holders]
        if not free:
            break
        chosen = min(free, key=lambda job: (held[job.owner_id], job.owner_turn, job.flow_turn, job.id))
        begin.append(chosen.id)
        left.remove(chosen)
        held[chosen.owner_id] += 1
        if chosen.site_id is not None:
            busy.add(chosen.site_id)
    return begin


class Hosting(Protocol):
    """The functions of the object that runs the jobs, as the queues use them."""

    @property
    def draining(self) -> bool: ...

    def hosts(self, job_id: int) -> bool: ...

    def host(self, started: StartedJob) -> None: ...

    def stop(self, job_id: int) -> None: ...

    def ended(self, job_id: int) -> None: ...

    def changed(self, job_id: int) -> None: ...

    def irrevocable(self, kind: str) -> str | None: ...

    async def end(self, tx: Transaction, job_id: int, status: JobStatus, error: JobError | None) -> Job | None: ...


class JobQueue(Actor):
    """The queue of one class; its key is the class."""

    def __init__(self, job_class: JobClass, database: Database, hosting: Hosting) -> None:
        self._class = job_class
        self._database = database
        self._hosting = hosting

    async def start_next(self) -> None:
        """Give free slots to waiting jobs."""
        self._host(await self._transact(self._start_chosen))

    async def end(self, job_id: int, status: JobStatus, error: JobError | None) -> None:
        """Write the end of a hosted job and give its slot to the next job, in one transaction. Repeating this changes
        nothing."""

        async def hand_over(tx: Transaction) -> list[StartedJob]:
            await self._hosting.end(tx, job_id, status, error)
            return await self._start_chosen(tx)

        started = await self._transact(hand_over)
        self._hosting.ended(job_id)
        self._host(started)

    async def cancel(self, caller: Caller, job_id: int) -> Job:
        """End a queued job, or stop the work of a running one: it ends once the work has given up.

        Raises not_found; conflict if it has ended, or if its kind cannot be cancelled.
        """

        async def decide(tx: Transaction) -> Job:
            job = await lock_job(tx, job_id)
            if job is None:
                raise not_found("There is no such job.")
            if not job.status.open:
                raise conflict(f"The job has ended already: {job.status.value}.")
            if (why := self._hosting.irrevocable(job.kind)) is not None:
                raise conflict(why)
            await audit.record(tx, caller, Target("job", str(job_id), job.title, job.owner_id))
            await write_lines(tx, job_id, None, [f"Cancellation requested by {caller.actor}."])
            if job.status is JobStatus.QUEUED:
                job = await self._hosting.end(tx, job_id, JobStatus.CANCELLED, None) or job
            return job

        job = await self._database.transact(decide)
        self._hosting.stop(job_id)
        self._hosting.changed(job_id)
        return job

    async def _transact(self, write: Callable[[Transaction], Awaitable[list[StartedJob]]]) -> list[StartedJob]:
        """A transaction that starts jobs. If another class has started a job of the same site meanwhile, the
        transaction is repeated and then finds the site busy."""
        while True:
            try:
                return await self._database.transact(write)
            except UniqueViolationError as error:
                if error.constraint_name != ONE_AT_A_SITE:
                    raise

    async def _start_chosen(self, tx: Transaction) -> list[StartedJob]:
        if self._hosting.draining:
            return []
        waiting, running = await _look(tx, self._class)
        chosen = pick(self._class, waiting, running)
        started = await start_jobs(tx, chosen) if chosen else []
        # Also host jobs that an earlier transaction has started, if its answer was lost with its connection.
        if any(job.job_class is self._class and not self._hosting.hosts(job.id) for job in running):
            of_class = [each for each in await running_jobs(tx) if each.job.job_class is self._class]
            return [each for each in of_class if not self._hosting.hosts(each.job.id)]
        return started

    def _host(self, started: Sequence[StartedJob]) -> None:
        for each in started:
            self._hosting.host(each)


async def _look(queryable: Queryable, job_class: JobClass) -> tuple[list[WaitingJob], list[RunningJob]]:
    """The waiting jobs of this class, the first of each flow, and the running jobs of all classes.

    The recursive query steps from flow to flow in the index, so the cost depends on the number of flows rather than
    jobs: some 30 us each."""
    rows = await queryable.fetch(
        """WITH RECURSIVE heads AS (
               (SELECT id, flow, site_id, owner_id, tenant FROM jobs
                WHERE class = $1 AND status = 'queued' ORDER BY flow, id LIMIT 1)
               UNION ALL
               SELECT following.* FROM heads, LATERAL (
                   SELECT id, flow, site_id, owner_id, tenant FROM jobs
                   WHERE class = $1 AND status = 'queued' AND flow > heads.flow ORDER BY flow, id LIMIT 1
               ) AS following
           )
           SELECT NULL AS running, id, site_id, owner_id,
                  coalesce((SELECT max(turn) FROM jobs
                            WHERE class = $1 AND flow = heads.flow AND turn IS NOT NULL), 0) AS flow_turn,
                  coalesce((SELECT max(turn) FROM jobs
                            WHERE class = $1 AND tenant = heads.tenant AND turn IS NOT NULL), 0) AS owner_turn
           FROM heads
           UNION ALL
           SELECT class, id, site_id, owner_id, 0, 0 FROM jobs WHERE status = 'running'""",
        job_class.value,
    )
    waiting, running = [], []
    for row in rows:
        job_id, site_id, owner_id = row["id"], row["site_id"], row["owner_id"]
        if row["running"] is None:
            waiting.append(WaitingJob(job_id, site_id, owner_id, row["owner_turn"], row["flow_turn"]))
        else:
            running.append(RunningJob(job_id, JobClass(row["running"]), site_id, owner_id))
    pairs = await queryable.fetch(
        "SELECT id, staging_of FROM sites WHERE staging_of IS NOT NULL AND id = ANY($1)",
        list({*(job.site_id for job in waiting), *(job.site_id for job in running)} - {None}),
    )
    for row in pairs:
        copy, live = row["id"], row["staging_of"]
        waiting = [replace(job, site_id=live) if job.site_id == copy else job for job in waiting]
        running = [replace(job, site_id=live) if job.site_id == copy else job for job in running]
    undone = await queryable.fetch("SELECT site_id FROM stagings WHERE status = 'undoing'")
    held = {row["site_id"] for row in undone}
    return [job for job in waiting if job.site_id not in held], running


# The queues are fair, so one tenant's jobs do not delay those of others. But each job is a row with steps and a log,
# and every waiting job delays those behind it. Deletions and the panel's own jobs have no limit.
async def require_turn(tx: Transaction, site_id: UUID, owner_id: UUID) -> None:
    """Raises `rate_limited` if the site or the customer has too many waiting jobs. An advisory lock, held until the
    transaction ends, makes concurrent orders count each other."""
    await tx.execute("SELECT pg_advisory_xact_lock(hashtextextended('waiting jobs ' || $1, 0))", str(owner_id))
    row = await tx.fetchone(
        """SELECT count(*) FILTER (WHERE site_id = $1) AS of_site, count(*) FILTER (WHERE owner_id = $2) AS of_customer
           FROM jobs WHERE status = 'queued' AND (site_id = $1 OR owner_id = $2)""",
        site_id,
        owner_id,
    )
    for waiting, most, whose in (
        (row["of_site"], MOST_WAITING_OF_SITE, "this site"),
        (row["of_customer"], MOST_WAITING_OF_CUSTOMER, "this customer"),
    ):
        if waiting >= most:
            raise rate_limited(
                f"{waiting} jobs of {whose} are already queued; nothing was started.",
                hint=f"Wait until they have ended, or cancel some of them: at most {most} may be queued.",
            )
