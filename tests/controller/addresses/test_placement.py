"""Which pools a node offers a new machine: those that serve it and that its host can carry."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from svc_actors.controller.placement.scheduler import MachineNeeds, Placement, place
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from tests.support.addresses import make_pool
from tests.support.machine_service import Fleet, make_fleet, make_node


async def placed(database: Database, world: Fleet, node_id: UUID | None = None) -> Placement:
    async with database.transaction() as tx:
        need = MachineNeeds(vcpus=1, memory_mib=64, disk_gib=1, network_id=world.network_id, node_id=node_id)
        return await place(tx, need, explain=True)


async def lacks(database: Database, node_id: UUID, **lacks: Any) -> None:
    await database.execute("UPDATE nodes SET facts = $2 WHERE id = $1", node_id, {"network_lacks": lacks})


async def test_a_node_that_lacks_what_a_pool_needs_is_left_out_and_says_why(database: Database) -> None:
    world = await make_fleet(database)
    beta = await make_node(database, world.location_id, "beta")
    await lacks(database, world.node_id, nat="no nf_nat in this kernel")
    assert (await placed(database, world)).node_name == "beta"
    await lacks(database, beta, nat="no nf_nat here either")
    with pytest.raises(ServiceError) as refused:
        await placed(database, world)
    assert refused.value.code is ErrorCode.CAPACITY
    assert "network: it cannot carry the pool nat (nat: no nf_nat in this kernel)" in str(refused.value.details)


async def test_another_pool_of_the_network_serves_a_node_that_lacks_the_first_ones_need(database: Database) -> None:
    world = await make_fleet(database)
    routed = await make_pool(database, world, "192.0.2.0/24", topology="routed")
    await lacks(database, world.node_id, nat="no nf_nat in this kernel")
    assert (await placed(database, world)).pool_ids == (routed,)


async def test_ipv6_is_offered_beside_ipv4_where_the_node_and_the_nic_can_have_both(database: Database) -> None:
    world = await make_fleet(database)
    bridged = await make_pool(database, world, "192.0.2.0/24", topology="bridged")
    six = await make_pool(database, world, "2001:db8::/48")
    bridged_six = await make_pool(database, world, "2001:db9::/48", topology="bridged")
    candidate = await placed(database, world)
    assert candidate.pool_ids == (world.pool_id, bridged)
    assert candidate.ipv6_pool_ids == {world.pool_id: (six,), bridged: (bridged_six,)}
    await lacks(database, world.node_id, ipv6="IPv6 is switched off")
    assert (await placed(database, world)).ipv6_pool_ids == {world.pool_id: (), bridged: ()}


async def test_a_network_of_ipv6_alone_gives_a_primary_sub_prefix(database: Database) -> None:
    world = await make_fleet(database)
    six = await make_pool(database, world, "2001:db8::/48")
    await database.execute("UPDATE pools SET enabled = false WHERE id = $1", world.pool_id)
    candidate = await placed(database, world)
    assert (candidate.pool_ids, candidate.ipv6_pool_ids) == ((six,), {})


async def test_a_pool_serves_the_nodes_it_names(database: Database) -> None:
    world = await make_fleet(database)
    beta = await make_node(database, world.location_id, "beta")
    own = await make_pool(database, world, "192.0.2.0/24", topology="routed", node_ids=[beta])
    assert (await placed(database, world, world.node_id)).pool_ids == (world.pool_id,)
    assert (await placed(database, world, beta)).pool_ids == (world.pool_id, own)


async def test_a_node_that_needs_a_pools_gateway_for_itself_is_left_out_and_says_why(database: Database) -> None:
    world = await make_fleet(database)
    beta = await make_node(database, world.location_id, "beta")
    gateway = await database.fetchval("SELECT host(gateway) FROM pools WHERE id = $1", world.pool_id)
    taken = {f"gateway:{gateway}": "It is the address of this node's controller."}
    await lacks(database, world.node_id, **taken)
    assert (await placed(database, world)).node_name == "beta"
    await lacks(database, beta, **taken)
    with pytest.raises(ServiceError) as refused:
        await placed(database, world)
    assert refused.value.code is ErrorCode.CAPACITY
    assert "the address of this node's controller" in str(refused.value.details)
