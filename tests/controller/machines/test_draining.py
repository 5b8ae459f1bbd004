"""A node in maintenance is drained: who may, what moves where, what stays and why, and after a restart of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
import trio

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines import draining
from svc_actors.controller.reconcile.remains_watch import RemainsWatch
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import FailureCode, NodeOperation, OperationResult
from tests.support.machine_service import FakeGateway, make_node, open_service
from tests.support.machines import MachineHarness, refusal, stage


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a machine has moved, and whether the node has let go of it."""
    monkeypatch.setattr(draining, "_LOOK_SECONDS", 0.01)


@dataclass
class Drain:
    """Alpha, in maintenance, with machines; others are made by the tests."""

    now: MachineHarness
    alpha: UUID

    async def machines(self, count: int, *, running: bool = False) -> list[UUID]:
        made = []
        for number in range(count):
            made.append((await self.now.created(name=f"m-{number}")).vm.id)
            if not running:
                await self.now.service.ended((await self.now.customer("vm.shutdown", id=made[-1])).id)
        return made

    async def maintenance(self, is_on: bool = True) -> None:
        await self.now.service.database.execute("UPDATE nodes SET maintenance = $2 WHERE id = $1", self.alpha, is_on)

    async def ordered(self, **values: object) -> Any:
        return await self.now.administrator("node.drain", id=self.alpha, **values)

    async def ended(self, **values: object) -> Any:
        return await self.now.service.ended((await self.ordered(**values)).id)

    async def where(self) -> dict[UUID, UUID]:
        rows = await self.now.service.database.fetch("SELECT id, node_id FROM vms WHERE deleted_at IS NULL")
        return {row["id"]: row["node_id"] for row in rows}


@asynccontextmanager
async def a_drain(database: Database) -> AsyncIterator[Drain]:
    async with stage(database) as now, trio.open_nursery() as nursery:
        await nursery.start(RemainsWatch(database, now.service.gateway, interval=0.02).run)
        yield Drain(now, now.world.node_id)
        nursery.cancel_scope.cancel()


async def test_every_machine_moves_to_the_emptiest_node_that_can_take_it(database: Database) -> None:
    async with a_drain(database) as drain:
        machines = await drain.machines(4)
        beta = await make_node(database, drain.now.world.location_id, "beta")
        gamma = await make_node(database, drain.now.world.location_id, "gamma", cpus=0)
        await drain.maintenance()

        ended = await drain.ended()

        assert (ended.op, ended.status, ended.resource_name) == ("node.drain", "succeeded", "alpha")
        assert await drain.where() == dict.fromkeys(machines, beta)
        assert gamma not in set((await drain.where()).values())
        lines = [line["message"] for line in await database.fetch("SELECT message FROM task_events")]
        assert [line for line in lines if line.endswith(" has moved; 0 to go.")], lines
        [row] = await database.fetch(
            "SELECT details FROM audit WHERE operation = 'node.drain' AND target_kind = 'node'"
        )
        assert (row["details"]["restart"], row["details"]["machines"]) == (False, 4)


async def test_machines_that_run_stay_unless_they_may_be_restarted(database: Database) -> None:
    async with a_drain(database) as drain:
        machines = await drain.machines(2, running=True)
        beta = await make_node(database, drain.now.world.location_id, "beta")
        await drain.maintenance()

        stayed = await drain.ended()
        assert (stayed.status, stayed.error_code) == ("failed", "conflict")
        assert "2 machines stay on node alpha: m-0 (it runs" in stayed.error_message
        assert await drain.where() == dict.fromkeys(machines, drain.alpha)

        assert (await drain.ended(restart=True)).status == "succeeded"
        assert await drain.where() == dict.fromkeys(machines, beta)
        await drain.now.powered()
        assert [await drain.now.service.status(vm_id) for vm_id in machines] == ["running"] * 2


async def test_what_no_node_can_take_or_whose_move_fails_stays_and_is_named(database: Database) -> None:
    broken: list[UUID] = []

    async def sends(gateway: FakeGateway, _: UUID, __: object, operation: NodeOperation) -> OperationResult:
        if operation.vm_id in broken:  # type: ignore[union-attr, operator]
            raise OperationFailed(FailureCode.HOST, "The disk broke.", None)
        return gateway.obey(operation)

    async with a_drain(database) as drain:
        large, breaks, fine = await drain.machines(3)
        broken.append(breaks)
        beta = await make_node(database, drain.now.world.location_id, "beta")
        drain.now.service.gateway.answers["vm.send"] = sends
        await database.execute("UPDATE vms SET vcpus = 1000 WHERE id = $1", large)
        await drain.maintenance()

        ended = await drain.ended()

        assert ended.status == "failed"
        assert ended.error_message.startswith("2 machines stay on node alpha: m-0 (beta: vcpus: 1000 wanted")
        assert ended.error_message.endswith("m-1 (its move has failed).")
        assert await drain.where() == {large: drain.alpha, breaks: drain.alpha, fine: beta}
        # Its move is not made again and again
        moves = await database.fetchval(
            "SELECT count(*) FROM tasks WHERE op = 'vm.migrate' AND resource_id = $1", breaks
        )
        assert moves == 1


