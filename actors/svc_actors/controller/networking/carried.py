"""Addresses that hosts carry without a record. None of these is given to a machine.

Such addresses exist after the controller was restored from a backup: machines that were created, and addresses that
were attached, since the backup are unknown to it. An address of a pool is blocked for as long as a host carries it
without a record.

Invariants:
- an address that is carried is never free: it is blocked in the transaction that records the host's report, or, if a
  machine holds it by the records, in the transaction in which that machine loses it;
- a node's report sets addresses aside only in pools that serve the node, and only a limited number: `MOST_CARRIED` for
  each node, and a quarter of a pool unless a restore is being decided. Claims beyond these limits raise an alert of
  `reconcile.orphans`;
- until every node that a pool serves has reported what its host carries, no address of the pool is given out.

Rejected: believing a node without a limit. A hostile node named all addresses of a pool: nobody got an address of it
any longer, and its lock was held for one statement per address.

Why: docs/decisions/0023-what-a-node-says-is-bounded.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_interface
from itertools import islice
from typing import Final
from uuid import UUID

from svc_actors.controller.networking.pool_arithmetic import IPNetwork
from svc_actors.controller.networking.pool_records import Pool
from svc_actors.store import Transaction
from svc_common.errors import conflict, unavailable
from svc_nodeagent.protocol import NicSpec

MOST_CARRIED: Final = 1_024
"""The most addresses without a record that are accepted from one node as carried: as many as 500 machines have."""
_POOLS_OF_NODE: Final = """
SELECT pools.* FROM pools JOIN nodes ON nodes.location_id = pools.location_id
WHERE nodes.id = $1 AND (cardinality(pools.node_ids) = 0 OR nodes.id = ANY(pools.node_ids))
ORDER BY pools.family, pools.created_at, pools.id"""
HEARD = """NOT EXISTS (SELECT FROM nodes unheard WHERE unheard.unheard AND unheard.deleted_at IS NULL
    AND unheard.location_id = pools.location_id
    AND (cardinality(pools.node_ids) = 0 OR unheard.id = ANY(pools.node_ids)))"""
"""SQL condition on `pools`: every node that the pool serves has reported which addresses its host carries."""


async def require_heard(tx: Transaction, pool: Pool) -> None:
    """Raises unavailable while a node that the pool serves has not reported what its host carries."""
    silent = await tx.fetchrow(
        """SELECT min(name) AS first, count(*) AS number FROM nodes WHERE unheard AND deleted_at IS NULL
           AND location_id = $1 AND (cardinality($2::uuid[]) = 0 OR id = ANY($2))""",
        pool.location_id,
        list(pool.node_ids),
    )
    if silent is not None and silent["number"]:
        others = f" and {silent['number'] - 1} more" if silent["number"] > 1 else ""
        raise unavailable(
            "The controller was restored from a backup, or its database has lost changes, and node "
            f"{silent['first']}{others} has not reported yet which addresses its host carries: no address was "
            "assigned.",
            hint="Try again once the nodes are back. An administrator can write off a node that is lost.",
        )


async def note_carried(
    tx: Transaction, node_id: UUID, carried: Mapping[UUID, Iterable[str]], *, of_a_pool_all: bool
) -> int:
    """Record which addresses without a record this node's host carries now, by machine, replacing the earlier ones.
    `of_a_pool_all`: accept more than the node's share of a pool, as after a restore. Returns how many were left out."""
    said = [(vm_id, address) for vm_id, addresses in carried.items() for address in addresses]
    pairs, left_out = await _granted(tx, node_id, said, of_a_pool_all=of_a_pool_all)
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
    # Only changes are set aside: a report that repeats the last one locks no pool.
    if gone or new:
        await block_carried(tx, [row["ip"] for row in (*gone, *new)])
    return left_out


