"""Placement: room is promised once, however many ask at once, and a refusal says why."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
import trio

from svc_actors.controller.machines.creation import create_machine
from svc_actors.controller.placement.scheduler import MachineNeeds, place
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_service import SEALER, make_fleet, make_node


async def test_parallel_creations_never_promise_more_memory_than_there_is(database: Database) -> None:
    world = await make_fleet(database)
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


async def test_a_crowd_of_creations_fills_every_node_to_the_last_place_and_no_further(database: Database) -> None:
    world = await make_fleet(database)
    await database.execute("DELETE FROM nodes")
    for number in range(10):
        await make_node(database, world.location_id, f"n{number}", memory_mib=5 * 1024)
    refused: list[ErrorCode] = []

    async def create(number: int) -> None:
        try:
            await create_machine(database, SEALER, ADMINISTRATOR, world.machine(f"m{number}", memory_mib=1024))
        except ServiceError as error:
            refused.append(error.code)

    async with trio.open_nursery() as nursery:
        for number in range(64):
            nursery.start_soon(create, number)

    assert refused == [ErrorCode.CAPACITY] * 14
    placed = await database.fetch("SELECT count(*) AS machines FROM vms GROUP BY node_id")
    assert [row["machines"] for row in placed] == [5] * 10


async def test_creations_on_different_nodes_do_not_wait_for_each_other(database: Database) -> None:
    world = await make_fleet(database)
    await make_node(database, world.location_id, "beta")
    need = MachineNeeds(vcpus=1, memory_mib=256, disk_gib=1, network_id=world.network_id)

    async with database.transaction() as first, database.transaction() as second:
        with trio.fail_after(60):
            chosen = [(await place(tx, need, explain=True)).node_name for tx in (first, second)]

    assert chosen == ["alpha", "beta"]


async def test_machines_that_one_statement_inserts_and_removes_are_promised_on_each_node(database: Database) -> None:
    world = await make_fleet(database)
    await make_node(database, world.location_id, "beta")
    promised = "SELECT promised_vcpus FROM node_capacity ORDER BY node_name"

    await database.execute(
        """INSERT INTO vms (name, hostname, project_id, node_id, image_id, vcpus, memory_mib, disk_gib, status,
                            access_mode, deleted_at)
           SELECT nodes.name || number, 'row', $1, nodes.id, $2, number, 64, 1, 'running', 'user_sudo',
                  CASE WHEN number = 4 THEN now() END
           FROM nodes, generate_series(1, CASE nodes.name WHEN 'alpha' THEN 2 ELSE 4 END) number""",
        world.project_id,
        world.image_id,
    )
    made = [row["promised_vcpus"] for row in await database.fetch(promised)]
    await database.execute("DELETE FROM vms WHERE vcpus <> 1")
    left = [row["promised_vcpus"] for row in await database.fetch(promised)]

    assert (made, left) == ([3, 6], [1, 1])


async def test_what_is_promised_of_a_node_is_what_its_machines_may_use(database: Database) -> None:
    world = await make_fleet(database)
    beta = await make_node(database, world.location_id, "beta")
    made = [
        (await create_machine(database, SEALER, ADMINISTRATOR, world.machine(f"m{number}", vcpus=1 + number))).vm_id
        for number in range(6)
    ]

    for change in (
        "built_at = now(), status = 'running'",
        "vcpus = vcpus + 2, memory_mib = 512",
        "status = 'failed'",
        "built_at = NULL",
        "status = 'stopped'",
        f"node_id = '{beta}'",
        "deleted_at = now()",
    ):
        await database.execute(f"UPDATE vms SET {change} WHERE id = ANY($1)", made[:4])

        differing = await database.fetch(
            """SELECT node_name FROM node_capacity LEFT JOIN (
                   SELECT node_id, sum(vcpus) AS vcpus, sum(memory_mib) AS memory_mib, sum(disk_gib) AS disk_gib
                   FROM vms WHERE deleted_at IS NULL AND NOT (status = 'failed' AND built_at IS NULL) GROUP BY node_id
               ) held USING (node_id)
               WHERE (promised_vcpus, promised_memory_mib, promised_disk_gib) IS DISTINCT FROM
                     (coalesce(held.vcpus, 0), coalesce(held.memory_mib, 0), coalesce(held.disk_gib, 0))"""
        )
        assert not differing, change


async def test_a_refused_creation_leaves_nothing_behind(database: Database) -> None:
    world = await make_fleet(database, cidr="10.1.0.0/30")
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
        ("state = 'offline', lost_at = now()", "node: it was declared lost"),
        ("mode = 'observe'", "node: it is only observed"),
        ("maintenance = true", "node: it is in maintenance"),
        ("capacity = NULL", "node: it has not reported its capacity"),
        ("disk_overcommit = 0.0005", "disk: 1 GiB wanted, 0 GiB free"),
    ],
)
async def test_a_refusal_says_of_each_node_why(database: Database, change: str, reason: str) -> None:
    world = await make_fleet(database)
    await database.execute(f"UPDATE nodes SET {change}")
    with pytest.raises(ServiceError) as refusal:
        await create_machine(database, SEALER, ADMINISTRATOR, world.machine())
    # A node that is offline or has just joined may have room in a moment; everything else will not change by itself.
    passing = change in ("state = 'offline'", "capacity = NULL")
    assert refusal.value.code is (ErrorCode.UNAVAILABLE if passing else ErrorCode.CAPACITY)
    assert refusal.value.details == {"nodes": [{"node_id": str(world.node_id), "node": "alpha", "reasons": [reason]}]}


async def test_a_node_without_a_pool_of_the_network_takes_no_machine(database: Database) -> None:
    world = await make_fleet(database)
    await database.execute("UPDATE pools SET enabled = false")
    with pytest.raises(ServiceError, match="The network has no pool") as refusal:
        await create_machine(database, SEALER, ADMINISTRATOR, world.machine())
    assert "no enabled pool" in str(refusal.value.details)


@pytest.mark.parametrize(
    ("statement", "changes", "message"),
    [
        ("UPDATE nodes SET maintenance = true", {}, "No node takes new machines now: in maintenance."),
        ("UPDATE nodes SET mode = 'observe'", {}, "No node takes new machines now: only observed."),
        ("DELETE FROM nodes", {}, "There are no nodes yet."),
        ("UPDATE pools SET enabled = false", {}, "The network has no pool for a machine here: none is enabled."),
        (
            'UPDATE nodes SET facts = \'{"network_lacks": {"nat": "no nf_nat"}}\'',
            {},
            "The network has no pool for a machine here: the nodes with room cannot carry the pools that serve them.",
        ),
        (
            "SELECT",
            {"memory_mib": 4 * 1024 * 1024},
            "No node has room for this machine: none has 4 TiB of memory free.",
        ),
        (
            "SELECT",
            {"vcpus": 256, "disk_gib": 2560},
            "No node has room for this machine: none has 256 vCPUs and 2.5 TiB of disk free.",
        ),
    ],
)
async def test_a_refusal_names_what_is_true(
    database: Database, statement: str, changes: dict[str, Any], message: str
) -> None:
    world = await make_fleet(database)
    await database.execute(statement)

    with pytest.raises(ServiceError) as refusal:
        await create_machine(database, SEALER, ADMINISTRATOR, world.machine(**changes))

    assert (refusal.value.code, refusal.value.message) == (ErrorCode.CAPACITY, message)


async def test_a_refusal_for_a_location_says_whether_it_has_nodes(database: Database) -> None:
    world = await make_fleet(database)
    empty = await database.fetchval("INSERT INTO locations (name) VALUES ('north') RETURNING id")

    with pytest.raises(ServiceError) as no_nodes:
        await create_machine(database, SEALER, ADMINISTRATOR, world.machine(location_id=empty))
    with pytest.raises(ServiceError) as unknown:
        await create_machine(database, SEALER, ADMINISTRATOR, world.machine(location_id=uuid4()))

    assert (no_nodes.value.code, no_nodes.value.message) == (ErrorCode.CAPACITY, "The location north has no nodes.")
    assert unknown.value.code is ErrorCode.NOT_FOUND


async def test_machines_go_where_most_is_free(database: Database) -> None:
    world = await make_fleet(database)
    beta = await make_node(database, world.location_id, "beta")
    for number in range(6):
        await create_machine(database, SEALER, ADMINISTRATOR, world.machine(f"m{number}", memory_mib=4096))
    counts = await database.fetch("SELECT node_id, count(*) AS machines FROM vms GROUP BY node_id")
    assert {row["node_id"]: row["machines"] for row in counts} == {world.node_id: 3, beta: 3}


async def test_a_creation_that_failed_gives_its_promise_back(database: Database) -> None:
    world = await make_fleet(database)
    await database.execute("UPDATE nodes SET capacity = jsonb_set(capacity, '{memory_mib}', '1024')")
    created = await create_machine(database, SEALER, ADMINISTRATOR, world.machine("a", memory_mib=1024))
    with pytest.raises(ServiceError):
        await create_machine(database, SEALER, ADMINISTRATOR, world.machine("b", memory_mib=1024))
    await database.execute("UPDATE vms SET status = 'failed', status_reason = 'x' WHERE id = $1", created.vm_id)
    await create_machine(database, SEALER, ADMINISTRATOR, world.machine("b", memory_mib=1024))
