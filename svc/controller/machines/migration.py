"""Moving a machine to another node: which nodes could take it and how, and the move itself. And draining a node in
maintenance: moving all its machines to other nodes.
"""

from __future__ import annotations

from functools import partial
from uuid import UUID

from svc.controller.machines.machines import VMRequest
from svc.controller.machines.models import visible_machine
from svc.controller.machines.remaking import Key
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.registry.declare import Operations
from svc.registry.idempotency import key_owner, run_idempotent
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.machines.draining import start_drain
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.migration_targets import MigrationMode, migration_targets
from svc_actors.controller.machines.moving import Move

operations = Operations[Controller]()


class MigrationTarget(Model):
    """Another node, judged as a target for a machine by the current records. `mode`: how the machine would move:
    `offline` if it is off, `live` if it runs, `restart` if it runs and cannot move live; null if the node could not
    take it. `reasons` name every obstacle: to the move if `mode` is null, to a live move if it is `restart`."""

    node_id: UUID
    node_name: str
    mode: MigrationMode | None
    reasons: list[str]


class VMMigrateRequest(Request):
    """The node has to be one that `migration-targets` says could take the machine. A running machine moves live, and
    the request is refused if it cannot. With `restart` it is shut down, moved, and started there. If it does not shut
    down, or the move fails, it stays on its node, and runs there as before. The machine keeps its addresses, groups,
    labels and processor; its backups stay at the target of the node that it leaves. Sessions at its console end."""

    id: UUID
    node_id: UUID
    restart: bool = False
    idempotency_key: Key | None = None


@operations.declare(
    "vm.migration_targets",
    "Check every other node as a migration target of a machine",
    Route.get("/vms/{id}/migration-targets"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("node=node_name", "mode", "reasons"),
)
async def targets(context: Context[Controller], request: VMRequest) -> list[MigrationTarget]:
    return [
        MigrationTarget(node_id=each.node_id, node_name=each.node_name, mode=each.mode, reasons=list(each.reasons))
        for each in await migration_targets(context.services.database, request.id)
    ]


@operations.declare(
    "vm.migrate",
    "Migrate a machine to another node, with its disks: live if it runs, or with `restart` through a restart there",
    Route.post("/vms/{id}/migrate"),
    access=Access.ADMINISTRATOR,
    scope=Scope.WRITE,
)
async def migrate(context: Context[Controller], request: VMMigrateRequest) -> TaskModel:
    answer, _ = await run_idempotent(
        context, key=request.idempotency_key, request=request, run=partial(_migrate, context, request)
    )
    return answer


async def _migrate(context: Context[Controller], request: VMMigrateRequest) -> TaskModel:
    principal, key = context.principal, request.idempotency_key
    await visible_machine(context.services.database, principal, request.id)
    order = f"{key_owner(principal)} {key}" if key is not None else None
    machine = context.services.actors.ref(Machine, str(request.id))
    task = await machine.ask(Machine.migrate, context.caller, Move(request.node_id, order, request.restart))
    return TaskModel.of(task, principal)


class NodeDrainRequest(Request):
    """The node has to be in maintenance. Running machines move live if they can; others are moved only with `restart`:
    each is shut down, moved, and started on its new node. The task names the machines that stay, and why."""

    id: UUID
    restart: bool = False
    idempotency_key: Key | None = None


@operations.declare(
    "node.drain",
    "Move every machine of a node in maintenance to others, a few at a time",
    Route.post("/nodes/{id}/drain"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def drain(context: Context[Controller], request: NodeDrainRequest) -> TaskModel:
    answer, _ = await run_idempotent(
        context, key=request.idempotency_key, request=request, run=partial(_drain, context, request)
    )
    return answer


async def _drain(context: Context[Controller], request: NodeDrainRequest) -> TaskModel:
    services = context.services
    task = await services.database.transact(
        lambda tx: start_drain(tx, context.caller, request.id, restart=request.restart)
    )
    services.tasks.start(task)
    return TaskModel.of(task, context.principal)