async def _granted(
    tx: Transaction, node_id: UUID, said: Sequence[tuple[UUID, str]], *, of_a_pool_all: bool
) -> tuple[list[tuple[UUID, IPNetwork]], int]:
    """The addresses that are accepted, and the number of those that are not. Of each pool the lowest addresses are
    accepted, so that the same ones are accepted at each report. A network that is wider than what a machine receives
    from the pool is not accepted."""
    pools = [Pool.of(row) for row in await tx.fetch(_POOLS_OF_NODE, node_id)] if said else []
    networks = [(ip_interface(address).network, vm_id) for vm_id, address in islice(said, MOST_CARRIED)]
    taken: dict[UUID, set[int]] = {pool.id: set() for pool in pools}
    granted = []
    for network, vm_id in sorted(networks, key=lambda each: (each[0].version, each[0].network_address, each[1])):
        concerned = [pool for pool in pools if pool.family == network.version and pool.cidr.overlaps(network)]
        # An address outside the pool's range takes no address of the pool from anybody, so the node's share does not
        # limit it.
        slots = {pool: slot for pool in concerned if (slot := pool.slot_of(network.network_address)) is not None}
        too_much = any(
            pool.first_slot <= slot <= pool.last_slot and len(taken[pool.id] | {slot}) > pool.share
            for pool, slot in slots.items()
        )
        # After a restore a node may honestly carry most of a pool, for machines created since the backup. A /16 in a
        # pool of single addresses is never honest: no machine receives one.
        if (too_much and not of_a_pool_all) or any(network.prefixlen < pool.prefix_len for pool in concerned):
            continue
        for pool, slot in slots.items():
            taken[pool.id].add(slot)
        granted.append((vm_id, network))
    return granted, len(said) - len(granted)


async def forget_carried(tx: Transaction, node_id: UUID, vm_id: UUID | None = None) -> None:
    """Remove what is recorded as carried: by a node that was removed, or (with `vm_id`) by one machine that its host
    has released."""
    gone = await tx.fetch(
        "DELETE FROM carried_addresses WHERE node_id = $1 AND ($2::uuid IS NULL OR vm_id = $2) RETURNING ip",
        node_id,
        vm_id,
    )
    if gone:
        await block_carried(tx, [row["ip"] for row in gone])


async def block_carried(tx: Transaction, addresses: Iterable[object]) -> None:
    """Update the blocks of these addresses: block those that a host carries and no machine holds, and free those that
    no host carries any longer."""
    # Pools are locked before their addresses are read, in the order of all transactions.
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
    # One statement for each pool, however many addresses. `ON CONFLICT DO NOTHING` leaves an address to its recorded
    # holder; the transaction that later takes the address from the holder blocks it.
    for pool in map(Pool.of, rows):
        named = (pool.slot_of(each.network_address) for each in networks if each.version == pool.family)
        slots = sorted({slot for slot in named if slot is not None})
        await tx.execute(
            """INSERT INTO allocations (pool_id, slot, ip, state, note, carried)
               SELECT DISTINCT ON (named.slot) $1::uuid, named.slot, named.ip, 'blocked', 'Node ' || nodes.name
                      || ' carries it for machine ' || held.vm_id || ', whose record does not have it.', true
               FROM unnest($2::bigint[], $3::inet[]) AS named (slot, ip)
               JOIN carried_addresses held ON held.ip && named.ip JOIN nodes ON nodes.id = held.node_id
               WHERE nodes.location_id = $4 AND (cardinality($5::uuid[]) = 0 OR nodes.id = ANY($5))
               ORDER BY named.slot, nodes.name
               ON CONFLICT (pool_id, slot) DO NOTHING""",
            pool.id,
            slots,
            [pool.network_at(slot) for slot in slots],
            pool.location_id,
            list(pool.node_ids),
        )


