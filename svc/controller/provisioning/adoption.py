"""Adoption: a billing system takes over existing machines, one reference at a time."""

from __future__ import annotations

from functools import partial
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.machines.fields import Confirmation
from svc.controller.provisioning.models import ExternalRef, Integration, Service, shown_service
from svc.controller.services import Controller
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import NAME
from svc_actors.controller.provisioning import adoption
from svc_actors.controller.provisioning.adoption import Preview, Verdict

operations = Operations[Controller]()


class StageRequest(Request):
    """`legacy_server_id`: the id of the server in the previous system. `vm_id` may be set later."""

    integration: Integration
    external_ref: ExternalRef
    legacy_server_id: Annotated[str, Field(min_length=1, max_length=200), NAME]
    vm_id: UUID | None = None


class AdoptPreviewRequest(Request):
    integration: Integration
    external_ref: ExternalRef


class AdoptRequest(AdoptPreviewRequest):
    confirm: Annotated[UUID, Field(description="The id of the machine that was staged.")]


class LinkRequest(Request):
    """`confirm` is the machine's name."""

    integration: Integration
    external_ref: ExternalRef
    vm_id: UUID
    confirm: Confirmation


class AdoptPreview(Model):
    """The result of an adoption before it is made; only a `match` can be adopted. `line` has it as text:
    <billing_service_id> to <legacy_server_id> to <vm_id> <vm_name> <verdict>, with a hyphen for a missing value.
    Adopting creates no machine and changes no address."""

    verdict: Verdict
    line: str
    billing_service_id: str
    legacy_server_id: str | None
    vm_id: UUID | None
    vm_name: str | None
    would_create_vm: bool
    would_change_ip: bool

    @classmethod
    def of(cls, preview: Preview) -> AdoptPreview:
        return cls(
            verdict=preview.verdict,
            line=preview.line,
            billing_service_id=preview.external_ref,
            legacy_server_id=preview.legacy_server_id,
            vm_id=preview.vm_id,
            vm_name=preview.vm_name,
            would_create_vm=False,
            would_change_ip=False,
        )


@operations.declare(
    "service.stage",
    "Stage an existing machine as the server that a billing system has sold",
    Route.put("/provision/staged"),
    access=Access.ADMINISTRATOR,
    scope=Scope.PROVISION,
)
async def stage(context: Context[Controller], request: StageRequest) -> AdoptPreview:
    database = context.services.database
    await database.transact(
        partial(
            adoption.stage,
            caller=context.caller,
            integration=request.integration,
            external_ref=request.external_ref,
            legacy_server_id=request.legacy_server_id,
            vm_id=request.vm_id,
        )
    )
    return AdoptPreview.of(await adoption.preview(database, request.integration, request.external_ref))


@operations.declare(
    "service.adopt_preview",
    "Preview the adoption of the machine of a reference; nothing is written",
    Route.post("/provision/adopt/preview"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def preview(context: Context[Controller], request: AdoptPreviewRequest) -> AdoptPreview:
    return AdoptPreview.of(await adoption.preview(context.services.database, request.integration, request.external_ref))


@operations.declare(
    "service.adopt",
    "Adopt a staged machine, unchanged, as a service of a billing system",
    Route.post("/provision/adopt"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def adopt(context: Context[Controller], request: AdoptRequest) -> Service:
    work = partial(
        adoption.adopt,
        caller=context.caller,
        integration=request.integration,
        external_ref=request.external_ref,
        confirm=request.confirm,
    )
    return await shown_service(context.services.database, await context.services.database.transact(work))


@operations.declare(
    "service.link",
    "Adopt a machine that was not staged, unchanged, as a service of a billing system",
    Route.post("/provision/link"),
    access=Access.ADMINISTRATOR,
    scope=Scope.PROVISION,
)
async def link(context: Context[Controller], request: LinkRequest) -> Service:
    work = partial(
        adoption.link,
        caller=context.caller,
        integration=request.integration,
        external_ref=request.external_ref,
        vm_id=request.vm_id,
        confirm=request.confirm,
    )
    return await shown_service(context.services.database, await context.services.database.transact(work))
