"""The CD-ROM drive of a machine: insert an ISO image of the store, and eject it.

The machine's actor decides about the order; the task in the answer carries it out.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.machines.creation import enabled_iso
from svc.controller.machines.machines import VMRequest
from svc.controller.machines.models import visible_machine
from svc.controller.machines.remaking import Slug
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.media import NewMedium
from svc_common.errors import wrong_field

operations = Operations[Controller]()


class VMIsoInsertRequest(Request):
    """`image_id` or `image` (its slug) of an enabled image of the kind `iso`, which replaces the medium in the drive. A
    running guest sees it at once."""

    id: UUID
    image_id: UUID | None = None
    image: Slug | None = None
    boot: Annotated[
        bool, Field(description="Boot the CD before the disk, from its next start on until it is ejected.")
    ] = False


@operations.declare(
    "vm.iso.insert",
    "Put an ISO image into a machine's CD-ROM drive",
    Route.post("/vms/{id}/iso"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def insert(context: Context[Controller], request: VMIsoInsertRequest) -> TaskModel:
    await visible_machine(context.services.database, context.principal, request.id)
    if (request.image_id is None) == (request.image is None):
        raise wrong_field("image_id", "give this, or image (its slug)")
    iso = await enabled_iso(context.services.database, request.image_id, request.image)
    return await _change(context, request.id, NewMedium(iso["id"], request.boot))


@operations.declare(
    "vm.iso.eject",
    "Empty a machine's CD-ROM drive, also where its guest has it mounted",
    Route.delete("/vms/{id}/iso"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def eject(context: Context[Controller], request: VMRequest) -> TaskModel:
    await visible_machine(context.services.database, context.principal, request.id)
    return await _change(context, request.id, NewMedium(None))


async def _change(context: Context[Controller], vm_id: UUID, new: NewMedium) -> TaskModel:
    machine = context.services.actors.ref(Machine, str(vm_id))
    return TaskModel.of(await machine.ask(Machine.change_medium, context.caller, new), context.principal)
