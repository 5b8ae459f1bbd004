"""Reading services: the list, one by id or by the billing system's own reference, its events, its usage."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.controller.provisioning.models import (
    SELECT_SERVICES,
    SOURCE,
    ExternalRef,
    Integration,
    Service,
    ServiceEvent,
    ServiceRequest,
    shown_service,
)
from svc.controller.services import Controller
from svc.controller.tasks import LOG_PAGE, TaskEventModel, TaskModel
from svc.controller.traffic.models import AskedPeriod, TrafficPosition, requested_period
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.provisioning.records import find_service, get_service
from svc_actors.controller.provisioning.states import ServiceState
from svc_actors.controller.tasks.runner import get_task, read_log
from svc_actors.controller.traffic.policies import policy_of
from svc_actors.controller.traffic.readings import month_of
from svc_common.errors import not_found

operations = Operations[Controller]()

_OF_A_SERVICE: Final = "SELECT $1 = 'vm' AND EXISTS (SELECT FROM services WHERE vm_id = $2)"
"""True for tasks of machines that belong to a service: the token of a billing system sees no others."""

LAST_EVENTS: Final = 1000
"""The most events in an answer of GET events, newest first."""


class ServiceList(PageRequest):
    state: ServiceState | None = None
    integration: Integration | None = None
    external_ref: ExternalRef | None = None


class ByRefRequest(Request):
    ref: ExternalRef
    integration: Integration


class UsageRequest(Request):
    id: UUID
    period: AskedPeriod = None


class ServiceUsage(Model):
    """The sizes of the service's machine, and its transfer in the month. `traffic` is null if no machine was ever
    created. Figures are lower bounds; `resets` and `first_at` show why they may be too low."""

    service_id: UUID
    period: str
    vm_id: UUID | None
    vcpus: int | None
    memory_mib: int | None
    disk_gib: int | None
    ipv4_count: int
    received_bytes: int
    sent_bytes: int
    traffic: TrafficPosition | None
    first_at: datetime | None


class ServiceTaskRequest(Request):
    id: UUID
    after: Annotated[int, Field(ge=0, le=2**62, description="Only log lines after this position.")] = 0


class ProvisionTask(Model):
    """`events`: the lines of its log after the position `after`, at most a thousand."""

    task: TaskModel
    events: list[TaskEventModel]


@operations.declare(
    "service.list",
    "Services, newest first",
    Route.get("/provision/services"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
    columns=("integration", "external_ref", "state", "customer=customer.email", "machine=machine.name", "id"),
)
async def list_services(context: Context[Controller], request: ServiceList) -> Page[Service]:
    rows, total = await paginate(
        context.services.database,
        select=SELECT_SERVICES,
        source=SOURCE,
        where=[
            equals("services.state", request.state.value if request.state else None),
            equals("services.integration", request.integration),
            equals("services.external_ref", request.external_ref),
            contains(request.q, "services.external_ref", "users.email", "vms.name"),
        ],
        sortable={"created_at": "services.created_at", "external_ref": "services.external_ref"},
        default_sort="-created_at",
        request=request,
        tie="services.id",
    )
    return Page[Service].of([Service.of(row) for row in rows], total, request)


@operations.declare(
    "service.find",
    "A service, by its billing system's reference",
    Route.get("/provision/by-ref/{ref}"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def find(context: Context[Controller], request: ByRefRequest) -> Service:
    service = await find_service(context.services.database, request.integration, request.ref)
    if service is None:
        raise not_found(f"{request.integration} has no service for {request.ref}.")
    return await shown_service(context.services.database, service.id)


@operations.declare(
    "service.show",
    "One service",
    Route.get("/provision/services/{id}"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def show(context: Context[Controller], request: ServiceRequest) -> Service:
    return await shown_service(context.services.database, request.id)


@operations.declare(
    "service.events",
    "The history of a service, newest first",
    Route.get("/provision/services/{id}/events"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
    columns=("at", "kind", "state", "actor", "message"),
)
async def events(context: Context[Controller], request: ServiceRequest) -> list[ServiceEvent]:
    database = context.services.database
    await get_service(database, request.id)
    rows = await database.fetch(
        "SELECT * FROM service_events WHERE service_id = $1 ORDER BY id DESC LIMIT $2", request.id, LAST_EVENTS
    )
    return [ServiceEvent(**{name: row[name] for name in ServiceEvent.model_fields}) for row in rows]


@operations.declare(
    "service.usage",
    "The resources of a service, and the traffic of its machine in a month",
    Route.get("/provision/services/{id}/usage"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def usage(context: Context[Controller], request: UsageRequest) -> ServiceUsage:
    database, period = context.services.database, requested_period(request.period)
    service = await get_service(database, request.id)
    vm = await database.fetchrow(
        """SELECT id, plan_id, vcpus, memory_mib, disk_gib,
                  (SELECT count(*) FROM allocations held
                   WHERE held.vm_id = vms.id AND held.state = 'allocated' AND family(held.ip) = 4) AS ipv4_count
           FROM vms WHERE id = $1""",
        service.vm_id,
    )
    if vm is None:
        return ServiceUsage(
            service_id=service.id,
            period=period,
            vm_id=None,
            vcpus=None,
            memory_mib=None,
            disk_gib=None,
            ipv4_count=0,
            received_bytes=0,
            sent_bytes=0,
            traffic=None,
            first_at=None,
        )
    month = await month_of(database, vm["id"], period)
    position = TrafficPosition.of(await policy_of(database, vm["plan_id"], period), month)
    return ServiceUsage(
        service_id=service.id,
        period=period,
        vm_id=vm["id"],
        vcpus=vm["vcpus"],
        memory_mib=vm["memory_mib"],
        disk_gib=vm["disk_gib"],
        ipv4_count=vm["ipv4_count"],
        received_bytes=month.received_bytes,
        sent_bytes=month.sent_bytes,
        traffic=position,
        first_at=month.first_at,
    )


@operations.declare(
    "service.task",
    "A task of a service's machine, with its log",
    Route.get("/provision/tasks/{id}"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def task(context: Context[Controller], request: ServiceTaskRequest) -> ProvisionTask:
    database = context.services.database
    found = await get_task(database, request.id)
    if found is None or not await database.fetchval(_OF_A_SERVICE, found.resource_kind.value, found.resource_id):
        raise not_found("There is no such task of a service.")
    lines = await read_log(database, found.id, after=request.after, limit=LOG_PAGE)
    return ProvisionTask(
        task=TaskModel.of(found, context.principal), events=[TaskEventModel(**vars(line)) for line in lines]
    )
