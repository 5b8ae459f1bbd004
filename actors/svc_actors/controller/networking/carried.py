"""Addresses that hosts carry and no record has: nobody is given one of them.

Such are there after the controller was restored from a backup: machines were made, and addresses attached, that it
knows nothing of. What a pool has of them is blocked for as long as a host carries it.

Invariants:
- an address that is carried is free at no time: it is blocked in the transaction that hears of it, and again in the one
  that takes it from its recorded holder;
- until every node that a pool serves has said what its host carries, the pool gives out nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_interface
from uuid import UUID

from svc_actors.controller.networking.pool_records import Pool
from svc_actors.errors import unavailable
from svc_actors.store import Transaction

HEARD = """NOT EXISTS (SELECT FROM nodes unheard WHERE unheard.unheard AND unheard.deleted_at IS NULL
    AND unheard.location_id = pools.location_id
    AND (cardinality(pools.node_ids) = 0 OR unheard.id = ANY(pools.node_ids)))"""
"""Of a pool: every node that it serves has said what its host carries."""


async def require_heard(tx: Transaction, pool: Pool) -> None:
    """Raises unavailable while a node that the pool serves has not said what its host carries."""
    silent = await tx.fetchrow(
        """SELECT min(name) AS first, count(*) AS number FROM nodes WHERE unheard AND deleted_at IS NULL
           AND location_id = $1 AND (cardinality($2::uuid[]) = 0 OR id = ANY($2))""",
        pool.location_id,
        list(pool.node_ids),
    )
    if silent is not None and silent["number"]:
        others = f" and {silent['number'] - 1} more" if silent["number"] > 1 else ""
        raise unavailable(
            f"The controller was restored from a backup, and node {silent['first']}{others} has not said yet which "
            "addresses its host carries: none is given out.",
            hint="Try again once the nodes are back. An administrator can write off a node that is lost.",
        )


async def note_carried(tx: Transaction, node_id: UUID, carried: Mapping[UUID, Iterable[str]]) -> None:
    """What this node's host carries without a record, by machine; it takes the place of what it carried before."""
    pairs = [(vm_id, ip_interface(address).network) for vm_id, addresses in carried.items() for address in addresses]
    vm_ids, networks = [vm_id for vm_id, _ in pairs], [network for _, network in pairs]
    gone = await tx.fetch(
        """DELETE FROM carried_addresses held WHERE node_id = $1 AND NOT EXISTS (
               SELECT FROM unnest($2::uuid[], $3::inet[]) AS now (vm_id, ip)
               WHERE now.vm_id = held.vm_id AND now.ip = held.ip)
           RETURNING ip""",
        node_id,
        vm_ids,
        networks,
    )
    new = await tx.fetch(
        """INSERT INTO carried_addresses (node_id, vm_id, ip)
           SELECT $1, now.vm_id, now.ip FROM unnest($2::uuid[], $3::inet[]) AS now (vm_id, ip)
           ON CONFLICT DO NOTHING RETURNING ip""",
        node_id,
        vm_ids,
        networks,
    )
    if gone or new:
        await set_aside(tx, [row["ip"] for row in (*gone, *new)])


async def forget_carried(tx: Transaction, node_id: UUID) -> None:
    """The node goes, and nobody will hear of its host any more."""
    await note_carried(tx, node_id, {})


async def set_aside(tx: Transaction, addresses: Iterable[object]) -> None:
    """Block what of these a host carries and nobody holds, and set free what none carries any more."""
    networks = [ip_interface(str(address)).network for address in addresses]
    rows = await tx.fetch(
        """SELECT * FROM pools WHERE EXISTS (SELECT FROM unnest($1::inet[]) AS named WHERE named <<= pools.cidr)
           ORDER BY family, created_at, id FOR NO KEY UPDATE""",
        networks,
    )
    await tx.execute(
        """DELETE FROM allocations WHERE carried AND ip = ANY($1::inet[])
           AND NOT EXISTS (SELECT FROM carried_addresses held WHERE held.ip && allocations.ip)""",
        networks,
    )
    for pool in map(Pool.of, rows):
        for network in networks:
            slot = pool.slot_of(network.network_address) if network.version == pool.cidr.version else None
            if slot is None:
                continue
            await tx.execute(
                """INSERT INTO allocations (pool_id, slot, ip, state, note, carried)
                   SELECT $1, $2, $3::inet, 'blocked', 'Node ' || nodes.name || ' carries it for machine '
                          || held.vm_id || ', whose record does not have it.', true
                   FROM carried_addresses held JOIN nodes ON nodes.id = held.node_id
                   WHERE held.ip && $3::inet ORDER BY nodes.name LIMIT 1
                   ON CONFLICT (pool_id, slot) DO NOTHING""",
                pool.id,
                slot,
                pool.network_at(slot),
            )
