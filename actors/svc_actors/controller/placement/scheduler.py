"""Where a machine is placed: on the emptiest of the nodes that have room for it.

Rejected: one lock for all placements, with the facts and promises of all nodes read for each. This placed 9 machines a
second on a thousand nodes. Instead `node_capacity` has columns for the resources that a node has and for those that are
promised, maintained by triggers.

Invariants:
- room is judged and consumed in one transaction, under the lock of the chosen node's row in `node_capacity`, so
  parallel creations never promise a node's room twice; creations on different nodes do not wait for each other;
- every machine on a node, running or not, counts towards the node's promised resources, except one that was never
  built. The database maintains the sum (the trigger `promise_room`), in the transaction that changes a machine;
- a node takes new machines only while it is online, managed, not in maintenance and its disk is not nearly full, and
  only if it has the machines' firmware and TPM and can carry a pool of their network;
- locks are taken in one order: node, machine, node_capacity, pool.

Why: docs/decisions/0024-placement-and-creation.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from svc_actors.controller.placement.refusals import MachineNeeds, lacking, refusal
from svc_actors.store import Record, Transaction
from svc_common.errors import capacity, conflict

__all__ = ["MachineNeeds", "Placement", "lock_capacity", "place", "require_room"]

_FITTING: Final = """
    WITH pool AS MATERIALIZED (
        SELECT id, family, topology, vlan, location_id, node_ids,
               family = min(family) OVER () AS is_primary,
               row_number() OVER (ORDER BY family, created_at, id) AS place,
               -- As `pool_needs.needs` has it.
               array_remove(ARRAY[topology, CASE WHEN family = 6 THEN 'ipv6' END,
                                  CASE WHEN vlan IS NOT NULL THEN 'vlan' END,
                                  CASE WHEN topology <> 'bridged' THEN 'gateway:' || host(gateway) END], NULL) AS needs
        FROM pools WHERE network_id = $1 AND enabled
    )
    SELECT node.node_id, node.node_name,
           (SELECT json_agg(json_build_object('id', id, 'primary', is_primary, 'family', family,
                                              'bridged', topology = 'bridged', 'vlan', vlan) ORDER BY place)
            FROM pool WHERE {carried}) AS pools
    FROM node_capacity node
    WHERE node.takes_machines
      AND node.promised_vcpus + $2 <= node.vcpus
      AND node.promised_memory_mib + $3 <= node.memory_mib
      AND node.promised_disk_gib + $4 <= node.disk_gib
      AND $8::text[] <@ node.platforms
      AND ($5::uuid IS NULL OR node.node_id = $5)
      AND ($6::uuid IS NULL OR node.location_id = $6)
      AND EXISTS (SELECT FROM pool WHERE {carried} AND is_primary AND id <> ALL($7::uuid[]))
