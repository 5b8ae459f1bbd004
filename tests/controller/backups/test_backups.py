"""Backups by a plan: what is asked of a machine's node, what is kept, who sees it, and what is refused."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import trio

from svc_actors.controller.backups import watch
from svc_actors.controller.backups.schedule import BackupSchedule
from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.traffic.periods import utc_now
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import (
    BackupResult,
    CopiedDisk,
    DomainResult,
    DomainState,
    FailureCode,
    NodeOperation,
    OperationResult,
    VmBackup,
    VmRestore,
)
from tests.support.machine_service import FakeGateway, open_service
from tests.support.machines import MachineHarness, refusal, stage

DISK = CopiedDisk(index=0, size_bytes=2**30, digest="c" * 64)
STATE = "d" * 64
DAILY = {"backup_schedule": "daily", "backup_hour": 3, "backup_keep": 2}


async def copy_made(gateway: Any, node_id: UUID, operation_id: str, operation: NodeOperation) -> OperationResult:
    assert isinstance(operation, VmBackup)
    return BackupResult(
        vm_id=operation.vm_id,
        copy_id=operation.copy_id,
        disks=(DISK,),
        stored_bytes=1000,
        frozen=True,
        forgotten=operation.forget,
        state=STATE,
    )


async def no_target(*_: Any) -> OperationResult:
    raise OperationFailed(FailureCode.CONFLICT, "This node has no target for backups.", None)


async def restored(gateway: Any, node_id: UUID, operation_id: str, operation: NodeOperation) -> OperationResult:
    assert isinstance(operation, VmRestore)
    return DomainResult(vm_id=operation.vm_id, state=DomainState.STOPPED)


async def planned(now: MachineHarness, database: Database) -> tuple[UUID, UUID]:
    """A plan, and a machine that has it and whose node can copy it."""
    now.service.gateway.answers |= {"vm.backup": copy_made, "vm.restore": restored}
    plan_id: UUID = await database.fetchval(
        "INSERT INTO plans (name, slug, vcpus, memory_mib, disk_gib) VALUES ('Kept', 'kept', 1, 256, 1) RETURNING id"
    )
    vm_id: UUID = (await now.created()).vm.id
    await database.execute("UPDATE vms SET plan_id = $2 WHERE id = $1", vm_id, plan_id)
    return plan_id, vm_id


def after_the_run(days: float) -> datetime:
    """Half an hour after a run of `DAILY`, so many days from now: whatever the hour is, it was the last that was due,
    and is not yet told as missing."""
    return (utc_now() + timedelta(days=int(days))).replace(hour=4, minute=30) + timedelta(days=days % 1)


async def run_schedule(now: MachineHarness, database: Database, *, days: float) -> None:
    """What the watch does so many days from now, to the end of what it begins, recorded as of that moment."""
    moment = after_the_run(days)
    await watch.look(database, now.service.actors, moment)
    for row in await database.fetch("SELECT id FROM tasks WHERE status IN ('queued', 'running')"):
        await now.service.ended(row["id"])
    for column in ("machine_backups.begun_at", "vms.backed_up", "tasks.ended_at"):
        table, name = column.split(".")
        # A machine's own minute within the hour is taken off from when it was backed up
        really = f"{name} BETWEEN now() - interval '2 hours' AND now()"
        await database.execute(f"UPDATE {table} SET {name} = $1 WHERE {really}", moment)


async def copies(now: MachineHarness, vm_id: UUID) -> list[UUID]:
    return [each.id for each in await now.customer("vm.backups", id=vm_id)]


def asked(now: MachineHarness, kind: type[Any]) -> list[Any]:
    return [each for each in now.service.gateway.asked if isinstance(each, kind)]


async def test_a_plan_has_its_machines_backed_up_and_old_copies_removed_after_new_ones(database: Database) -> None:
    async with stage(database) as now:
        plan_id, vm_id = await planned(now, database)
        await run_schedule(now, database, days=2)
        assert asked(now, VmBackup) == []

        done = await now.administrator("plan.backups", id=plan_id, **DAILY)
        assert (done.machines, done.deferred, done.deletes, done.backup_keep) == (1, False, 0, 2)
        assert "every day between 3:00 and 3:59 UTC; the last 2 complete backups are kept" in done.note

        [before] = (await now.customer("backup.schedule")).items
        assert (before.vm_id, before.copies, before.last_completed_at) == (vm_id, 0, None)
        assert (before.next_due > utc_now(), before.next_due.hour, before.late) == (True, 3, False)

        await run_schedule(now, database, days=1)
        [first] = await copies(now, vm_id)
        [after] = (await now.customer("backup.schedule")).items
        assert (after.copies, after.last_completed_at is not None) == (1, True)
        # Not twice for one run, and one more for the next
        for days in (3, 3, 5):
            await run_schedule(now, database, days=days)
        newest = await copies(now, vm_id)
        assert len(newest) == 2
        assert first not in newest
        [only, second, third, *_] = asked(now, VmBackup)
        assert (only.forget, second.forget, third.forget) == ((), (), (first,))
        assert only.password == second.password
        assert only.copy_id == first


async def test_saving_a_policy_deletes_nothing_and_says_what_it_will(database: Database) -> None:
    async with stage(database) as now:
        plan_id, vm_id = await planned(now, database)
        await now.administrator("plan.backups", id=plan_id, backup_schedule="weekly", backup_weekday=6)
        for _ in range(4):
            await now.service.ended((await now.staff("vm.backup", id=vm_id)).id)

        done = await now.administrator("plan.backups", id=plan_id, **DAILY)
        assert (done.deletes, done.deferred) == (2, True)
        assert "Nothing was deleted now: 2 backups more" in done.note
        assert len(await copies(now, vm_id)) == 4
        await now.service.ended((await now.staff("vm.backup", id=vm_id)).id)
        assert len(await copies(now, vm_id)) == 2

        off = await now.administrator("plan.backups", id=plan_id, backup_schedule="off")
        assert (off.deletes, off.backup_schedule) == (0, BackupSchedule.OFF)
        assert (await now.customer("backup.schedule")).total == 0
        assert len(await copies(now, vm_id)) == 2


async def test_what_failed_is_told_and_tried_again_an_hour_later(database: Database) -> None:
    async with stage(database) as now:
        plan_id, vm_id = await planned(now, database)
        now.service.gateway.answers["vm.backup"] = no_target
        await now.administrator("plan.backups", id=plan_id, **DAILY)
        await run_schedule(now, database, days=1)
        alert = await database.fetchone("SELECT * FROM alerts WHERE resource_id = $1", str(vm_id))
        assert "no target for backups" in alert["message"]
        assert "target" not in alert["told"]
        # Soon after, nothing
        await run_schedule(now, database, days=1)
        assert len(asked(now, VmBackup)) == 1
        now.service.gateway.answers["vm.backup"] = copy_made
        await run_schedule(now, database, days=1.1)
        assert len(await copies(now, vm_id)) == 1
        assert await database.fetchval("SELECT count(*) FROM alerts WHERE closed_at IS NULL") == 0


async def test_a_backup_that_is_resumed_asks_to_forget_what_it_asked_first(database: Database) -> None:
    asked_of = trio.Event()

    async def never(*_: Any) -> OperationResult:
        asked_of.set()
        await trio.sleep_forever()

    async with stage(database) as now:
        plan_id, vm_id = await planned(now, database)
        await now.administrator("plan.backups", id=plan_id, **DAILY)
        first, _ = [await now.service.ended((await now.staff("vm.backup", id=vm_id)).id) for _ in range(2)]
        now.service.gateway.answers["vm.backup"] = never
        third = (await now.staff("vm.backup", id=vm_id)).id
        await asked_of.wait()
        assert asked(now, VmBackup)[-1].forget == (first.id,)
        await now.administrator("plan.backups", id=plan_id, **DAILY | {"backup_keep": 5})

    gateway = FakeGateway()
    gateway.answers["vm.backup"] = copy_made
    async with open_service(database, gateway) as again:
        assert (await again.ended(third)).status == "succeeded"
    assert [each.forget for each in gateway.asked if isinstance(each, VmBackup)] == [(first.id,)]


async def test_a_node_makes_one_backup_at_a_time(database: Database) -> None:
    async with stage(database) as now:
        plan_id, vm_id = await planned(now, database)
        other = (await now.created(name="other")).vm.id
        await database.execute("UPDATE vms SET plan_id = $2 WHERE id = $1", other, plan_id)
        await now.administrator("plan.backups", id=plan_id, **DAILY)
        await run_schedule(now, database, days=1)
        assert len(asked(now, VmBackup)) == 1
        await run_schedule(now, database, days=1)
        assert {each.vm_id for each in asked(now, VmBackup)} == {vm_id, other}


async def test_a_stopped_machine_is_restored_by_its_owner(database: Database) -> None:
    async with stage(database) as now:
        _, vm_id = await planned(now, database)
        await now.service.ended((await now.staff("vm.backup", id=vm_id)).id)
        [copy] = await copies(now, vm_id)
        runs = await refusal(now.customer, "vm.restore", id=vm_id, backup_id=copy, confirm="web")
        assert runs.code is ErrorCode.CONFLICT
        await now.service.ended((await now.customer("vm.force_stop", id=vm_id, confirm="web")).id)

        stranger = await refusal(now.stranger, "vm.restore", id=vm_id, backup_id=copy, confirm="web")
        wrong = await refusal(now.customer, "vm.restore", id=vm_id, backup_id=copy, confirm="wed")
        unknown = await refusal(now.customer, "vm.restore", id=vm_id, backup_id=vm_id, confirm="web")
        assert (stranger.code, wrong.code, unknown.code) == (
            ErrorCode.NOT_FOUND,
            ErrorCode.INVALID,
            ErrorCode.NOT_FOUND,
        )
        assert asked(now, VmRestore) == []

        task = await now.customer("vm.restore", id=vm_id, backup_id=copy, confirm="web")
        assert (await now.service.ended(task.id)).status == "succeeded"
        [told] = asked(now, VmRestore)
        assert (told.copy_id, told.disks, told.password) == (copy, (DISK,), asked(now, VmBackup)[0].password)
        assert told.state == STATE

        # A copy that was made by an agent of before, which did not say it
        await database.execute("UPDATE machine_backups SET state = NULL WHERE id = $1", copy)
        task = await now.customer("vm.restore", id=vm_id, backup_id=copy, confirm="web")
        assert (await now.service.ended(task.id)).status == "succeeded"
        assert asked(now, VmRestore)[-1].state is None
        assert (await now.customer("vm.show", id=vm_id)).status == "stopped"


async def test_who_may_ask_for_what(database: Database) -> None:
    async with stage(database) as now:
        plan_id, vm_id = await planned(now, database)
        kept = await refusal(now.administrator, "plan.backups", id=plan_id, backup_schedule="daily", backup_keep=1)
        assert (kept.code, "nothing was changed" in kept.message) == (ErrorCode.INVALID, True)
        unknown = await refusal(now.administrator, "plan.backups", id=vm_id, **DAILY)
        assert unknown.code is ErrorCode.NOT_FOUND
        await now.administrator("plan.backups", id=plan_id, **DAILY)
        assert (await refusal(now.staff, "plan.backups", id=plan_id, **DAILY)).code is ErrorCode.FORBIDDEN
        assert (await refusal(now.customer, "vm.backup", id=vm_id)).code is ErrorCode.FORBIDDEN
        assert (await refusal(now.stranger, "vm.backups", id=vm_id)).code is ErrorCode.NOT_FOUND
        assert (await now.stranger("backup.schedule")).total == 0
        assert (await now.staff("backup.schedule")).total == 1


@pytest.mark.parametrize("field", [{"backup_hour": 24}, {"backup_weekday": 7}, {"backup_schedule": "hourly"}])
async def test_a_policy_is_of_what_there_is(database: Database, field: dict[str, Any]) -> None:
    async with stage(database) as now:
        plan_id, _ = await planned(now, database)
        with pytest.raises(ValueError, match=next(iter(field))):
            await now.administrator("plan.backups", id=plan_id, **(DAILY | field))
