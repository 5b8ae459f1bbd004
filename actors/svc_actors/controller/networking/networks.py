"""Networks and their pools: the available addresses, and how guests are configured with them.

Invariants:
- a pool's CIDR and family never change; no two pools overlap (a constraint of the database);
- addresses that a pool reserves for itself (network, broadcast, gateway, its hosts' addresses) are never handed out;
- networks are created, changed and removed one at a time, and pools are created one at a time. So as long as there are
  networks, exactly one of them is the default, and concurrent creations of overlapping pools cannot deadlock.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alerts_about
from svc_actors.controller.networking.changes import network_changed
from svc_actors.controller.networking.pool_definitions import GatewayMode, NewPool, define
from svc_actors.controller.networking.pool_needs import require_carriers
from svc_actors.controller.networking.pool_records import Pool
from svc_actors.controller.networking.reservations import refresh_own_reservations
from svc_actors.store import (
    ExclusionViolationError,
    Queryable,
    Record,
    Transaction,
    UniqueViolationError,
)
from svc_common.errors import conflict, not_found, wrong_field

__all__ = [
    "GatewayMode",
    "NewPool",
    "create_network",
    "create_pool",
    "default_location",
    "drop_pool",
    "remove_network",
    "update_network",
]

_TURN: Final = 0x5356_4E54
_LEAST_MTU_OF_IPV6: Final = 1280
"""RFC 8200, section 5. The kernel removes IPv6 from a device with a smaller MTU."""


async def create_network(tx: Transaction, name: str, *, default: bool, mtu: int = 1500) -> Record:
    """Create a network without pools. A new default network replaces the previous one; the first network is always the
    default."""
    await _take_turn(tx)
    if default:
        await _yield_default(tx)
    try:
        return await tx.fetchone(
            """INSERT INTO networks (name, "default", mtu)
                   VALUES ($1, $2 OR NOT EXISTS (SELECT FROM networks WHERE "default"), $3) RETURNING *""",
            name,
            default,
            mtu,
        )
    except UniqueViolationError:
        raise conflict(f"There is a network named {name} already.") from None


async def create_pool(tx: Transaction, network_id: UUID, new: NewPool) -> Record:
    """Create a pool with its own reservations. Raises invalid (the figures contradict each other), conflict (it
    overlaps another pool, or a node that it serves cannot carry it), not_found (network or location)."""
    definition = define(new)
    await _take_turn(tx)
    mtu = await tx.fetchval("SELECT mtu FROM networks WHERE id = $1", network_id)
    if mtu is None:
        raise not_found("There is no such network.")
    if definition.family == 6:
        _require_mtu_for_ipv6(mtu, "no pool was created")
    if not await tx.fetchval("SELECT true FROM locations WHERE id = $1", definition.location_id):
        raise not_found("There is no such location.")
    await require_carriers(tx, definition)
    columns = {
        "network_id": network_id,
        "family": definition.family,
        "cidr": definition.cidr,
        "prefix_len": definition.prefix_len,
        "next_slot": definition.first_slot,
        **definition.columns(),
    }
    places = ", ".join(f"${place}" for place in range(1, len(columns) + 1))
    try:
        row = await tx.fetchone(
            f"INSERT INTO pools ({', '.join(columns)}) VALUES ({places}) RETURNING *", *columns.values()
        )
    except UniqueViolationError:
        raise conflict(f"The network has a pool named {definition.name} already; no pool was created.") from None
    except ExclusionViolationError:
        raise conflict(f"{definition.cidr} overlaps an existing pool; no pool was created.") from None
    await refresh_own_reservations(tx, Pool.of(row))
    return row


async def default_location(queryable: Queryable) -> UUID:
    """The only location, or the one named `default`. Raises invalid if there is neither."""
    rows = await queryable.fetch("SELECT id, name FROM locations")
    found: list[UUID] = [row["id"] for row in rows if len(rows) == 1 or row["name"] == "default"]
    if len(found) != 1:
        raise wrong_field("location_id", "name the location of the pool")
    return found[0]


async def update_network(tx: Transaction, network_id: UUID, *, default: bool | None, mtu: int | None) -> Record:
    """None leaves a field as it is. Raises conflict if the default network would lose this role: choose another default
    instead."""
    await _take_turn(tx)
    if default:
        await _yield_default(tx)
    row = await tx.fetchrow("SELECT * FROM networks WHERE id = $1 FOR UPDATE", network_id)
    if row is None:
        raise not_found("There is no such network.")
    if default is False and row["default"]:
        raise conflict("This is the default network.", hint="Make another network the default instead.")
    if mtu is not None and mtu != row["mtu"]:
        if await tx.fetchval("SELECT EXISTS (SELECT FROM pools WHERE network_id = $1 AND family = 6)", network_id):
            _require_mtu_for_ipv6(mtu, "nothing was changed")
        nics = await tx.fetch("SELECT DISTINCT vm_id FROM nics WHERE network_id = $1", network_id)
        await network_changed(tx, [nic["vm_id"] for nic in nics])
    return await tx.fetchone(
        'UPDATE networks SET "default" = "default" OR $2, mtu = coalesce($3, mtu) WHERE id = $1 RETURNING *',
        network_id,
        bool(default),
        mtu,
    )


def _require_mtu_for_ipv6(mtu: int, outcome: str) -> None:
    if mtu < _LEAST_MTU_OF_IPV6:
        raise conflict(
            f"The network's MTU would be {mtu}, and IPv6 needs {_LEAST_MTU_OF_IPV6} at least; {outcome}.",
            hint=f"Choose an MTU of {_LEAST_MTU_OF_IPV6} or more, or a network without IPv6 pools.",
        )


async def _take_turn(tx: Transaction) -> None:
    """Take the lock of changes to networks until the transaction ends. Call it before anything else is locked."""
    await tx.execute("SELECT pg_advisory_xact_lock($1)", _TURN)


async def _yield_default(tx: Transaction) -> None:
    """Unset the current default network, whichever it is."""
    await tx.execute('UPDATE networks SET "default" = false WHERE "default"')


async def remove_network(tx: Transaction, network_id: UUID) -> Record:
    """Remove a network with its pools. Raises conflict while an address is held or a machine is on the network, and for
    the default network while there are others."""
    await _take_turn(tx)
    row = await tx.fetchrow("SELECT * FROM networks WHERE id = $1 FOR UPDATE", network_id)
    if row is None:
        raise not_found("There is no such network.")
    if row["default"] and await tx.fetchval("SELECT EXISTS (SELECT FROM networks WHERE id <> $1)", network_id):
        raise conflict("This is the default network.", hint="Make another network the default first.")
    await tx.execute(
        """DELETE FROM nics USING vms WHERE nics.network_id = $1 AND vms.id = nics.vm_id AND vms.deleted_at IS NOT NULL
           AND NOT EXISTS (SELECT FROM allocations WHERE allocations.nic_id = nics.id)""",
        network_id,
    )
    # The pools are locked before their reservations are counted: otherwise addresses that are reserved meanwhile would
    # be removed unnoticed.
    pools = await tx.fetch(
        "SELECT id FROM pools WHERE network_id = $1 ORDER BY family, created_at, id FOR UPDATE", network_id
    )
    held = await tx.fetchval(
        """SELECT (SELECT count(*) FROM allocations JOIN pools ON pools.id = allocations.pool_id
                   LEFT JOIN reservations ON reservations.id = allocations.reservation_id
                   WHERE pools.network_id = $1 AND reservations.arithmetic IS NOT TRUE)
                + (SELECT count(*) FROM nics WHERE network_id = $1)""",
        network_id,
    )
    if held:
        raise conflict("Addresses of this network are in use, or machines are on it; it was not deleted.")
    for pool in pools:
        await drop_pool(tx, pool["id"])
    await tx.execute("DELETE FROM networks WHERE id = $1", network_id)
    return row


async def drop_pool(tx: Transaction, pool_id: UUID) -> Record:
    """Remove a pool without held addresses, with its own reservations and its alerts."""
    await tx.execute("DELETE FROM reservations WHERE pool_id = $1", pool_id)
    row = await tx.fetchone("DELETE FROM pools WHERE id = $1 RETURNING *", pool_id)
    await close_alerts_about(tx, "pool", pool_id)
    return row
