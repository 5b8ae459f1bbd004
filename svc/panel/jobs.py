"""Jobs: current and past work, its log, and its cancellation. Every slow operation answers with a `JobModel`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import trio
from pydantic import Field

from svc.panel.realm import REALM, PanelErrorBody
from svc.panel.services import Panel
from svc.panel.sites.access import visible_row, visible_sites
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Condition, Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.panel.jobs import Job, JobError, JobStatus, Step, read_lines, steps_of
from svc_actors.panel.jobs.records import as_job
from svc_actors.store import Queryable
from svc_common.errors import not_found

operations = Operations[Panel]()

LOG_PAGE = 1000
LONGEST_WAIT = 25
CANCEL_WAIT = 10.0
"""How long the answer to a cancellation waits for the work to stop; afterwards it continues stopping in the
background."""
_OF_SITE = (
    "jobs.owner_id",
    # Jobs of a previous owner, and the server's own jobs about the site, are left out.
    "(SELECT sites.id FROM sites WHERE sites.id = jobs.site_id AND sites.owner_id = jobs.owner_id)",
)
_KIND = Shape("[a-z][a-z0-9_]*([.][a-z0-9_]+)*", "a kind of job, as site.delete")


class JobErrorModel(PanelErrorBody):
    """Why a job failed, and its failing step."""

    @classmethod
    def of(cls, error: JobError | None) -> JobErrorModel | None:
        if error is None:
            return None
        return cls(code=REALM.failures.code(error.code).value, message=error.message, hint=error.hint or "")


class JobStepModel(Model):
    """Positions are 1, 2, 3, .... The member `error` exists only if the step failed."""

    position: int
    name: str
    title: str
    status: JobStatus
    error: Annotated[JobErrorModel | None, Field(exclude_if=lambda error: error is None)] = None
    started_at: datetime | None
    ended_at: datetime | None


class JobModel(Model):
    """The member `error` exists only if the job failed. `site_id` is the site that the job is about, if it is about
    one; `owner_id` is the account that it belongs to, null for a job of the server itself."""

    id: int
    kind: str
    title: str
    status: JobStatus
    progress: Annotated[int, Field(ge=0, le=100)]
    steps: list[JobStepModel]
    error: Annotated[JobErrorModel | None, Field(exclude_if=lambda error: error is None)] = None
    site_id: UUID | None
    owner_id: UUID | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None

    @classmethod
    def of(cls, job: Job, steps: list[Step]) -> JobModel:
        return cls(
            id=job.id,
            kind=job.kind,
            title=job.title,
            status=job.status,
            progress=job.progress,
            steps=[
                JobStepModel(
                    position=step.position,
                    name=step.name,
                    title=step.title,
                    status=step.status,
                    error=JobErrorModel.of(step.error),
                    started_at=step.started_at,
                    ended_at=step.ended_at,
                )
                for step in steps
            ],
            error=JobErrorModel.of(job.error),
            site_id=job.site_id,
            owner_id=job.owner_id,
            created_at=job.created_at,
            started_at=job.started_at,
            ended_at=job.ended_at,
        )


async def job_answer(queryable: Queryable, job: Job) -> JobModel:
    """The answer of an operation that has queued this job. Called in the same transaction, so the status is always
    `queued`."""
    return JobModel.of(job, (await steps_of(queryable, [job.id]))[job.id])


class JobLineModel(Model):
    """`seq` is 1, 2, 3, ... without a gap. `step` is the position of the step that the line is from."""

    seq: int
    at: datetime
    step: int | None
    message: str


class JobList(PageRequest):
    status: JobStatus | None = None
    kind: Annotated[str, Field(max_length=64), _KIND] | None = None
    site: UUID | None = None


class JobRequest(Request):
    id: Annotated[int, Field(ge=1, le=2**62)]


class JobLogRequest(JobRequest):
    """At most 1,000 lines are given at once. If there is no line after `after` yet, the answer waits for one, for
    `wait` seconds at most, and at most until the job ends."""

    after: Annotated[int, Field(ge=0, le=2**62, description="Only lines after this line.")] = 0
    wait: Annotated[int, Field(ge=0, le=LONGEST_WAIT, description="Wait up to this many seconds for another line.")] = 0


@operations.declare(
    "job.list",
    "List jobs, newest first",
    Route.get("/jobs"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("id", "kind", "title", "status", "progress", "created=created_at"),
)
async def list_jobs(context: Context[Panel], request: JobList) -> Page[JobModel]:
    database = context.services.database
    rows, total = await paginate(
        database,
        select="SELECT * FROM jobs",
        source="jobs",
        where=[
            visible_sites(context.principal, *_OF_SITE),
            contains(request.q, "title", "kind"),
            equals("status", request.status.value if request.status else None),
            equals("kind", request.kind),
            equals("site_id", request.site),
        ],
        sortable={"created_at": "created_at", "kind": ("kind", "created_at"), "status": ("status", "created_at")},
        default_sort="-created_at",
        request=request,
    )
    found = [as_job(row) for row in rows]
    steps = await steps_of(database, [job.id for job in found])
    return Page[JobModel].of([JobModel.of(job, steps[job.id]) for job in found], total, request)


@operations.declare(
    "job.get", "Show a job and its steps", Route.get("/jobs/{id}"), access=Access.SIGNED_IN, scope=Scope.READ
)
async def show_job(context: Context[Panel], request: JobRequest) -> JobModel:
    return await job_answer(context.services.database, await _visible_job(context, request.id))


@operations.declare(
    "job.log",
    "Read a job's log after a line",
    Route.get("/jobs/{id}/log"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("seq", "at", "step", "message"),
)
async def job_log(context: Context[Panel], request: JobLogRequest) -> list[JobLineModel]:
    database = context.services.database
    deadline = trio.current_time() + request.wait
    with context.services.jobs.watching(request.id) as changed:
        while True:
            job = await _visible_job(context, request.id)
            lines = await read_lines(database, request.id, after=request.after, limit=LOG_PAGE)
            if lines or not job.status.open or trio.current_time() >= deadline:
                return [JobLineModel(**vars(line)) for line in lines]
            with trio.move_on_at(deadline):
                await changed()


@operations.declare(
    "job.cancel",
    "Cancel a job that has not ended",
    Route.post("/jobs/{id}/cancel"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    frees_space=True,
)
async def cancel_job(context: Context[Panel], request: JobRequest) -> JobModel:
    await _visible_job(context, request.id)
    jobs, database = context.services.jobs, context.services.database
    with jobs.watching(request.id) as changed:
        await jobs.cancel(context.caller, request.id)
        with trio.move_on_after(CANCEL_WAIT):
            while (await _visible_job(context, request.id)).status.open:
                await changed()
    return await job_answer(database, await _visible_job(context, request.id))


async def _visible_job(context: Context[Panel], job_id: int) -> Job:
    owner, site = _OF_SITE
    row = await visible_row(
        context.services.database,
        context.principal,
        "SELECT * FROM jobs",
        Condition("id = $1", (job_id,)),
        not_found("There is no such job."),
        owner=owner,
        site=site,
    )
    return as_job(row)
