"""Networks that fail: operations are executed once and answered, whatever is cut and when."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest
import trio

from svc_actors.store import Database
from svc_nodeagent.protocol import DomainResult, DomainState, OperationId, VmCreate
from svc_nodeagent.simulated import Behaviour
from tests.support.gateway import GatewayHarness, create, open_rig, until
from tests.support.tcp_proxy import proxy_to


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_connections_cut_at_random_frames_lose_no_operation_and_repeat_none(
    rig: GatewayHarness, seed: int
) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    orders = {OperationId(f"t{number}:create"): create() for number in range(200)}
    results: dict[OperationId, object] = {}
    nodes = [await rig.new_node() for _ in range(3)]
    placed = {operation_id: rng.choice(nodes) for operation_id in orders}
    async with proxy_to(rig.port, seed=seed) as proxy:
        # Past the handshake, and rarely past a dozen frames.
        proxy.cut_after = (4_000, 16_000)
        for node in nodes:
            node.dial_through(proxy.port)
            node.host.behaviour = Behaviour(seconds=(0.0, 0.01), seed=seed)

        async def order(operation_id: OperationId, operation: VmCreate) -> None:
            node_id = placed[operation_id].node_id
            results[operation_id] = await rig.gateway.perform(node_id, operation_id, operation, timeout=50)
            await rig.gateway.acknowledge(node_id, operation_id)

        async with nodes[0].running(), nodes[1].running(), nodes[2].running():
            async with trio.open_nursery() as nursery:
                for operation_id, operation in orders.items():
                    nursery.start_soon(order, operation_id, operation)
    assert proxy.accepted > 2 * len(nodes), "the schedule cut too little to say anything"
    for operation_id, operation in orders.items():
        assert results[operation_id] == DomainResult(vm_id=operation.machine.vm_id, state=DomainState.RUNNING)
    executed = Counter(
        each.machine.vm_id for node in nodes for each in node.host.performed if isinstance(each, VmCreate)
    )
    assert executed == Counter(operation.machine.vm_id for operation in orders.values())


async def test_agents_killed_at_random_end_with_one_machine_for_each_order(rig: GatewayHarness) -> None:
    rng = random.Random(7)
    node = await rig.new_node()
    node.host.behaviour = Behaviour(seconds=(0.0, 0.02), seed=7)
    orders = {OperationId(f"t{number}:create"): create() for number in range(50)}
    results: dict[OperationId, object] = {}

    async def order(operation_id: OperationId, operation: VmCreate) -> None:
        results[operation_id] = await rig.gateway.perform(node.node_id, operation_id, operation, timeout=50)

    async with trio.open_nursery() as nursery:
        for operation_id, operation in orders.items():
            nursery.start_soon(order, operation_id, operation)
        while len(results) < len(orders):
            async with node.running():
                with trio.move_on_after(rng.uniform(0.02, 0.1)):
                    await until(lambda: len(results) == len(orders))
    assert set(node.host.machines) == {operation.machine.vm_id for operation in orders.values()}
    assert set(results) == set(orders)


async def test_a_half_open_connection_is_noticed_by_both_sides_and_replaced(database: Database, tmp_path: Path) -> None:
    async with open_rig(database, tmp_path, heartbeat_seconds=0.5) as rig, proxy_to(rig.port) as proxy:
        node = await rig.new_node()
        node.dial_through(proxy.port)
        async with node.running() as agent:
            await rig.until_online(node.node_id)
            proxy.swallowing = True
            await until(lambda: not rig.gateway.is_online(node.node_id))
            await until(lambda: not agent.connected)
            proxy.swallowing = False
            await rig.until_online(node.node_id)
    assert rig.heard.disconnected[0] == node.node_id


async def test_a_flapping_node_does_not_disturb_another(rig: GatewayHarness) -> None:
    flapping, well = await rig.new_node(), await rig.new_node()
    async with proxy_to(rig.port) as proxy:
        flapping.dial_through(proxy.port)
        async with flapping.running(), well.running(), trio.open_nursery() as nursery:

            async def flap() -> None:
                while True:
                    proxy.cut()
                    await trio.sleep(0.02)

            await rig.until_online(flapping.node_id, well.node_id)
            nursery.start_soon(flap)
            for number in range(20):
                await rig.gateway.perform(well.node_id, OperationId(f"t{number}"), create(), timeout=20)
            assert well.node_id not in rig.heard.disconnected
            assert flapping.node_id in rig.heard.disconnected
            nursery.cancel_scope.cancel()


async def test_work_goes_on_while_disconnected_and_its_result_waits(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    node.host.behaviour = Behaviour(seconds=(0.5, 0.5))
    operation = create()
    async with proxy_to(rig.port) as proxy:
        node.dial_through(proxy.port)
        async with node.running() as agent, trio.open_nursery() as nursery:
            results: list[object] = []

            async def ask() -> None:
                results.append(await rig.gateway.perform(node.node_id, OperationId("t:create"), operation, timeout=50))

            nursery.start_soon(ask)
            await until(lambda: bool(agent._journal.started))
            proxy.swallowing = True
            proxy.cut()
            await until(lambda: bool(agent._journal.outcomes))
            assert not results
            proxy.swallowing = False
            proxy.cut()
            await until(lambda: bool(results))
    assert len(node.host.performed) == 1


async def test_a_controller_that_restarts_while_agents_work_hears_every_outcome(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    node.host.behaviour = Behaviour(seconds=(0.05, 0.1), seed=3)
    orders = {OperationId(f"t{number}:create"): create() for number in range(8)}
    async with node.running():
        for _ in range(4):
            with trio.move_on_after(0.15):
                async with trio.open_nursery() as nursery:
                    for operation_id, operation in orders.items():
                        nursery.start_soon(_perform, rig, node.node_id, operation_id, operation)
            await rig.stop_gateway()
            await rig.start_gateway()
        async with trio.open_nursery() as nursery:
            for operation_id, operation in orders.items():
                nursery.start_soon(_perform, rig, node.node_id, operation_id, operation)
    executed = Counter(each.machine.vm_id for each in node.host.performed if isinstance(each, VmCreate))
    assert executed == Counter(operation.machine.vm_id for operation in orders.values())


async def _perform(rig: GatewayHarness, node_id: UUID, operation_id: OperationId, operation: VmCreate) -> None:
    await rig.gateway.perform(node_id, operation_id, operation, timeout=30)
