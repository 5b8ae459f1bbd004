"""Ordering a service. The customer, the machine (created in the same way as by a customer's own order) and the
service's row are each created once, however often the order is repeated.

The service and its machine are created in one transaction (`create_machine`), so after a crash both exist or neither
does. The customer and their project are created before; a repeated order finds and uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import Field

from svc.controller.machines.arrivals import retry_when_nodes_arrive
from svc.controller.machines.creation import GuestSignIn, VMCreateRequest, answer_repeated, resolve, start_creation
from svc.controller.machines.fields import GivenPassword, Hostname, MachineName, SshKeyText, UserData
from svc.controller.machines.guest_access import MAX_KEYS
from svc.controller.machines.models import AccessMode, show
from svc.controller.provisioning.models import ExternalRef, Integration, ProvisionResult, shown_service
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.identity import person_records
from svc.identity.fields import Email, Line, Name, Phone
from svc.registry.declare import Operations
from svc.registry.idempotency import key_owner, run_idempotent
from svc.registry.operation import Context, Request, Route
from svc.registry.principal import Access, Role
from svc.registry.scopes import Scope
from svc.registry.shapes import LINE
from svc_actors.controller.machines.creation import Created, IdempotencyKey, OnCreated, create_machine, find_by_key
from svc_actors.controller.provisioning import records
from svc_actors.controller.provisioning.records import NewService
from svc_actors.controller.provisioning.states import ServiceOrder
from svc_actors.store import Target, Transaction, audit
from svc_common.errors import conflict, not_found

operations = Operations[Controller]()

IdempotencyKeyField = Annotated[
    str,
    Field(min_length=1, max_length=200, description="A repeated call with the same key has no further effect."),
    LINE,
]
_USER_DATA: Final = "user-data of a service's machine"
_Slug = Annotated[str, Field(max_length=100), LINE]


class ProvisionCreateRequest(Request):
    """The customer is the person with `customer_email`; if there is none, one is created with the name `customer_name`.
    The machine is in `project_id`, by default the customer's oldest project. The default `access_mode` is the image's
    own user with sudo. Without `ssh_keys` and `set_password` a password is generated; `password` asks for one in
    addition to keys."""

    idempotency_key: IdempotencyKeyField
    integration: Integration
    external_ref: ExternalRef
    customer_email: Email
    customer_name: Name | None = None
    customer_phone: Phone = ""
    customer_company: Line = ""
    project_id: UUID | None = None
    name: MachineName
    hostname: Hostname | None = None
    plan_id: UUID | None = None
    plan_slug: _Slug | None = None
    image_id: UUID | None = None
    image_slug: _Slug | None = None
    location_id: UUID | None = None
    ssh_keys: Annotated[list[SshKeyText], Field(default_factory=list, max_length=MAX_KEYS)]
    access_mode: Annotated[
        AccessMode | None, Field(description="Account to sign in with; the image's own user with sudo by default.")
    ] = None
    set_password: Annotated[GivenPassword | None, Field(repr=False)] = None
    password: Annotated[bool, Field(description="Generate a password, shown once.")] = False
    user_data: Annotated[UserData | None, Field(repr=False)] = None


class RetryRequest(Request):
    id: UUID
    idempotency_key: IdempotencyKeyField | None = None


@dataclass(frozen=True)
class _Customer:
    user_id: UUID
    project_id: UUID


@operations.declare(
    "service.create",
    "Order a machine for a customer, once",
    Route.post("/provision/services", status=201),
    access=Access.STAFF,
    scope=Scope.PROVISION,
    positional=("name",),
    statuses=(200,),
)
async def create(context: Context[Controller], request: ProvisionCreateRequest) -> ProvisionResult:
    run = partial(_create, context, request)
    answer, replayed = await run_idempotent(context, key=request.idempotency_key, request=request, run=run)
    return _answered(context, answer, replayed)


@operations.declare(
    "service.retry",
    "Retry the provisioning of a service that has failed",
    Route.post("/provision/services/{id}/retry"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def retry(context: Context[Controller], request: RetryRequest) -> ProvisionResult:
    run = partial(_retry, context, request)
    answer, replayed = await run_idempotent(context, key=request.idempotency_key, request=request, run=run)
    return _answered(context, answer, replayed)


def _answered(context: Context[Controller], answer: ProvisionResult, replayed: bool) -> ProvisionResult:
    if not (replayed or answer.replayed):
        return answer
    context.effects.status = 200
    return answer.model_copy(update={"replayed": True})


async def _create(context: Context[Controller], request: ProvisionCreateRequest) -> ProvisionResult:
    database = context.services.database
    owner = key_owner(context.principal)
    key = IdempotencyKey(f"provision:{owner}", request.idempotency_key)
    before = await records.find_service(database, request.integration, request.external_ref)
    if before is not None:
        made = await find_by_key(database, key)
        if made is None or made["id"] != before.vm_id:
            raise records.reference_taken(request.integration, request.external_ref)
        # The process of the first call died after it had created the machine and before it stored its answer.
        answer = await answer_repeated(context, _machine_order(request, before.project_id), made)
        return ProvisionResult(service=await shown_service(database, before.id), **dict(answer))
    customer = await database.transact(partial(_customer, context=context, request=request))
    order = _machine_order(request, customer.project_id)
    new = NewService(
        integration=request.integration,
        external_ref=request.external_ref,
        customer_id=customer.user_id,
        project_id=customer.project_id,
        machine_order=_without_secrets(order),
        sealed_user_data=_sealed(context, request.user_data),
    )

    async def record_service(tx: Transaction, vm_id: UUID) -> None:
        await records.add_service(tx, context.caller, new, vm_id)

    created, way_in = await _ordered(context, order, key, record_service)
    return await _result(context, new.id, created, way_in, chosen=request.set_password is not None)


async def _retry(context: Context[Controller], request: RetryRequest) -> ProvisionResult:
    service = await records.get_service(context.services.database, request.id)
    records.moved(service, ServiceOrder.RETRY)
    order = VMCreateRequest.model_validate(service.machine_order)
    if service.sealed_user_data is not None:
        user_data = context.services.sealer.unseal(service.sealed_user_data, _USER_DATA).decode()
        order = order.model_copy(update={"user_data": user_data})
    created, way_in = await _ordered(context, order, None, partial(_retried, context, service.id))
    return await _result(context, service.id, created, way_in, chosen=False)


async def _retried(context: Context[Controller], service_id: UUID, tx: Transaction, vm_id: UUID) -> None:
    await records.retry(tx, context.caller, service_id, vm_id)


async def _ordered(
    context: Context[Controller], order: VMCreateRequest, key: IdempotencyKey | None, on_created: OnCreated
) -> tuple[Created, GuestSignIn]:
    services = context.services
    new, way_in = await resolve(services.database, context.principal, order, key)
    created = await retry_when_nodes_arrive(
        services,
        lambda: create_machine(services.database, services.sealer, context.caller, new, on_created),
        node_id=new.node_id,
        location_id=new.location_id,
    )
    start_creation(services, new, created)
    return created, way_in


async def _result(
    context: Context[Controller], service_id: UUID, created: Created, way_in: GuestSignIn, *, chosen: bool
) -> ProvisionResult:
    database, principal = context.services.database, context.principal
    return ProvisionResult(
        service=await shown_service(database, service_id),
        vm=await show(database, principal, created.vm_id),
        task=TaskModel.of(created.task, principal),
        user=way_in.account,
        password_chosen=chosen,
        password=way_in.password.generated if way_in.password else None,
        replayed=False,
    )


async def _customer(tx: Transaction, *, context: Context[Controller], request: ProvisionCreateRequest) -> _Customer:
    """The customer with this address, created if absent, and the project that the machine goes into."""
    user_id = await tx.fetchval("SELECT id FROM users WHERE email = $1", request.customer_email)
    if user_id is None:
        user_id = await person_records.add(
            tx,
            email=request.customer_email,
            name=request.customer_name or request.customer_email,
            role=Role.CUSTOMER,
            password_hash=None,
            phone=request.customer_phone,
            company=request.customer_company,
        )
        await context.services.person_added(tx, user_id, request.customer_email, Role.CUSTOMER)
        await audit.record(tx, context.caller, Target("user", user_id, request.customer_email), {"made": True})
    person = await person_records.person(tx, user_id)
    if person.role is not Role.CUSTOMER:
        raise conflict(f"{person.email} is not a customer; nothing was created.")
    project_id = await tx.fetchval(
        """SELECT project_id FROM project_members JOIN projects ON projects.id = project_id
           WHERE user_id = $1 AND ($2::uuid IS NULL OR project_id = $2) ORDER BY created_at, project_id LIMIT 1""",
        user_id,
        request.project_id,
    )
    if project_id is None:
        raise not_found(
            f"{person.email} is not in this project; nothing was created.",
            hint="Leave project_id out, or make the customer a member of the project.",
        )
    return _Customer(user_id, project_id)


def _machine_order(request: ProvisionCreateRequest, project_id: UUID) -> VMCreateRequest:
    wants_password = request.password or not request.ssh_keys
    return VMCreateRequest(
        name=request.name,
        hostname=request.hostname,
        project_id=project_id,
        plan_id=request.plan_id,
        plan=request.plan_slug,
        image_id=request.image_id,
        image=request.image_slug,
        location_id=request.location_id,
        security_group_ids=[],
        labels={},
        ssh_key_ids=[],
        ssh_keys=request.ssh_keys,
        access_mode=request.access_mode,
        set_password=request.set_password,
        password=wants_password and request.set_password is None,
        user_data=request.user_data,
    )


def _without_secrets(order: VMCreateRequest) -> Mapping[str, Any]:
    """The order without its secrets: a chosen password is stored nowhere, and a repeated order may generate one where
    the first chose one."""
    kept = order.model_dump(mode="json", exclude={"set_password", "user_data"}, exclude_none=True)
    return kept | {"password": order.password or order.set_password is not None}


def _sealed(context: Context[Controller], user_data: str | None) -> bytes | None:
    return None if user_data is None else context.services.sealer.seal(user_data.encode(), _USER_DATA)
