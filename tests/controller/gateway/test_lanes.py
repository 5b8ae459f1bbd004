"""What is asked of one node at a time: much that waits keeps nothing that is urgent from being sent."""

from __future__ import annotations

from uuid import uuid4

import pytest
import trio
import trio.testing

from svc_actors.controller.gateway.operations import NodeOperations
from svc_nodeagent.protocol import (
    PROTOCOL_VERSION,
    DownFrame,
    Hello,
    NodeOperation,
    OperationId,
    Request,
    VmForceStop,
    VmReboot,
    VmSetPassword,
    VmShutdown,
    VmStart,
)
from tests.support.gateway import create


@pytest.mark.parametrize(
    "waiting",
    [
        create(),
        VmShutdown(vm_id=uuid4()),
        VmReboot(vm_id=uuid4()),
        VmSetPassword(vm_id=uuid4(), account="root", password_hash="$6$"),
    ],
    ids=lambda operation: operation.op,
)
@pytest.mark.parametrize(
    "urgent",
    [VmForceStop(vm_id=uuid4()), VmStart(vm_id=uuid4(), network=create().machine.network)],
    ids=lambda operation: operation.op,
)
async def test_guests_that_take_their_time_hold_up_no_order_for_another_machine(
    autojump_clock: trio.testing.MockClock, waiting: NodeOperation, urgent: NodeOperation
) -> None:
    operations, sent = NodeOperations(), list[DownFrame]()
    operations.attach(sent.append, Hello(protocol=PROTOCOL_VERSION, agent_version="1", boot_id="one"))

    async def ask(name: str, operation: NodeOperation) -> None:
        await operations.perform(OperationId(name), operation, timeout=60, on_progress=None)

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(ask, f"{number}", waiting)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, "urgent", urgent)
        await trio.testing.wait_all_tasks_blocked()
        assert any(isinstance(frame, Request) and frame.id == "urgent" for frame in sent)
        nursery.cancel_scope.cancel()
