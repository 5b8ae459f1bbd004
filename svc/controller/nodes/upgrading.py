"""Orders to upgrade nodes' agents to the release that the controller brings (docs/upgrades.md)."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID, uuid4

from pydantic import Field

from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.nodes.records import NodeRecord, get_node
from svc_actors.controller.nodes.upgrades import OPERATION, upgrade_parameters
from svc_actors.controller.tasks.runner import ResourceKind, Task, create_task
from svc_actors.store import Target, Transaction, audit
from svc_common.errors import conflict, unavailable

operations = Operations[Controller]()


class NodeUpgradeRequest(Request):
    id: UUID


class NodeUpgradeAll(Request):
    """Upgrades the nodes that are online, have another release and can replace it by themselves."""

    at_once: Annotated[int, Field(ge=1, le=100, description="How many nodes are upgraded at the same time.")] = 3


class NodeUpgrades(Model):
    """The release to which the nodes are upgraded, and a task for each."""

    release: str
    tasks: list[TaskModel]


@operations.declare(
    "node.upgrade",
    "Upgrade a node's agent to the controller's release; machines keep running",
    Route.post("/nodes/{id}/upgrade"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def upgrade_node(context: Context[Controller], request: NodeUpgradeRequest) -> TaskModel:
    services = context.services
    async with services.database.transaction() as tx:
        node = await get_node(tx, request.id, lock=True)
        if node.agent_release == services.agent.name:
            raise conflict(f"The agent of node {node.name} already has this release: {services.agent.name}.")
        if node.agent_release is None:
            raise conflict(
                f"The agent of node {node.name} cannot replace itself: it is too old, or no launcher started it.",
                hint="Run the command of `svc node add` on the node again, or install the package svc-nodeagent there.",
            )
        if not services.gateway.is_online(node.id):
            raise unavailable(f"Node {node.name} is offline.", hint="Try again once it is back.")
        if await _open_upgrade(tx, node.id):
            raise conflict(f"The agent of node {node.name} is already being upgraded.")
        task = await _order(tx, context, node, uuid4(), at_once=1)
        ordered = {"task_id": str(task.id), "release": services.agent.name}
        await audit.record(tx, context.caller, node.target, ordered)
    services.tasks.start(task)
    return TaskModel.of(task, context.principal)


@operations.declare(
    "node.upgrade_all",
    "Upgrade the agents of all nodes to the controller's release, a few at a time; the first failure stops the rest",
    Route.post("/nodes/upgrade"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("node", "upgrade-all"),
)
async def upgrade_all(context: Context[Controller], request: NodeUpgradeAll) -> NodeUpgrades:
    services, together = context.services, uuid4()
    async with services.database.transaction() as tx:
        outdated = await tx.fetch(
            """
            SELECT id FROM nodes
             WHERE deleted_at IS NULL AND state = 'online' AND agent_release <> $1
               AND NOT EXISTS (SELECT 1 FROM tasks WHERE op = $2 AND node_id = nodes.id
                                                     AND status IN ('queued', 'running'))
             ORDER BY name, id FOR NO KEY UPDATE
            """,
            services.agent.name,
            OPERATION,
        )
        tasks = [
            await _order(tx, context, await get_node(tx, row["id"]), together, at_once=request.at_once)
            for row in outdated
        ]
        names = [task.resource_name for task in tasks]
        ordered = {"release": services.agent.name, "at_once": request.at_once, "nodes": names}
        await audit.record(tx, context.caller, Target("node", None, None), ordered)
    for task in tasks:
        services.tasks.start(task)
    return NodeUpgrades(release=services.agent.name, tasks=[TaskModel.of(task, context.principal) for task in tasks])


async def _order(
    tx: Transaction, context: Context[Controller], node: NodeRecord, together: UUID, *, at_once: int
) -> Task:
    return await create_task(
        tx,
        context.caller,
        op=OPERATION,
        resource_kind=ResourceKind.NODE,
        resource_id=node.id,
        resource_name=node.name,
        node_id=node.id,
        project_id=None,
        parameters=upgrade_parameters(context.services.agent, together, at_once),
        # No timeout of the task: it waits for its turn while other nodes are upgraded. The upgrade of the node itself
        # has a deadline.
        timeout=None,
    )


async def _open_upgrade(tx: Transaction, node_id: UUID) -> bool:
    found: int | None = await tx.fetchval(
        "SELECT 1 FROM tasks WHERE op = $1 AND node_id = $2 AND status IN ('queued', 'running')", OPERATION, node_id
    )
    return found is not None
