"""A backup that is cancelled, or that the node cannot make at all."""

from __future__ import annotations

from uuid import UUID

from svc_actors.controller.backups import watch
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import NodeOperation, OperationId, OperationResult, VmBackup
from tests.controller.backups.test_backups import DAILY, after_the_run, asked, copies, copy_made, planned
from tests.support.machine_service import FakeGateway
from tests.support.machines import refusal, stage

MISSING = "Not installed: restic. No machine can be backed up here: install restic."


async def goes_on(gateway: FakeGateway, _: UUID, operation_id: OperationId, __: NodeOperation) -> OperationResult:
    await gateway.until_cancelled(operation_id)
    raise AssertionError


async def test_the_owner_has_the_machine_back_from_a_backup_of_the_schedule(database: Database) -> None:
    async with stage(database) as now:
        plan_id, vm_id = await planned(now, database)
        now.service.gateway.answers["vm.backup"] = goes_on
        await now.administrator("plan.backups", id=plan_id, **DAILY)
        await watch.look(database, now.service.actors, after_the_run(days=1))
        await now.service.until_asked("vm.backup")
        busy = await refusal(now.customer, "vm.shutdown", id=vm_id)
        assert (busy.code, busy.hint) == (ErrorCode.NOT_READY, "Wait for that task, or cancel it.")
        assert busy.details is not None
        task_id = UUID(str(busy.details["task_id"]))
        assert (await refusal(now.stranger, "task.cancel", id=task_id)).code is ErrorCode.NOT_FOUND

        await now.customer("task.cancel", id=task_id)
        assert (await now.service.ended(task_id)).status == "cancelled"
        assert (await copies(now, vm_id), (await now.customer("vm.show", id=vm_id)).status) == ([], "running")
        assert await database.fetchval("SELECT count(*) FROM alerts WHERE closed_at IS NULL") == 0
        off = await now.customer("vm.shutdown", id=vm_id)
        assert (await now.service.ended(off.id)).status == "succeeded"

        # What it may have left at the target goes with the next one that completes, once
        now.service.gateway.answers["vm.backup"] = copy_made
        for _ in range(2):
            await now.service.ended((await now.staff("vm.backup", id=vm_id)).id)
        [cancelled, after, last] = asked(now, VmBackup)
        assert cancelled.copy_id == task_id
        assert (after.forget, last.forget) == ((cancelled.copy_id,), ())
        assert await copies(now, vm_id) == [last.copy_id, after.copy_id]


async def test_an_order_for_a_node_that_cannot_make_backups_is_refused_with_what_to_do(database: Database) -> None:
    async with stage(database) as now:
        _, vm_id = await planned(now, database)
        check = {"name": "backups", "status": "warning", "message": MISSING}
        await database.execute("UPDATE nodes SET preflight = $1", [check])
        refused = await refusal(now.staff, "vm.backup", id=vm_id)
        assert (refused.code, MISSING in refused.message) == (ErrorCode.CONFLICT, True)
        assert refused.hint is not None
        assert "svc node preflight" in refused.hint
        assert asked(now, VmBackup) == []

        await database.execute("UPDATE nodes SET preflight = $1", [check | {"status": "passed"}])
        await now.service.ended((await now.staff("vm.backup", id=vm_id)).id)
        assert len(await copies(now, vm_id)) == 1
