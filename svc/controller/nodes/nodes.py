"""Nodes as an administrator sees and changes them. How a node joins is in `joining`.

Capacity and health are those that the node reported last: in its last heartbeat while it is connected, or else the last
stored ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from svc.controller.nodes import joining as nodes_joining
from svc.controller.nodes.models import (
    AgentUpgrade,
    Allocated,
    HealthCheck,
    HealthStatus,
    LocationName,
    NodeAgent,
    NodeCapacity,
    NodeDetail,
    NodeDisk,
    NodeFactsModel,
    NodeHealth,
    NodeImageModel,
    NodeModel,
    NodeSample,
    ObservedDomainModel,
    Overcommit,
)
from svc.controller.services import Controller
from svc.controller.tasks import TASK_COLUMNS, TaskFilters, TaskModel, page_of_tasks
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Condition, Nullable, Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.nodes.domains import domains_of
from svc_actors.controller.nodes.node import Node, NodeChange
from svc_actors.controller.nodes.records import SELECT, SHOWN_STATE, NodeMode, NodeRecord, NodeState, as_node, get_node
from svc_actors.controller.tasks.runner import ResourceKind, TaskStatus, create_task
from svc_actors.store import Queryable, audit
from svc_common.errors import unavailable

operations = Operations[Controller]()

NodeName = nodes_joining.NodeName
OvercommitFactor = Annotated[float, Field(gt=0, le=100)]
_SORTABLE = {
    "name": "nodes.name",
    "state": SHOWN_STATE,
    "created_at": "nodes.created_at",
    "seen_at": Nullable("nodes.seen_at"),
    "location": "locations.name",
}
_INVENTORY_DEADLINE = 120.0
_PREFLIGHT_DEADLINE = 300.0


class NodeList(PageRequest):
    state: NodeState | None = None
    mode: NodeMode | None = None
    location: UUID | None = None


class NodeRequest(Request):
    id: UUID


class OvercommitChange(Model):
    """Fields left out stay as they are."""

    cpu: OvercommitFactor | None = None
    memory: OvercommitFactor | None = None
    disk: OvercommitFactor | None = None


class NodeUpdate(Request):
    """Fields left out stay as they are. `mode` can only change from observe to managed."""

    id: UUID
    name: NodeName | None = None
    mode: NodeMode | None = None
    maintenance: bool | None = None
    overcommit: (
        Annotated[
            OvercommitChange,
            Field(description='Overcommit factors such as {"cpu": 8}: multiples of what the host has.'),
        ]
        | None
    ) = None


class NodeTaskList(TaskFilters):
    id: UUID


class NodeSamplesRequest(PageRequest):
    id: UUID
    hours: Annotated[int, Field(ge=1, le=24 * 365, description="How far back.")] = 24


@operations.declare(
    "node.list",
    "List nodes",
    Route.get("/nodes"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=(
        "name",
        "state",
        "mode",
        "location=location.name",
        "machines=allocated.machines",
        "cpus=capacity.cpus",
        "load=capacity.load_1m",
        "memory=capacity.memory_mib",
        "free=capacity.memory_free_mib",
        "disk free=capacity.disk_free_gib",
        "promised=disk.promised_gib",
        "agent=agent.version",
        "upgrade=agent.upgrade",
        "seen=seen_at",
    ),
)
async def list_nodes(context: Context[Controller], request: NodeList) -> Page[NodeModel]:
    database = context.services.database
    rows, total = await paginate(
        database,
        select=SELECT,
        source="nodes JOIN locations ON locations.id = nodes.location_id",
        where=[
            Condition("nodes.deleted_at IS NULL"),
            equals(SHOWN_STATE, request.state.value if request.state else None),
            equals("nodes.mode", request.mode.value if request.mode else None),
            equals("nodes.location_id", request.location),
            contains(request.q, "nodes.name", "locations.name"),
        ],
        sortable=_SORTABLE,
        default_sort="name",
        request=request,
        tie="nodes.id",
    )
    nodes = [as_node(row) for row in rows]
    allocated = await _allocated(database, [node.id for node in nodes])
    upgrades = await _last_upgrades(database, [node.id for node in nodes])
    items = [NodeModel(**_shown(context.services, node, allocated, upgrades.get(node.id))) for node in nodes]
    return Page[NodeModel].of(items, total, request)


@operations.declare(
    "node.show",
    "Show a node with its facts, capacity and health",
    Route.get("/nodes/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
)
async def show_node(context: Context[Controller], request: NodeRequest) -> NodeDetail:
    return await _detail(context.services, request.id)


@operations.declare(
    "node.update",
    "Change a node's name, mode, maintenance or overcommit",
    Route.patch("/nodes/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def update_node(context: Context[Controller], request: NodeUpdate) -> NodeDetail:
    overcommit = request.overcommit or OvercommitChange()
    change = NodeChange(
        name=request.name,
        mode=request.mode,
        maintenance=request.maintenance,
        cpu_overcommit=overcommit.cpu,
        memory_overcommit=overcommit.memory,
        disk_overcommit=overcommit.disk,
    )
    await context.services.actors.ref(Node, str(request.id)).ask(Node.update, context.caller, change)
    return await _detail(context.services, request.id)


@operations.declare(
    "node.delete",
    "Take a node out and revoke its certificate; refused while machines are placed on it",
    Route.delete("/nodes/{id}", status=204),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def delete_node(context: Context[Controller], request: NodeRequest) -> None:
    await context.services.actors.ref(Node, str(request.id)).ask(Node.delete, context.caller)


@operations.declare(
    "node.domains",
    "List the hypervisor's domains on a node, as last reported by its host",
    Route.get("/nodes/{id}/domains"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("name", "state", "managed", "vcpus", "memory=memory_mib", "observed=observed_at"),
)
async def node_domains(context: Context[Controller], request: NodeRequest) -> list[ObservedDomainModel]:
    services = context.services
    await get_node(services.database, request.id)
    domains = await domains_of(services.database, services.gateway, request.id)
    return [ObservedDomainModel(**vars(domain)) for domain in domains]


@operations.declare(
    "node.images",
    "List the images in a node's cache",
    Route.get("/nodes/{id}/images"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("slug", "name", "size=size_bytes", "pulled=pulled_at"),
)
async def node_images(context: Context[Controller], request: NodeRequest) -> list[NodeImageModel]:
    await get_node(context.services.database, request.id)
    rows = await context.services.database.fetch(
        """
        SELECT n.image_id, images.name, images.slug, n.digest, n.size_bytes, n.pulled_at
          FROM node_images AS n JOIN images ON images.id = n.image_id
         WHERE n.node_id = $1 ORDER BY images.name, n.image_id
        """,
        request.id,
    )
    return [NodeImageModel(**row) for row in rows]


@operations.declare(
    "node.inventory",
    "Refresh the inventory of a node",
    Route.post("/nodes/{id}/inventory"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def take_inventory(context: Context[Controller], request: NodeRequest) -> TaskModel:
    return await _task(context, request.id, "node.inventory", _INVENTORY_DEADLINE)


@operations.declare(
    "node.preflight",
    "Run a node's readiness checks again",
    Route.post("/nodes/{id}/preflight"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def run_preflight(context: Context[Controller], request: NodeRequest) -> TaskModel:
    return await _task(context, request.id, "node.preflight", _PREFLIGHT_DEADLINE)


@operations.declare(
    "node.tasks",
    "List a node's tasks, newest first",
    Route.get("/nodes/{id}/tasks"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=TASK_COLUMNS,
)
async def node_tasks(context: Context[Controller], request: NodeTaskList) -> Page[TaskModel]:
    await get_node(context.services.database, request.id)
    return await page_of_tasks(
        context.services.database, context.principal, request, Condition("node_id = $1", (request.id,))
    )


@operations.declare(
    "node.samples",
    "Show a node's hourly capacity",
    Route.get("/nodes/{id}/samples"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
)
async def node_samples(context: Context[Controller], request: NodeSamplesRequest) -> Page[NodeSample]:
    await get_node(context.services.database, request.id)
    rows, total = await paginate(
        context.services.database,
        select="SELECT hour, samples, load_1m, memory_free_mib, disk_free_gib FROM node_samples",
        source="node_samples",
        where=[
            Condition("node_id = $1 AND hour > now() - make_interval(hours => $2)", (request.id, request.hours)),
        ],
        sortable={"hour": "hour"},
        default_sort="hour",
        request=request,
        # Samples of several nodes have the same hour. The tie is broken by ctid, the physical place of a row, which is
        # unique in the table.
        tie="ctid",
    )
    return Page[NodeSample].of([NodeSample(**row) for row in rows], total, request)


async def _task(context: Context[Controller], node_id: UUID, op: str, timeout: float) -> TaskModel:
    services = context.services
    async with services.database.transaction() as tx:
        node = await get_node(tx, node_id)
        if not services.gateway.is_online(node_id):
            raise unavailable(f"Node {node.name} is offline.", hint="Try again once it is back.")
        task = await create_task(
            tx,
            context.caller,
            op=op,
            resource_kind=ResourceKind.NODE,
            resource_id=node_id,
            resource_name=node.name,
            node_id=node_id,
            project_id=None,
            parameters={},
            timeout=timeout,
        )
        await audit.record(tx, context.caller, node.target, {"task_id": str(task.id)})
    services.tasks.start(task)
    return TaskModel.of(task, context.principal)


async def _detail(services: Controller, node_id: UUID) -> NodeDetail:
    node = await get_node(services.database, node_id)
    allocated = await _allocated(services.database, [node_id])
    upgrade = (await _last_upgrades(services.database, [node_id])).get(node_id)
    expires_at = await services.database.fetchval(
        "SELECT max(expires_at) FROM node_certificates WHERE node_id = $1 AND revoked_at IS NULL", node_id
    )
    return NodeDetail(
        **_shown(services, node, allocated, upgrade),
        facts=NodeFactsModel.model_validate(node.facts) if node.facts else None,
        health=_health(node, expires_at),
    )


def _shown(
    services: Controller, node: NodeRecord, allocated: Mapping[UUID, Allocated], upgrade: _LastUpgrade | None
) -> dict[str, Any]:
    heartbeat = services.gateway.heartbeat(node.id)
    if heartbeat is not None:
        capacity: NodeCapacity | None = NodeCapacity(**heartbeat.capacity.model_dump())
    else:
        capacity = NodeCapacity.model_validate(node.capacity) if node.capacity else None
    promised = allocated.get(node.id, _NOTHING)
    return {
        "id": node.id,
        "name": node.name,
        "location": LocationName(id=node.location_id, name=node.location_name),
        "state": node.state,
        "state_reason": node.state_reason,
        "mode": node.mode,
        "maintenance": node.maintenance,
        "overcommit": Overcommit(cpu=node.cpu_overcommit, memory=node.memory_overcommit, disk=node.disk_overcommit),
        "capacity": capacity,
        "allocated": promised,
        "disk": None
        if capacity is None
        else NodeDisk(
            size_gib=capacity.disk_gib,
            used_gib=max(0.0, capacity.disk_gib - capacity.disk_free_gib),
            free_gib=capacity.disk_free_gib,
            promised_gib=promised.disk_gib,
            promisable_gib=capacity.disk_gib * node.disk_overcommit,
            level=node.disk_level,
        ),
        "agent": _agent(services, node, upgrade),
        "connected_at": node.connected_at,
        "seen_at": heartbeat.at if heartbeat is not None else node.seen_at,
        "created_at": node.created_at,
    }


@dataclass(frozen=True)
class _LastUpgrade:
    """The last task that upgraded a node's agent to `release`, or failed to."""

    status: TaskStatus
    release: str


