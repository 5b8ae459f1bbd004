"""Volumes: a machine's disks besides its first. They outlive the machine; disks that a deletion keeps become volumes
too.

Orders for an attached volume are decided by the machine's actor. Orders for a free volume are decided here, while its
row is locked.
"""

from __future__ import annotations

from uuid import UUID

from svc.controller.access import visible_projects
from svc.controller.machines.fields import has_labels
from svc.controller.machines.models import visible_machine
from svc.controller.machines.volume_models import (
    NOT_DELETED,
    SELECT,
    Volume,
    VolumeAttachRequest,
    VolumeCreateRequest,
    VolumeDeleteRequest,
    VolumeGrowRequest,
    VolumeList,
    VolumeOrdered,
    VolumeRequest,
    VolumeUpdateRequest,
    shown,
    visible_volume,
)
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel, node_filter
from svc.registry.declare import Operations
from svc.registry.idempotency import run_idempotent
from svc.registry.operation import Context, Route
from svc.registry.paging import Page, contains, equals, paginate
from svc.registry.principal import Access, Role
from svc.registry.scopes import Scope
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.tasks.runner import Task
from svc_actors.controller.volumes import orders
from svc_actors.controller.volumes.records import NewVolume, VolumeSettings, lock_volume, write_settings
from svc_actors.store import Transaction, audit
from svc_common.errors import conflict, forbidden, invalid, not_found, require_name, wrong_field

operations = Operations[Controller]()

_SORTABLE = {"created_at": "volumes.created_at", "name": "volumes.name", "size_gib": "volumes.size_gib"}


