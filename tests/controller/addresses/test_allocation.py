"""Addresses: one holder each, capacity exactly when full, in both families."""

from __future__ import annotations

import math
from ipaddress import IPv4Address, IPv6Address

import pytest

from svc_actors.controller.networking.addresses import (
    PoolFull,
    allocate,
    allocate_first,
    free_removed,
    releasing_of,
    start_release,
)
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from tests.support.addresses import held, make_nics, make_pool, take
from tests.support.machine_service import make_fleet


async def test_what_the_pool_itself_needs_is_never_handed_out(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/29", first="10.1.0.0", last="10.1.0.7")
    got = [await take(database, world.pool_id, nic) for nic in await make_nics(database, world, 6)]
    assert got == ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6", None]


async def test_a_rolled_back_allocation_leaves_the_address_free(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/30")
    [nic] = await make_nics(database, world, 1)

    async def crash() -> None:
        async with database.transaction() as tx:
            await allocate(tx, world.pool_id, vm_id=nic.vm_id, nic_id=nic.nic_id, primary=True)
            raise LookupError

    with pytest.raises(LookupError):
        await crash()
    assert await take(database, world.pool_id, nic) == "10.1.0.2"


async def test_a_freed_address_rests_while_others_are_free(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/28")
    first, second = await make_nics(database, world, 2)
    ip = await take(database, world.pool_id, first)
    assert ip is not None
    async with database.transaction() as tx:
        await start_release(tx, first.vm_id)
        assert await free_removed(tx, first.vm_id, [ip]) == [ip]
    assert await take(database, world.pool_id, second) not in (ip, None)


async def test_a_gap_is_found_behind_the_place_where_the_search_begins(database: Database) -> None:
    world = await make_fleet(database, cidr="10.0.0.0/8", first="10.200.0.1", last="10.200.0.4")
    nics = await make_nics(database, world, 5)
    taken = [await take(database, world.pool_id, nic) for nic in nics[:4]]
    assert await take(database, world.pool_id, nics[4]) is None
    for gap in (1, 3, 0, 2):
        async with database.transaction() as tx:
            await start_release(tx, nics[gap].vm_id)
            await free_removed(tx, nics[gap].vm_id, [taken[gap] or ""])
        assert await take(database, world.pool_id, nics[4]) == taken[gap]
        nics[gap], nics[4] = nics[4], nics[gap]


async def test_a_machine_receives_a_sub_prefix_of_an_ipv6_pool_and_configures_its_first_address(
    database: Database,
) -> None:
    world = await make_fleet(database)
    pool = await make_pool(database, world, "2001:db8::/62")
    nics = await make_nics(database, world, 5)
    for number, nic in enumerate(nics[:4]):
        async with database.transaction() as tx:
            taken = await allocate(tx, pool, vm_id=nic.vm_id, nic_id=nic.nic_id, primary=True)
        assert taken.text == str(taken.network) == f"2001:db8:0:{number or ''}::/64".replace("0:::", ":")
        assert taken.address == taken.network.network_address + 1
    assert await take(database, pool, nics[4]) is None


async def test_single_ipv6_addresses_are_handed_out_but_the_routers_anycast_address(database: Database) -> None:
    world = await make_fleet(database)
    pool = await make_pool(database, world, "2001:db8::/126", prefix_len=128)
    nics = await make_nics(database, world, 4)
    assert [await take(database, pool, nic) for nic in nics] == [
        "2001:db8::1/128",
        "2001:db8::2/128",
        "2001:db8::3/128",
        None,
    ]


async def test_the_largest_ipv6_pool_is_counted_to_its_last_sub_prefix(database: Database) -> None:
    world = await make_fleet(database)
    pool = await make_pool(
        database, world, "2000::/3", prefix_len=65, range_start=IPv6Address("3fff:ffff:ffff:ffff:8000::")
    )
    first, second = await make_nics(database, world, 2)
    assert await take(database, pool, first) == "3fff:ffff:ffff:ffff:8000::/65"
    assert await take(database, pool, second) is None


async def test_an_address_that_is_asked_for_is_given_or_refused_with_the_reason(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/28", first="10.1.0.2", last="10.1.0.9")
    first, second = await make_nics(database, world, 2)

    async def refusal(ip: str) -> ServiceError:
        with pytest.raises(ServiceError) as refused:
            async with database.transaction() as tx:
                await allocate(
                    tx, world.pool_id, vm_id=second.vm_id, nic_id=second.nic_id, primary=False, ip=IPv4Address(ip)
                )
        assert refused.value.code is ErrorCode.CONFLICT
        return refused.value

    async with database.transaction() as tx:
        taken = await allocate(
            tx, world.pool_id, vm_id=first.vm_id, nic_id=first.nic_id, primary=True, ip=IPv4Address("10.1.0.5")
        )
    assert taken.text == "10.1.0.5"
    assert "not free" in (await refusal("10.1.0.5")).message
    assert "outside the range" in (await refusal("10.1.0.1")).message
    assert "outside the range" in (await refusal("10.1.0.10")).message
    assert "outside the range" in (await refusal("10.2.0.5")).message
    assert await held(database, world.pool_id) == [("10.1.0.5", "allocated")]


async def test_a_disabled_pool_gives_nothing_and_keeps_what_is_held(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/28")
    first, second = await make_nics(database, world, 2)
    ip = await take(database, world.pool_id, first)
    await database.execute("UPDATE pools SET enabled = false")
    with pytest.raises(ServiceError, match="not enabled"):
        await take(database, world.pool_id, second)
    assert await held(database, world.pool_id) == [(ip, "allocated")]


async def test_the_first_pool_that_has_an_address_gives_it(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/30")
    other = await make_pool(database, world, "10.2.0.0/30")
    nics = await make_nics(database, world, 3)
    got = []
    for nic in nics:
        async with database.transaction() as tx:
            taken = await allocate_first(tx, (world.pool_id, other), vm_id=nic.vm_id, nic_id=nic.nic_id, primary=True)
        got.append(taken and taken.text)
    assert got == ["10.1.0.2", "10.2.0.2", None]


async def test_a_nic_is_not_wired_in_two_ways(database: Database) -> None:
    world = await make_fleet(database)
    [nic] = await make_nics(database, world, 1)
    bridged = await make_pool(database, world, "10.2.0.0/24", topology="bridged")
    tagged = await make_pool(database, world, "10.3.0.0/24", topology="bridged", vlan=7)
    await take(database, bridged, nic)
    for pool in (world.pool_id, tagged):
        with pytest.raises(ServiceError, match="cannot be mixed") as refused:
            await take(database, pool, nic, primary=False)
        assert refused.value.code is ErrorCode.CONFLICT
    assert await take(database, bridged, nic, primary=False) is not None


async def test_a_machine_has_one_primary_address(database: Database) -> None:
    world = await make_fleet(database)
    [nic] = await make_nics(database, world, 1)
    await take(database, world.pool_id, nic)
    with pytest.raises(ServiceError, match="primary"):
        async with database.transaction() as tx:
            await start_release(tx, nic.vm_id, IPv4Address("10.77.0.2"))
    second = await take(database, world.pool_id, nic, primary=False)
    assert second is not None
    async with database.transaction() as tx:
        assert await start_release(tx, nic.vm_id, IPv4Address(second)) == (second,)
    assert await held(database, world.pool_id) == [("10.77.0.2", "allocated"), (second, "releasing")]
    with pytest.raises(ServiceError, match="already"):
        async with database.transaction() as tx:
            await start_release(tx, nic.vm_id, IPv4Address(second))


async def test_no_node_frees_an_address_of_another_machine(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/29")
    mine, other = await make_nics(database, world, 2)
    await take(database, world.pool_id, mine)
    ip = await take(database, world.pool_id, other)
    async with database.transaction() as tx:
        await start_release(tx, mine.vm_id)
        await start_release(tx, other.vm_id)
        assert await free_removed(tx, mine.vm_id, [ip or "", "10.9.9.9"]) == []


@pytest.mark.parametrize("cidr", ["10.1.0.0/30", "2001:db8::/64"])
async def test_an_address_is_free_only_when_the_node_named_it(database: Database, cidr: str) -> None:
    world = await make_fleet(database)
    pool = await make_pool(database, world, cidr)
    first, second = await make_nics(database, world, 2)
    ip = await take(database, pool, first)
    assert ip is not None
    async with database.transaction() as tx:
        assert await free_removed(tx, first.vm_id, [ip]) == []
        await start_release(tx, first.vm_id)
    asked = await releasing_of(database, first.vm_id)
    assert asked is not None
    assert asked.addresses == (ip,)
    assert await take(database, pool, second) is None
    async with database.transaction() as tx:
        assert await free_removed(tx, first.vm_id, [ip], through=asked.through) == [ip]
        assert await free_removed(tx, first.vm_id, [ip], through=asked.through) == []
    assert await releasing_of(database, first.vm_id) is None
    assert await take(database, pool, second) == ip


async def test_an_answer_about_an_earlier_release_does_not_end_a_later_one(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/30")
    [nic] = await make_nics(database, world, 1)
    ip = await take(database, world.pool_id, nic)
    async with database.transaction() as tx:
        await start_release(tx, nic.vm_id)
    early = await releasing_of(database, nic.vm_id)
    assert early is not None
    async with database.transaction() as tx:
        await free_removed(tx, nic.vm_id, early.addresses, through=early.through)
    assert await take(database, world.pool_id, nic) == ip
    async with database.transaction() as tx:
        await start_release(tx, nic.vm_id)
        assert await free_removed(tx, nic.vm_id, early.addresses, through=early.through) == []
    assert await held(database, world.pool_id) == [(ip, "releasing")]


async def test_full_is_said_exactly_when_nothing_is_free(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/28", first="10.1.0.4", last="10.1.0.11")
    nics = await make_nics(database, world, 9)
    await database.execute(
        "INSERT INTO allocations (pool_id, ip, slot, state) VALUES ($1, '10.1.0.7', 7, 'blocked')", world.pool_id
    )
    got = [await take(database, world.pool_id, nic) for nic in nics]
    assert sorted(got, key=lambda ip: math.inf if ip is None else int(IPv4Address(ip)))[:7] == [
        f"10.1.0.{last}" for last in (4, 5, 6, 8, 9, 10, 11)
    ]
    assert got[7:] == [None, None]
    with pytest.raises(PoolFull):
        async with database.transaction() as tx:
            await allocate(tx, world.pool_id, vm_id=nics[8].vm_id, nic_id=nics[8].nic_id, primary=True)