async def _last_upgrades(queryable: Queryable, node_ids: list[UUID]) -> dict[UUID, _LastUpgrade]:
    rows = await queryable.fetch(
        """
        SELECT DISTINCT ON (node_id) node_id, status, parameters->>'release' AS release
          FROM tasks WHERE op = 'node.upgrade' AND node_id = ANY($1::uuid[])
         ORDER BY node_id, created_at DESC
        """,
        node_ids,
    )
    return {row["node_id"]: _LastUpgrade(TaskStatus(row["status"]), row["release"]) for row in rows}


def _agent(services: Controller, node: NodeRecord, upgrade: _LastUpgrade | None) -> NodeAgent | None:
    if node.agent_version is None or node.agent_protocol is None:
        return None
    offered = services.agent
    if upgrade is not None and upgrade.status.open:
        state = AgentUpgrade.UNDER_WAY
    elif node.agent_release == offered.name or (node.agent_release is None and node.agent_version == offered.version):
        state = AgentUpgrade.CURRENT
    elif node.agent_release is None:
        state = AgentUpgrade.BY_HAND
    elif upgrade is not None and (upgrade.status, upgrade.release) == (TaskStatus.FAILED, offered.name):
        state = AgentUpgrade.FAILED
    else:
        state = AgentUpgrade.AVAILABLE
    return NodeAgent(
        version=node.agent_version, protocol=node.agent_protocol, release=node.agent_release, upgrade=state
    )


