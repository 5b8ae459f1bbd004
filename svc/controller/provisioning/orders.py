"""Orders of a billing system for an existing service. Each order is decided in one transaction and answered at once.
The machine is changed afterwards (`svc_actors.controller.provisioning.settling`). Repeating an order changes
nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Literal
from uuid import UUID

import structlog
from pydantic import Field

from svc.controller.machines import orders as machine_orders
from svc.controller.machines.orders import ResetPasswordRequest, ResetPasswordResult
from svc.controller.provisioning.catalogue import suspend_mode_of
from svc.controller.provisioning.models import Service, ServiceRequest, shown_service
from svc.controller.services import Controller
from svc.identity.fields import Reason
from svc.registry.declare import Operations
from svc.registry.operation import Context, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.provisioning import records
from svc_actors.controller.provisioning.settling import settle
from svc_actors.controller.provisioning.states import SuspendMode
from svc_actors.runtime import DomainError
from svc_actors.store import Transaction
from svc_common.errors import conflict

operations = Operations[Controller]()
log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.controller.provisioning")


class ServiceSuspendRequest(Request):
    """Without `mode`, the mode of the settings applies. `reason` is for those who look at the service later."""

    id: UUID
    mode: SuspendMode | None = None
    reason: Reason | None = None


class TerminateRequest(Request):
    """The only order that destroys anything. Without `destroy_disks` the disk is kept as a volume."""

    id: UUID
    confirm: Annotated[Literal[True], Field(description="Confirms the deletion.")]
    destroy_disks: bool = False


@operations.declare(
    "service.suspend",
    "Suspend a service: its machine is switched off, or runs without a network; its disks stay",
    Route.post("/provision/services/{id}/suspend"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def suspend(context: Context[Controller], request: ServiceSuspendRequest) -> Service:

    async def work(tx: Transaction) -> None:
        mode = request.mode or await suspend_mode_of(tx)
        await records.suspend(tx, context.caller, request.id, mode, request.reason)

    return await _decided(context, request.id, work)


@operations.declare(
    "service.unsuspend",
    "Unsuspend a service: reverse what its suspension did",
    Route.post("/provision/services/{id}/unsuspend"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def unsuspend(context: Context[Controller], request: ServiceRequest) -> Service:
    return await _decided(context, request.id, partial(records.unsuspend, caller=context.caller, service_id=request.id))


@operations.declare(
    "service.terminate",
    "Terminate a service and delete its machine",
    Route.post("/provision/services/{id}/terminate"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def terminate(context: Context[Controller], request: TerminateRequest) -> Service:
    work = partial(records.terminate, caller=context.caller, service_id=request.id, destroy_disks=request.destroy_disks)
    return await _decided(context, request.id, work)


@operations.declare(
    "service.reset_password",
    "Set the password of a service's running machine through its guest agent",
    Route.post("/provision/services/{id}/reset-password"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def reset_password(context: Context[Controller], request: ResetPasswordRequest) -> ResetPasswordResult:
    service = await records.get_service(context.services.database, request.id)
    if service.vm_id is None:
        raise conflict("The service has no machine.")
    of_machine = ResetPasswordRequest(id=service.vm_id, password=request.password)
    return await machine_orders.reset_password(context, of_machine)


async def _decided(
    context: Context[Controller], service_id: UUID, work: Callable[[Transaction], Awaitable[None]]
) -> Service:
    services = context.services
    await services.database.transact(work)
    try:
        await settle(services.database, services.actors, service_id)
    except DomainError as error:
        # The decision is stored, so the order succeeds: a background loop asks the machine's actor again.
        log.info("service.machine_follows_later", service_id=str(service_id), error=str(error))
    return await shown_service(services.database, service_id)
