"""Plans: the sizes that machines are sold in. A plan in use stays until the last of its machines is gone."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.controller.images import Slug
from svc.controller.machines.fields import DiskGib, MemoryMib, Vcpus
from svc.controller.services import Controller
from svc.identity.fields import Name
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import EVERYTHING, Condition, Page, PageRequest, contains, paginate
from svc.registry.principal import Access, Role
from svc.registry.scopes import Scope
from svc_actors.controller.machines.creation import forget_plan
from svc_actors.controller.traffic.periods import Period, period_of, start_of, utc_now
from svc_actors.controller.traffic.policies import as_policy, policies
from svc_actors.controller.traffic.policy import TrafficAction, TrafficDirection
from svc_actors.store import Queryable, Record, Target, Transaction, UniqueViolationError, audit
from svc_common.errors import conflict, invalid, not_found

operations = Operations[Controller]()

Ipv4Count = Annotated[int, Field(ge=0, le=256, description="How many IPv4 addresses a customer's machine may have.")]


class PendingTraffic(Model):
    """A traffic policy that applies from `effective_from`, the start of a coming month."""

    effective_from: datetime
    traffic_gib: int | None
    traffic_direction: TrafficDirection
    traffic_action: TrafficAction
    traffic_throttle_mbps: int | None


class Plan(Model):
    """`ipv4_count`: the most addresses that a customer may attach. No new machines can be created with a disabled plan.
    The traffic policy is that of this month (`traffic_gib` null: no limit); it is set by PUT /plans/{id}/traffic alone.
    """

    id: UUID
    name: str
    slug: str
    vcpus: int
    memory_mib: int
    disk_gib: int
    ipv4_count: int
    enabled: bool
    created_at: datetime
    traffic_gib: int | None
    traffic_direction: TrafficDirection
    traffic_action: TrafficAction
    traffic_throttle_mbps: int | None
    traffic_pending: PendingTraffic | None

    @classmethod
    def of(cls, row: Record) -> Plan:
        policy = as_policy(row)
        pending = row["pending"]
        return cls(
            id=row["id"],
            name=row["name"],
            slug=row["slug"],
            vcpus=row["vcpus"],
            memory_mib=row["memory_mib"],
            disk_gib=row["disk_gib"],
            ipv4_count=row["ipv4_count"],
            enabled=row["enabled"],
            created_at=row["created_at"],
            traffic_gib=policy.allowance_gib,
            traffic_direction=policy.direction,
            traffic_action=policy.action,
            traffic_throttle_mbps=policy.throttle_mbps,
            traffic_pending=PendingTraffic(
                effective_from=start_of(Period(pending["effective_from"])),
                traffic_gib=pending["allowance_gib"],
                traffic_direction=TrafficDirection(pending["direction"]),
                traffic_action=TrafficAction(pending["action"]),
                traffic_throttle_mbps=pending["throttle_mbps"],
            )
            if pending is not None
            else None,
        )


# $1 is the current month.
_PLANS: Final = f"""
SELECT plans.*, policy.allowance_gib, policy.direction, policy.action, policy.throttle_mbps,
       (SELECT to_json(later) FROM plan_traffic later WHERE later.plan_id = plans.id AND later.effective_from > $1
        ORDER BY later.effective_from LIMIT 1) AS pending
