"""What one node says wrong of itself costs that node alone: the watches of all nodes go on for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from svc_actors.controller.gateway.gateway import Gateway
from svc_actors.controller.nodes import disks
from svc_actors.controller.nodes.live_figures import for_nodes, record_live_figures
from svc_actors.controller.reconcile import node_watch
from svc_actors.controller.reconcile.node_watch import NodeWatch
from svc_actors.disk_space import Space
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database, Transaction
from svc_common.errors import ErrorCode, ServiceError, conflict, unavailable
from svc_nodeagent.protocol import Capacity, Heartbeat
from tests.support.machine_service import make_fleet, make_node

MOST = {"cpus": 2**31 - 1, "memory_mib": 2**40, "memory_free_mib": 2**40, "disk_gib": 2.0**40, "load_1m": 2.0**40}
FULL = {"disk_gib": 1000.0, "disk_free_gib": 0.5}


def capacity(**figures: Any) -> Capacity:
    plain = {
        "cpus": 4,
        "memory_mib": 1024,
        "memory_free_mib": 512,
        "disk_gib": 10.0,
        "disk_free_gib": 9.0,
        "load_1m": 0.1,
    }
    return Capacity.model_validate(plain | figures)


@dataclass
class Said:
    """A gateway that knows what each node said last."""

    beats: dict[UUID, Capacity]

    def online(self) -> list[UUID]:
        return list(self.beats)

    def heartbeat(self, node_id: UUID) -> Heartbeat:
        return Heartbeat(at=datetime.now(UTC), capacity=self.beats[node_id])


async def stage(database: Database, evil_says: Capacity) -> tuple[NodeWatch, UUID, UUID]:
    """Two nodes, of which good has a full disk."""
    world = await make_fleet(database)
    evil = await make_node(database, world.location_id, "evil")
    watch = NodeWatch(cast(ActorSystem, None), database, cast(Any, None))
    watch.watch(cast(Gateway, Said({evil: evil_says, world.node_id: capacity(**FULL)})))
    return watch, evil, world.node_id


async def both_rounds(watch: NodeWatch, database: Database) -> None:
    await database.execute("UPDATE nodes SET seen_at = now() - interval '1 hour', disk_level = 'ok'")
    await watch.record()
    await watch.look_at_disks()


async def recorded(database: Database, node_id: UUID) -> tuple[bool, str, bool]:
    """Whether its figures were just written, its level, and whether an alert says so."""
    row = await database.fetchone(
        "SELECT seen_at > now() - interval '1 minute' AS seen, disk_level FROM nodes WHERE id = $1", node_id
    )
    alert = await database.fetchval(
        "SELECT count(*) FROM alerts WHERE key = $1 AND closed_at IS NULL", f"node-disk:{node_id}"
    )
    return row["seen"], row["disk_level"], alert == 1


@pytest.mark.parametrize("overcommit", [1.0, 2.0, 100.0])
@pytest.mark.parametrize("figure", MOST)
async def test_the_largest_figures_that_a_frame_may_hold_are_recorded(
    database: Database, figure: str, overcommit: float
) -> None:
    watch, evil, good = await stage(database, capacity(**{figure: MOST[figure]}))
    await database.execute(
        "UPDATE nodes SET cpu_overcommit = $1, memory_overcommit = $1, disk_overcommit = $1", overcommit
    )
    await both_rounds(watch, database)
    assert (await recorded(database, evil))[0]
    assert await recorded(database, good) == (True, "critical", True)


async def test_a_node_whose_disk_cannot_be_judged_keeps_no_other_from_its_alert(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, evil, good = await stage(database, capacity(disk_gib=666.0))

    def space_of(said: Capacity) -> Space:
        if said.disk_gib == 666.0:
            raise OverflowError("a figure that nobody thought of")
        return Space(int(said.disk_gib * 2**30), int(said.disk_free_gib * 2**30))

    monkeypatch.setattr(disks, "space_of", space_of)
    with capture_logs() as lines:
        await both_rounds(watch, database)
    assert await recorded(database, good) == (True, "critical", True)
    assert [line["node_id"] for line in lines if line["event"] == "node.passed_over"] == [str(evil)]


async def test_a_node_whose_figures_cannot_be_written_keeps_no_other_from_the_records(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, evil, good = await stage(database, capacity())

    async def fails(tx: Transaction, beats: Sequence[tuple[UUID, Capacity]]) -> None:
        if evil in dict(beats):
            await tx.execute("SELECT 1e308::float8 * 10")
        await record_live_figures(tx, beats)

    monkeypatch.setattr(node_watch, "record_live_figures", fails)
    with capture_logs() as lines:
        await both_rounds(watch, database)
    assert (await recorded(database, evil), await recorded(database, good)) == (
        (False, "ok", False),
        (True, "critical", True),
    )
    assert [line["node_id"] for line in lines if line["event"] == "node.passed_over"] == [str(evil)]


async def test_an_outage_is_no_nodes_fault_and_a_refusal_is() -> None:
    asked: list[Sequence[UUID]] = []

    async def work(nodes: Sequence[UUID], error: ServiceError) -> None:
        asked.append(nodes)
        raise error

    nodes = [UUID(int=1), UUID(int=2)]
    with pytest.raises(ServiceError) as away:
        await for_nodes("it", nodes, partial(work, error=unavailable("The database is away.")))
    assert (away.value.code, asked) == (ErrorCode.UNAVAILABLE, [nodes])
    await for_nodes("it", nodes, partial(work, error=conflict("Not this one.")))
    assert asked == [nodes, nodes, nodes[:1], nodes[1:]]
