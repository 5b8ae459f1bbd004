"""The API's models of a pool: answers and requests."""

from __future__ import annotations

from datetime import datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_interface, ip_network
from typing import Annotated
from uuid import UUID

from pydantic import Field, PlainValidator

from svc.identity.fields import Name
from svc.registry.operation import Model, Request
from svc_actors.controller.networking.networks import GatewayMode, NewPool, default_location
from svc_actors.controller.networking.pool_definitions import Topology
from svc_actors.controller.networking.pool_watch import POOLS, PoolCounts
from svc_actors.store import Queryable, Record
from svc_common.errors import not_found


def _address(given: object) -> IPv4Address | IPv6Address:
    """Parse an address. Numbers are refused, and so are addresses with a zone (`fe80::1%eth0`), which has a meaning on
    one host only."""
    if isinstance(given, str) and "%" not in given:
        try:
            return ip_address(given)
        except ValueError:
            pass
    raise ValueError("must be an address such as 192.0.2.5 or 2001:db8::5, without a zone")


def _network(given: object) -> IPv4Network | IPv6Network:
    """Parse a network, or a single address."""
    if isinstance(given, str) and "%" not in given:
        try:
            meant = ip_network(given, strict=False)
        except ValueError:
            pass
        else:
            if ip_interface(given).ip != meant.network_address:
                raise ValueError(f"must end where its prefix does: bits are set beyond it, and the network is {meant}")
            return meant
    raise ValueError("must be a network such as 192.0.2.0/24 or 2001:db8::/32, or an address, without a zone")


def _held_address(given: object) -> IPv4Address | IPv6Address:
    """Parse a single address. 192.0.2.5/28 is accepted, since it is one address with its prefix length, as a machine's
    NIC has it; 192.0.2.0/28 is refused, since it means sixteen addresses."""
    if isinstance(given, str) and "%" not in given:
        try:
            interface = ip_interface(given) if "/" in given else ip_interface(ip_address(given))
        except ValueError:
            pass
        else:
            network = interface.network
            if network.version == 6 or network.prefixlen > 30 or interface.ip != network.network_address:
                return interface.ip
    raise ValueError("must be an address such as 192.0.2.5, or an IPv6 sub-prefix such as 2001:db8:0:5::/64")


Address = Annotated[IPv4Address | IPv6Address, PlainValidator(_address, json_schema_input_type=str)]
HeldAddress = Annotated[IPv4Address | IPv6Address, PlainValidator(_held_address, json_schema_input_type=str)]
"""An address. An IPv6 sub-prefix, the form in which lists show it, stands for its first address."""
Cidr = Annotated[IPv4Network | IPv6Network, PlainValidator(_network, json_schema_input_type=str)]
Vlan = Annotated[int, Field(ge=1, le=4094, description="The VLAN of a bridged pool.")]
Nameservers = Annotated[list[Address], Field(max_length=8, description="An address of a DNS server.")]
FirstAddress = Annotated[Address, Field(description="The first address of the range.")]
LastAddress = Annotated[Address, Field(description="The last address of the range.")]
PrefixLength = Annotated[int, Field(ge=0, le=128)]


class PoolModel(Model):
    """`pressure` is the share of the range that is not free, 0 to 1. `total` is how many addresses the range has; all
    counts of an IPv6 pool are numbers of sub-prefixes of `prefix_len`. `node_ids` empty: every node of the location."""

    id: UUID
    network_id: UUID
    network_name: str
    location_id: UUID
    name: str
    family: int
    cidr: str
    prefix_len: int | None
    range_start: str
    range_end: str
    gateway: str
    gateway_mode: GatewayMode
    guest_prefix_len: int
    topology: Topology
    vlan: int | None
    nameservers: list[str]
    node_ids: list[UUID]
    enabled: bool
    total: int
    reserved_count: int
    allocated_count: int
    releasing_count: int
    blocked_count: int
    free_count: int
    pressure: float
    created_at: datetime

    @classmethod
    def of(cls, row: Record) -> PoolModel:
        """The model of a row of `POOLS`."""
        counts = PoolCounts.of(row)
        return cls(
            id=row["id"],
            network_id=row["network_id"],
            network_name=row["network_name"],
            location_id=row["location_id"],
            name=row["name"],
            family=row["family"],
            cidr=str(row["cidr"]),
            prefix_len=row["prefix_len"] if row["family"] == 6 else None,
            range_start=str(row["range_start"]),
            range_end=str(row["range_end"]),
            gateway=str(row["gateway"]),
            gateway_mode=GatewayMode(row["gateway_mode"]),
            guest_prefix_len=row["guest_prefix_len"],
            topology=Topology(row["topology"]),
            vlan=row["vlan"],
            nameservers=[str(server) for server in row["nameservers"]],
            node_ids=row["node_ids"],
            enabled=row["enabled"],
            total=counts.total,
            reserved_count=row["reserved_count"],
            allocated_count=row["allocated_count"],
            releasing_count=row["releasing_count"],
            blocked_count=row["blocked_count"],
            free_count=counts.free,
            pressure=round(counts.pressure, 4),
            created_at=row["created_at"],
        )


class PoolSpec(Request):
    """A pool to create. Defaults: the only (or the `default`) location; nat for IPv4, routed for IPv6; the first
    address as gateway, fe80::1 for IPv6; every usable address or sub-prefix as range. `prefix_len`: the length of the
    sub-prefix that each machine receives of an IPv6 prefix; `vlan` is for a bridged pool."""

    name: Name
    cidr: Cidr
    prefix_len: Annotated[
        PrefixLength | None, Field(description="Prefix length of each machine's IPv6 block; 64 by default.")
    ] = None
    location_id: UUID | None = None
    topology: Topology | None = None
    gateway: Address | None = None
    gateway_mode: GatewayMode = GatewayMode.ONLINK
    guest_prefix_len: PrefixLength | None = None
    range_start: FirstAddress | None = None
    range_end: LastAddress | None = None
    nameservers: Annotated[Nameservers, Field(default_factory=list)]
    node_ids: Annotated[list[UUID], Field(default_factory=list, max_length=1000)]
    vlan: Vlan | None = None
    enabled: bool = True

    async def resolved(self, queryable: Queryable) -> NewPool:
        return NewPool(
            name=self.name,
            location_id=self.location_id or await default_location(queryable),
            cidr=self.cidr,
            prefix_len=self.prefix_len,
            topology=self.topology.value if self.topology else None,
            gateway=self.gateway,
            gateway_mode=self.gateway_mode,
            guest_prefix_len=self.guest_prefix_len,
            range_start=self.range_start,
            range_end=self.range_end,
            nameservers=self.nameservers,
            node_ids=self.node_ids,
            vlan=self.vlan,
            enabled=self.enabled,
        )


class PoolRequest(Request):
    id: UUID


async def pools_of(queryable: Queryable, *, pool_id: UUID | None = None) -> list[PoolModel]:
    rows = await queryable.fetch(
        f"{POOLS} WHERE $1::uuid IS NULL OR pools.id = $1 ORDER BY networks.name, pools.name, pools.cidr", pool_id
    )
    return [PoolModel.of(row) for row in rows]


async def pool_of(queryable: Queryable, pool_id: UUID) -> PoolModel:
    """The pool as the API shows it. Raises not_found."""
    pools = await pools_of(queryable, pool_id=pool_id)
    if not pools:
        raise not_found("There is no such pool.")
    return pools[0]
