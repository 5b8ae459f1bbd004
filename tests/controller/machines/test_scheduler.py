"""Placement: room is promised once, however many ask at once, and a refusal says why."""

from __future__ import annotations

import pytest
import trio

from svc_actors.controller.machines.creation import create_machine
from svc_actors.errors import ErrorCode, ServiceError
from svc_actors.store import Database
from tests.support.machine_service import ADMINISTRATOR, SEALER, make_node, make_world


async def test_parallel_creations_never_promise_more_memory_than_there_is(database: Database) -> None:
    world = await make_world(database)
    await database.execute("DELETE FROM nodes")
    for name in ("one", "two"):
        await make_node(database, world.location_id, name, memory_mib=5 * 1024)
    refused: list[ErrorCode] = []

    async def create(number: int) -> None:
        try:
            await create_machine(database, SEALER, ADMINISTRATOR, world.machine(f"m{number}", memory_mib=1024))
        except ServiceError as error:
            refused.append(error.code)

    async with trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(create, number)
    assert refused == [ErrorCode.CAPACITY] * 6
    placed = await database.fetch("SELECT sum(memory_mib) AS memory_mib FROM vms GROUP BY node_id")
    assert [row["memory_mib"] for row in placed] == [5 * 1024, 5 * 1024]


async def test_a_refused_creation_leaves_nothing_behind(database: Database) -> None:
    world = await make_world(database, cidr="10.1.0.0/30")
    await create_machine(database, SEALER, ADMINISTRATOR, world.machine("first"))
    with pytest.raises(ServiceError) as refusal:
        await create_machine(database, SEALER, ADMINISTRATOR, world.machine("second"))
    assert refusal.value.code is ErrorCode.CAPACITY
    for table, count in (("vms", 1), ("tasks", 1), ("nics", 1)):
        assert await database.fetchval(f"SELECT count(*) FROM {table}") == count
    assert await database.fetchval("SELECT count(*) FROM audit") == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("state = 'offline'", "node: it is offline"),
        ("mode = 'observe'", "node: it is only observed"),
        ("maintenance = true", "node: it is in maintenance"),
        ("capacity = NULL", "node: it has not reported its capacity"),
        ("disk_overcommit = 0.0005", "disk: 1 GiB wanted, 0 GiB free"),
    ],
)
async def test_a_refusal_says_of_each_node_why(database: Database, change: str, reason: str) -> None:
    world = await make_world(database)
    await database.execute(f"UPDATE nodes SET {change}")
    with pytest.raises(ServiceError) as refusal:
        await create_machine(database, SEALER, ADMINISTRATOR, world.machine())
    # A node that is offline or has just joined may have room in a moment; everything else will not change by itself.
    passing = change in ("state = 'offline'", "capacity = NULL")
    assert refusal.value.code is (ErrorCode.UNAVAILABLE if passing else ErrorCode.CAPACITY)
    assert refusal.value.details == {"nodes": [{"node_id": str(world.node_id), "node": "alpha", "reasons": [reason]}]}


async def test_a_node_without_a_pool_of_the_network_takes_no_machine(database: Database) -> None:
    world = await make_world(database)
    await database.execute("UPDATE pools SET enabled = false")
    with pytest.raises(ServiceError, match="No node has room") as refusal:
        await create_machine(database, SEALER, ADMINISTRATOR, world.machine())
    assert "no enabled pool" in str(refusal.value.details)


async def test_machines_go_where_most_is_free(database: Database) -> None:
    world = await make_world(database)
    beta = await make_node(database, world.location_id, "beta")
    for number in range(6):
        await create_machine(database, SEALER, ADMINISTRATOR, world.machine(f"m{number}", memory_mib=4096))
    counts = await database.fetch("SELECT node_id, count(*) AS machines FROM vms GROUP BY node_id")
    assert {row["node_id"]: row["machines"] for row in counts} == {world.node_id: 3, beta: 3}


async def test_a_creation_that_failed_gives_its_promise_back(database: Database) -> None:
    world = await make_world(database)
    await database.execute("UPDATE nodes SET capacity = jsonb_set(capacity, '{memory_mib}', '1024')")
    created = await create_machine(database, SEALER, ADMINISTRATOR, world.machine("a", memory_mib=1024))
    with pytest.raises(ServiceError):
        await create_machine(database, SEALER, ADMINISTRATOR, world.machine("b", memory_mib=1024))
    await database.execute("UPDATE vms SET status = 'failed', status_reason = 'x' WHERE id = $1", created.vm_id)
    await create_machine(database, SEALER, ADMINISTRATOR, world.machine("b", memory_mib=1024))
