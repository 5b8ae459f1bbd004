"""Changing the plan, size or system of a service's machine. The orders are those for any machine; the row of the
service is updated in the transaction in which the order is decided."""

from __future__ import annotations

from functools import partial
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.machines.creation import enabled_plan
from svc.controller.machines.models import show, visible_machine
from svc.controller.machines.remaking import (
    Key,
    Reboot,
    SizeFields,
    Slug,
    SystemFields,
    of_plan,
    of_sizes,
    offers_password,
    reinstall_machine,
    resize_machine,
)
from svc.controller.provisioning.models import ProvisionResult, Service, shown_service
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.registry.declare import Operations
from svc.registry.idempotency import run_idempotent
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.machines.machine import Decide
from svc_actors.controller.machines.remaking import NewSize
from svc_actors.controller.provisioning import records
from svc_actors.controller.provisioning.states import ServiceOrder
from svc_actors.store import Record
from svc_common.errors import conflict, wrong_field

operations = Operations[Controller]()


class ChangePlanRequest(Request):
    """`plan_id` or `plan_slug`. New processors and memory of a running machine need `reboot`."""

    id: UUID
    plan_id: UUID | None = None
    plan_slug: Slug | None = None
    reboot: Reboot = False
    idempotency_key: Key | None = None


class ResizeRequest(SizeFields):
    """The machine keeps its plan, which still decides about traffic and addresses."""

    id: UUID
    reboot: Reboot = False
    idempotency_key: Key | None = None


class ReinstallRequest(SystemFields):
    """`image_id` or `image_slug`, or neither for the machine's own image. Without keys and a password, a password is
    generated if the access mode has one; with `root_key` the machine's keys stay."""

    id: UUID
    image_slug: Slug | None = None
    idempotency_key: Key | None = None


class ServiceChange(Model):
    """The service as it is recorded now; if `task` fails, the machine is restored to what it was. `replayed`: an
    earlier request with this key has ordered this."""

    service: Service
    task: TaskModel
    replayed: Annotated[bool, Field(description="An earlier call with the key placed the order.")]


@operations.declare(
    "service.change_plan",
    "Change a service's machine to the sizes of another plan; its disk only grows",
    Route.post("/provision/services/{id}/change-plan"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def change_plan(context: Context[Controller], request: ChangePlanRequest) -> ServiceChange:

    async def run() -> ServiceChange:
        plan = await enabled_plan(context.services.database, request.plan_id, request.plan_slug)
        if plan is None:
            raise wrong_field("plan_id", "give this, or plan_slug")
        row = await _machine(context, request.id, ServiceOrder.CHANGE_PLAN)
        size = of_plan(plan, reboot=request.reboot, bounded=True)
        return await _resized(context, request.id, row, size, ServiceOrder.CHANGE_PLAN)

    answer, replayed = await run_idempotent(context, key=request.idempotency_key, request=request, run=run)
    return answer.model_copy(update={"replayed": replayed})


@operations.declare(
    "service.resize",
    "Resize a service's machine; its disk only grows",
    Route.post("/provision/services/{id}/resize"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def resize(context: Context[Controller], request: ResizeRequest) -> ServiceChange:

    async def run() -> ServiceChange:
        row = await _machine(context, request.id, ServiceOrder.RESIZE)
        size = of_sizes(request, reboot=request.reboot)
        return await _resized(context, request.id, row, size, ServiceOrder.RESIZE)

    answer, replayed = await run_idempotent(context, key=request.idempotency_key, request=request, run=run)
    return answer.model_copy(update={"replayed": replayed})


@operations.declare(
    "service.reinstall",
    "Reinstall a service's machine; its addresses stay",
    Route.post("/provision/services/{id}/reinstall"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
    confirm=True,
)
async def reinstall(context: Context[Controller], request: ReinstallRequest) -> ProvisionResult:

    async def run() -> ProvisionResult:
        database, principal = context.services.database, context.principal
        row = await _machine(context, request.id, ServiceOrder.REINSTALL)
        system = request
        named = bool(request.ssh_keys) or request.set_password is not None
        if not named and await offers_password(database, row, request, request.image_slug):
            system = request.model_copy(update={"password": True})
        decide = _decide(context, request.id, ServiceOrder.REINSTALL)
        done = await reinstall_machine(
            context, row, system, image=request.image_slug, key=request.idempotency_key, decide=decide
        )
        return ProvisionResult(
            service=await shown_service(database, request.id),
            vm=await show(database, principal, row["id"]),
            task=TaskModel.of(done.task, principal),
            user=done.account,
            password_chosen=request.set_password is not None,
            password=done.generated,
            replayed=not done.started,
        )

    answer, replayed = await run_idempotent(context, key=request.idempotency_key, request=request, run=run)
    return answer.model_copy(update={"replayed": answer.replayed or replayed})


async def _machine(context: Context[Controller], service_id: UUID, order: ServiceOrder) -> Record:
    """The service's machine. Raises conflict if the service's state does not allow the order."""
    database = context.services.database
    service = await records.get_service(database, service_id)
    records.moved(service, order)
    if service.vm_id is None:
        raise conflict("The service's machine no longer exists; nothing was changed.")
    return await visible_machine(database, context.principal, service.vm_id)


async def _resized(
    context: Context[Controller], service_id: UUID, row: Record, size: NewSize, order: ServiceOrder
) -> ServiceChange:
    task = await resize_machine(context, row, size, decide=_decide(context, service_id, order))
    return ServiceChange(
        service=await shown_service(context.services.database, service_id),
        task=TaskModel.of(task, context.principal),
        replayed=False,
    )


def _decide(context: Context[Controller], service_id: UUID, order: ServiceOrder) -> Decide:
    return partial(records.change_machine, caller=context.caller, service_id=service_id, order=order)
