"""Edits of a pool that is in use, and its removal.

Invariants:
- an edit never strands an address in use: none ends up outside the range, on a node that the pool does not serve, on a
  NIC that cannot be wired to the pool, or equal to the gateway; the refusal names the address;
- the network generation of affected machines is raised in the same transaction (`changes.network_changed`);
- the rows of those machines are locked before the pool's, in the same order as when an address is attached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Any, Final
from uuid import UUID

from svc_actors.controller.networking.changes import network_changed
from svc_actors.controller.networking.networks import drop_pool
from svc_actors.controller.networking.pool_definitions import GatewayMode, NewPool, PoolDefinition, define
from svc_actors.controller.networking.pool_needs import require_carriers
from svc_actors.controller.networking.pool_records import Pool, lock_pool, wiring
from svc_actors.controller.networking.reservations import refresh_own_reservations
from svc_actors.controller.networking.security_groups import require_filterable
from svc_actors.store import Record, Transaction, UniqueViolationError
from svc_common.errors import conflict, not_found, not_ready

_CARRIED: Final = ("gateway", "gateway_mode", "guest_prefix_len", "topology", "vlan", "nameservers")
"""The columns whose values are part of the configuration of a machine's host or guest."""


async def update_pool(tx: Transaction, pool_id: UUID, changes: Mapping[str, Any]) -> tuple[Record, dict[str, object]]:
    """Change the given fields, which are those of `NewPool` except CIDR and prefix_len. Returns the row and the changed
    columns.

    Raises invalid (the figures contradict each other), conflict (an address in use would be stranded, or a node cannot
    carry the pool), not_ready (its machines are being changed at this moment), not_found.
    """
    machines = await _lock_machines(tx, pool_id)
    await lock_pool(tx, pool_id)
    machines |= await _lock_newcomers(tx, pool_id, machines)
    before = await tx.fetchone("SELECT * FROM pools WHERE id = $1", pool_id)
    definition = define(_merged(before, changes))
    columns = definition.columns()
    if any(columns[name] != before[name] for name in ("location_id", "node_ids", "topology", "vlan", "gateway")):
        if not await tx.fetchval("SELECT true FROM locations WHERE id = $1", definition.location_id):
            raise not_found("There is no such location.")
        await require_carriers(tx, definition)
    await _require_nothing_stranded(tx, pool_id, before, definition)
    assigned = ", ".join(f"{name} = ${place}" for place, name in enumerate(columns, start=2))
    try:
        after = await tx.fetchone(f"UPDATE pools SET {assigned} WHERE id = $1 RETURNING *", pool_id, *columns.values())
    except UniqueViolationError:
        raise conflict(f"The network has a pool named {definition.name} already; nothing was changed.") from None
    await refresh_own_reservations(tx, Pool.of(after))
    changed: dict[str, object] = {name: after[name] for name in columns if after[name] != before[name]}
    if after["topology"] == "bridged" != before["topology"]:
        await require_filterable(tx, *machines)
    if set(changed) & set(_CARRIED):
        await network_changed(tx, machines)
    return after, changed


async def remove_pool(tx: Transaction, pool_id: UUID) -> Record:
    """Delete a pool; returns its row. Raises conflict while any address of the pool is held or being released;
    not_found."""
    pool = await lock_pool(tx, pool_id)
    held = await tx.fetch(
        """SELECT allocations.state, count(*) AS count FROM allocations
           LEFT JOIN reservations ON reservations.id = allocations.reservation_id
           WHERE allocations.pool_id = $1 AND reservations.arithmetic IS NOT TRUE
           GROUP BY allocations.state ORDER BY allocations.state""",
        pool_id,
    )
    if held:
        counts = ", ".join(f"{row['count']} {row['state']}" for row in held)
        raise conflict(
            f"Addresses of the pool {pool.name} are in use ({counts}); the pool was not deleted.",
            details={row["state"]: row["count"] for row in held},
        )
    return await drop_pool(tx, pool_id)


def _merged(row: Record, changes: Mapping[str, Any]) -> NewPool:
    """The current pool with the changes; the guest's prefix follows the gateway's mode unless it is given."""
    current = NewPool(
        name=row["name"],
        location_id=row["location_id"],
        cidr=Pool.of(row).cidr,
        prefix_len=row["prefix_len"],
        topology=row["topology"],
        gateway=ip_address(str(row["gateway"])),
        gateway_mode=GatewayMode(row["gateway_mode"]),
        guest_prefix_len=row["guest_prefix_len"],
        range_start=ip_address(str(row["range_start"])),
        range_end=ip_address(str(row["range_end"])),
        nameservers=[ip_address(str(server)) for server in row["nameservers"]],
        node_ids=row["node_ids"],
        vlan=row["vlan"],
        enabled=row["enabled"],
    )
    follows = changes.get("gateway_mode", current.gateway_mode) is not current.gateway_mode
    if follows and "guest_prefix_len" not in changes:
        current = replace(current, guest_prefix_len=None)
    return replace(current, **changes)


