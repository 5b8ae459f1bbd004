"""Records of nodes: their rows, their events, and the caller for actions of a node itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from svc_actors.controller.event_kinds import ControllerEvent
from svc_actors.disk_space import DiskLevel
from svc_actors.store import Caller, NewEvent, Queryable, Record, Target, Transaction, Via, events
from svc_common.errors import not_found


class NodeState(StrEnum):
    """The state as shown. `maintenance`: online, with the maintenance flag. `lost`: declared lost by an administrator;
    the node never comes back."""

    PENDING = "pending"
    ONLINE = "online"
    OFFLINE = "offline"
    MAINTENANCE = "maintenance"
    LOST = "lost"


class NodeMode(StrEnum):
    """An observed node is only monitored and never changed: no machine is placed on it."""

    OBSERVE = "observe"
    MANAGED = "managed"


@dataclass(frozen=True)
class NodeRecord:
    id: UUID
    name: str
    location_id: UUID
    location_name: str
    connection: NodeState
    """The connection's state as the gateway saw it last; never `maintenance` or `lost`."""
    mode: NodeMode
    maintenance: bool
    cpu_overcommit: float
    memory_overcommit: float
    disk_overcommit: float
    host_uuid: UUID
    facts: dict[str, Any] | None
    capacity: dict[str, Any] | None
    preflight: list[dict[str, Any]] | None
    preflight_at: datetime | None
    inventory_at: datetime | None
    connected_at: datetime | None
    seen_at: datetime | None
    created_at: datetime
    disk_level: DiskLevel
    agent_version: str | None
    agent_protocol: int | None
    """The protocol version that the agent spoke on its last connection."""
    agent_release: str | None
    """The release from which the agent runs, if it can upgrade itself."""
    state_reason: str | None
    """Why the node cannot be online, if the reason is known."""
    lost_at: datetime | None

    @property
    def state(self) -> NodeState:
        if self.lost_at is not None:
            return NodeState.LOST
        if self.connection is NodeState.ONLINE and self.maintenance:
            return NodeState.MAINTENANCE
        return self.connection

    @property
    def target(self) -> Target:
        return Target("node", self.id, self.name)


SELECT = """
SELECT nodes.id, nodes.name, nodes.location_id, nodes.state, nodes.mode, nodes.maintenance, nodes.cpu_overcommit,
       nodes.memory_overcommit, nodes.disk_overcommit, nodes.host_uuid, nodes.facts, nodes.capacity, nodes.preflight,
       nodes.preflight_at, nodes.inventory_at, nodes.connected_at, nodes.seen_at, nodes.created_at, nodes.disk_level,
       nodes.agent_version, nodes.agent_protocol, nodes.agent_release, nodes.state_reason, nodes.lost_at,
       locations.name AS location_name
FROM nodes JOIN locations ON locations.id = nodes.location_id"""
"""Nodes without the results of network probes: these are large, and read only where they are shown."""
SHOWN_STATE = """CASE WHEN nodes.lost_at IS NOT NULL THEN 'lost'
                   WHEN nodes.state = 'online' AND nodes.maintenance THEN 'maintenance' ELSE nodes.state END"""


def as_node(row: Record) -> NodeRecord:
    return NodeRecord(
        id=row["id"],
        name=row["name"],
        location_id=row["location_id"],
        location_name=row["location_name"],
        connection=NodeState(row["state"]),
        mode=NodeMode(row["mode"]),
        maintenance=row["maintenance"],
        cpu_overcommit=row["cpu_overcommit"],
        memory_overcommit=row["memory_overcommit"],
        disk_overcommit=row["disk_overcommit"],
        host_uuid=row["host_uuid"],
        facts=row["facts"],
        capacity=row["capacity"],
        preflight=row["preflight"],
        preflight_at=row["preflight_at"],
        inventory_at=row["inventory_at"],
        connected_at=row["connected_at"],
        seen_at=row["seen_at"],
        created_at=row["created_at"],
        disk_level=DiskLevel(row["disk_level"]),
        agent_version=row["agent_version"],
        agent_protocol=row["agent_protocol"],
        agent_release=row["agent_release"],
        state_reason=row["state_reason"],
        lost_at=row["lost_at"],
    )


async def get_node(queryable: Queryable, node_id: UUID, *, lock: bool = False) -> NodeRecord:
    """The node's record. Raises not_found. `lock` locks the row until the transaction ends."""
    row = await queryable.fetchrow(
        f"{SELECT} WHERE nodes.id = $1 AND nodes.deleted_at IS NULL{' FOR NO KEY UPDATE OF nodes' if lock else ''}",
        node_id,
    )
    if row is None:
        raise not_found("There is no such node.")
    return as_node(row)


async def lost_nodes(queryable: Queryable) -> list[UUID]:
    """Nodes that an administrator has declared lost."""
    rows = await queryable.fetch("SELECT id FROM nodes WHERE lost_at IS NOT NULL AND deleted_at IS NULL")
    return [row["id"] for row in rows]


async def announce(tx: Transaction, node: NodeRecord, change: str) -> None:
    """`change` says what happened: joined, online, offline, updated, refused, lost, deleted, inventory, preflight."""
    await events.append(
        tx,
        NewEvent(
            kind=ControllerEvent.NODE,
            subject=str(node.id),
            node_id=node.id,
            administrators_only=True,
            payload={"id": str(node.id), "name": node.name, "state": node.state.value, "change": change},
        ),
    )


def node_itself(node_id: UUID, name: str, operation: str, *, address: str | None = None) -> Caller:
    """The caller of actions that a node itself takes."""
    return Caller(
        actor=f"node:{name}",
        role="node",
        via=Via.NODE,
        address=address,
        request_id=f"node-{node_id}",
        operation=operation,
    )
