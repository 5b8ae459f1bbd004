"""Networks and their pools: what addresses there are, and how guests are configured with them.

Invariants:
- a pool's CIDR and family never change; no two pools overlap (a constraint of the database);
- the network, broadcast and gateway addresses of a pool are reserved by its own arithmetic and never handed out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from uuid import UUID

from svc_actors.controller.addresses import IPAddress, IPNetwork, reserve_arithmetic
from svc_actors.controller.rows import sole
from svc_actors.errors import conflict, not_found, wrong_field
from svc_actors.store import (
    ExclusionViolationError,
    ForeignKeyViolationError,
    Queryable,
    Record,
    Transaction,
    UniqueViolationError,
)


class GatewayMode(StrEnum):
    """How a guest reaches its gateway: as if it were on the same link, or inside its own subnet."""

    ONLINK = "onlink"
    SUBNET = "subnet"


@dataclass(frozen=True)
class NewPool:
    """Left out: `gateway` is the first usable address, the range every usable one, and the guest's prefix 32 with an
    on-link gateway or the pool's own otherwise. `node_ids` empty means every node of the location."""

    name: str
    location_id: UUID
    cidr: IPNetwork
    topology: str = "nat"
    gateway: IPAddress | None = None
    gateway_mode: GatewayMode = GatewayMode.ONLINK
    guest_prefix_len: int | None = None
    range_start: IPAddress | None = None
    range_end: IPAddress | None = None
    nameservers: Sequence[IPAddress] = ()
    node_ids: Sequence[UUID] = field(default_factory=tuple)


async def create_network(tx: Transaction, name: str, *, default: bool, mtu: int = 1500) -> Record:
    """A network without pools. As the default it takes the place of the one that was."""
    if default:
        await tx.execute('UPDATE networks SET "default" = false WHERE "default"')
    try:
        return sole(
            await tx.fetchrow(
                'INSERT INTO networks (name, "default", mtu) VALUES ($1, $2, $3) RETURNING *', name, default, mtu
            )
        )
    except UniqueViolationError:
        raise conflict(f"There is a network named {name} already.") from None


async def create_pool(tx: Transaction, network_id: UUID, new: NewPool) -> Record:
    """A pool with its arithmetic reservations. Raises invalid (the figures contradict each other), conflict (it
    overlaps another pool), not_found (network or location)."""
    network = new.cidr
    if network.version != 4:
        raise wrong_field("cidr", "only IPv4 pools are offered")
    if network.prefixlen > 30:
        raise wrong_field("cidr", "a pool is a /30 or larger")
    first, last = network.network_address + 1, network.broadcast_address - 1
    gateway = new.gateway or first
    range_start, range_end = new.range_start or first, new.range_end or last
    for name, value in (("gateway", gateway), ("range_start", range_start), ("range_end", range_end)):
        if value.version != network.version or value not in network:
            raise wrong_field(name, f"{value} is not inside {network}")
    if int(range_start) > int(range_end):
        raise wrong_field("range_end", "the range ends before it starts")
    prefix = new.guest_prefix_len
    if prefix is None:
        prefix = network.max_prefixlen if new.gateway_mode is GatewayMode.ONLINK else network.prefixlen
    if not network.prefixlen <= prefix <= network.max_prefixlen:
        raise wrong_field("guest_prefix_len", "shorter than the pool's own prefix, or longer than an address")
    try:
        pool = sole(
            await tx.fetchrow(
                """INSERT INTO pools (network_id, location_id, name, family, cidr, range_start, range_end, gateway,
                                      gateway_mode, guest_prefix_len, topology, nameservers, node_ids)
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) RETURNING *""",
                network_id,
                new.location_id,
                new.name,
                network.version,
                network,
                range_start,
                range_end,
                gateway,
                new.gateway_mode.value,
                prefix,
                new.topology,
                list(new.nameservers),
                list(new.node_ids),
            )
        )
    except ExclusionViolationError:
        raise conflict(f"{network} overlaps a pool that there is already; no pool was made.") from None
    except ForeignKeyViolationError as error:
        what = "location" if error.constraint_name == "pools_location_id_fkey" else "network"
        raise not_found(f"There is no such {what}.") from None
    await reserve_arithmetic(tx, pool["id"], network, ip_address(str(gateway)))
    return pool


async def default_location(queryable: Queryable) -> UUID:
    """The only location, or the one named `default`. Raises invalid where that does not settle it."""
    rows = await queryable.fetch("SELECT id, name FROM locations")
    found: list[UUID] = [row["id"] for row in rows if len(rows) == 1 or row["name"] == "default"]
    if len(found) != 1:
        raise wrong_field("location_id", "say which location the pool is in")
    return found[0]


async def update_network(tx: Transaction, network_id: UUID, *, default: bool | None, mtu: int | None) -> Record:
    """None leaves a thing as it is. Raises conflict for taking the default away without naming another."""
    row = await tx.fetchrow("SELECT * FROM networks WHERE id = $1 FOR UPDATE", network_id)
    if row is None:
        raise not_found("There is no such network.")
    if default is False and row["default"]:
        raise conflict("This is the default network.", hint="Make another network the default instead.")
    if default and not row["default"]:
        await tx.execute('UPDATE networks SET "default" = false WHERE "default"')
    return sole(
        await tx.fetchrow(
            'UPDATE networks SET "default" = "default" OR $2, mtu = coalesce($3, mtu) WHERE id = $1 RETURNING *',
            network_id,
            bool(default),
            mtu,
        )
    )


async def remove_network(tx: Transaction, network_id: UUID) -> Record:
    """Remove a network with its pools. Raises conflict while a machine holds an address, or is on the network."""
    row = await tx.fetchrow("SELECT * FROM networks WHERE id = $1 FOR UPDATE", network_id)
    if row is None:
        raise not_found("There is no such network.")
    await tx.execute(
        """DELETE FROM nics USING vms WHERE nics.network_id = $1 AND vms.id = nics.vm_id AND vms.deleted_at IS NOT NULL
           AND NOT EXISTS (SELECT FROM allocations WHERE allocations.nic_id = nics.id)""",
        network_id,
    )
    held = await tx.fetchval(
        """SELECT (SELECT count(*) FROM allocations JOIN pools ON pools.id = allocations.pool_id
                   WHERE pools.network_id = $1 AND NOT allocations.arithmetic)
                + (SELECT count(*) FROM nics WHERE network_id = $1)""",
        network_id,
    )
    if held:
        raise conflict("Addresses of this network are held, or machines are on it; it stays.")
    await tx.execute(
        "DELETE FROM allocations USING pools WHERE pools.id = allocations.pool_id AND pools.network_id = $1", network_id
    )
    await tx.execute("DELETE FROM pools WHERE network_id = $1", network_id)
    await tx.execute("DELETE FROM networks WHERE id = $1", network_id)
    return row
