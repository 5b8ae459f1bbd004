"""Snapshots of a machine's disks, to return to after a failed change. They are stored inside the disks, so they are no
backup.

The machine's actor decides about each order; the task in the answer carries it out.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from svc.controller.machines.fields import Confirmation
from svc.controller.machines.machines import VMRequest
from svc.controller.machines.models import visible_machine
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.snapshots import Delete, Restore, SnapshotOrder, SnapshotState, Take
from svc_common.errors import require_name

operations = Operations[Controller]()

SnapshotName = Annotated[
    str,
    Shape(
        r"[A-Za-z0-9]([A-Za-z0-9 ._-]{0,61}[A-Za-z0-9])?",
        "1 to 63 letters, digits, spaces, dots, hyphens and underscores, with a letter or digit at both ends",
    ),
]


class Snapshot(Model):
    """`frozen`: the guest's file systems were frozen when it was taken; otherwise it has what was on the disks, which
    for a running guest is as after a power cut. `error` says why a snapshot that `failed` cannot be restored."""

    id: UUID
    vm_id: UUID
    name: str
    state: SnapshotState
    error: str | None
    frozen: bool | None
    taken_at: datetime | None
    restored_at: datetime | None


class SnapshotTakeRequest(Request):
    id: UUID
    name: SnapshotName


class SnapshotRestoreRequest(Request):
    """The current content of the machine's disks is lost. `confirm` repeats the machine's name."""

    id: UUID
    snapshot_id: UUID
    confirm: Confirmation


class SnapshotDeleteRequest(Request):
    id: UUID
    snapshot_id: UUID


@operations.declare(
    "vm.snapshot.list",
    "List a machine's snapshots, newest first",
    Route.get("/vms/{id}/snapshots"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("id", "name", "state", "taken=taken_at", "frozen", "restored=restored_at"),
)
async def list_snapshots(context: Context[Controller], request: VMRequest) -> list[Snapshot]:
    await visible_machine(context.services.database, context.principal, request.id)
    rows = await context.services.database.fetch(
        """SELECT id, vm_id, name, state, error, frozen, taken_at, restored_at FROM machine_snapshots
           WHERE vm_id = $1 ORDER BY ordered_at DESC, id""",
        request.id,
    )
    return [Snapshot.model_validate(dict(row)) for row in rows]


@operations.declare(
    "vm.snapshot.take",
    "Take a snapshot of a machine's disks, running or stopped",
    Route.post("/vms/{id}/snapshots"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def take(context: Context[Controller], request: SnapshotTakeRequest) -> TaskModel:
    await visible_machine(context.services.database, context.principal, request.id)
    return await _ordered(context, request.id, Take(request.name))


@operations.declare(
    "vm.snapshot.restore",
    "Make a stopped machine's disks what they were in a snapshot; what they hold now is lost",
    Route.post("/vms/{id}/snapshots/{snapshot_id}/restore"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def restore(context: Context[Controller], request: SnapshotRestoreRequest) -> TaskModel:
    row = await visible_machine(context.services.database, context.principal, request.id)
    require_name(row["name"], request.confirm, of="machine")
    return await _ordered(context, request.id, Restore(request.snapshot_id))


@operations.declare(
    "vm.snapshot.delete",
    "Delete a snapshot of a machine; its disks stay as they are",
    Route.delete("/vms/{id}/snapshots/{snapshot_id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    confirm=True,
)
async def delete(context: Context[Controller], request: SnapshotDeleteRequest) -> TaskModel:
    await visible_machine(context.services.database, context.principal, request.id)
    return await _ordered(context, request.id, Delete(request.snapshot_id))


async def _ordered(context: Context[Controller], vm_id: UUID, order: SnapshotOrder) -> TaskModel:
    machine = context.services.actors.ref(Machine, str(vm_id))
    return TaskModel.of(await machine.ask(Machine.snapshot, context.caller, order), context.principal)