FROM plans LEFT JOIN {policies("$1")} policy ON policy.plan_id = plans.id"""


async def shown_plan(queryable: Queryable, plan_id: UUID) -> Plan:
    return Plan.of(await queryable.fetchone(f"{_PLANS} WHERE plans.id = $2", period_of(utc_now()), plan_id))


class PlanCreateRequest(Request):
    name: Name
    slug: Slug
    vcpus: Vcpus
    memory_mib: MemoryMib
    disk_gib: DiskGib
    ipv4_count: Ipv4Count = 1
    enabled: bool = True


class PlanUpdateRequest(Request):
    """Fields left out stay as they are. Machines that have the plan keep the sizes with which they were created."""

    id: UUID
    name: Name | None = None
    vcpus: Vcpus | None = None
    memory_mib: MemoryMib | None = None
    disk_gib: DiskGib | None = None
    ipv4_count: Ipv4Count | None = None
    enabled: bool | None = None


class PlanRequest(Request):
    id: UUID


class PlanList(PageRequest):
    """Sorted by size: by memory, then processors."""


@operations.declare(
    "plan.list",
    "List plans, the smallest first; disabled ones for administrators only",
    Route.get("/plans"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=(
        "slug",
        "name",
        "vcpus",
        "memory=memory_mib",
        "disk=disk_gib",
        "ipv4=ipv4_count",
        "traffic=traffic_gib",
        "enabled",
    ),
)
async def list_plans(context: Context[Controller], request: PlanList) -> Page[Plan]:
    rows, total = await paginate(
        context.services.database,
        select=_PLANS,
        source="plans",
        args=(period_of(utc_now()),),
        where=[
            EVERYTHING if context.principal.role is Role.ADMINISTRATOR else Condition("plans.enabled"),
            contains(request.q, "plans.name", "plans.slug"),
        ],
        sortable={
            "size": "ROW(plans.memory_mib, plans.vcpus)",
            "name": "lower(plans.name)",
            "created_at": "plans.created_at",
        },
        default_sort="size",
        request=request,
        tie="plans.slug",
    )
    return Page[Plan].of([Plan.of(row) for row in rows], total, request)


@operations.declare(
    "plan.create",
    "Add a plan",
    Route.post("/plans", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("slug",),
)
async def create_plan(context: Context[Controller], request: PlanCreateRequest) -> Plan:
    values = request.model_dump()
    try:
        async with context.services.database.transaction() as tx:
            row = await tx.fetchone(
                f"""INSERT INTO plans ({", ".join(values)})
                        VALUES ({", ".join(f"${place}" for place in range(1, len(values) + 1))}) RETURNING *""",
                *values.values(),
            )
            await audit.record(tx, context.caller, _target(row))
            return await shown_plan(tx, row["id"])
    except UniqueViolationError:
        raise conflict(f"There is a plan with the slug {request.slug} already.") from None


@operations.declare(
    "plan.update",
    "Change a plan; machines on it keep their sizes",
    Route.patch("/plans/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def update_plan(context: Context[Controller], request: PlanUpdateRequest) -> Plan:
    given = request.model_dump(exclude={"id"}, exclude_none=True)
    if not given:
        raise invalid("Nothing would change.", hint="Give at least one field.")
    sets = ", ".join(f"{name} = ${place}" for place, name in enumerate(given, start=2))

    async def work(tx: Transaction) -> Plan:
        row = await tx.fetchrow(f"UPDATE plans SET {sets} WHERE id = $1 RETURNING *", request.id, *given.values())
        if row is None:
            raise not_found("There is no such plan.")
        await audit.record(tx, context.caller, _target(row), given)
        return await shown_plan(tx, request.id)

    return await context.services.database.transact(work)


@operations.declare(
    "plan.delete",
    "Delete a plan that no machine has",
    Route.delete("/plans/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def delete_plan(context: Context[Controller], request: PlanRequest) -> None:

    async def work(tx: Transaction) -> None:
        row = await tx.fetchrow("SELECT * FROM plans WHERE id = $1 FOR UPDATE", request.id)
        if row is None:
            raise not_found("There is no such plan.")
        machines = await tx.fetchval("SELECT count(*) FROM vms WHERE plan_id = $1 AND deleted_at IS NULL", request.id)
        if machines:
            have = "1 machine has" if machines == 1 else f"{machines} machines have"
            raise conflict(f"{have} this plan.", hint="Disable it instead: it then makes no new machines.")
        await forget_plan(tx, request.id)
        await tx.execute("DELETE FROM plans WHERE id = $1", request.id)
        await audit.record(tx, context.caller, _target(row))

    await context.services.database.transact(work)


def _target(row: Record) -> Target:
    return Target("plan", row["id"], row["slug"])
