"""What tests of addresses stand on: machines with a NIC, and pools of either family, without a service around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any
from uuid import UUID, uuid4

from svc_actors.controller.networking.addresses import PoolFull, allocate, new_nic
from svc_actors.controller.networking.networks import NewPool, create_pool
from svc_actors.store import Database, Transaction
from tests.support.machine_service import Fleet


@dataclass(frozen=True)
class Nic:
    vm_id: UUID
    nic_id: UUID


async def make_nics(database: Database, world: Fleet, count: int) -> list[Nic]:
    """So many machines with a NIC each, recorded and nothing more, all on the world's node."""
    async with database.transaction() as tx:
        return [await _nic(tx, world) for _ in range(count)]


async def _nic(tx: Transaction, world: Fleet) -> Nic:
    vm_id = uuid4()
    await tx.execute(
        """INSERT INTO vms (id, name, hostname, project_id, node_id, image_id, vcpus, memory_mib, disk_gib, status,
                            access_mode)
           VALUES ($1, $1::uuid::text, 'a', $2, $3, $4, 1, 64, 1, 'running', 'user_sudo')""",
        vm_id,
        world.project_id,
        world.node_id,
        world.image_id,
    )
    return Nic(vm_id, await new_nic(tx, vm_id=vm_id, network_id=world.network_id, position=0))


async def make_pool(database: Database, world: Fleet, cidr: str, **figures: Any) -> UUID:
    new = NewPool(**{"name": cidr, "location_id": world.location_id, "cidr": ip_network(cidr), **figures})
    async with database.transaction() as tx:
        pool_id: UUID = (await create_pool(tx, world.network_id, new))["id"]
        return pool_id


async def take(database: Database, pool_id: UUID, nic: Nic, *, primary: bool = True) -> str | None:
    """An address of the pool in a transaction of its own; None when the pool is full."""
    try:
        async with database.transaction() as tx:
            taken = await allocate(tx, pool_id, vm_id=nic.vm_id, nic_id=nic.nic_id, primary=primary)
            return taken.text
    except PoolFull:
        return None


async def held(database: Database, pool_id: UUID) -> Sequence[tuple[str, str]]:
    """Address and state of everything that is not free, but what the pool's own arithmetic takes."""
    rows = await database.fetch(
        """SELECT address_text(ip) AS ip, state FROM allocations
           LEFT JOIN reservations ON reservations.id = allocations.reservation_id
           WHERE allocations.pool_id = $1 AND reservations.arithmetic IS NOT TRUE ORDER BY slot""",
        pool_id,
    )
    return [(row["ip"], row["state"]) for row in rows]
