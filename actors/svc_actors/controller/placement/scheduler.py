"""Where a machine is placed: which nodes have room for it, the emptiest first.

Invariants:
- room is judged and consumed in one transaction, and placements take turns (`lock_placement`), so parallel creations
  never promise a node's vcpus, memory or disk twice;
- promised is what every machine on the node may use, running or not; a machine that was never built promises nothing;
- a node takes new machines only while it is online, managed, not in maintenance, and has a pool of the network that
  it can carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from svc_actors.controller.networking.pool_needs import lack, needs
from svc_actors.controller.networking.pool_records import Pool
from svc_actors.errors import capacity, conflict, not_found, unavailable
from svc_actors.store import Record, Transaction

_PLACEMENT_LOCK: Final = 0x5356_5043

PROMISED: Final = "deleted_at IS NULL AND NOT (status = 'failed' AND built_at IS NULL)"
"""The machines that hold room on their node, as a condition on `vms`."""

_OFFLINE: Final = "node: it is offline"
_UNREPORTED: Final = "node: it has not reported its capacity"


@dataclass(frozen=True)
class Need:
    """What a machine asks for. `node_id` and `location_id` narrow the choice."""

    vcpus: int
    memory_mib: int
    disk_gib: int
    network_id: UUID
    node_id: UUID | None = None
    location_id: UUID | None = None


@dataclass(frozen=True)
class Candidate:
    """A node with room, and its pools of the network in the order in which they are tried: `pool_ids` for the primary
    address, of IPv4 unless the network has IPv6 pools only; `ipv6_pool_ids` for the sub-prefix that a machine is given
    beside it where one is free, by the pool of the primary address."""

    node_id: UUID
    node_name: str
    pool_ids: tuple[UUID, ...]
    free_share: float
    ipv6_pool_ids: Mapping[UUID, tuple[UUID, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Room:
    """One resource of a node: what may be promised in all, and what is promised already."""

    name: str
    unit: str
    limit: float
    promised: float

    def lack(self, need: float) -> str | None:
        if self.promised + need <= self.limit:
            return None
        free = max(0, int(self.limit - self.promised))
        return f"{self.name}: {need:g}{self.unit} wanted, {free}{self.unit} free"

    def free_share(self, need: float) -> float:
        return (self.limit - self.promised - need) / self.limit if self.limit else 0.0


async def lock_placement(tx: Transaction) -> None:
    """Placements take turns from here to the end of the transaction."""
    await tx.execute("SELECT pg_advisory_xact_lock($1)", _PLACEMENT_LOCK)


async def place(tx: Transaction, need: Need, *, explain: bool) -> list[Candidate]:
    """The nodes with room, the emptiest first; never empty. The caller consumes the room in this transaction.

    Raises `capacity` when there is none; with `explain` its details say of each node why not. Raises `unavailable`
    when a node would have room but is offline: it may be back in a moment. Raises not_found for a node that does not
    exist.
    """
    await lock_placement(tx)
    nodes = await _nodes(tx)
    pools = await _pools(tx, need.network_id)
    found: list[Candidate] = []
    refused: list[dict[str, object]] = []
    away: list[str] = []
    for node in nodes:
        if need.node_id is not None and node["id"] != need.node_id:
            continue
        if need.location_id is not None and node["location_id"] != need.location_id:
            continue
        primary, reason = _carried(node, pools)
        reasons = _unfit(node) or _lacks(node, need)
        if reason is not None:
            reasons.append(reason)
        if reasons == [_UNREPORTED] or (reasons == [_OFFLINE] and not _lacks(node, need)):
            away.append(node["name"])
        if reasons:
            refused.append({"node_id": str(node["id"]), "node": node["name"], "reasons": reasons})
            continue
        share = min(room.free_share(wanted) for room, wanted in _wanted(node, need))
        pool_ids = tuple(pool.id for pool in primary)
        found.append(Candidate(node["id"], node["name"], pool_ids, share, _ipv6_beside(node, primary, pools)))
    if need.node_id is not None and not found and not refused:
        raise not_found("There is no such node.")
    if not found and away:
        raise unavailable(
            "The nodes that may have room for this machine are offline or have only just come; nothing was made.",
            hint="Try again in a moment, or once a node is back.",
            details={"nodes": refused} if explain else None,
        )
    if not found:
        raise capacity(
            "No node has room for this machine.",
            hint="Choose a smaller size, or add a node." if explain else "Choose a smaller size, or try again later.",
            details={"nodes": refused} if explain else None,
        )
    return sorted(found, key=lambda candidate: (-candidate.free_share, candidate.node_name))


async def require_room(tx: Transaction, node_id: UUID, *, vcpus: int, memory_mib: int) -> None:
    """Let a machine grow by this much on its own node, or raise `capacity`. Negative growth always fits."""
    await lock_placement(tx)
    node = next((node for node in await _nodes(tx) if node["id"] == node_id), None)
    if node is None or node["capacity"] is None:
        raise conflict("The machine's node has not reported what it has.")
    cpu, memory, _ = _rooms(node)
    lacks = [lack for room, more in ((cpu, vcpus), (memory, memory_mib)) if more > 0 and (lack := room.lack(more))]
    if lacks:
        raise capacity("The machine's node has no room for this size.", details={"reasons": lacks})


async def _pools(tx: Transaction, network_id: UUID) -> list[Pool]:
    """In the order in which they are tried, and locked."""
    rows = await tx.fetch(
        "SELECT * FROM pools WHERE network_id = $1 AND enabled ORDER BY family, created_at, id", network_id
    )
    return [Pool.of(row) for row in rows]


def _carried(node: Record, pools: list[Pool]) -> tuple[list[Pool], str | None]:
    """The pools for the primary address of a machine on this node, or why there is none."""
    family = min((pool.family for pool in pools), default=4)
    serving = [pool for pool in pools if pool.family == family and pool.serves(node["id"], node["location_id"])]
    lacks = {pool.id: _lack(node, pool) for pool in serving}
    carried = [pool for pool in serving if lacks[pool.id] is None]
    if carried:
        return carried, None
    if serving:
        return [], f"network: it cannot carry the pool {serving[0].name} ({lacks[serving[0].id]})"
    return [], "network: no enabled pool serves this node"


def _ipv6_beside(node: Record, primary: list[Pool], pools: list[Pool]) -> dict[UUID, tuple[UUID, ...]]:
    """The IPv6 pools of which a card may have a sub-prefix beside an address of each primary pool."""
    serving = [
        pool
        for pool in pools
        if pool.family == 6 and pool.serves(node["id"], node["location_id"]) and _lack(node, pool) is None
    ]
    return {
        first.id: tuple(pool.id for pool in serving if pool.mixes_with(first)) for first in primary if first.family == 4
    }


def _lack(node: Record, pool: Pool) -> str | None:
    return lack(node["facts"], needs(family=pool.family, topology=pool.topology, vlan=pool.vlan))


async def _nodes(tx: Transaction) -> list[Record]:
    return await tx.fetch(
        f"""SELECT nodes.id, nodes.name, nodes.location_id, nodes.state, nodes.mode, nodes.maintenance, nodes.facts,
                   nodes.capacity, nodes.cpu_overcommit, nodes.memory_overcommit, nodes.disk_overcommit,
                   coalesce(promised.vcpus, 0) AS vcpus, coalesce(promised.memory_mib, 0) AS memory_mib,
                   coalesce(promised.disk_gib, 0) AS disk_gib
            FROM nodes LEFT JOIN (
                SELECT node_id, sum(vcpus) AS vcpus, sum(memory_mib) AS memory_mib, sum(disk_gib) AS disk_gib
                FROM vms WHERE {PROMISED} GROUP BY node_id
            ) promised ON promised.node_id = nodes.id
            WHERE nodes.deleted_at IS NULL
            ORDER BY nodes.name"""
    )


def _unfit(node: Record) -> list[str]:
    reasons = []
    if node["state"] != "online":
        reasons.append(_OFFLINE if node["state"] == "offline" else f"node: it is {node['state']}")
    if node["mode"] != "managed":
        reasons.append("node: it is only observed")
    if node["maintenance"]:
        reasons.append("node: it is in maintenance")
    if node["capacity"] is None:
        reasons.append(_UNREPORTED)
    return reasons


def _lacks(node: Record, need: Need) -> list[str]:
    return [lack for room, wanted in _wanted(node, need) if (lack := room.lack(wanted))]


def _rooms(node: Record) -> tuple[_Room, _Room, _Room]:
    has: Mapping[str, Any] = node["capacity"]
    return (
        _Room("vcpus", "", has["cpus"] * node["cpu_overcommit"], float(node["vcpus"])),
        _Room("memory", " MiB", has["memory_mib"] * node["memory_overcommit"], float(node["memory_mib"])),
        _Room("disk", " GiB", has["disk_gib"] * node["disk_overcommit"], float(node["disk_gib"])),
    )


def _wanted(node: Record, need: Need) -> list[tuple[_Room, float]]:
    return list(zip(_rooms(node), (need.vcpus, need.memory_mib, need.disk_gib), strict=True))
