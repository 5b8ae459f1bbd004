"""A machine that runs moves with a restart: off while its disks are sent, and running at the end, wherever it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.reconcile.power_watch import PowerWatch
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import DomainState, FailureCode, NodeOperation, OperationResult
from tests.controller.machines.test_moves import Move
from tests.support.machine_service import make_node
from tests.support.machines import refusal, stage


@asynccontextmanager
async def a_running_machine(database: Database) -> AsyncIterator[Move]:
    """On alpha."""
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        beta = await make_node(database, now.world.location_id, "beta")
        yield Move(now, vm_id, now.world.node_id, beta)


async def runs(move: Move) -> None:
    """It does, once what is left of the move is removed and what shall run is started; nothing is under way."""
    await move.settled()
    await move.now.powered()
    assert await move.now.service.status(move.vm_id) == "running"


def asked(move: Move) -> list[tuple[str, UUID]]:
    """What changes something, since the machine was made."""
    gateway = move.now.service.gateway
    changes = ("vm.shutdown", "vm.send", "vm.migrate", "vm.start", "vm.delete")
    return [(each.op, node) for node, each in zip(gateway.asked_of, gateway.asked, strict=True) if each.op in changes]


async def refuse(*_: Any) -> OperationResult:
    raise OperationFailed(FailureCode.HOST, "The disk broke.", None)


async def test_it_is_shut_down_moved_and_started_there(database: Database) -> None:
    async with a_running_machine(database) as move:
        without = await refusal(move.now.administrator, "vm.migrate", id=move.vm_id, node_id=move.beta)
        assert (without.code, "With `restart`" in (without.hint or "")) == (ErrorCode.CONFLICT, True)

        task = await move.order(restart=True)
        assert (await move.now.customer("vm.show", id=move.vm_id)).status == "rebooting"
        assert (await move.now.service.ended(task.id)).status == "succeeded"
        await runs(move)

        assert await move.where() == (move.beta, None, None)
        steps = asked(move)
        assert steps[0] == ("vm.shutdown", move.alpha)
        assert set(steps[1:3]) == {("vm.send", move.alpha), ("vm.migrate", move.beta)}
        assert steps[3:] == [("vm.delete", move.alpha), ("vm.start", move.beta)]
        assert (await move.now.service.vm(move.vm_id))["restart_failures"] == 0
        assert await database.fetchval("SELECT count(*) FROM alerts") == 0


async def test_the_image_is_there_before_it_is_shut_down(database: Database) -> None:
    async with a_running_machine(database) as move:
        move.now.service.gateway.answers["image.pull"] = refuse

        assert (await move.ended(restart=True)).status == "failed"

        await move.settled()
        assert "vm.shutdown" not in [op for op, _ in asked(move)]
        assert (await move.now.customer("vm.show", id=move.vm_id)).status == "running"


async def test_a_guest_that_does_not_shut_down_runs_on_where_it_is(database: Database) -> None:
    async def ignore(gateway: Any, node_id: UUID, _: object, operation: NodeOperation) -> OperationResult:
        raise OperationFailed(FailureCode.TIMED_OUT, "The guest did not shut down within 90 s.", None)

    async with a_running_machine(database) as move:
        move.now.service.gateway.answers["vm.shutdown"] = ignore

        ended = await move.ended(restart=True)

        assert (ended.status, ended.error_message) == ("failed", "The guest did not shut down within 90 s.")
        await move.settled()
        assert await move.where() == (move.alpha, None, None)
        assert (await move.now.customer("vm.show", id=move.vm_id)).status == "running"
        assert "vm.start" not in [op for op, _ in asked(move)]


@pytest.mark.parametrize("maintenance", [False, True])
@pytest.mark.parametrize("step", ["vm.send", "vm.migrate"])
async def test_a_move_that_fails_has_it_running_again_where_it_is(
    database: Database, step: str, maintenance: bool
) -> None:
    async with a_running_machine(database) as move:
        await database.execute("UPDATE vms SET restart_policy = 'never'")
        await database.execute("UPDATE nodes SET maintenance = $2 WHERE id = $1", move.alpha, maintenance)
        move.now.service.gateway.answers[step] = refuse

        ended = await move.ended(restart=True)
        await runs(move)

        assert (ended.status, ended.error_message) == ("failed", "The disk broke.")
        assert (await move.where())[0] == move.alpha
        assert ("vm.start", move.alpha) in asked(move)
        assert await database.fetchval("SELECT count(*) FROM alerts") == 0


async def test_one_that_is_cancelled_has_it_running_again_where_it_is(database: Database) -> None:
    async def slow(gateway: Any, _: UUID, operation_id: Any, __: NodeOperation) -> OperationResult:
        await gateway.until_cancelled(operation_id)
        raise AssertionError

    async with a_running_machine(database) as move:
        move.now.service.gateway.answers |= {"vm.send": slow, "vm.migrate": slow}
        task = await move.order(restart=True)
        await move.now.service.until_asked("vm.send")

        await move.now.administrator("task.cancel", id=task.id)

        assert (await move.now.service.ended(task.id)).status == "cancelled"
        await runs(move)
        assert (await move.where())[0] == move.alpha


async def test_in_maintenance_nothing_else_is_started_by_itself(database: Database) -> None:
    """A machine that goes off on a node in maintenance stays off, also where it had moved before."""
    async with a_running_machine(database) as move:
        assert (await move.ended(restart=True)).status == "succeeded"
        await runs(move)
        await database.execute("UPDATE nodes SET maintenance = true WHERE id = $1", move.beta)
        gateway = move.now.service.gateway
        gateway.domains[move.vm_id] = DomainState.CRASHED
        machine = move.now.service.machine(move.vm_id)
        await machine.ask(Machine.observed, move.beta, DomainState.CRASHED, "its QEMU ended unexpectedly")
        starts = len(asked(move))

        await PowerWatch(database, move.now.service.actors).look()

        assert (await move.now.service.vm(move.vm_id))["status"] == "stopped"
        assert len(asked(move)) == starts