@operations.declare(
    "volume.list",
    "List volumes, those kept of deleted machines too",
    Route.get("/volumes"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("id", "name", "state", "size=size_gib", "machine=vm_name", "project=project_name", "node=node_name"),
)
async def list_volumes(context: Context[Controller], request: VolumeList) -> Page[Volume]:
    rows, total = await paginate(
        context.services.database,
        select=SELECT,
        source="volumes LEFT JOIN vms ON vms.id = volumes.vm_id",
        where=[
            NOT_DELETED,
            visible_projects(context.principal, "volumes.project_id"),
            equals("volumes.project_id", request.project),
            equals("volumes.vm_id", request.vm),
            node_filter(request.node, context.principal, "volumes.node_id"),
            equals("volumes.state", request.state.value if request.state else None),
            has_labels(request.label, "volumes.labels"),
            contains(request.q, "volumes.name", "vms.name"),
        ],
        sortable=_SORTABLE,
        default_sort="-created_at",
        request=request,
        tie="volumes.id",
    )
    return Page[Volume].of([Volume.of(row, context.principal) for row in rows], total, request)


@operations.declare(
    "volume.show", "Show a volume", Route.get("/volumes/{id}"), access=Access.SIGNED_IN, scope=Scope.READ
)
async def show(context: Context[Controller], request: VolumeRequest) -> Volume:
    return await shown(context, request.id)


@operations.declare(
    "volume.create",
    "Create a volume, attached to a machine or free",
    Route.post("/volumes", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("name",),
    statuses=(200,),
)
async def create(context: Context[Controller], request: VolumeCreateRequest) -> VolumeOrdered:
    answer, replayed = await run_idempotent(
        context, key=request.idempotency_key, request=request, run=lambda: _create(context, request)
    )
    if replayed:
        context.effects.status = 200
        await visible_volume(context.services.database, context.principal, answer.volume.id)
    return answer.model_copy(update={"replayed": replayed})


async def _create(context: Context[Controller], request: VolumeCreateRequest) -> VolumeOrdered:
    services, principal = context.services, context.principal
    if request.vm_id is not None:
        machine = await visible_machine(services.database, principal, request.vm_id)
        for field in ("project_id", "node_id"):
            given = getattr(request, field)
            if given is not None and given != machine[field]:
                raise wrong_field(
                    field, "must be that of the machine, or left out: a volume has its machine's project and node"
                )
        new = _new(context, request, machine["project_id"], machine["node_id"])
        order = orders.Create(new, principal.user_id)
        actor = services.actors.ref(Machine, str(request.vm_id))
        volume_id, task = await actor.ask(Machine.volume, context.caller, order)
        return await _ordered(context, volume_id, task)
    if not principal.is_operator:
        raise wrong_field("vm_id", "name the machine that it is for: a volume is a disk of its node")
    if request.project_id is None or request.node_id is None:
        raise invalid("Name the machine (vm_id), or the project and the node of the volume.")
    new = _new(context, request, request.project_id, request.node_id)

    async def work(tx: Transaction) -> tuple[UUID, Task]:
        return await orders.create_free(tx, context.caller, new)

    volume_id, task = await services.database.transact(work)
    services.tasks.start(task)
    return await _ordered(context, volume_id, task)


@operations.declare(
    "volume.update",
    "Change a volume's name, labels, protection, or whether it is deleted with its machine",
    Route.patch("/volumes/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def update(context: Context[Controller], request: VolumeUpdateRequest) -> Volume:
    database, principal = context.services.database, context.principal
    await visible_volume(database, principal, request.id)
    if request.project_id is not None and principal.role is not Role.ADMINISTRATOR:
        raise forbidden("Only administrators give a volume to another project.")
    given = request.model_dump(exclude={"id"}, exclude_none=True)
    if not given:
        raise invalid("Nothing would change.")

    async def work(tx: Transaction) -> None:
        volume = await lock_volume(tx, request.id)
        if request.project_id is not None and not await tx.fetchval(
            "SELECT true FROM projects WHERE id = $1", request.project_id
        ):
            raise not_found("There is no such project.")
        await write_settings(tx, volume, VolumeSettings(**given))
        told = request.model_dump(mode="json", exclude={"id"}, exclude_none=True)
        await audit.record(tx, context.caller, volume.target, told)

    await database.transact(work)
    return await shown(context, request.id)


@operations.declare(
    "volume.attach",
    "Attach a volume to a machine, running or stopped",
    Route.post("/volumes/{id}/attach"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def attach(context: Context[Controller], request: VolumeAttachRequest) -> TaskModel:
    database, principal = context.services.database, context.principal
    await visible_volume(database, principal, request.id)
    await visible_machine(database, principal, request.vm_id)
    return await _of_machine(context, request.vm_id, orders.Attach(request.id))


@operations.declare(
    "volume.detach",
    "Detach a volume from its machine; unmount it in the guest first",
    Route.post("/volumes/{id}/detach"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def detach(context: Context[Controller], request: VolumeRequest) -> TaskModel:
    row = await visible_volume(context.services.database, context.principal, request.id)
    if row["vm_id"] is None:
        raise conflict("No machine has the volume; nothing was changed.", details={"state": row["state"]})
    return await _of_machine(context, row["vm_id"], orders.Detach(request.id))


@operations.declare(
    "volume.grow",
    "Grow a volume, also while its guest runs; the guest enlarges its file system itself",
    Route.post("/volumes/{id}/grow"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def grow(context: Context[Controller], request: VolumeGrowRequest) -> TaskModel:
    row = await visible_volume(context.services.database, context.principal, request.id)
    order = orders.Grow(request.id, request.size_gib, bounded=not context.principal.is_operator)
    if row["vm_id"] is not None:
        return await _of_machine(context, row["vm_id"], order)

    async def work(tx: Transaction) -> Task:
        return await orders.grow_free(tx, context.caller, order)

    return _begun(context, await context.services.database.transact(work))


@operations.declare(
    "volume.delete",
    "Delete a volume that no machine has; everything on it is lost",
    Route.delete("/volumes/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete(context: Context[Controller], request: VolumeDeleteRequest) -> TaskModel:
    row = await visible_volume(context.services.database, context.principal, request.id)
    require_name(row["name"], request.confirm, of="volume")

    async def work(tx: Transaction) -> Task:
        return await orders.delete(tx, context.caller, request.id)

    return _begun(context, await context.services.database.transact(work))


def _new(context: Context[Controller], request: VolumeCreateRequest, project_id: UUID, node_id: UUID) -> NewVolume:
    return NewVolume(
        name=request.name,
        project_id=project_id,
        node_id=node_id,
        size_gib=request.size_gib,
        labels=request.labels,
        bounded=not context.principal.is_operator,
        delete_with_machine=request.delete_with_machine,
        protected=request.protected,
    )


async def _ordered(context: Context[Controller], volume_id: UUID, task: Task) -> VolumeOrdered:
    volume = await shown(context, volume_id)
    return VolumeOrdered(volume=volume, task=TaskModel.of(task, context.principal), replayed=False)


async def _of_machine(context: Context[Controller], vm_id: UUID, order: orders.MachineOrder) -> TaskModel:
    machine = context.services.actors.ref(Machine, str(vm_id))
    _, task = await machine.ask(Machine.volume, context.caller, order)
    return TaskModel.of(task, context.principal)


def _begun(context: Context[Controller], task: Task) -> TaskModel:
    context.services.tasks.start(task)
    return TaskModel.of(task, context.principal)
