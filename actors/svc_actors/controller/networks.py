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
from svc_actors.errors import conflict, invalid, not_found
from svc_actors.store import (
    ExclusionViolationError,
    ForeignKeyViolationError,
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
    """A pool with its arithmetic reservations. Raises invalid (the figures contradict each other), conflict (it overlaps
    another pool), not_found (network or location)."""
    network = new.cidr
    if network.version != 4:
        raise invalid("Only IPv4 pools are offered.", details={"field": "cidr"})
    if network.prefixlen > 30:
        raise invalid("A pool is a /30 or larger.", details={"field": "cidr"})
    first, last = network.network_address + 1, network.broadcast_address - 1
    gateway = new.gateway or first
    range_start, range_end = new.range_start or first, new.range_end or last
    for name, value in (("gateway", gateway), ("range_start", range_start), ("range_end", range_end)):
        if value.version != network.version or value not in network:
            raise invalid(f"{name} {value} is not inside {network}.", details={"field": name})
    if int(range_start) > int(range_end):
        raise invalid("The range ends before it starts.", details={"field": "range_end"})
    prefix = new.guest_prefix_len
    if prefix is None:
        prefix = network.max_prefixlen if new.gateway_mode is GatewayMode.ONLINK else network.prefixlen
    if not network.prefixlen <= prefix <= network.max_prefixlen:
        raise invalid("guest_prefix_len is shorter than the pool's own prefix, or longer than an address.")
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
        raise conflict(f"{network} overlaps a pool that there is already.", details={"field": "cidr"}) from None
    except ForeignKeyViolationError as error:
        what = "location" if error.constraint_name == "pools_location_id_fkey" else "network"
        raise not_found(f"There is no such {what}.") from None
    await reserve_arithmetic(tx, pool["id"], network, ip_address(str(gateway)))
    return pool
