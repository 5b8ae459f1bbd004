"""The provisioning API's models of a service."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.controller.machines.models import GUEST_IP, VM
from svc.controller.tasks import TaskModel
from svc.registry.operation import Model, Request
from svc.registry.shapes import NAME, Shape
from svc_actors.controller.provisioning.states import ServiceState, SuspendMode
from svc_actors.store import Queryable, Record
from svc_common.errors import not_found

Integration = Annotated[
    str,
    Field(description="The name of the billing system: whmcs, fossbilling-eu."),
    Shape(r"[a-z0-9][a-z0-9._-]{0,49}", "lowercase letters, digits, dots, hyphens and underscores, 50 at most"),
]
ExternalRef = Annotated[
    str, Field(min_length=1, max_length=200, description="The billing system's reference of the service."), NAME
]


class ServiceCustomer(Model):
    id: UUID
    email: str
    name: str


class ServiceMachine(Model):
    """`task_id`: the task that is in progress for the machine."""

    id: UUID
    name: str
    status: str
    primary_ip: str | None
    task_id: UUID | None


class Service(Model):
    """A sold service. `state` is the decided state; `settled`: the machine has reached it. `machine` is null once it
    was deleted. `suspend_mode`: that of the current suspension; `state_reason`: why it is suspended or has failed."""

    id: UUID
    integration: str
    external_ref: str
    state: ServiceState
    state_reason: str | None
    settled: bool
    suspend_mode: SuspendMode | None
    suspended_at: datetime | None
    customer: ServiceCustomer | None
    project_id: UUID
    plan_id: UUID | None
    plan: str | None
    image: str | None
    machine: ServiceMachine | None
    created_at: datetime
    changed_at: datetime
    terminated_at: datetime | None

    @classmethod
    def of(cls, row: Record) -> Service:
        members = cls.model_fields.keys() & row.keys()
        return cls.model_validate({name: row[name] for name in members})


class ServiceEvent(Model):
    """What happened to a service, and who did it."""

    id: int
    at: datetime
    kind: str
    state: ServiceState
    actor: str
    message: str


class ProvisionResult(Model):
    """`password` is set if the service generated one, also for a repeated call with the same key; a chosen password is
    never shown. `replayed`: an earlier call with this key has created the service."""

    service: Service
    vm: VM
    task: TaskModel
    user: str
    password_chosen: bool
    password: str | None
    replayed: bool


class ServiceRequest(Request):
    id: UUID


SOURCE: Final = """services
LEFT JOIN users ON users.id = services.customer_id
LEFT JOIN vms ON vms.id = services.vm_id
LEFT JOIN plans ON plans.id = vms.plan_id
LEFT JOIN images ON images.id = vms.image_id"""

SELECT_SERVICES: Final = f"""
SELECT services.*, plans.id AS plan_id, plans.slug AS plan, images.slug AS image,
       CASE WHEN users.id IS NOT NULL THEN
           json_build_object('id', users.id, 'email', users.email, 'name', users.name) END AS customer,
       CASE WHEN vms.deleted_at IS NULL AND vms.id IS NOT NULL THEN
           json_build_object('id', vms.id, 'name', vms.name, 'status', vms.status,
               'primary_ip', (SELECT {GUEST_IP} FROM allocations held
                              WHERE held.vm_id = vms.id AND held.is_primary AND held.state = 'allocated'),
               'task_id', (SELECT tasks.id FROM tasks
                           WHERE resource_kind = 'vm' AND resource_id = vms.id
                             AND tasks.status IN ('queued', 'running'))) END AS machine
FROM {SOURCE}"""


async def shown_service(queryable: Queryable, service_id: UUID) -> Service:
    """The service as the API shows it. Raises not_found."""
    row = await queryable.fetchrow(f"{SELECT_SERVICES} WHERE services.id = $1", service_id)
    if row is None:
        raise not_found("There is no such service.")
    return Service.of(row)
