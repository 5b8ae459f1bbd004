"""Watches the disks of nodes, which hold images and machines: a level and an alert per node, and no new machines when
space is short.

Machines' disks are thin: the promised space exceeds the used space, and may exceed the disk. So the free space of the
host is checked on its own, at every heartbeat.

Invariant: a node gets no new machine while its disk is recorded as critical (`note_node_capacity`): from the check that
finds it full until a check that finds its use well below the threshold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final
from uuid import UUID

import structlog

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.controller.nodes.live_figures import for_nodes
from svc_actors.disk_space import DiskLevel, Space, read_thresholds
from svc_actors.store import Database, Transaction
from svc_nodeagent.protocol import Capacity

_GIB: Final = 2**30

log = structlog.get_logger(__name__)


class NodeDisks:
    """Caches the level of each connected node, so that a check costs one read if no level has changed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._levels: dict[UUID, DiskLevel] = {}

    async def update_levels(self, said: Mapping[UUID, Capacity]) -> None:
        """Record changed levels and update their alerts, by the last reports of the connected nodes."""
        await self._recall(said)
        thresholds = await read_thresholds(self._database)

        async def look_at(nodes: Sequence[UUID]) -> None:
            for node_id in nodes:
                before = self._levels.get(node_id)
                if before is None:
                    continue  # The node was deleted meanwhile.
                capacity = said[node_id]
                level = thresholds.level(space_of(capacity), before)
                if level is not before:
                    await self._database.transact(partial(_record, node_id=node_id, capacity=capacity, level=level))
                    self._levels[node_id] = level

        await for_nodes("disk watch", list(said), look_at)

    async def _recall(self, said: Mapping[UUID, Capacity]) -> None:
        """Drop the cached levels of disconnected nodes, and read those of new ones."""
        self._levels = {node_id: level for node_id, level in self._levels.items() if node_id in said}
        new = [node_id for node_id in said if node_id not in self._levels]
        if new:
            rows = await self._database.fetch(
                "SELECT id, disk_level FROM nodes WHERE id = ANY($1::uuid[]) AND deleted_at IS NULL", new
            )
            self._levels |= {row["id"]: DiskLevel(row["disk_level"]) for row in rows}


def space_of(capacity: Capacity) -> Space:
    return Space(int(capacity.disk_gib * _GIB), int(capacity.disk_free_gib * _GIB))


def disk_alert(node_id: UUID) -> str:
    return f"node-disk:{node_id}"


async def _record(tx: Transaction, *, node_id: UUID, capacity: Capacity, level: DiskLevel) -> None:
    node = await tx.fetchrow(
        "UPDATE nodes SET disk_level = $2 WHERE id = $1 AND deleted_at IS NULL RETURNING name", node_id, level.value
    )
    if node is None:
        return
    space = space_of(capacity)
    log.warning("node.disk_level_changed", node_id=str(node_id), level=level.value, space=str(space))
    if level is DiskLevel.OK:
        await close_alert(tx, disk_alert(node_id))
        return
    consequence = (
        ": no new machine is placed on it, and guests stop when it is full" if level is DiskLevel.CRITICAL else ""
    )
    await raise_alert(
        tx,
        disk_alert(node_id),
        f"The disk of node {node['name']} for images and machines is {space}{consequence}.",
        severity=level.severity,
        resource_kind="node",
        resource_id=node_id,
    )
