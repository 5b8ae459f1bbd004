"""Operations over a real connection: done once, answered in any case, bounded."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

import pytest
import trio

from svc_actors.controller.gateway.gateway import NodeUnavailable, OperationFailed
from svc_nodeagent.protocol import (
    DomainResult,
    DomainState,
    FailureCode,
    OperationId,
    Progress,
    VmForceStop,
    VmStart,
)
from svc_nodeagent.simulated import Behaviour
from tests.support.gateway import GatewayHarness, create, until


async def test_a_machine_is_created_on_a_node(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    operation = create()
    lines: list[Progress] = []

    async def note(progress: Progress) -> None:
        lines.append(progress)

    async with node.running():
        result = await rig.gateway.perform(
            node.node_id, OperationId("t:create"), operation, timeout=20, on_progress=note
        )
    assert result == DomainResult(vm_id=operation.machine.vm_id, state=DomainState.RUNNING)
    assert node.host.networks.networks[operation.machine.vm_id].carried == ("10.0.0.5",)
    assert lines
    assert {line.id for line in lines} == {"t:create"}


async def test_an_operation_asked_for_twice_is_done_once(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    operation = create()
    results: list[object] = []

    async def ask() -> None:
        results.append(await rig.gateway.perform(node.node_id, OperationId("t:create"), operation, timeout=20))

    async with node.running():
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        await ask()
    assert len(results) == 6
    assert all(result == results[0] for result in results)
    assert len(node.host.performed) == 1


async def test_an_operation_waits_for_an_offline_node_and_is_done_when_it_returns(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    operation = create()
    async with trio.open_nursery() as nursery:
        done = trio.Event()

        async def ask() -> None:
            await rig.gateway.perform(node.node_id, OperationId("t:create"), operation, timeout=20)
            done.set()

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert not done.is_set()
        async with node.running():
            await done.wait()


async def test_a_node_that_stays_away_is_unavailable_once_the_time_has_passed(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    with pytest.raises(NodeUnavailable) as refusal:
        await rig.gateway.perform(node.node_id, OperationId("t:create"), create(), timeout=0.05)
    assert "is unknown" in (refusal.value.hint or "")


async def test_the_hosts_refusal_reaches_the_caller_with_its_code(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    async with node.running():
        with pytest.raises(OperationFailed) as failure:
            await rig.gateway.perform(node.node_id, OperationId("t:stop"), VmForceStop(vm_id=uuid4()), timeout=20)
    assert failure.value.code is FailureCode.NOT_FOUND


async def test_a_restarted_controller_gets_the_outcome_of_what_it_had_asked_for(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    node.host.behaviour = Behaviour(seconds=(0.2, 0.2))
    operation = create()
    ask = partial(rig.gateway.perform, node.node_id, OperationId("t:create"), operation, timeout=20)
    async with node.running() as agent:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await until(lambda: bool(agent._journal.started))
            nursery.cancel_scope.cancel()
        await rig.stop_gateway()
        await until(lambda: len(node.host.performed) == 1)
        await rig.start_gateway()
        result = await rig.gateway.perform(node.node_id, OperationId("t:create"), operation, timeout=20)
    assert result == DomainResult(vm_id=operation.machine.vm_id, state=DomainState.RUNNING)
    assert len(node.host.performed) == 1


async def test_an_agent_killed_in_the_middle_of_an_operation_ends_with_one_machine_and_its_result(
    rig: GatewayHarness,
) -> None:
    node = await rig.new_node()
    node.host.behaviour = Behaviour(seconds=(30, 30))
    operation = create()
    results: list[object] = []

    async def ask() -> None:
        results.append(await rig.gateway.perform(node.node_id, OperationId("t:create"), operation, timeout=30))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        async with node.running():
            await until(lambda: (node.folder.path / "journal").stat().st_size > 0)
        assert not results
        node.host.behaviour = Behaviour()
        async with node.running():
            await until(lambda: bool(results))
    assert list(node.host.machines) == [operation.machine.vm_id]


async def test_an_acknowledged_outcome_is_forgotten_by_the_journal(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    async with node.running() as agent:
        await rig.gateway.perform(node.node_id, OperationId("t:create"), create(), timeout=20)
        assert agent._journal.outcomes
        await rig.gateway.acknowledge(node.node_id, OperationId("t:create"))
        await until(lambda: not agent._journal.outcomes)


async def test_a_cancelled_operation_ends_as_cancelled(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    node.host.behaviour = Behaviour(seconds=(60, 60))
    failures: list[OperationFailed] = []

    async def ask() -> None:
        try:
            await rig.gateway.perform(node.node_id, OperationId("t:create"), create(), timeout=60)
        except OperationFailed as failure:
            failures.append(failure)

    async with node.running(), trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await until(lambda: (node.folder.path / "journal").stat().st_size > 0)
        await rig.gateway.cancel(node.node_id, OperationId("t:create"))
    assert [failure.code for failure in failures] == [FailureCode.CANCELLED]
    assert not node.host.machines


async def test_a_hung_operation_holds_up_neither_its_node_nor_another(rig: GatewayHarness) -> None:
    hung, well = await rig.new_node(), await rig.new_node()
    async with hung.running(), well.running():
        await rig.until_online(hung.node_id, well.node_id)
        there = create()
        await rig.gateway.perform(hung.node_id, OperationId("t:first"), there, timeout=20)
        hung.host.behaviour = Behaviour(seconds=(3600, 3600))
        async with trio.open_nursery() as nursery:
            for number in range(50):

                async def hang(number: int = number) -> None:
                    await rig.gateway.perform(hung.node_id, OperationId(f"t:hung-{number}"), create(), timeout=3600)

                nursery.start_soon(hang)
            await until(lambda: len(hung.folder.journal.read_bytes().splitlines()) > 8)
            hung.host.behaviour = Behaviour()
            stop = VmForceStop(vm_id=there.machine.vm_id)
            await rig.gateway.perform(hung.node_id, OperationId("t:stop"), stop, timeout=20)
            await rig.gateway.perform(well.node_id, OperationId("t:create"), create(), timeout=20)
            nursery.cancel_scope.cancel()
    assert hung.host.machines[there.machine.vm_id].state is DomainState.STOPPED


async def test_a_node_cannot_answer_for_a_machine_it_was_not_asked_about(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    asked, other = create(), create()
    async with node.running():
        await rig.gateway.perform(node.node_id, OperationId("t:1"), other, timeout=20)

        async def lie(*_: object) -> DomainResult:
            await trio.lowlevel.checkpoint()
            return DomainResult(vm_id=other.machine.vm_id, state=DomainState.RUNNING)

        node.host.perform = lie  # type: ignore[method-assign,assignment]
        start = VmStart(vm_id=asked.machine.vm_id, network=asked.machine.network)
        with pytest.raises(OperationFailed, match="answered for"):
            await rig.gateway.perform(node.node_id, OperationId("t:2"), start, timeout=20)
    assert [who for who, _ in rig.heard.unauthorised] == [node.node_id]
