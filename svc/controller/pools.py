"""Pools of addresses: how full they are, and who holds what. For administrators."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from svc.controller.fields import Name
from svc.controller.services import Controller
from svc.registry.operation import Command, Context, Empty, Method, Model, Operation, Request, Route
from svc.registry.paging import Condition, Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access, Scope
from svc_actors.controller.networks import GatewayMode, NewPool, default_location
from svc_actors.errors import not_found
from svc_actors.store import Queryable, Record


class Topology(StrEnum):
    NAT = "nat"
    BRIDGED = "bridged"
    ROUTED = "routed"


class AllocationState(StrEnum):
    """Free is the absence of an allocation."""

    ALLOCATED = "allocated"
    RELEASING = "releasing"
    RESERVED = "reserved"
    BLOCKED = "blocked"


class PoolModel(Model):
    """`pressure` is the share of the range that is not free, 0 to 1; `total` how many addresses the range has."""

    id: UUID
    network_id: UUID
    network_name: str
    location_id: UUID
    name: str
    family: int
    cidr: str
    range_start: str
    range_end: str
    gateway: str
    gateway_mode: GatewayMode
    guest_prefix_len: int
    topology: Topology
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


class PoolSpec(Request):
    """A pool to be made. Left out: the only (or the `default`) location; the first address as gateway; every usable
    address as range."""

    name: Name
    cidr: IPv4Network | IPv6Network
    location_id: UUID | None = None
    topology: Topology = Topology.NAT
    gateway: IPv4Address | IPv6Address | None = None
    gateway_mode: GatewayMode = GatewayMode.ONLINK
    guest_prefix_len: Annotated[int, Field(ge=0, le=128)] | None = None
    range_start: IPv4Address | IPv6Address | None = None
    range_end: IPv4Address | IPv6Address | None = None
    nameservers: Annotated[list[IPv4Address | IPv6Address], Field(default_factory=list, max_length=8)]
    node_ids: Annotated[list[UUID], Field(default_factory=list, max_length=1000)]

    async def resolved(self, queryable: Queryable) -> NewPool:
        return NewPool(
            name=self.name,
            location_id=self.location_id or await default_location(queryable),
            cidr=self.cidr,
            topology=self.topology.value,
            gateway=self.gateway,
            gateway_mode=self.gateway_mode,
            guest_prefix_len=self.guest_prefix_len,
            range_start=self.range_start,
            range_end=self.range_end,
            nameservers=self.nameservers,
            node_ids=self.node_ids,
        )


class PoolRequest(Request):
    id: UUID


class AllocationList(PageRequest):
    id: UUID
    state: AllocationState | None = None


class Allocation(Model):
    ip: str
    state: AllocationState
    vm_id: UUID | None
    vm_name: str | None
    primary: bool
    arithmetic: bool
    note: str | None
    changed_at: datetime


_POOLS = """
SELECT pools.*, networks.name AS network_name, pools.range_end - pools.range_start + 1 AS total,
       coalesce(held.reserved, 0) AS reserved_count, coalesce(held.allocated, 0) AS allocated_count,
       coalesce(held.releasing, 0) AS releasing_count, coalesce(held.blocked, 0) AS blocked_count,
       coalesce(held.in_range, 0) AS in_range
