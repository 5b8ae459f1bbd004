"""Addresses: one holder each, capacity exactly when full, freed by the node's word alone."""

from __future__ import annotations

from uuid import UUID, uuid4

import trio

from svc_actors.controller.addresses import PoolFull, allocate, begin_release, free_removed, new_nic
from svc_actors.controller.machine_records import lock_machine
from svc_actors.store import Database
from tests.controller.machines.service import World, make_world


async def _machine(database: Database, world: World) -> tuple[UUID, UUID]:
    vm_id = uuid4()
    async with database.transaction() as tx:
        await tx.execute(
            """INSERT INTO vms (id, name, hostname, project_id, image_id, vcpus, memory_mib, disk_gib, status,
                                access_mode)
               VALUES ($1, $1::uuid::text, 'a', $2, $3, 1, 64, 1, 'creating', 'user_sudo')""",
            vm_id,
            world.project_id,
            world.image_id,
        )
        return vm_id, await new_nic(tx, vm_id=vm_id, network_id=world.network_id, position=0)


async def _take(database: Database, world: World) -> tuple[UUID, str] | None:
    vm_id, nic_id = await _machine(database, world)
    try:
        async with database.transaction() as tx:
            return vm_id, (await allocate(tx, world.pool_id, vm_id=vm_id, nic_id=nic_id, primary=True)).text
    except PoolFull:
        return None


async def test_64_takers_of_50_addresses_get_50_different_ones_and_14_refusals(database: Database) -> None:
    world = await make_world(database, cidr="10.1.0.0/24", first="10.1.0.10", last="10.1.0.59")
    outcomes: list[tuple[UUID, str] | None] = []

    async def take() -> None:
        outcomes.append(await _take(database, world))

    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(take)
    got = [outcome[1] for outcome in outcomes if outcome is not None]
    assert len(got) == 50
    assert len(set(got)) == 50
    assert outcomes.count(None) == 14


async def test_what_the_pool_itself_needs_is_never_handed_out(database: Database) -> None:
    world = await make_world(database, cidr="10.1.0.0/29", first="10.1.0.1", last="10.1.0.6")
    got = [await _take(database, world) for _ in range(6)]
    assert [each[1] for each in got if each] == ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6"]
    assert got[-1] is None


async def test_a_rolled_back_allocation_leaves_the_address_free(database: Database) -> None:
    world = await make_world(database, cidr="10.1.0.0/30")
    vm_id, nic_id = await _machine(database, world)
    try:
        async with database.transaction() as tx:
            await allocate(tx, world.pool_id, vm_id=vm_id, nic_id=nic_id, primary=True)
            raise LookupError
    except LookupError:
        pass
    assert await _take(database, world) is not None


async def test_an_address_is_free_only_when_the_node_named_it(database: Database) -> None:
    world = await make_world(database, cidr="10.1.0.0/30")
    taken = await _take(database, world)
    assert taken is not None
    vm_id, ip = taken
    async with database.transaction() as tx:
        assert await free_removed(tx, vm_id, [ip]) == []
        await begin_release(tx, vm_id)
        assert await free_removed(tx, vm_id, ["10.9.9.9"]) == []
    assert await _take(database, world) is None
    async with database.transaction() as tx:
        await lock_machine(tx, vm_id)
        assert await free_removed(tx, vm_id, [f"{ip}/32"]) == [ip]
    assert await _take(database, world) is not None


async def test_no_node_frees_an_address_of_another_machine(database: Database) -> None:
    world = await make_world(database, cidr="10.1.0.0/29")
    mine, other = await _take(database, world), await _take(database, world)
    assert mine is not None
    assert other is not None
    async with database.transaction() as tx:
        await begin_release(tx, mine[0])
        await begin_release(tx, other[0])
        assert await free_removed(tx, mine[0], [other[1]]) == []


async def test_a_freed_address_rests_while_others_are_free(database: Database) -> None:
    world = await make_world(database, cidr="10.1.0.0/28")
    first = await _take(database, world)
    assert first is not None
    async with database.transaction() as tx:
        await begin_release(tx, first[0])
        await free_removed(tx, first[0], [first[1]])
    second = await _take(database, world)
    assert second is not None
    assert second[1] != first[1]


async def test_a_gap_is_found_after_the_end_of_the_range(database: Database) -> None:
    world = await make_world(database, cidr="10.0.0.0/8", first="10.200.0.1", last="10.200.0.4")
    taken = [await _take(database, world) for _ in range(4)]
    assert await _take(database, world) is None
    gone = taken[1]
    assert gone is not None
    async with database.transaction() as tx:
        await begin_release(tx, gone[0])
        await free_removed(tx, gone[0], [gone[1]])
    again = await _take(database, world)
    assert again is not None
    assert again[1] == gone[1]