async def adopt_network(tx: Transaction, vm_id: UUID, nics: Sequence[NicSpec]) -> None:
    """Record these NICs and addresses of a machine, as its host carries them, and remove all others. Raises conflict
    for an address that another machine holds or that is in no pool, and for a NIC of another machine.
    """
    networks = [address.network for nic in nics for address in nic.addresses]
    rows = await tx.fetch(
        """SELECT * FROM pools WHERE EXISTS (SELECT FROM unnest($1::inet[]) AS named WHERE named <<= pools.cidr)
               OR id IN (SELECT pool_id FROM allocations WHERE vm_id = $2)
           ORDER BY family, created_at, id FOR NO KEY UPDATE""",
        networks,
        vm_id,
    )
    pools = [Pool.of(row) for row in rows]
    given_up = await tx.fetch(
        "DELETE FROM allocations WHERE vm_id = $1 AND ip <> ALL($2::inet[]) RETURNING ip", vm_id, networks
    )
    # A machine has only one primary address, so the old one is unset before the new one is written.
    await tx.execute("UPDATE allocations SET is_primary = false WHERE vm_id = $1", vm_id)
    await tx.execute("DELETE FROM carried_addresses WHERE vm_id = $1", vm_id)
    for position, nic in enumerate(nics):
        places = [_place(pools, address.network) for address in nic.addresses]
        await _adopt_nic(tx, vm_id, position, nic, places[0][0].network_id if places else None)
        for address, (pool, slot) in zip(nic.addresses, places, strict=True):
            await _claim(tx, vm_id, nic.nic_id, pool, slot, primary=address.primary)
    # Another host may carry an address that the records had for this machine: such an address is then blocked, not
    # free.
    await block_carried(tx, [row["ip"] for row in given_up])


def _place(pools: Sequence[Pool], network: IPNetwork) -> tuple[Pool, int]:
    for pool in pools:
        slot = pool.slot_of(network.network_address) if network.version == pool.cidr.version else None
        if slot is not None:
            return pool, slot
    raise conflict(f"No pool has the address {network}.", hint="Create the pool of the address again.")


async def _adopt_nic(tx: Transaction, vm_id: UUID, position: int, nic: NicSpec, network_id: UUID | None) -> None:
    await tx.execute(
        """INSERT INTO nics (id, vm_id, network_id, position, mac)
           SELECT $1, $2, coalesce($3, (SELECT id FROM networks WHERE "default")), $4, $5 ON CONFLICT DO NOTHING""",
        nic.nic_id,
        vm_id,
        network_id,
        position,
        nic.mac,
    )
    if not await tx.fetchval("SELECT EXISTS (SELECT FROM nics WHERE id = $1 AND vm_id = $2)", nic.nic_id, vm_id):
        raise conflict(f"The MAC address {nic.mac} belongs to another machine by the records.")


async def _claim(tx: Transaction, vm_id: UUID, nic_id: UUID, pool: Pool, slot: int, *, primary: bool) -> None:
    """Assign the address to the machine, whether it was blocked as carried, is the machine's already, or is free."""
    claimed = await tx.fetchval(
        """INSERT INTO allocations AS held (pool_id, slot, ip, state, vm_id, nic_id, is_primary)
           VALUES ($1, $2, $3, 'allocated', $4, $5, $6)
           ON CONFLICT (pool_id, slot) DO UPDATE SET state = 'allocated', vm_id = $4, nic_id = $5, is_primary = $6,
               carried = false, note = NULL, release_id = NULL, changed_at = now()
           WHERE held.carried OR held.vm_id = $4 RETURNING true""",
        pool.id,
        slot,
        pool.network_at(slot),
        vm_id,
        nic_id,
        primary,
    )
    if claimed:
        return
    holder = await tx.fetchrow(
        """SELECT held.state, vms.name FROM allocations held LEFT JOIN vms ON vms.id = held.vm_id
           WHERE held.pool_id = $1 AND held.slot = $2""",
        pool.id,
        slot,
    )
    whose = f"machine {holder['name']}'s" if holder and holder["name"] else holder["state"] if holder else "taken"
    raise conflict(
        f"{pool.text_at(slot)} is {whose} by the records.",
        hint="Decide about that machine first: delete or discard it if its host does not have it.",
    )
