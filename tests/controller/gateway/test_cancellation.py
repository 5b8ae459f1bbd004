"""A cancellation reaches its node, whatever became of the asking: no connection, no database, no waiting."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import pytest
import trio
import trio.testing

from svc_actors.controller.gateway.gateway import NodeUnavailable, OperationFailed
from svc_actors.controller.gateway.operations import NodeOperations
from svc_nodeagent.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    DownFrame,
    Failed,
    FailureCode,
    Hello,
    OperationId,
    Request,
    Result,
    VmReset,
)

ID = OperationId("t:host")
RESET = VmReset(vm_id=uuid4())


class Node:
    """What one node was sent, over all of its connections."""

    def __init__(self) -> None:
        self.operations = NodeOperations()
        self.sent: list[DownFrame] = []

    def connect(self, *, keeps: Sequence[OperationId] = (), boot_id: str = "one") -> None:
        self.operations.attach(
            self.sent.append,
            Hello(protocol=PROTOCOL_VERSION, agent_version="1", boot_id=boot_id, unacknowledged=tuple(keeps)),
        )

    def disconnect(self) -> None:
        self.operations.detach(self.sent.append)

    async def ask_in_vain(self) -> None:
        with pytest.raises(NodeUnavailable):
            await self.operations.perform(ID, RESET, timeout=1, on_progress=None)

    async def ask_for_nothing(self) -> None:
        with pytest.raises(OperationFailed) as outcome:
            await self.operations.perform(ID, RESET, timeout=10, on_progress=None)
        assert outcome.value.code is FailureCode.CANCELLED

    @property
    def cancelled(self) -> bool:
        return Cancel(id=ID) in self.sent


async def test_what_is_not_awaited_any_longer_is_cancelled_on_the_same_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    node.connect()
    await node.ask_in_vain()
    node.operations.cancel(ID)
    assert node.cancelled


async def test_a_cancellation_waits_for_a_node_that_is_away_although_the_task_has_ended(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    node.connect()
    node.disconnect()
    await node.ask_in_vain()
    node.operations.cancel(ID)
    node.operations.acknowledge(ID)
    node.connect(keeps=[ID])
    assert node.cancelled


@pytest.mark.parametrize("connected_first", [True, False])
async def test_what_was_cancelled_is_not_sent_when_it_is_asked_for_afterwards(
    autojump_clock: trio.testing.MockClock, connected_first: bool
) -> None:
    node = Node()
    if connected_first:
        node.connect()
    node.operations.cancel(ID)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.ask_for_nothing)
        await trio.testing.wait_all_tasks_blocked()
        if not connected_first:
            node.connect()
    assert not any(isinstance(frame, Request) for frame in node.sent)


async def test_what_a_node_keeps_is_cancelled_there_and_its_word_awaited(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    node.connect(keeps=[ID])
    node.operations.cancel(ID)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.ask_for_nothing)
        await trio.testing.wait_all_tasks_blocked()
        assert node.cancelled
        node.operations.ended(Result(id=ID, outcome=Failed(code=FailureCode.CANCELLED, message="given up")))
    assert not any(isinstance(frame, Request) for frame in node.sent)
