"""Networks changed by several administrators at once, and addresses written in every way that lists show them."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import pytest
import trio
from pydantic import ValidationError

from svc_actors.controller.networking.networks import create_network, remove_network, update_network
from svc_actors.controller.networking.reservations import block
from svc_actors.controller.networking.security_groups import (
    Action,
    Direction,
    FirewallRule,
    TransportProtocol,
    add_rule,
    create_group,
)
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from tests.support.addresses import make_nics, make_pool, take
from tests.support.machine_service import make_fleet
from tests.support.machines import stage


async def test_one_network_is_the_default_whoever_names_another_at_the_same_moment(database: Database) -> None:
    async with database.transaction() as tx:
        made = [(await create_network(tx, f"n{number}", default=number == 0))["id"] for number in range(6)]

    async def name(network_id: UUID) -> None:
        for _ in range(10):
            async with database.transaction() as tx:
                await update_network(tx, network_id, default=True, mtu=None)

    async with trio.open_nursery() as nursery:
        for network_id in made:
            nursery.start_soon(name, network_id)
    assert await database.fetchval('SELECT count(*) FROM networks WHERE "default"') == 1


async def test_a_networks_mtu_and_a_groups_rules_change_at_once_without_a_deadlock(database: Database) -> None:
    world = await make_fleet(database)
    nics = await make_nics(database, world, 300)
    async with database.transaction() as tx:
        group = await create_group(
            tx,
            name="all",
            description="",
            project_id=None,
            default_ingress=Action.DROP,
            default_egress=Action.ACCEPT,
        )
        await tx.execute(
            "INSERT INTO security_group_machines (group_id, vm_id) SELECT $1, unnest($2::uuid[])",
            group["id"],
            [nic.vm_id for nic in nics],
        )
    before = await database.fetchval("SELECT sum(net_wanted) FROM vms")

    async def add_rules() -> None:
        for port in range(10):
            rule = FirewallRule(direction=Direction.INGRESS, protocol=TransportProtocol.TCP, ports=(port, port))
            async with database.transaction() as tx:
                await add_rule(tx, group["id"], rule, note="")

    async def change_mtu() -> None:
        for more in range(10):
            async with database.transaction() as tx:
                await update_network(tx, world.network_id, default=None, mtu=1400 + more)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(add_rules)
        nursery.start_soon(change_mtu)
    assert await database.fetchval("SELECT sum(net_wanted) FROM vms") == before + 20 * len(nics)


async def test_an_address_that_is_blocked_while_its_network_is_being_removed_keeps_it(database: Database) -> None:
    world = await make_fleet(database)
    async with database.transaction() as tx:
        network_id = (await create_network(tx, "other", default=False))["id"]
    pool_id = await make_pool(database, world, "10.9.0.0/28")
    await database.execute("UPDATE pools SET network_id = $2 WHERE id = $1", pool_id, network_id)
    refused: list[ServiceError] = []

    async def remove() -> None:
        try:
            async with database.transaction() as tx:
                await remove_network(tx, network_id)
        except ServiceError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        async with database.transaction() as tx:
            await block(tx, pool_id, ip_address("10.9.0.5"), "printer")
            nursery.start_soon(remove)
            await _until_somebody_waits(database)
    assert [error.code for error in refused] == [ErrorCode.CONFLICT]
    assert await database.fetchval("SELECT count(*) FROM allocations WHERE state = 'blocked'") == 1


async def _until_somebody_waits(database: Database) -> None:
    with trio.fail_after(60):
        while not await database.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            await trio.lowlevel.checkpoint()


async def test_a_range_is_not_taken_for_its_first_address(database: Database) -> None:
    async with stage(database) as on:
        pool = await on.administrator("network.add_pool", id=on.world.network_id, name="p", cidr="10.9.0.0/24")
        with pytest.raises(ValidationError, match="ip"):
            await on.administrator("pool.block", id=pool.id, ip="10.9.0.16/28", note="lab")
        assert (await on.administrator("pool.show", id=pool.id)).blocked_count == 0
        await on.administrator("pool.block", id=pool.id, ip="10.9.0.17/28", note="as a NIC has it")
        assert (await on.administrator("pool.show", id=pool.id)).blocked_count == 1


async def test_a_listed_sub_prefix_is_blocked_unblocked_and_freed_as_it_is_listed(database: Database) -> None:
    async with stage(database) as on:
        pool = await on.administrator("network.add_pool", id=on.world.network_id, name="six", cidr="2001:db8::/48")
        blocked = await on.administrator("pool.block", id=pool.id, ip="2001:db8:0:5::/64", note="lab")
        assert blocked.ip == "2001:db8:0:5::/64"
        await on.administrator("pool.unblock", id=pool.id, ip=blocked.ip)
        [nic] = await make_nics(database, on.world, 1)
        held = await take(database, pool.id, nic)
        await database.execute("UPDATE allocations SET state = 'releasing', release_id = 1 WHERE vm_id = $1", nic.vm_id)
        await on.administrator("pool.force_free", id=pool.id, ip=held, note="its host burned down")
        assert (await on.administrator("pool.allocations", id=pool.id)).items == []


@pytest.mark.parametrize(
    "figures",
    [
        {"gateway": "fe80::1%eth0"},
        {"nameservers": ["2001:db8::1%eth0"]},
        {"range_start": "2001:db8::%eth0"},
        {"gateway": 1},
        {"cidr": "2001:db8::%eth0/48"},
    ],
)
async def test_an_address_of_a_zone_is_refused_and_not_cut_short(
    database: Database, figures: Mapping[str, Any]
) -> None:
    async with stage(database) as on:
        with pytest.raises(ValidationError, match="without a zone"):
            await on.administrator(
                "network.add_pool", id=on.world.network_id, name="six", **({"cidr": "2001:db8::/48"} | dict(figures))
            )
