"""A node of many running machines is drained live, between two simulated agents over the real gateway."""

from __future__ import annotations

import pytest
import trio

from svc_actors.controller.machines import draining
from svc_actors.controller.machines.creation import create_machine
from svc_actors.controller.machines.draining import start_drain
from svc_actors.controller.tasks.runner import get_task
from svc_actors.store import Database
from svc_nodeagent.protocol import DomainState
from tests.controller.gateway.test_moves import controller
from tests.support.callers import ADMINISTRATOR
from tests.support.figures import report_figure
from tests.support.gateway import GatewayHarness
from tests.support.machine_service import SEALER, make_fleet

MACHINES = 40
FULL_MACHINES = 200
"""With --full."""


async def test_many_running_machines_go_on_at_another_node(
    rig: GatewayHarness, database: Database, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    machines = FULL_MACHINES if pytestconfig.getoption("--full") else MACHINES
    monkeypatch.setattr(draining, "_LOOK_SECONDS", 0.01)
    fleet = await make_fleet(database)
    one, other = [await rig.new_node() for _ in range(2)]
    async with one.running(), other.running():
        hosts = {node.node_id: node.host for node in (one, other)}
        source, target = hosts
        await rig.until_online(source, target)
        facts = await hosts[source].facts()
        await database.execute(
            """UPDATE nodes SET state = 'online', capacity = $2, facts = $3, agent_protocol = 5
               WHERE id = ANY($1::uuid[])""",
            list(hosts),
            {"cpus": 400, "memory_mib": 2**20, "memory_free_mib": 2**20, "disk_gib": 9000, "disk_free_gib": 9000}
            | {"load_1m": 0.0},
            facts.model_dump(mode="json"),
        )
        async with controller(database, rig.gateway) as service:
            for number in range(machines):
                new = fleet.machine(f"m-{number}", node_id=source)
                service.tasks.start((await create_machine(database, SEALER, ADMINISTRATOR, new)).task)
            with trio.fail_after(120):
                while await database.fetchval("SELECT count(*) FROM vms WHERE status = 'running'") < machines:
                    await trio.sleep(0.05)
            await database.execute("UPDATE nodes SET maintenance = true WHERE id = $1", source)
            began = trio.current_time()
            task = await database.transact(lambda tx: start_drain(tx, ADMINISTRATOR, source, restart=False))
            service.tasks.start(task)
            with trio.fail_after(120):
                while (ended := await get_task(database, task.id)) is not None and ended.status.open:
                    await trio.sleep(0.05)
            report_figure(f"{machines} simulated machines drained live in {trio.current_time() - began:.1f} s")

            assert ended is not None
            assert (ended.status, ended.error_message) == ("succeeded", None)
            assert hosts[source].machines == {}
            assert {each.state for each in hosts[target].machines.values()} == {DomainState.RUNNING}
            placed = await database.fetch("SELECT DISTINCT node_id, status FROM vms")
            assert [(row["node_id"], row["status"]) for row in placed] == [(target, "running")]