""".format(
    carried="""pool.location_id = node.location_id AND NOT pool.needs && node.lacks
               AND (cardinality(pool.node_ids) = 0 OR node.node_id = ANY(pool.node_ids))"""
)
"""The nodes that have room for $2 vcpus, $3 MiB and $4 GiB, that have the features the machine's platform needs ($8),
and that have a pool of the network $1 which is not among the full ones ($7)."""

_CHOOSE: Final = (
    f"{_FITTING} ORDER BY node.free_share DESC, node.node_name LIMIT 1 FOR NO KEY UPDATE OF node SKIP LOCKED"
)
"""Chooses the emptiest of these nodes and locks it. The index `node_capacity_emptiest` lists the nodes in this order,
so as a rule the first row is the answer, however many nodes there are; all are read only if none fits. A node that
another creation has locked is skipped: so concurrent creations spread over the emptiest nodes, and none waits for
another. A row that has changed since the statement started is judged again when it is locked."""

_SOME: Final = f"{_FITTING} ORDER BY random() LIMIT 1"
"""Any of these nodes, without a lock. The choice is random, so that creations which must wait do not all wait for the
same node."""


class _Lost(Exception):  # noqa: N818 - named for what it says
    """The node filled up while its lock was awaited."""


@dataclass(frozen=True)
class Placement:
    """The chosen node, and its pools of the network in the order in which they are tried: `pool_ids` for the primary
    address, of IPv4 unless the network has IPv6 pools only; `ipv6_pool_ids`, by the pool of the primary address, for
    the sub-prefix that a machine also gets if one is free."""

    node_id: UUID
    node_name: str
    pool_ids: tuple[UUID, ...]
    ipv6_pool_ids: Mapping[UUID, tuple[UUID, ...]] = field(default_factory=dict)


async def place(tx: Transaction, need: MachineNeeds, *, explain: bool, full: Collection[UUID] = ()) -> Placement:
    """The node for a machine. Its room is reserved until the transaction ends: the caller consumes it by inserting the
    machine. Pools in `full` have no free address.

    Raises `capacity` if no node takes the machine, with the reason; with `explain` the details say why for each node.
    Raises `unavailable` if a node would have room but is offline: it may be back in a moment. Raises not_found for a
    node or a location that does not exist.
    """
    wanted = [
        need.network_id,
        need.vcpus,
        need.memory_mib,
        need.disk_gib,
        need.node_id,
        need.location_id,
        list(full),
        list(need.platform.needs),
    ]
    while True:
        chosen = await tx.fetchrow(_CHOOSE, *wanted)
        if chosen is not None:
            return _as_placement(chosen)  # The usual case takes this one statement.
        # Either no node fits, or other creations have locked all that fit: a query without the lock finds out which.
        held = await tx.fetchrow(_SOME, *wanted)
        if held is None:
            break
        try:
            async with tx.savepoint():
                return await _wait_for(tx, held["node_id"], wanted)
        except _Lost:
            continue
    # A node was chosen earlier in this creation, but its pools turned out to be full. So addresses are missing, not
    # room.
    if full:
        raise capacity(
            "No address is free for this machine.",
            hint="Delete a machine, or ask an administrator for another pool.",
            details={"full_pools": len(full)},
        )
    raise await refusal(tx, need, explain=explain)


async def require_room(tx: Transaction, node_id: UUID, *, vcpus: int, memory_mib: int, disk_gib: int = 0) -> None:
    """Let a machine grow by this much on its own node, or raise `capacity`. Shrinking always fits."""
    node = await tx.fetchrow(
        """SELECT node_capacity.* FROM node_capacity JOIN nodes ON nodes.id = node_capacity.node_id
           WHERE node_id = $1 AND nodes.capacity IS NOT NULL AND nodes.deleted_at IS NULL
           FOR NO KEY UPDATE OF node_capacity""",
        node_id,
    )
    if node is None:
        raise conflict("The machine's node has not reported what it has.")
    lacks = lacking(node, vcpus=max(0, vcpus), memory_mib=max(0, memory_mib), disk_gib=disk_gib)
    if lacks:
        raise capacity(
            "The machine's node has no room for this size.", details={"reasons": [lack.text for lack in lacks]}
        )


async def _wait_for(tx: Transaction, node_id: UUID, wanted: list[object]) -> Placement:
    """Wait until other creations release this node, then place the machine on it. Raising `_Lost` undoes the savepoint
    and with it the lock: a creation never waits for one node while it holds another, so two creations cannot
    deadlock."""
    await lock_capacity(tx, node_id)
    # The same query, limited to this node ($5). This transaction holds its lock, so SKIP LOCKED does not skip it, and
    # the query sees what the other creations have left.
    of_this_node = [*wanted[:4], node_id, *wanted[5:]]
    row = await tx.fetchrow(_CHOOSE, *of_this_node)
    if row is None:
        raise _Lost
    return _as_placement(row)


async def lock_capacity(tx: Transaction, node_id: UUID | None) -> None:
    """Lock the node's promised resources. Callers that later give room back in the same transaction take this lock
    before those of pools."""
    await tx.execute("SELECT FROM node_capacity WHERE node_id = $1 FOR NO KEY UPDATE", node_id)


def _as_placement(row: Record) -> Placement:
    pools: list[dict[str, Any]] = row["pools"]
    primary = [pool for pool in pools if pool["primary"]]
    beside = [pool for pool in pools if pool["family"] == 6]
    return Placement(
        row["node_id"],
        row["node_name"],
        tuple(UUID(pool["id"]) for pool in primary),
        {
            # A NIC can have addresses of both pools if both are wired the same way; `Pool.mixes_with` is the same rule.
            UUID(pool["id"]): tuple(
                UUID(other["id"])
                for other in beside
                if (other["bridged"], other["vlan"]) == (pool["bridged"], pool["vlan"])
            )
            for pool in primary
            if pool["family"] == 4
        },
    )
