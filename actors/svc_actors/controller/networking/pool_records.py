"""Records of pools, and the lock that serialises a pool's allocations and edits.

Invariant: a transaction locks pools in the order (family, created_at, id), and after the rows of machines, so that no
deadlock occurs.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from uuid import UUID

from svc_actors.controller.networking.pool_arithmetic import IPAddress, Slots
from svc_actors.store import Record, Transaction
from svc_common.errors import not_found


@dataclass(frozen=True)
class Pool(Slots):
    """The part of a pool that concerns its addresses; first and last slot are those of the range."""

    id: UUID
    name: str
    network_id: UUID
    location_id: UUID
    gateway: IPAddress
    topology: str
    vlan: int | None
    node_ids: tuple[UUID, ...]
    first_slot: int
    last_slot: int
    next_slot: int
    enabled: bool

    @classmethod
    def of(cls, row: Record) -> Pool:
        return cls(
            cidr=ip_network(str(row["cidr"])),
            prefix_len=row["prefix_len"],
            id=row["id"],
            name=row["name"],
            network_id=row["network_id"],
            location_id=row["location_id"],
            gateway=ip_address(str(row["gateway"])),
            topology=row["topology"],
            vlan=row["vlan"],
            node_ids=tuple(row["node_ids"]),
            first_slot=row["first_slot"],
            last_slot=row["last_slot"],
            next_slot=row["next_slot"],
            enabled=row["enabled"],
        )

    @property
    def share(self) -> int:
        """How many slots of the range one node's report may set aside: a quarter."""
        return max(1, (self.last_slot - self.first_slot + 1) // 4)

    @property
    def wiring(self) -> str:
        return wiring(self.topology, self.vlan)

    def mixes_with(self, other: Pool) -> bool:
        """Whether one NIC may have addresses of both pools: a NIC is either joined to a bridge (and a VLAN of it), or
        its host routes to it."""
        return (self.topology == "bridged") == (other.topology == "bridged") and self.vlan == other.vlan

    def serves(self, node_id: UUID, location_id: UUID) -> bool:
        """Whether the pool serves a node: a pool that names no nodes serves every node of its location."""
        return self.location_id == location_id and (not self.node_ids or node_id in self.node_ids)


def wiring(topology: str, vlan: int | None) -> str:
    """A topology in words, with its VLAN."""
    return topology if vlan is None else f"{topology}, VLAN {vlan}"


async def lock_pool(tx: Transaction, pool_id: UUID) -> Pool:
    """Lock the pool's row to the end of the transaction: allocations, reservations and edits are serialised here.
    Raises not_found."""
    row = await tx.fetchrow("SELECT * FROM pools WHERE id = $1 FOR NO KEY UPDATE", pool_id)
    if row is None:
        raise not_found("There is no such pool.")
    return Pool.of(row)


async def lock_pools_of(tx: Transaction, vm_id: UUID) -> None:
    """Lock the pools of a machine's addresses before any of them is released: a request for a particular address holds
    its pool's lock while it waits for the address."""
    await tx.execute(
        """SELECT FROM pools WHERE id IN (SELECT pool_id FROM allocations WHERE vm_id = $1)
           ORDER BY family, created_at, id FOR NO KEY UPDATE""",
        vm_id,
    )


def pool_low_alert(pool_id: UUID) -> str:
    """The key of the alert about a pool that runs low."""
    return f"pool-low:{pool_id}"
