"""Networks between controller and nodes that are cut, half-open or flapping: ten nodes, seen through the API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from tests.faults.conftest import Extent
from tests.support.deployment import Api, Deployment, open_deployment
from tests.support.tcp_proxy import Proxy, proxy_to

pytestmark = [pytest.mark.system, pytest.mark.isolated]

NODES = 10
RECONVERGED_WITHIN = 30.0


@asynccontextmanager
async def house_behind_a_proxy(seed: int) -> AsyncIterator[tuple[Deployment, Proxy]]:
    """Every node reaches the gateway through one proxy."""
    async with trio.open_nursery() as nursery:
        proxies: list[Proxy] = []

        def through_the_proxy(house: Deployment) -> None:
            proxies[0].target = house.stack.gateway_port
            for file in (house.stack.folder / "nodes").glob("*/enrolment.json"):
                enrolment = json.loads(file.read_text())
                file.write_text(json.dumps(enrolment | {"gateway_port": proxies[0].port}))

        async with proxy_to(0, seed=seed) as proxy:
            proxies.append(proxy)
            async with open_deployment(nodes=NODES, seed=seed, delay=(0.0, 0.2), prepare=through_the_proxy) as house:
                yield house, proxy
        nursery.cancel_scope.cancel()


async def held(api: Api) -> int:
    """How many addresses are not free."""
    return sum(pool["allocated_count"] + pool["releasing_count"] for pool in await api.everything("/pools"))


async def shown(api: Api, state: str) -> None:
    with trio.fail_after(RECONVERGED_WITHIN):
        while {node["state"] for node in await api.everything("/nodes")} != {state}:
            await trio.sleep(0.1)


async def test_no_address_is_freed_while_the_nodes_cannot_be_heard() -> None:
    async with house_behind_a_proxy(61) as (house, proxy), house.api() as api:
        for number in range(NODES):
            await house.order(api, f"machine-{number}")
        machines = await house.settled(api, RECONVERGED_WITHIN)
        proxy.swallowing = True
        # The controller does not know yet: it takes the orders, and nobody carries them out.
        for vm in machines:
            await api.call("DELETE", f"/vms/{vm['id']}", {"confirm": vm["name"], "destroy_disks": True})
        await shown(api, "offline")
        assert await held(api) == NODES
        assert {vm["status"] for vm in await api.everything("/vms")} <= {"unknown", "deleting"}
        proxy.swallowing = False
        house.orders.clear()
        assert await house.check_truth(api, within=RECONVERGED_WITHIN) == {}
        assert await held(api) == 0
        assert all(not host["machines"] for host in house.hosts().values())


async def test_a_flapping_network_makes_no_machine_twice_and_loses_none(extent: Extent) -> None:
    async with house_behind_a_proxy(62) as (house, proxy), house.api() as api:
        proxy.cut_after = (2_000, 12_000)
        proxy.cut()
        async with trio.open_nursery() as nursery:
            for number in range(extent.flapping_machines):
                nursery.start_soon(house.order, api, f"machine-{number}")
            await trio.sleep(extent.flapping_seconds)
            proxy.cut_after = None
            proxy.cut()
        statuses = await house.check_truth(api, within=RECONVERGED_WITHIN)
        assert list(statuses.values()) == ["running"] * extent.flapping_machines
