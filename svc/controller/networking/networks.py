"""Networks: groups of pools, and which networks new machines are on."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.networking.pool_models import PoolModel, PoolSpec, pool_of, pools_of
from svc.controller.services import Controller
from svc.identity.fields import Name
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.networking.networks import create_network, create_pool, remove_network, update_network
from svc_actors.store import Queryable, Record, Target, Transaction, audit

operations = Operations[Controller]()

Mtu = Annotated[int, Field(ge=576, le=9216)]


class Network(Model):
    """`default`: the network of new machines for which no network is named."""

    id: UUID
    name: str
    default: bool
    mtu: int
    pools: list[PoolModel]
    created_at: datetime


class NetworkCreateRequest(Request):
    """`pool`: also create its first pool."""

    name: Name
    default: bool = False
    mtu: Mtu = 1500
    pool: PoolSpec | None = None


class NetworkUpdateRequest(Request):
    """A network becomes the default by replacing another one; so the default network cannot just stop being the
    default."""

    id: UUID
    default: (
        Annotated[bool, Field(description="Only true: to replace the default, set it on another network.")] | None
    ) = None
    mtu: Mtu | None = None


class NetworkRequest(Request):
    id: UUID


class PoolCreateRequest(PoolSpec):
    id: UUID


@operations.declare(
    "network.list",
    "List networks with their pools",
    Route.get("/networks"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("name", "default", "mtu", "pools", "id", "created=created_at"),
)
async def list_networks(context: Context[Controller], request: Empty) -> list[Network]:
    rows = await context.services.database.fetch("SELECT * FROM networks ORDER BY name")
    pools = await pools_of(context.services.database)
    return [_network(row, pools) for row in rows]


@operations.declare(
    "network.create",
    "Add a network",
    Route.post("/networks", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("name",),
)
async def add_network(context: Context[Controller], request: NetworkCreateRequest) -> Network:

    async def work(tx: Transaction) -> Network:
        row = await create_network(tx, request.name, default=request.default, mtu=request.mtu)
        if request.pool is not None:
            await create_pool(tx, row["id"], await request.pool.resolved(tx))
        await audit.record(tx, context.caller, _target(row))
        return await _shown(tx, row)

    return await context.services.database.transact(work)


@operations.declare(
    "network.update",
    "Make a network the default, or change its MTU",
    Route.patch("/networks/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def change_network(context: Context[Controller], request: NetworkUpdateRequest) -> Network:

    async def work(tx: Transaction) -> Network:
        row = await update_network(tx, request.id, default=request.default, mtu=request.mtu)
        await audit.record(tx, context.caller, _target(row))
        return await _shown(tx, row)

    return await context.services.database.transact(work)


@operations.declare(
    "network.delete",
    "Delete a network that has no address in use",
    Route.delete("/networks/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def delete_network(context: Context[Controller], request: NetworkRequest) -> None:

    async def work(tx: Transaction) -> None:
        await audit.record(tx, context.caller, _target(await remove_network(tx, request.id)))

    await context.services.database.transact(work)


@operations.declare(
    "network.add_pool",
    "Add a pool to a network",
    Route.post("/networks/{id}/pools", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def add_pool(context: Context[Controller], request: PoolCreateRequest) -> PoolModel:

    async def work(tx: Transaction) -> PoolModel:
        row = await create_pool(tx, request.id, await request.resolved(tx))
        await audit.record(tx, context.caller, Target("pool", row["id"], row["name"]), {"cidr": str(row["cidr"])})
        return await pool_of(tx, row["id"])

    return await context.services.database.transact(work)


async def _shown(queryable: Queryable, row: Record) -> Network:
    return _network(row, await pools_of(queryable))


def _network(row: Record, pools: list[PoolModel]) -> Network:
    return Network(**dict(row), pools=[pool for pool in pools if pool.network_id == row["id"]])


def _target(row: Record) -> Target:
    return Target("network", row["id"], row["name"])
