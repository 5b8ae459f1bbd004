"""The agent killed between two calls of this host's libvirt, and the controller with it: five real machines."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from svc.cli.client import Client
from svc.cli.failures import Exit, Failure
from tests.support import host
from tests.support.deployment import ENDED, seeded
from tests.support.stack import Program, Stack, open_stack

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

POINTS = ("create.record", "create.disks", "create.network", "create.defined", "create.started")
"""Points that nothing but a creation passes: an agent that is told to die at another may meet it in an order of the
controller's own, such as the correction of a network, before the creation is given."""
CONVERGED_WITHIN = 120.0


async def order(client: Client, image_id: str, name: str, *, start: bool) -> dict[str, Any]:
    [project] = (await client.call("GET", "/projects"))["items"]
    body = {
        "name": name,
        "image_id": image_id,
        "project_id": project["id"],
        "vcpus": 1,
        "memory_mib": 128,
        "disk_gib": 1,
        "access_mode": "root_password",
        "password": True,
        "start": start,
        "idempotency_key": name,
    }
    with trio.fail_after(CONVERGED_WITHIN):
        while True:
            try:
                return dict(await client.call("POST", "/vms", body=body))
            except Failure as failure:
                # The controller has only just noticed that the agent was killed, or comes back itself.
                if failure.exit_code != Exit.UNAVAILABLE:
                    raise
                await trio.sleep(0.1)


async def converged(client: Client, machines: int) -> list[dict[str, Any]]:
    """The machines, once no task is open; bounded."""
    with trio.fail_after(CONVERGED_WITHIN):
        while True:
            try:
                tasks = (await client.call("GET", "/tasks", query={"page_size": 200}))["items"]
                if all(task["status"] in ENDED for task in tasks):
                    shown = (await client.call("GET", "/vms"))["items"]
                    if len(shown) == machines and all(vm["status"] != "unknown" for vm in shown):
                        return list(shown)
            except Failure:
                pass  # The controller is on its way back.
            await trio.sleep(0.1)


async def kill_and_return(stack: Stack, agent: Program, choice: random.Random) -> None:
    """The agent dies at its fault point; the controller, sometimes, a moment later. Both come back."""
    await agent.ended(60)
    if choice.random() < 0.5:
        await stack.controller.kill()
        await stack.start_controller()
    agent.start()


async def test_creations_cut_off_anywhere_leave_each_machine_once_and_nothing_else() -> None:
    choice = seeded(121)
    async with open_stack() as stack, stack.node("alpha") as agent:
        await stack.own_network()
        image = await stack.import_demo_image()
        async with stack.client() as client:
            [node] = (await client.call("GET", "/nodes"))["items"]
            await stack.task(
                client, await client.call("POST", f"/images/{image['id']}/pull", body={"node_id": node["id"]})
            )
            for number, point in enumerate(POINTS):
                await agent.kill()
                agent.start(SVC_FAULT_POINT=point)
                await stack.node_online("alpha")
                created = await order(client, image["id"], f"m-{number}", start=point == "create.started")
                await kill_and_return(stack, agent, choice)
                machines = await converged(client, number + 1)
                again = await order(client, image["id"], f"m-{number}", start=point == "create.started")
                assert again["vm"]["id"] == created["vm"]["id"]
                assert again["task"]["id"] == created["task"]["id"]
                log = await client.call("GET", f"/tasks/{created['task']['id']}/events")
                assert [line["message"] for line in log].count("Done.") <= 1
                assert host.domains(stack.prefix) == {vm["id"] for vm in machines if vm["status"] != "failed"}
                assert all(vm["status"] != "failed" or vm["status_reason"] for vm in machines)
            addresses = [vm["primary_ip"] for vm in machines]
            for vm in machines:
                gone = {"confirm": vm["name"], "destroy_disks": True}
                await stack.task(client, await client.call("DELETE", f"/vms/{vm['id']}", body=gone))
            for pool in (await client.call("GET", "/pools"))["items"]:
                assert pool["allocated_count"] + pool["releasing_count"] == 0
        assert host.domains(stack.prefix) == set()
        assert host.taps(stack.prefix) == set()
        rules = host.ruleset()
        assert not [address for address in addresses if address and (address in rules or host.routes_to(address))]
        assert not [vm["id"] for vm in machines if host.machine_files(stack.folder / "alpha", vm["id"])]
