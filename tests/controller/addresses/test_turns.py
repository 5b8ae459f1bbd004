"""Whoever takes addresses, lets them go, and changes pools at the same moment takes turns: none waits in a circle, and
none decides by what another has just changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from ipaddress import ip_address, ip_network
from uuid import UUID

import pytest
import trio

from svc_actors.controller.machines.creation import Created, create_machine
from svc_actors.controller.machines.network_attachment import NewAddress, attach
from svc_actors.controller.machines.records import lock_machine
from svc_actors.controller.networking.addresses import free_removed, start_release
from svc_actors.controller.networking.networks import (
    NewPool,
    create_network,
    create_pool,
    remove_network,
    update_network,
)
from svc_actors.controller.networking.pool_edits import remove_pool, update_pool
from svc_actors.controller.networking.pool_records import lock_pool
from svc_actors.controller.networking.pool_watch import watch_pools
from svc_actors.controller.networking.reservations import refresh_host_reservations, reserve, unreserve
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from tests.controller.addresses.test_hosts import alerts, say
from tests.support.addresses import Nic, held, make_nics, make_pool, take
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_service import SEALER, make_fleet, make_node

Call = Callable[[], Awaitable[object]]


class Callers:
    """Calls made while others are under way; what each came to, in the order in which they ended."""

    def __init__(self, database: Database, nursery: trio.Nursery) -> None:
        self.came_to: list[object] = []
        self._database = database
        self._nursery = nursery
        self._begun = 0

    async def begin(self, call: Call) -> None:
        """Begin it, and go on once it has ended or waits for somebody's lock."""
        waiting = await self._waiting()
        self._nursery.start_soon(self._call, call)
        self._begun += 1
        with trio.fail_after(60):
            while len(self.came_to) < self._begun - waiting and await self._waiting() == waiting:
                await trio.lowlevel.checkpoint()

    async def _call(self, call: Call) -> None:
        try:
            self.came_to.append(await call())
        except ServiceError as refusal:
            self.came_to.append(refusal.code)

    async def _waiting(self) -> int:
        count: int = await self._database.fetchval("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
        return count


async def attached(database: Database, nic: Nic, wanted: NewAddress) -> str:
    async with database.transaction() as tx:
        return await attach(tx, ADMINISTRATOR, await lock_machine(tx, nic.vm_id), wanted)


@pytest.mark.parametrize("deleted", [False, True])
async def test_an_address_is_asked_for_by_name_exactly_while_it_is_let_go(database: Database, deleted: bool) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/24")
    first, second = await make_nics(database, world, 2)
    ip = await take(database, world.pool_id, first) or ""
    await say(database, world.node_id, f"{ip}/24")
    if not deleted:
        async with database.transaction() as tx:
            await start_release(tx, first.vm_id)

    async def let_go() -> object:
        async with database.transaction() as tx:
            if deleted:
                await start_release(tx, first.vm_id)
            return await free_removed(tx, first.vm_id, [ip])

    async with trio.open_nursery() as nursery:
        async with database.transaction() as tx:
            await lock_pool(tx, world.pool_id)
            callers = Callers(database, nursery)
            await callers.begin(lambda: attached(database, second, NewAddress(ip=ip_address(ip), bounded=False)))
            await callers.begin(let_go)
    assert callers.came_to == [ErrorCode.CONFLICT, [ip]]
    assert await held(database, world.pool_id) == []
    assert await alerts(database, "pool-host-address:") == []
    assert await take(database, world.pool_id, second) != ip


async def test_of_pools_that_overlap_and_are_made_at_once_one_is_made(database: Database) -> None:
    world = await make_fleet(database)
    new = NewPool(name="p", location_id=world.location_id, cidr=ip_network("10.9.0.0/24"))

    async def make(*, die: Callable[[], Awaitable[object]] | None = None) -> UUID:
        async with database.transaction() as tx:
            pool_id: UUID = (await create_pool(tx, world.network_id, new))["id"]
            if die is not None:
                await die()
                raise LookupError
            return pool_id

    async with trio.open_nursery() as nursery:
        callers = Callers(database, nursery)

        async def others() -> None:
            for _ in range(3):
                await callers.begin(make)

        with pytest.raises(LookupError):
            await make(die=others)
    assert sorted(isinstance(each, UUID) for each in callers.came_to) == [False, False, True]
    assert callers.came_to.count(ErrorCode.CONFLICT) == 2


@pytest.mark.parametrize("named", [False, True])
async def test_no_address_is_taken_of_a_pool_that_is_just_being_moved_away_from_the_node(
    database: Database, named: bool
) -> None:
    world = await make_fleet(database)
    pool = await make_pool(database, world, "10.9.0.0/24")
    await database.execute("UPDATE pools SET created_at = '2000-01-01' WHERE id = $1", pool)
    beta = await make_node(database, world.location_id, "beta")
    [nic] = await make_nics(database, world, 1)
    wanted = NewAddress(pool_id=pool if named else None, bounded=False)
    async with trio.open_nursery() as nursery:
        async with database.transaction() as tx:
            await update_pool(tx, pool, {"node_ids": [beta]})
            callers = Callers(database, nursery)
            await callers.begin(lambda: attached(database, nic, wanted))
    assert callers.came_to == [ErrorCode.CONFLICT if named else "10.77.0.2"]
    assert await held(database, pool) == []


async def test_a_creation_that_finds_a_nodes_pools_full_holds_none_of_them_while_it_looks_elsewhere(
    database: Database,
) -> None:
    world = await make_fleet(database)
    beta = await make_node(database, world.location_id, "beta", cpus=2)
    await database.execute("UPDATE pools SET node_ids = $1", [beta])
    full = await make_pool(database, world, "10.9.0.0/30", node_ids=[world.node_id])
    [nic] = await make_nics(database, world, 1)
    await take(database, full, nic)
    async with trio.open_nursery() as nursery:
        async with database.transaction() as tx:
            await lock_pool(tx, world.pool_id)
            callers = Callers(database, nursery)
            await callers.begin(lambda: create_machine(database, SEALER, ADMINISTRATOR, world.machine()))
            await lock_pool(tx, full)
    assert [each.address for each in callers.came_to if isinstance(each, Created)] == [ip_address("10.77.0.2")]


async def test_what_a_host_says_is_recorded_also_while_a_pool_goes(database: Database) -> None:
    world = await make_fleet(database)
    pool = await make_pool(database, world, "10.9.0.0/24")
    async with trio.open_nursery() as nursery:
        async with database.transaction() as tx:
            await remove_pool(tx, pool)
            callers = Callers(database, nursery)
            await callers.begin(lambda: say(database, world.node_id, "10.9.0.7/24"))
    assert callers.came_to == [None]
    assert await database.fetchval("SELECT facts->'host_addresses' FROM nodes") == ["10.9.0.7/24"]


async def test_an_address_that_moves_from_one_host_to_another_stays_set_aside(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/30")
    beta = await make_node(database, world.location_id, "beta")
    await say(database, world.node_id, "10.1.0.2/30")
    async with trio.open_nursery() as nursery:
        async with database.transaction() as tx:
            await tx.execute("UPDATE nodes SET facts = '{}'::jsonb WHERE id = $1", world.node_id)
            await refresh_host_reservations(tx, location_id=world.location_id)
            callers = Callers(database, nursery)
            await callers.begin(lambda: say(database, beta, "10.1.0.2/30"))
    [nic] = await make_nics(database, world, 1)
    assert await take(database, world.pool_id, nic) is None


async def test_a_pool_that_goes_while_the_pools_are_looked_at_leaves_no_alert(database: Database) -> None:
    world = await make_fleet(database)
    pool = await make_pool(database, world, "10.9.0.0/30")
    async with database.transaction() as tx:
        row = await reserve(tx, pool, ip_address("10.9.0.2"), None, kind="manual", note="x")
    async with trio.open_nursery() as nursery:
        async with database.transaction() as tx:
            await unreserve(tx, pool, row["id"])
            await remove_pool(tx, pool)
            callers = Callers(database, nursery)
            await callers.begin(lambda: watch_pools(database))
    assert await alerts(database, "pool-low:") == []


async def test_networks_that_come_go_and_become_the_default_at_once_never_wait_in_a_circle(database: Database) -> None:
    world = await make_fleet(database)
    refused: set[ErrorCode] = set()

    async def change(number: int) -> None:
        for _ in range(10):
            async with database.transaction() as tx:
                network_id = (await create_network(tx, f"n{number}", default=True))["id"]
            for default in (world.network_id, network_id, world.network_id):
                async with database.transaction() as tx:
                    await update_network(tx, default, default=True, mtu=None)
            try:
                async with database.transaction() as tx:
                    await remove_network(tx, network_id)
            except ServiceError as refusal:
                refused.add(refusal.code)
                await database.execute("UPDATE networks SET name = id::text WHERE id = $1", network_id)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(change, number)
    assert await database.fetchval('SELECT count(*) FROM networks WHERE "default"') == 1
    assert refused <= {ErrorCode.CONFLICT}


async def test_the_first_network_is_the_default_and_stays_it_while_there_are_others(database: Database) -> None:
    async with database.transaction() as tx:
        first = await create_network(tx, "first", default=False)
        other = await create_network(tx, "other", default=False)
    assert (first["default"], other["default"]) == (True, False)
    with pytest.raises(ServiceError, match="default") as refused:
        async with database.transaction() as tx:
            await remove_network(tx, first["id"])
    assert refused.value.code is ErrorCode.CONFLICT
    async with database.transaction() as tx:
        await remove_network(tx, other["id"])
        await remove_network(tx, first["id"])
        assert (await create_network(tx, "next", default=False))["default"]
