"""Machines: the list, one machine, and its metrics and history."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.access import visible_projects
from svc.controller.machines.fields import Selector, has_labels
from svc.controller.machines.finding import named_or_addressed
from svc.controller.machines.models import (
    NOT_DELETED,
    VM,
    VM_SELECT,
    MetricSeries,
    VMStatus,
    has_status,
    show,
    shown_status,
    visible_machine,
)
from svc.controller.services import Controller
from svc.controller.tasks import TASK_COLUMNS, TaskFilters, TaskModel, node_filter, page_of_tasks
from svc.identity.activity import AuditEntry, audit_of, audit_page
from svc.registry.declare import Operations
from svc.registry.operation import Context, Request, Route
from svc.registry.paging import EVERYTHING, Blocks, Condition, Groups, Page, PageRequest, equals, joined, paginate
from svc.registry.principal import Access, Principal
from svc.registry.scopes import Scope
from svc_actors.controller.machines.metrics import machine_metrics

operations = Operations[Controller]()

_SORTABLE = {
    "created_at": "vms.created_at",
    "name": "vms.name",
    "status": shown_status("vms.status"),
    "vcpus": "vms.vcpus",
    "memory_mib": "vms.memory_mib",
}


class VMList(PageRequest):
    """`node` is for staff and administrators; a customer's list by node is empty."""

    status: VMStatus | None = None
    node: UUID | None = None
    project: UUID | None = None
    label: Selector | None = None


class VMRequest(Request):
    id: UUID


class VMTasksRequest(TaskFilters):
    id: UUID


class VMActivityRequest(PageRequest):
    id: UUID


class MetricsRequest(Request):
    """`res`: the seconds that one point covers; `hours`: how far back the points go."""

    id: UUID
    res: Annotated[int, Field(ge=10, le=86400)] = 60
    hours: Annotated[int, Field(ge=1, le=24 * 31, description="How far back.")] = 1


@operations.declare(
    "vm.list",
    "List machines",
    Route.get("/vms"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=(
        "name",
        "status",
        "project=project_name",
        "node=node_name",
        "ip=primary_ip",
        "vcpus",
        "memory=memory_mib",
        "disk=disk_gib",
        "image=image_name",
        "created=created_at",
    ),
)
async def list_machines(context: Context[Controller], request: VMList) -> Page[VM]:
    rows, total = await paginate(
        context.services.database,
        select=VM_SELECT,
        source="vms LEFT JOIN nodes ON nodes.id = vms.node_id",
        where=[
            NOT_DELETED,
            visible_projects(context.principal, "vms.project_id"),
            has_status(request.status),
            equals("vms.project_id", request.project),
            node_filter(request.node, context.principal, "vms.node_id"),
            has_labels(request.label),
            named_or_addressed(request.q),
        ],
        sortable=_SORTABLE,
        default_sort="-created_at",
        request=request,
        tie="vms.id",
        known_total=_known_total(request, context.principal),
        blocks=_blocks(request, context.principal),
        groups=_groups(request, context.principal),
    )
    return Page[VM].of([VM.of(row, context.principal) for row in rows], total, request)


def _known_total(request: VMList, principal: Principal) -> Condition | None:
    """The number of machines in the list, if a maintained count has it: by node and status, or by project."""
    if request.q or request.label:
        return None
    if principal.is_operator and request.project is None:
        return Condition(
            f"""SELECT coalesce(sum(number), 0) FROM list_numbers LEFT JOIN nodes ON nodes.id = scope
                WHERE list = 'vms by node' AND ($1::uuid IS NULL OR scope = $1)
                  AND ($2::text IS NULL OR {shown_status("words[1]")} = $2)""",
            (request.node, request.status),
        )
    if request.node is not None or request.status is not None:
        return None
    own = joined([visible_projects(principal, "scope"), equals("scope", request.project)])
    return Condition(
        f"SELECT coalesce(sum(number), 0) FROM list_numbers WHERE list = 'vms by project' AND {own.sql}", own.args
    )


def _blocks(request: VMList, principal: Principal) -> Blocks | None:
    """Counts of all machines by the day of their creation, if the request lists all machines."""
    if not principal.is_operator or any((request.q, request.label, request.project, request.node, request.status)):
        return None
    numbers = "SELECT utc_day_begins(words[1]) AS bound, number FROM list_numbers WHERE list = 'vms by day'"
    return Blocks("created_at", Condition(numbers))


def _groups(request: VMList, principal: Principal) -> Groups | None:
    """Counts of machines by displayed status, of one node or of all nodes."""
    if not principal.is_operator or request.q or request.label or request.project:
        return None
    shown = shown_status("words[1]")
    numbers = Condition(
        f"""SELECT {shown} AS value, number FROM list_numbers LEFT JOIN nodes ON nodes.id = scope
            WHERE list = 'vms by node' AND ($1::uuid IS NULL OR scope = $1) AND ($2::text IS NULL OR {shown} = $2)""",
        (request.node, request.status),
    )
    return Groups("status", numbers, lambda value: has_status(VMStatus(value)))


@operations.declare("vm.show", "Show a machine", Route.get("/vms/{id}"), access=Access.SIGNED_IN, scope=Scope.READ)
async def show_machine(context: Context[Controller], request: VMRequest) -> VM:
    return await show(context.services.database, context.principal, request.id)


@operations.declare(
    "vm.tasks",
    "List a machine's tasks, newest first",
    Route.get("/vms/{id}/tasks"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=TASK_COLUMNS,
)
async def machine_tasks(context: Context[Controller], request: VMTasksRequest) -> Page[TaskModel]:
    database = context.services.database
    await visible_machine(database, context.principal, request.id)
    return await page_of_tasks(
        database, context.principal, request, equals("resource_kind", "vm"), equals("resource_id", request.id)
    )


@operations.declare(
    "vm.activity",
    "Who did what to a machine, newest first",
    Route.get("/vms/{id}/activity"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("at", "actor", "operation", "outcome"),
)
async def machine_activity(context: Context[Controller], request: VMActivityRequest) -> Page[AuditEntry]:
    """A customer sees what was done within the project, and their own attempts. Refused attempts of other people are
    not in the project and are not shown: they did not affect the machine."""
    database, principal = context.services.database, context.principal
    machine = await visible_machine(database, principal, request.id)
    own = Condition("project_id = $1 OR actor_id = $2", (machine["project_id"], principal.user_id))
    seen = EVERYTHING if principal.is_operator else own
    return await audit_page(database, principal, request, [audit_of("vm", request.id), seen])


@operations.declare(
    "vm.metrics",
    "Show what a machine used, from its node",
    Route.get("/vms/{id}/metrics"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def metrics(context: Context[Controller], request: MetricsRequest) -> MetricSeries:
    machine = await visible_machine(context.services.database, context.principal, request.id)
    measured = await machine_metrics(
        context.services.gateway,
        node_id=machine["node_id"],
        vm_id=request.id,
        resolution_seconds=request.res,
        hours=request.hours,
    )
    return MetricSeries(resolution_seconds=measured.resolution_seconds, points=list(measured.points))
