"""A machine is given another processor: who may, what its host is told, and what the record says until it has it."""

from __future__ import annotations

from typing import Any

import pytest

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.machine import Machine
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import CpuMode, DomainState, FailureCode, OperationResult, VmCpuSet
from tests.support.machines import MachineHarness, refusal, stage


def told(now: MachineHarness) -> list[VmCpuSet]:
    return [each for each in now.service.gateway.asked if isinstance(each, VmCpuSet)]


async def processor(now: MachineHarness, vm_id: Any) -> tuple[str, str | None]:
    """What the guest has, and what waits."""
    cpu = (await now.customer("vm.show", id=vm_id)).facts.cpu
    return cpu.mode, cpu.next_mode


async def change(now: MachineHarness, vm_id: Any, mode: str, **values: object) -> Any:
    task = await now.administrator("vm.cpu", id=vm_id, cpu_mode=mode, **values)
    return await now.service.ended(task.id)


async def test_only_administrators_change_it(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id

        refused = [
            (await refusal(api, "vm.cpu", id=vm_id, cpu_mode="maximum")).code
            for api in (now.customer, now.stranger, now.staff)
        ]

        assert refused == [ErrorCode.FORBIDDEN] * 3
        assert told(now) == []


@pytest.mark.parametrize("start", ["start", "reboot"])
async def test_a_guest_that_runs_has_it_once_it_was_stopped_and_started(database: Database, start: str) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id

        ended = await change(now, vm_id, "host-passthrough")
        waiting = await processor(now, vm_id)
        await now.service.ended((await now.customer("vm.reset", id=vm_id, confirm="web")).id)
        after_reset = await processor(now, vm_id)
        if start == "start":
            await now.service.ended((await now.customer("vm.shutdown", id=vm_id)).id)
        await now.service.ended((await now.customer(f"vm.{start}", id=vm_id)).id)

        assert (ended.op, ended.status) == ("vm.cpu.set", "succeeded")
        assert [(each.cpu_mode, each.before, each.restart) for each in told(now)] == [
            (CpuMode.HOST_PASSTHROUGH, CpuMode.DEFAULT, False)
        ]
        assert waiting == after_reset == ("default", "host-passthrough")
        assert await processor(now, vm_id) == ("host-passthrough", None)


async def test_one_that_goes_off_by_itself_has_it_when_it_is_started_again(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        await change(now, vm_id, "maximum")

        off = (now.world.node_id, DomainState.STOPPED, "the guest shut down")
        await now.service.machine(vm_id).ask(Machine.observed, *off)

        assert await processor(now, vm_id) == ("maximum", None)


async def test_with_restart_the_guest_has_it_at_once(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        await change(now, vm_id, "maximum")

        changed = now.service.gateway.hold("vm.cpu.set")
        task = await now.administrator("vm.cpu", id=vm_id, cpu_mode="maximum", restart=True)
        under_way = (await now.customer("vm.show", id=vm_id)).status
        changed.set()
        await now.service.ended(task.id)

        assert (under_way, told(now)[-1].restart) == ("rebooting", True)
        assert await processor(now, vm_id) == ("maximum", None)
        assert (await now.customer("vm.show", id=vm_id)).status == "running"


async def test_a_machine_that_is_off_has_it_at_once_and_stays_off(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        await now.service.ended((await now.customer("vm.shutdown", id=vm_id)).id)

        await change(now, vm_id, "baseline", restart=True)

        assert told(now)[-1].restart is False
        assert await processor(now, vm_id) == ("baseline", None)
        assert (await now.customer("vm.show", id=vm_id)).status == "stopped"


async def test_a_guest_that_does_not_shut_down_runs_on_unchanged(database: Database) -> None:
    async def fail(*_: Any) -> OperationResult:
        raise OperationFailed(FailureCode.TIMED_OUT, "The guest did not shut down within 180 s.", None)

    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        now.service.gateway.answers["vm.cpu.set"] = fail

        ended = await change(now, vm_id, "maximum", restart=True)

        vm = await now.customer("vm.show", id=vm_id)
        assert (ended.status, vm.status, vm.desired_power) == ("failed", "running", "running")
        assert await processor(now, vm_id) == ("default", None)


async def test_what_waits_is_taken_back_and_what_is_there_is_refused(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        await change(now, vm_id, "maximum")

        waits = await refusal(now.administrator, "vm.cpu", id=vm_id, cpu_mode="maximum")
        await change(now, vm_id, "default")
        there = await refusal(now.administrator, "vm.cpu", id=vm_id, cpu_mode="default", restart=True)

        assert (waits.code, there.code) == (ErrorCode.INVALID, ErrorCode.INVALID)
        assert await processor(now, vm_id) == ("default", None)


async def test_the_same_key_restarts_once_also_when_its_answer_was_lost(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        order = {"id": vm_id, "cpu_mode": "maximum", "restart": True, "idempotency_key": "again"}

        first = await now.administrator("vm.cpu", **order)
        await now.service.ended(first.id)
        second = await now.administrator("vm.cpu", **order)
        await database.execute("DELETE FROM idempotency_keys")
        third = await now.administrator("vm.cpu", **order)
        other = await refusal(now.administrator, "vm.cpu", **order | {"cpu_mode": "baseline"})

        assert first.id == second.id == third.id
        assert (len(told(now)), other.code) == (1, ErrorCode.CONFLICT)
