"""Restore drills: a backup is restored in isolation, to prove that it can be restored. Administrators only."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.paging import Page, PageRequest, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.backups.drill_records import (
    DrillCause,
    DrillFrequency,
    DrillStatus,
    read_drill_plan,
    start_drill,
    write_drill_plan,
)
from svc_actors.store import Target, Transaction, audit

operations = Operations[Panel]()


class Drill(Model):
    """`entries` and `databases`: how many files and folders, and databases, were restored and verified. `error`: what
    was not as it had been backed up."""

    id: UUID
    backup_id: UUID
    domain: str
    cause: DrillCause
    status: DrillStatus
    job_id: int
    entries: int
    databases: int
    error: str | None
    created_at: datetime
    ended_at: datetime | None


class DrillPlanModel(Model):
    """`next_run_at` is null if no drills are scheduled."""

    frequency: DrillFrequency
    next_run_at: datetime | None


class DrillListRequest(PageRequest):
    status: DrillStatus | None = None


class DrillStartRequest(Request):
    site: Annotated[UUID | None, Field(description="Site whose newest backup is restored; any site by default.")] = None


class DrillPlanRequest(Request):
    frequency: DrillFrequency


@operations.declare(
    "backup.drill_list",
    "Restore drills, newest first",
    Route.get("/backups/drills"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    command=("backup", "drill", "list"),
    columns=("domain", "status", "entries", "databases", "created=created_at", "error", "id"),
)
async def list_drills(context: Context[Panel], request: DrillListRequest) -> Page[Drill]:
    rows, total = await paginate(
        context.services.database,
        select="""SELECT id, backup_id, domain, cause, status, job_id, entries, databases, error, created_at, ended_at
                  FROM backup_drills""",
        source="backup_drills",
        where=[equals("status", request.status.value if request.status else None)],
        sortable={"created_at": "created_at"},
        default_sort="-created_at",
        request=request,
        tie="id",
    )
    return Page[Drill].of([Drill.model_validate(dict(row)) for row in rows], total, request)


@operations.declare(
    "backup.drill_start",
    "Run a restore drill: restore the newest backup of a site in isolation, verify it and remove it",
    Route.post("/backups/drills"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("backup", "drill", "start"),
    target="backup_drill",
)
async def start(context: Context[Panel], request: DrillStartRequest) -> JobModel:

    async def work(tx: Transaction) -> JobModel:
        job = await start_drill(tx, DrillCause.MANUAL, request.site)
        await audit.record(tx, context.caller, Target("backup_drill", str(job.id), job.title))
        return await job_answer(tx, job)

    return await context.services.database.transact(work)


@operations.declare(
    "backup.drill_plan",
    "Whether a restore drill runs every week",
    Route.get("/backups/drills/plan"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    command=("backup", "drill", "plan"),
)
async def show_plan(context: Context[Panel], request: Empty) -> DrillPlanModel:
    plan = await read_drill_plan(context.services.database)
    at = plan.next_run_at if plan.frequency is DrillFrequency.WEEKLY else None
    return DrillPlanModel(frequency=plan.frequency, next_run_at=at)


@operations.declare(
    "backup.set_drill_plan",
    "Turn the weekly restore drill on or off",
    Route.put("/backups/drills/plan"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("backup", "drill", "set-plan"),
    positional=("frequency",),
    target="backup_drill",
)
async def set_plan(context: Context[Panel], request: DrillPlanRequest) -> DrillPlanModel:

    async def work(tx: Transaction) -> None:
        await write_drill_plan(tx, request.frequency)
        details = {"frequency": request.frequency.value}
        await audit.record(tx, context.caller, Target("backup_drill", "plan", "weekly drill"), details)

    await context.services.database.transact(work)
    return await show_plan(context, Empty())