async def test_a_machine_that_is_busy_gets_its_turn(database: Database) -> None:
    async def goes_on(gateway: FakeGateway, _: UUID, operation_id: Any, __: NodeOperation) -> OperationResult:
        await gateway.until_cancelled(operation_id)
        raise AssertionError

    async with a_drain(database) as drain:
        busy, idle = await drain.machines(2)
        beta = await make_node(database, drain.now.world.location_id, "beta")
        gateway = drain.now.service.gateway
        gateway.answers["vm.backup"] = goes_on
        backup = await drain.now.staff("vm.backup", id=busy)
        released = gateway.hold("vm.send")
        await drain.maintenance()
        task = await drain.ordered()
        await drain.now.service.until_asked("vm.send")
        await drain.now.staff("task.cancel", id=backup.id)
        await drain.now.service.ended(backup.id)
        released.set()

        assert (await drain.now.service.ended(task.id)).status == "succeeded"
        assert await drain.where() == {busy: beta, idle: beta}


async def test_a_drain_that_is_cancelled_begins_no_more_moves(database: Database) -> None:
    async with a_drain(database) as drain:
        await drain.machines(5)
        await make_node(database, drain.now.world.location_id, "beta")
        released = drain.now.service.gateway.hold("vm.send")
        await drain.maintenance()
        task = await drain.ordered()
        await drain.now.service.until_asked("vm.send", count=2)

        await drain.now.administrator("task.cancel", id=task.id)
        assert (await drain.now.service.ended(task.id)).status == "cancelled"
        released.set()

        for row in await database.fetch("SELECT id FROM tasks WHERE op = 'vm.migrate'"):
            assert (await drain.now.service.ended(row["id"])).status == "succeeded"
        assert list((await drain.where()).values()).count(drain.alpha) == 3


async def test_who_may_and_when(database: Database) -> None:
    async with a_drain(database) as drain:
        for api in (drain.now.staff, drain.now.customer):
            assert (await refusal(api, "node.drain", id=drain.alpha)).code is ErrorCode.FORBIDDEN
        placed_on = await refusal(drain.now.administrator, "node.drain", id=drain.alpha)
        assert (placed_on.code, "into maintenance first" in (placed_on.hint or "")) == (ErrorCode.CONFLICT, True)
        unknown = await refusal(drain.now.administrator, "node.drain", id=drain.now.world.image_id)
        assert unknown.code is ErrorCode.NOT_FOUND
        await drain.maintenance()

        # There is nothing to be moved
        assert (await drain.ended()).status == "succeeded"
        first = await drain.ordered(idempotency_key="drain-alpha")
        again = await drain.ordered(idempotency_key="drain-alpha")
        assert first.id == again.id


async def test_maintenance_that_ends_ends_it(database: Database) -> None:
    async with a_drain(database) as drain:
        await drain.machines(4)
        await make_node(database, drain.now.world.location_id, "beta")
        released = drain.now.service.gateway.hold("vm.send")
        await drain.maintenance()
        task = await drain.ordered()
        await drain.now.service.until_asked("vm.send", count=2)
        assert (await refusal(drain.now.administrator, "node.drain", id=drain.alpha)).code is ErrorCode.CONFLICT

        await drain.maintenance(False)
        released.set()

        ended = await drain.now.service.ended(task.id)
        assert (ended.status, "the node's maintenance has ended" in (ended.error_message or "")) == ("failed", True)
        assert list((await drain.where()).values()).count(drain.alpha) == 2


async def test_it_goes_on_after_a_restart_of_the_controller(database: Database) -> None:
    async with a_drain(database) as drain:
        machines = await drain.machines(3)
        beta = await make_node(database, drain.now.world.location_id, "beta")
        gateway = drain.now.service.gateway
        released = gateway.hold("vm.send")
        await drain.maintenance()
        task = await drain.ordered()
        await drain.now.service.until_asked("vm.send", count=2)

    released.set()
    async with open_service(database, gateway) as service, trio.open_nursery() as nursery:
        await nursery.start(RemainsWatch(database, gateway, interval=0.02).run)
        assert (await service.ended(task.id)).status == "succeeded"
        rows = await database.fetch("SELECT id, node_id FROM vms")
        assert {row["id"]: row["node_id"] for row in rows} == dict.fromkeys(machines, beta)
        moves = await database.fetchval("SELECT count(*) FROM tasks WHERE op = 'vm.migrate'")
        assert moves == 3
        nursery.cancel_scope.cancel()
