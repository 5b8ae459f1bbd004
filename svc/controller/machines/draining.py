"""Draining a node in maintenance: moves all its machines to other nodes."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from svc.controller.machines.remaking import Key
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.registry.declare import Operations
from svc.registry.idempotency import run_idempotent
from svc.registry.operation import Context, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.machines.draining import start_drain

operations = Operations[Controller]()


class NodeDrainRequest(Request):
    """The node has to be in maintenance. Machines that run move live where they can; those that cannot are moved only
    with `restart`: each is shut down, moved, and started where it has come to. The task says of those that stay what is
    in the way."""

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