async def _lock_machines(tx: Transaction, pool_id: UUID) -> set[UUID]:
    rows = await tx.fetch(
        """SELECT id FROM vms WHERE id IN (SELECT vm_id FROM allocations WHERE pool_id = $1 AND state = 'allocated')
           ORDER BY id FOR NO KEY UPDATE""",
        pool_id,
    )
    return {row["id"] for row in rows}


async def _lock_newcomers(tx: Transaction, pool_id: UUID, known: set[UUID]) -> set[UUID]:
    """Lock the machines that got addresses while the first machines were being locked. This does not wait, because such
    a machine's transaction may wait for this pool. Raises not_ready if one is locked."""
    rows = await tx.fetch(
        """SELECT DISTINCT vm_id FROM allocations
           WHERE pool_id = $1 AND state = 'allocated' AND vm_id <> ALL($2::uuid[])""",
        pool_id,
        list(known),
    )
    newcomers = {row["vm_id"] for row in rows}
    locked = await tx.fetch(
        "SELECT id FROM vms WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED", list(newcomers)
    )
    if len(locked) < len(newcomers):
        raise not_ready("Machines of this pool are being changed; the pool was not changed.", hint="Try again.")
    return newcomers


async def _require_nothing_stranded(tx: Transaction, pool_id: UUID, before: Record, definition: PoolDefinition) -> None:
    outside = await tx.fetchval(
        """SELECT address_text(ip) FROM allocations WHERE pool_id = $1 AND state IN ('allocated', 'releasing')
           AND NOT slot BETWEEN $2 AND $3 ORDER BY slot LIMIT 1""",
        pool_id,
        definition.first_slot,
        definition.last_slot,
    )
    if outside is not None:
        raise _stranded(outside, "would be outside the range")
    gateway = definition.slot_of(definition.gateway)
    if gateway is not None and await tx.fetchval(
        "SELECT true FROM allocations WHERE pool_id = $1 AND slot = $2 AND state IN ('allocated', 'releasing')",
        pool_id,
        gateway,
    ):
        raise _stranded(definition.text_at(gateway), "would be the gateway")
    misplaced = await tx.fetchrow(
        """SELECT address_text(held.ip) AS ip, nodes.name AS node FROM allocations held
           JOIN vms ON vms.id = held.vm_id JOIN nodes ON nodes.id = vms.node_id
           WHERE held.pool_id = $1 AND held.state = 'allocated'
             AND (nodes.location_id <> $2 OR (cardinality($3::uuid[]) > 0 AND nodes.id <> ALL($3)))
           ORDER BY held.slot LIMIT 1""",
        pool_id,
        definition.location_id,
        list(definition.node_ids),
    )
    if misplaced is not None:
        raise _stranded(misplaced["ip"], f"is on the node {misplaced['node']}, which the pool would not serve")
    if (definition.topology, definition.vlan) != (before["topology"], before["vlan"]):
        await _require_wiring(tx, pool_id, definition)


async def _require_wiring(tx: Transaction, pool_id: UUID, definition: PoolDefinition) -> None:
    mixed = await tx.fetchrow(
        """SELECT address_text(held.ip) AS ip, vms.name AS vm, pools.name AS pool, pools.topology, pools.vlan
           FROM allocations held JOIN allocations other ON other.nic_id = held.nic_id AND other.state = 'allocated'
           JOIN pools ON pools.id = other.pool_id JOIN vms ON vms.id = held.vm_id
           WHERE held.pool_id = $1 AND held.state = 'allocated' AND other.pool_id <> $1
             AND ((pools.topology = 'bridged') <> ($2 = 'bridged') OR pools.vlan IS DISTINCT FROM $3)
           ORDER BY held.slot LIMIT 1""",
        pool_id,
        definition.topology,
        definition.vlan,
    )
    if mixed is not None:
        raise _stranded(
            mixed["ip"],
            f"is on a NIC of the machine {mixed['vm']} with an address of the pool {mixed['pool']} "
            f"({wiring(mixed['topology'], mixed['vlan'])}), which cannot be mixed with "
            f"{wiring(definition.topology, definition.vlan)}",
        )


def _stranded(ip: str, why: str) -> Exception:
    return conflict(f"{ip} is in use and {why}; the pool was left as it is.", details={"ip": ip})
