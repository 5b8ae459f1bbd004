"""Plans, which a provider sells. A plan has the limits of a whole account, and the initial settings of its sites.

A changed plan applies at once to everybody who has it. If an account exceeds its limits, nothing is deleted: the excess
is reported, and nothing can be added.
"""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.panel.services import Panel
from svc.panel.settings import MailsPerDay, MailsPerHour
from svc.panel.sites.models import MOST_DISK_MIB, CpuPercent, DiskMib, MemoryMib, Processes
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Page, PageRequest, contains, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import NAME, Shape
from svc_actors.panel.accounts.allowances import ALLOWANCE_COLUMNS, MOST_SITES, Allowances
from svc_actors.panel.accounts.plans import change_plan, create_plan, delete_plan, plan_target
from svc_actors.panel.backups.schedules import DefaultBackups
from svc_actors.panel.sites.following import limit_sites
from svc_actors.panel.sites.resuming import follow
from svc_actors.store import Queryable, Transaction, audit
from svc_common.errors import not_found, wrong_field

operations = Operations[Panel]()

MOST_DATABASES: Final = 10_000

PlanName = Annotated[
    str,
    Field(min_length=1, max_length=60, description="Name of the plan, as the billing system has it."),
    Shape(r"[A-Za-z0-9][A-Za-z0-9 ._+-]*", "letters, digits, spaces and . _ + -, starting with a letter or digit"),
    NAME,
]
MostSites = Annotated[int, Field(ge=0, le=MOST_SITES)]
MostDatabases = Annotated[int, Field(ge=0, le=MOST_DATABASES)]
TrafficMib = Annotated[int, Field(ge=1, le=MOST_DISK_MIB * 64, description="MiB of traffic to visitors a month.")]


DefaultBackupsOfPlan = Annotated[
    DefaultBackups | None,
    Field(description="How often new sites of its customers are backed up; null: as the server's settings say."),
]


class PlanAllowances(Model):
    """None is no limit. `cpu_percent`, `memory_mib`, `processes` and the mails are of each site. `shell`: its sites may
    have access accounts with a shell. `mails_per_hour` and `mails_per_day` count recipients of mail that programs of a
    site send; None is the limit of the server's settings."""

    sites: MostSites | None = None
    databases: MostDatabases | None = None
    disk_mib: DiskMib | None = None
    traffic_mib: TrafficMib | None = None
    cpu_percent: CpuPercent | None = None
    memory_mib: MemoryMib | None = None
    processes: Processes | None = None
    shell: bool = False
    mails_per_hour: MailsPerHour | None = None
    mails_per_day: MailsPerDay | None = None

    def as_allowances(self) -> Allowances:
        return Allowances(**{name: getattr(self, name) for name in PlanAllowances.model_fields})


class Plan(PlanAllowances):
    """`accounts`: how many have it."""

    id: UUID
    name: str
    default_backups: DefaultBackups | None
    accounts: int


class PlanListRequest(PageRequest):
    """All plans, or those whose name contains `q`."""


class PlanRequest(Request):
    id: UUID


class PlanCreateRequest(PlanAllowances, Request):
    """A limit that is left out is none; for mails, it is the limit of the server's settings."""

    name: PlanName
    default_backups: DefaultBackupsOfPlan = None


class PlanUpdateRequest(PlanAllowances, Request):
    """Fields left out stay as they are; null removes a limit."""

    id: UUID
    name: PlanName | None = None
    default_backups: DefaultBackupsOfPlan = None


class PlanDeleteRequest(Request):
    id: UUID


_SELECT: Final = f"""
SELECT hosting_plans.id, hosting_plans.name, hosting_plans.default_backups, {ALLOWANCE_COLUMNS},
       (SELECT count(*) FROM hosting_accounts WHERE hosting_accounts.plan_id = hosting_plans.id) AS accounts
FROM hosting_plans"""


@operations.declare(
    "plan.list",
    "The plans that customers can have",
    Route.get("/plans"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("name", "sites", "databases", "disk_mib", "traffic_mib", "accounts", "id"),
)
async def list_plans(context: Context[Panel], request: PlanListRequest) -> Page[Plan]:
    rows, total = await paginate(
        context.services.database,
        select=_SELECT,
        source="hosting_plans",
        where=[contains(request.q, "hosting_plans.name")],
        sortable={"name": "hosting_plans.name", "created_at": "hosting_plans.created_at"},
        default_sort="name",
        request=request,
        tie="hosting_plans.id",
    )
    return Page[Plan].of([Plan(**dict(row)) for row in rows], total, request)


@operations.declare("plan.get", "One plan", Route.get("/plans/{id}"), access=Access.ADMINISTRATOR, scope=Scope.READ)
async def get_plan(context: Context[Panel], request: PlanRequest) -> Plan:
    return await _plan(context.services.database, request.id)


@operations.declare(
    "plan.create",
    "Create a plan",
    Route.post("/plans", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("name",),
)
async def create(context: Context[Panel], request: PlanCreateRequest) -> Plan:

    async def work(tx: Transaction) -> Plan:
        plan_id = await create_plan(tx, request.name, request.as_allowances(), request.default_backups)
        await audit.record(tx, context.caller, plan_target(plan_id, request.name))
        return await _plan(tx, plan_id)

    return await context.services.database.transact(work)


@operations.declare(
    "plan.update",
    "Change a plan for all customers who have it",
    Route.patch("/plans/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def update(context: Context[Panel], request: PlanUpdateRequest) -> Plan:
    values = {name: getattr(request, name) for name in request.model_fields_set - {"id"}}
    if "name" in values and values["name"] is None:
        raise wrong_field("name", "a plan must have a name")

    async def work(tx: Transaction) -> tuple[Plan, list[UUID]]:
        await tx.execute("SELECT FROM hosting_plans WHERE id = $1 FOR UPDATE", request.id)
        before = await _plan(tx, request.id)
        await change_plan(tx, request.id, values)
        after = await _plan(tx, request.id)
        changed = []
        for row in await tx.fetch(
            "SELECT user_id FROM hosting_accounts WHERE plan_id = $1 ORDER BY user_id", request.id
        ):
            changed += await limit_sites(tx, row["user_id"], before.as_allowances(), after.as_allowances())
        details = {"changed": sorted(values), "accounts": after.accounts}
        await audit.record(tx, context.caller, plan_target(after.id, after.name), details)
        return after, changed

    plan, changed = await context.services.database.transact(work)
    await follow(context.services.actors, changed)
    if "shell" in values:
        await context.services.sftp.agree()
    return plan


@operations.declare(
    "plan.delete",
    "Delete a plan that no customer has",
    Route.delete("/plans/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def delete(context: Context[Panel], request: PlanDeleteRequest) -> None:

    async def work(tx: Transaction) -> None:
        plan = await _plan(tx, request.id)
        await delete_plan(tx, plan.id, plan.name)
        await audit.record(tx, context.caller, plan_target(plan.id, plan.name))

    await context.services.database.transact(work)


async def _plan(queryable: Queryable, plan_id: UUID) -> Plan:
    row = await queryable.fetchrow(f"{_SELECT} WHERE hosting_plans.id = $1", plan_id)
    if row is None:
        raise not_found("There is no such plan.")
    return Plan(**dict(row))
