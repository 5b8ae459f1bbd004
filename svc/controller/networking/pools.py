"""Pools of addresses: usage, changes and removal. Administrators only. Their addresses are in `pool_addresses`."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from svc.controller.networking.pool_models import (
    Address,
    FirstAddress,
    LastAddress,
    Nameservers,
    PoolModel,
    PoolRequest,
    PrefixLength,
    Vlan,
    pool_of,
)
from svc.controller.services import Controller
from svc.identity.fields import Name
from svc.registry.declare import Operations
from svc.registry.operation import Context, Request, Route
from svc.registry.paging import Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import NULL_RESETS
from svc_actors.controller.networking.networks import GatewayMode
from svc_actors.controller.networking.pool_definitions import Topology
from svc_actors.controller.networking.pool_edits import remove_pool, update_pool
from svc_actors.controller.networking.pool_watch import POOLS, POOLS_FROM
from svc_actors.store import Target, Transaction, audit

operations = Operations[Controller]()

_TOTAL = "(pools.last_slot - pools.first_slot + 1)"
_SORTABLE = {
    "network": "ROW(networks.name, pools.name, pools.cidr)",
    "name": "pools.name",
    "cidr": "pools.cidr",
    "free_count": f"{_TOTAL} - held.in_range",
    "pressure": f"held.in_range::double precision / {_TOTAL}",
    "created_at": "pools.created_at",
}


class PoolList(PageRequest):
    """`network`: only pools of this network. `q` is searched in the names of pools and networks, and in the CIDR."""

    network: UUID | None = None


class PoolUpdateRequest(Request):
    """Fields left out stay as they are. Null for gateway, range or guest prefix sets the default of a new pool, and for
    `vlan` none; empty `node_ids` means every node of the location. CIDR, family and prefix_len never change: another
    CIDR is another pool."""

    id: UUID
    name: Name | None = None
    location_id: UUID | None = None
    topology: Topology | None = None
    gateway: Annotated[Address | None, NULL_RESETS] = None
    gateway_mode: GatewayMode | None = None
    guest_prefix_len: Annotated[PrefixLength | None, NULL_RESETS] = None
    range_start: Annotated[FirstAddress | None, NULL_RESETS] = None
    range_end: Annotated[LastAddress | None, NULL_RESETS] = None
    nameservers: Nameservers | None = None
    node_ids: Annotated[list[UUID], Field(max_length=1000)] | None = None
    vlan: Annotated[Vlan | None, NULL_RESETS] = None
    enabled: bool | None = None

    def changes(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in self.model_fields_set - {"id"}}
        resets = {name for name, field in type(self).model_fields.items() if NULL_RESETS in field.metadata}
        return {name: value for name, value in given.items() if value is not None or name in resets}


@operations.declare(
    "pool.list",
    "List pools with their counts by state and their pressure",
    Route.get("/pools"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=(
        "name",
        "network=network_name",
        "cidr",
        "topology",
        "vlan",
        "used=pressure",
        "free=free_count",
        "allocated=allocated_count",
        "releasing=releasing_count",
        "reserved=reserved_count",
        "enabled",
    ),
)
async def list_pools(context: Context[Controller], request: PoolList) -> Page[PoolModel]:
    rows, total = await paginate(
        context.services.database,
        select=POOLS,
        source=POOLS_FROM,
        where=[
            equals("pools.network_id", request.network),
            contains(request.q, "pools.name", "networks.name", "pools.cidr::text"),
        ],
        sortable=_SORTABLE,
        default_sort="network",
        request=request,
        tie="pools.id",
    )
    return Page[PoolModel].of([PoolModel.of(row) for row in rows], total, request)


@operations.declare("pool.show", "Show a pool", Route.get("/pools/{id}"), access=Access.ADMINISTRATOR, scope=Scope.READ)
async def show_pool(context: Context[Controller], request: PoolRequest) -> PoolModel:
    return await pool_of(context.services.database, request.id)


@operations.declare(
    "pool.update",
    "Change a pool, without stranding an address in use",
    Route.patch("/pools/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def change_pool(context: Context[Controller], request: PoolUpdateRequest) -> PoolModel:
    async def change(tx: Transaction) -> PoolModel:
        row, changed = await update_pool(tx, request.id, request.changes())
        await audit.record(
            tx,
            context.caller,
            Target("pool", request.id, row["name"]),
            {"changed": {name: _plain(value) for name, value in changed.items()}},
        )
        return await pool_of(tx, request.id)

    return await context.services.database.transact(change)


@operations.declare(
    "pool.delete",
    "Delete a pool that has no address in use",
    Route.delete("/pools/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def delete_pool(context: Context[Controller], request: PoolRequest) -> None:
    async def remove(tx: Transaction) -> None:
        row = await remove_pool(tx, request.id)
        await audit.record(tx, context.caller, Target("pool", request.id, row["name"]), {"cidr": str(row["cidr"])})

    await context.services.database.transact(remove)


def _plain(value: object) -> object:
    """The value in the form that JSON can store."""
    if isinstance(value, list):
        return [str(each) for each in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)