def _health(node: NodeRecord, certificate_expires_at: datetime | None) -> NodeHealth:
    checks = [HealthCheck(**check) for check in node.preflight or []]
    found = {check.status for check in checks}
    status = HealthStatus.UNKNOWN
    if checks and node.connection is NodeState.ONLINE:
        worst_first = (HealthStatus.FAILED, HealthStatus.WARNING, HealthStatus.PASSED)
        status = next(each for each in worst_first if each in found)
    return NodeHealth(
        status=status,
        checks=checks,
        checked_at=node.preflight_at,
        inventory_at=node.inventory_at,
        certificate_expires_at=certificate_expires_at,
    )


async def _allocated(queryable: Queryable, node_ids: list[UUID]) -> dict[UUID, Allocated]:
    rows = await queryable.fetch(
        """
        SELECT node_id, promised_vcpus AS vcpus, promised_memory_mib AS memory_mib, promised_disk_gib AS disk_gib,
               (SELECT coalesce(sum(number), 0)::bigint FROM list_numbers
                WHERE list = 'vms by node' AND scope = node_id) AS machines
          FROM node_capacity WHERE node_id = ANY($1::uuid[])
        """,
        node_ids,
    )
    return {
        row["node_id"]: Allocated(
            machines=row["machines"], vcpus=row["vcpus"], memory_mib=row["memory_mib"], disk_gib=row["disk_gib"]
        )
        for row in rows
    }


_NOTHING = Allocated(machines=0, vcpus=0, memory_mib=0, disk_gib=0)
