"""Many agents at once: they come back after the controller does, and are asked what they have."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from uuid import UUID

import pytest
import trio

from svc_nodeagent.agent import Patience
from svc_nodeagent.protocol import OperationId
from tests.support.gateway import GatewayHarness, create
from tests.support.tcp_proxy import Proxy, proxy_to

AGENTS = 20
FULL_AGENTS = 50
"""With --full."""


async def test_every_agent_comes_back_after_the_controller_was_restarted(
    rig: GatewayHarness, pytestconfig: pytest.Config
) -> None:
    agents_at_once = FULL_AGENTS if pytestconfig.getoption("--full") else AGENTS
    nodes = [await rig.new_node() for _ in range(agents_at_once)]
    ids = [node.node_id for node in nodes]
    patience = Patience(first_pause=0.05, longest_pause=1.0)
    async with AsyncExitStack() as agents:
        for node in nodes:
            await agents.enter_async_context(node.running(patience))
        await rig.until_online(*ids)
        for _ in range(2):
            await rig.stop_gateway()
            await rig.start_gateway()
            await rig.until_online(*ids)
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(_create_on, rig, node.node_id)
    assert all(len(node.host.machines) == 1 for node in nodes)


async def test_ten_nodes_on_a_network_that_is_cut_half_open_and_flapping_lose_nothing(rig: GatewayHarness) -> None:
    rng = random.Random(4)
    nodes = [await rig.new_node() for _ in range(10)]
    async with AsyncExitStack() as stack:
        proxies: list[Proxy] = []
        for node in nodes:
            proxies.append(await stack.enter_async_context(proxy_to(rig.port)))
            node.dial_through(proxies[-1].port)
            await stack.enter_async_context(node.running())
        await rig.until_online(*(node.node_id for node in nodes))
        async with trio.open_nursery() as orders:
            for node in nodes:
                for number in range(5):
                    orders.start_soon(_create_on, rig, node.node_id, number)
            for _ in range(100):
                proxy = rng.choice(proxies)
                proxy.swallowing = rng.random() < 0.3
                if not proxy.swallowing:
                    proxy.cut()
                await trio.sleep(0.02)
            for proxy in proxies:
                proxy.swallowing = False
                proxy.cut()
        await rig.until_online(*(node.node_id for node in nodes))
    assert all(len(node.host.performed) == len(node.host.machines) == 5 for node in nodes)


async def _create_on(rig: GatewayHarness, node_id: UUID, number: int = 0) -> None:
    await rig.gateway.perform(node_id, OperationId(f"{node_id}:{number}"), create(), timeout=40)
