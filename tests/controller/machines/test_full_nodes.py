"""Nodes whose disks fill up: an alert, no new machine, and both end by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from svc_actors.controller.machines.creation import create_machine
from svc_actors.controller.nodes.disks import NodeDisks
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent.protocol import Capacity
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_service import SEALER, make_fleet, make_node


def free(gib: float) -> Capacity:
    return Capacity(cpus=16, memory_mib=65536, memory_free_mib=65536, disk_gib=1000, disk_free_gib=gib, load_1m=0.0)


async def open_alerts(database: Database) -> Mapping[str, tuple[str, str]]:
    rows = await database.fetch("SELECT key, severity, message FROM alerts WHERE closed_at IS NULL")
    return {row["key"]: (row["severity"], row["message"]) for row in rows}


async def placed_on(database: Database, world: Any, name: str) -> UUID:
    made = await create_machine(database, SEALER, ADMINISTRATOR, world.machine(name))
    node_id: UUID = await database.fetchval("SELECT node_id FROM vms WHERE id = $1", made.vm_id)
    return node_id


async def test_a_node_that_is_nearly_full_takes_no_machine_and_the_refusal_says_so(database: Database) -> None:
    world = await make_fleet(database)
    await NodeDisks(database).update_levels({world.node_id: free(40)})

    with pytest.raises(ServiceError) as refused:
        await placed_on(database, world, "late")

    assert refused.value.code is ErrorCode.CAPACITY
    assert "short of free disk space" in refused.value.message
    details: Any = refused.value.details
    assert [node["node"] for node in details["nodes"]] == ["alpha"]
    assert details["nodes"][0]["reasons"][0].startswith("node: its disk is nearly full")


async def test_another_node_takes_the_machine_that_a_full_one_does_not(database: Database) -> None:
    world = await make_fleet(database)
    beta = await make_node(database, world.location_id, "beta", disk_gib=100)
    await NodeDisks(database).update_levels({world.node_id: free(40)})

    assert await placed_on(database, world, "one") == beta


async def test_the_alert_follows_the_level_and_closes_with_space(database: Database) -> None:
    world = await make_fleet(database)
    disks = NodeDisks(database)
    key = f"node-disk:{world.node_id}"

    await disks.update_levels({world.node_id: free(140)})
    warned = await open_alerts(database)
    await disks.update_levels({world.node_id: free(40)})
    alarmed = await open_alerts(database)
    await NodeDisks(database).update_levels({world.node_id: free(60)})
    swaying = await open_alerts(database)
    await disks.update_levels({world.node_id: free(500)})

    assert warned[key] == (
        "warning",
        "The disk of node alpha for images and machines is 86 % full, 140 GiB of 1000 GiB free.",
    )
    assert alarmed[key][0] == "critical"
    assert "no new machine" in alarmed[key][1]
    assert swaying == alarmed
    assert await open_alerts(database) == {}
    assert await placed_on(database, world, "one") == world.node_id


async def test_the_thresholds_are_settings(database: Database) -> None:
    world = await make_fleet(database)
    await database.execute("INSERT INTO settings (name, value) VALUES ('disk_warning_percent', '50')")

    await NodeDisks(database).update_levels({world.node_id: free(499)})

    assert list(await open_alerts(database)) == [f"node-disk:{world.node_id}"]
