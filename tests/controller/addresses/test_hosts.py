"""The addresses that hosts have themselves are not handed out; a pool that runs low, or collides, is an alert."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from svc_actors.controller.networking.addresses import free_removed, start_release
from svc_actors.controller.networking.pool_watch import watch_pools
from svc_actors.controller.networking.reservations import MOST_HOST_ADDRESSES, refresh_host_reservations
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from tests.support.addresses import Nic, held, make_nics, make_pool, take
from tests.support.machine_service import Fleet, make_fleet, make_node
from tests.support.machines import refusal, stage


async def say(database: Database, node_id: UUID, *addresses: str) -> None:
    """The node's inventory names these as its host's own addresses."""
    async with database.transaction() as tx:
        await tx.execute("UPDATE nodes SET facts = $2 WHERE id = $1", node_id, {"host_addresses": list(addresses)})
        await refresh_host_reservations(tx)


async def alerts(database: Database, kind: str) -> list[tuple[str, str]]:
    rows = await database.fetch(
        "SELECT severity, message FROM alerts WHERE closed_at IS NULL AND starts_with(key, $1) ORDER BY key", kind
    )
    return [(row["severity"], row["message"]) for row in rows]


async def test_the_hosts_own_addresses_are_listed_with_the_reason_and_never_handed_out(database: Database) -> None:
    async with stage(database) as on:
        await say(database, on.world.node_id, "10.9.0.3/8", "192.0.2.1/24", "2001:db8:0:1::9/64", "fe80::1%eth0/64")
        four = await make_pool(database, on.world, "10.9.0.0/29")
        six = await make_pool(database, on.world, "2001:db8::/62")
        nics = await make_nics(database, on.world, 5)
        assert [await take(database, four, nic) for nic in nics] == [
            "10.9.0.2",
            "10.9.0.4",
            "10.9.0.5",
            "10.9.0.6",
            None,
        ]
        [own] = (await on.administrator("pool.reservations", id=six)).items
        assert (own.ip, own.kind, own.note, own.arithmetic) == (
            "2001:db8:0:1::/64",
            "host",
            "an address of the host alpha",
            True,
        )
        refused = await refusal(on.administrator, "pool.unreserve", id=six, rid=own.id)
        assert (refused.code, "host alpha" in refused.message) == (ErrorCode.CONFLICT, True)
        for each in (await on.administrator("pool.reservations", id=four)).items:
            assert (await refusal(on.administrator, "pool.unreserve", id=four, rid=each.id)).code is ErrorCode.CONFLICT


async def test_what_a_host_gives_up_is_handed_out_again(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/30")
    [nic] = await make_nics(database, world, 1)
    await say(database, world.node_id, "10.1.0.2/30")
    assert await take(database, world.pool_id, nic) is None
    await say(database, world.node_id, "10.2.0.2/30")
    assert await take(database, world.pool_id, nic) == "10.1.0.2"


async def test_a_host_elsewhere_takes_nothing(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/30")
    location = await database.fetchval("INSERT INTO locations (name) VALUES ('elsewhere') RETURNING id")
    await say(database, await make_node(database, location, "beta"), "10.1.0.2/30")
    [nic] = await make_nics(database, world, 1)
    assert await take(database, world.pool_id, nic) == "10.1.0.2"


async def test_a_hosts_address_in_a_machines_hands_is_an_alert_and_is_set_aside_when_it_is_freed(
    database: Database,
) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/30")
    first, second = await make_nics(database, world, 2)
    ip = await take(database, world.pool_id, first)
    await say(database, world.node_id, "10.1.0.2/30")
    [(severity, message)] = await alerts(database, "pool-host-address:")
    assert severity == "critical"
    assert "10.1.0.2" in message
    assert "host alpha" in message
    async with database.transaction() as tx:
        await start_release(tx, first.vm_id)
        await free_removed(tx, first.vm_id, [ip or ""])
    assert await alerts(database, "pool-host-address:") == []
    assert await take(database, world.pool_id, second) is None


async def test_a_collision_that_the_host_ends_is_no_alert_any_more(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/30")
    [nic] = await make_nics(database, world, 1)
    ip = await take(database, world.pool_id, nic)
    await say(database, world.node_id, "10.1.0.2/30")
    await say(database, world.node_id)
    assert await alerts(database, "pool-host-address:") == []
    assert await held(database, world.pool_id) == [(ip, "allocated")]


async def reserved(database: Database, pool_id: UUID) -> int:
    """How many addresses of the pool are set aside for hosts."""
    return int(
        await database.fetchval("SELECT count(*) FROM reservations WHERE pool_id = $1 AND kind = 'host'", pool_id)
    )


async def test_a_host_that_claims_a_whole_pool_takes_a_few_addresses_and_raises_an_alert(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/24")
    claimed = [f"10.1.0.{number}/24" for number in range(2, 202)]

    await say(database, world.node_id, *claimed)

    assert await reserved(database, world.pool_id) == MOST_HOST_ADDRESSES
    [(severity, message)] = await alerts(database, "pool-host-claims:")
    assert severity == "critical"
    assert "The host alpha says that 200 of its addresses are in the pool nat" in message
    [nic] = await make_nics(database, world, 1)
    assert await take(database, world.pool_id, nic) is not None

    await say(database, world.node_id, *claimed[:3])

    assert await reserved(database, world.pool_id) == 3
    assert await alerts(database, "pool-host-claims:") == []


async def test_of_a_small_pool_a_host_takes_a_quarter(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/29")

    await say(database, world.node_id, *[f"10.1.0.{number}/29" for number in range(2, 7)])

    assert await reserved(database, world.pool_id) == 2
    assert len(await alerts(database, "pool-host-claims:")) == 1


async def test_an_observed_host_takes_nothing_and_raises_an_alert_until_it_is_managed(database: Database) -> None:
    async with stage(database) as on:
        pool = await make_pool(database, on.world, "10.9.0.0/24")
        await database.execute("UPDATE nodes SET mode = 'observe'")

        await say(database, on.world.node_id, "10.9.0.7/24")

        assert await reserved(database, pool) == 0
        [(_, message)] = await alerts(database, "pool-host-claims:")
        assert "The host alpha is only observed" in message
        assert "10.9.0.7" in message

        await database.execute("UPDATE nodes SET mode = 'managed'")
        await say(database, on.world.node_id, "10.9.0.7/24")

        assert await reserved(database, pool) == 1
        assert await alerts(database, "pool-host-claims:") == []


@pytest.mark.parametrize("kind", ["block", "reserve"])
async def test_an_address_that_an_operator_set_aside_first_stays_aside_for_the_host(
    database: Database, kind: str
) -> None:
    async with stage(database) as on:
        pool = await make_pool(database, on.world, "10.9.0.0/30")
        made = await on.administrator(f"pool.{kind}", id=pool, ip="10.9.0.2", note="x")
        await say(database, on.world.node_id, "10.9.0.2/30")
        assert [
            each.kind for each in (await on.administrator("pool.reservations", id=pool)).items if each.arithmetic
        ] == [
            "network",
            "gateway",
            "broadcast",
        ]
        if kind == "block":
            await on.administrator("pool.unblock", id=pool, ip="10.9.0.2")
        else:
            await on.administrator("pool.unreserve", id=pool, rid=made.id)
        [nic] = await make_nics(database, on.world, 1)
        assert await take(database, pool, nic) is None


async def fill(database: Database, world: Fleet, nics: list[Nic]) -> list[tuple[str, str]]:
    for nic in nics:
        await take(database, world.pool_id, nic)
    await watch_pools(database)
    return await alerts(database, "pool-low:")


async def drain(database: Database, nics: list[Nic]) -> list[tuple[str, str]]:
    async with database.transaction() as tx:
        for nic in nics:
            await tx.execute("DELETE FROM allocations WHERE vm_id = $1", nic.vm_id)
    await watch_pools(database)
    return await alerts(database, "pool-low:")


async def test_a_pool_that_runs_low_is_an_alert_until_there_is_room_again(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/24", first="10.1.0.101", last="10.1.0.200")
    nics = await make_nics(database, world, 100)
    assert await fill(database, world, nics[:89]) == []
    [low] = await fill(database, world, nics[89:90])
    assert low == ("warning", "The pool nat of the network nat runs low: 10 of 100 addresses are free.")
    [full] = await fill(database, world, nics[90:])
    assert full == ("critical", "The pool nat of the network nat is full: none of 100 addresses is free.")
    [left] = await drain(database, nics[:15])
    assert left[0] == "critical"
    assert await drain(database, nics[15:16]) == []


async def test_a_pool_that_is_disabled_or_gone_is_not_missed(database: Database) -> None:
    async with stage(database) as on:
        pools = [await make_pool(database, on.world, cidr) for cidr in ("10.9.0.0/30", "10.9.1.0/30")]
        for pool in pools:
            await on.administrator("pool.reserve", id=pool, ip=str((await show(on, pool)).range_end), note="x")
        await watch_pools(database)
        assert len(await alerts(database, "pool-low:")) == 2
        await on.administrator("pool.update", id=pools[0], enabled=False)
        await watch_pools(database)
        assert len(await alerts(database, "pool-low:")) == 1
        for each in (await on.administrator("pool.reservations", id=pools[1])).items:
            if not each.arithmetic:
                await on.administrator("pool.unreserve", id=pools[1], rid=each.id)
        await on.administrator("pool.delete", id=pools[1])
        assert await alerts(database, "pool-low:") == []


async def show(on: Any, pool: UUID) -> Any:
    return await on.administrator("pool.show", id=pool)
