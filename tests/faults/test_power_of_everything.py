"""A power cut of the whole installation: controller, PostgreSQL, agents and every guest end at once."""

from __future__ import annotations

import json

import pytest
import trio

from tests.faults.conftest import Extent
from tests.support import postgres_server
from tests.support.deployment import POLL, Api, Deployment, open_deployment
from tests.support.figures import report_figure

pytestmark = [pytest.mark.system, pytest.mark.isolated]

NODES = 5
CLIENTS = 8
OFF = {"machine-0", "machine-1"}
RIGHT_WITHIN = 240.0


async def cut_power(house: Deployment) -> None:
    """What is left is what is on the disks: every guest is off, and no host says why."""
    await house.fleet.kill()
    await house.stack.controller.kill()
    postgres_server.cut_power(house.stack.controller_data / "postgresql")
    for file in (house.stack.folder / "nodes").glob("*/simulated.json"):
        state = json.loads(file.read_text())
        for machine in state["machines"].values():
            machine |= {"state": "stopped", "cause": None, "started_at": None}
        file.write_text(json.dumps(state))


async def place_orders(house: Deployment, api: Api, names: list[str]) -> None:
    hand_out, orders = trio.open_memory_channel[str](len(names))
    with hand_out:
        for name in names:
            hand_out.send_nowait(name)

    async def place() -> None:
        async for name in orders:
            await house.order(api, name)

    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(place)


def run_on_hosts(house: Deployment) -> int:
    return sum(
        machine["state"] == "running" for host in house.hosts().values() for machine in host["machines"].values()
    )


async def test_every_machine_that_ran_runs_again_and_what_was_off_stays_off(extent: Extent) -> None:
    async with open_deployment(nodes=NODES, seed=95) as house, house.api() as api:
        names = [f"machine-{number}" for number in range(extent.machines)]
        await place_orders(house, api, names)
        by_name = {vm["name"]: vm["id"] for vm in await house.settled(api, RIGHT_WITHIN)}
        for name in OFF:
            await api.call("POST", f"/vms/{by_name[name]}/force-stop", {"confirm": name})
        before = await house.check_truth(api, RIGHT_WITHIN)

        await cut_power(house)
        off = run_on_hosts(house)
        began = trio.current_time()
        house.fleet.start()
        await house.restart_controller()
        served = trio.current_time() - began
        with trio.fail_after(RIGHT_WITHIN):
            while run_on_hosts(house) < extent.machines - len(OFF):
                await trio.sleep(POLL)
        run = trio.current_time() - began
        after = await house.check_truth(api, RIGHT_WITHIN)
        right = trio.current_time() - began
        report_figure(
            f"power cut of everything, {extent.machines} machines on {NODES} nodes: served after {served:.1f} s, "
            f"all run after {run:.1f} s, records agree after {right:.1f} s"
        )

    assert off == 0
    assert {name for name, status in before.items() if status == "stopped"} == OFF
    assert after == before