FROM pools
JOIN networks ON networks.id = pools.network_id
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE state = 'reserved') AS reserved,
           count(*) FILTER (WHERE state = 'allocated') AS allocated,
           count(*) FILTER (WHERE state = 'releasing') AS releasing,
           count(*) FILTER (WHERE state = 'blocked') AS blocked,
           count(*) FILTER (WHERE ip BETWEEN pools.range_start AND pools.range_end) AS in_range
    FROM allocations WHERE allocations.pool_id = pools.id
) held ON true"""


async def pools_of(queryable: Queryable, *, pool_id: UUID | None = None) -> list[PoolModel]:
    rows = await queryable.fetch(
        f"{_POOLS} WHERE $1::uuid IS NULL OR pools.id = $1 ORDER BY networks.name, pools.name, pools.cidr", pool_id
    )
    return [_pool(row) for row in rows]


async def list_pools(context: Context[Controller], request: Empty) -> list[PoolModel]:
    return await pools_of(context.services.database)


async def show_pool(context: Context[Controller], request: PoolRequest) -> PoolModel:
    pools = await pools_of(context.services.database, pool_id=request.id)
    if not pools:
        raise not_found("There is no such pool.")
    return pools[0]


async def list_allocations(context: Context[Controller], request: AllocationList) -> Page[Allocation]:
    database = context.services.database
    if not await database.fetchval("SELECT true FROM pools WHERE id = $1", request.id):
        raise not_found("There is no such pool.")
    rows, total = await paginate(
        database,
        select="""SELECT host(held.ip) AS ip, held.state, held.vm_id, vms.name AS vm_name, held.is_primary AS primary,
                         held.arithmetic, held.note, held.changed_at
                  FROM allocations held LEFT JOIN vms ON vms.id = held.vm_id""",
        where=[
            Condition("held.pool_id = $1", (request.id,)),
            equals("held.state", request.state.value if request.state else None),
            contains(request.q, "host(held.ip)", "vms.name", "held.note"),
        ],
        sortable={"ip": "held.ip", "state": "held.state", "changed_at": "held.changed_at"},
        default_sort="ip",
        request=request,
        tie="held.ip",
    )
    return Page[Allocation].of([Allocation(**dict(row)) for row in rows], total, request)


def _pool(row: Record) -> PoolModel:
    total = row["total"]
    free = max(0, total - row["in_range"])
    return PoolModel(
        id=row["id"],
        network_id=row["network_id"],
        network_name=row["network_name"],
        location_id=row["location_id"],
        name=row["name"],
        family=row["family"],
        cidr=str(row["cidr"]),
        range_start=str(row["range_start"]),
        range_end=str(row["range_end"]),
        gateway=str(row["gateway"]),
        gateway_mode=GatewayMode(row["gateway_mode"]),
        guest_prefix_len=row["guest_prefix_len"],
        topology=Topology(row["topology"]),
        nameservers=[str(server) for server in row["nameservers"]],
        node_ids=row["node_ids"],
        enabled=row["enabled"],
        total=total,
        reserved_count=row["reserved_count"],
        allocated_count=row["allocated_count"],
        releasing_count=row["releasing_count"],
        blocked_count=row["blocked_count"],
        free_count=free,
        pressure=round(1 - free / total, 4) if total else 1.0,
        created_at=row["created_at"],
    )


OPERATIONS: tuple[Operation[Controller, Any, Any], ...] = (
    Operation(
        name="pool.list",
        summary="List every pool with its counts by state and its pressure",
        request=Empty,
        response=list[PoolModel],
        handler=list_pools,
        route=Route(Method.GET, "/pools"),
        command=Command(("pool", "list")),
        access=Access.ADMINISTRATOR,
        scope=Scope.READ,
        mutates=False,
    ),
    Operation(
        name="pool.show",
        summary="Show a pool",
        request=PoolRequest,
        response=PoolModel,
        handler=show_pool,
        route=Route(Method.GET, "/pools/{id}"),
        command=Command(("pool", "show"), positional=("id",)),
        access=Access.ADMINISTRATOR,
        scope=Scope.READ,
        mutates=False,
    ),
    Operation(
        name="pool.allocations",
        summary="List a pool's allocations and reservations",
        request=AllocationList,
        response=Page[Allocation],
        handler=list_allocations,
        route=Route(Method.GET, "/pools/{id}/allocations"),
        command=Command(("pool", "allocations"), positional=("id",)),
        access=Access.ADMINISTRATOR,
        scope=Scope.READ,
        mutates=False,
    ),
)
