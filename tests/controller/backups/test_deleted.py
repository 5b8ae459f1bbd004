"""Backups of a deleted machine are kept for a while, and then removed at their target by the node."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from svc_actors.controller.backups import watch
from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.traffic.periods import utc_now
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import Done, FailureCode, NodeOperation, OperationResult, VmBackupsRemove
from tests.controller.backups.test_backups import asked, copy_made
from tests.support.machines import MachineHarness, refusal, stage


async def removed(gateway: Any, node_id: UUID, operation_id: str, operation: NodeOperation) -> OperationResult:
    assert isinstance(operation, VmBackupsRemove)
    return Done()


async def no_target(*_: Any) -> OperationResult:
    raise OperationFailed(FailureCode.CONFLICT, "This node has no target for backups.", None)


async def deleted_machine(now: MachineHarness) -> UUID:
    """A machine that was backed up twice, and deleted."""
    now.service.gateway.answers |= {"vm.backup": copy_made, "vm.backups.remove": removed}
    vm_id: UUID = (await now.created()).vm.id
    for _ in range(2):
        await now.service.ended((await now.staff("vm.backup", id=vm_id)).id)
    await now.service.ended((await now.customer("vm.delete", id=vm_id, confirm="web", destroy_disks=True)).id)
    return vm_id


async def look(now: MachineHarness, database: Database, *, days: float = 0) -> None:
    """What the watch does as if the machine had been deleted so many days earlier, to the end of what it begins."""
    await database.execute("UPDATE vms SET copies_until = copies_until - $1::interval", timedelta(days=days))
    await watch.remove_due(database, now.service.actors, utc_now())
    for row in await database.fetch("SELECT id FROM tasks WHERE status IN ('queued', 'running')"):
        await now.service.ended(row["id"])


async def listed(now: MachineHarness) -> list[tuple[UUID, str, int, int]]:
    rows = (await now.administrator("backup.deleted")).items
    return [(each.vm_id, each.vm_name, each.copies, each.stored_bytes) for each in rows]


async def test_they_are_kept_for_thirty_days_and_then_removed_by_the_node(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await deleted_machine(now)
        assert await listed(now) == [(vm_id, "web", 2, 2000)]
        [kept] = (await now.administrator("backup.deleted", q="WE")).items
        assert timedelta(days=29) < kept.removed_after - utc_now() <= timedelta(days=30)
        assert (await now.administrator("backup.deleted", q="other")).total == 0

        await look(now, database, days=29)
        assert (asked(now, VmBackupsRemove), len(await listed(now))) == ([], 1)

        await look(now, database, days=2)
        assert [each.vm_id for each in asked(now, VmBackupsRemove)] == [vm_id]
        assert await listed(now) == []
        assert await database.fetchval("SELECT count(*) FROM machine_backups WHERE removed_at IS NULL") == 0
        assert await database.fetchval("SELECT status FROM vms WHERE id = $1", vm_id) == "deleted"
        # Once
        await look(now, database, days=2)
        assert len(asked(now, VmBackupsRemove)) == 1


async def test_a_machine_that_was_never_backed_up_leaves_nothing_to_remove(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        await now.service.ended((await now.customer("vm.delete", id=vm_id, confirm="web", destroy_disks=True)).id)
        assert await listed(now) == []
        await look(now, database, days=40)
        assert asked(now, VmBackupsRemove) == []


async def test_what_attempts_have_left_of_a_machine_without_a_copy_is_removed_at_once(database: Database) -> None:
    async with stage(database) as now:
        now.service.gateway.answers |= {"vm.backup": no_target, "vm.backups.remove": removed}
        vm_id = (await now.created()).vm.id
        await now.service.ended((await now.staff("vm.backup", id=vm_id)).id)
        await now.service.ended((await now.customer("vm.delete", id=vm_id, confirm="web", destroy_disks=True)).id)
        [left] = (await now.administrator("backup.deleted")).items
        assert (left.vm_id, left.copies, len(left.node_names)) == (vm_id, 0, 1)

        await look(now, database)
        assert [each.vm_id for each in asked(now, VmBackupsRemove)] == [vm_id]
        assert await listed(now) == []


async def test_an_administrator_has_them_removed_by_name(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await deleted_machine(now)
        for caller in (now.customer, now.staff):
            assert (await refusal(caller, "backup.deleted")).code is ErrorCode.FORBIDDEN
            assert (await refusal(caller, "backup.discard", id=vm_id, confirm="web")).code is ErrorCode.FORBIDDEN
        wrong = await refusal(now.administrator, "backup.discard", id=vm_id, confirm="wed")
        assert (wrong.code, "nothing was removed" in wrong.message) == (ErrorCode.INVALID, True)
        living = (await now.created(name="other")).vm.id
        other = await refusal(now.administrator, "backup.discard", id=living, confirm="other")
        assert other.code is ErrorCode.NOT_FOUND
        await look(now, database)
        assert asked(now, VmBackupsRemove) == []

        await now.administrator("backup.discard", id=vm_id, confirm="web")
        await look(now, database)
        assert (len(asked(now, VmBackupsRemove)), await listed(now)) == (1, [])
        gone = await refusal(now.administrator, "backup.discard", id=vm_id, confirm="web")
        assert gone.code is ErrorCode.NOT_FOUND


async def test_what_the_node_could_not_remove_stays_listed_is_told_and_tried_again(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await deleted_machine(now)
        now.service.gateway.answers["vm.backups.remove"] = no_target
        await look(now, database, days=31)
        assert len(await listed(now)) == 1
        alert = await database.fetchone("SELECT * FROM alerts WHERE resource_id = $1 AND closed_at IS NULL", str(vm_id))
        assert "backups of the deleted machine web could not be removed" in alert["message"]
        assert "no target for backups" in alert["message"]
        # Not within the hour
        await look(now, database)
        assert len(asked(now, VmBackupsRemove)) == 1
        await database.execute("UPDATE tasks SET ended_at = ended_at - interval '61 minutes'")
        now.service.gateway.answers["vm.backups.remove"] = removed
        await look(now, database)
        assert await listed(now) == []
        assert await database.fetchval("SELECT count(*) FROM alerts WHERE closed_at IS NULL") == 0


async def test_a_node_that_is_away_is_waited_for_and_one_that_is_lost_is_not(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await deleted_machine(now)
        await database.execute("UPDATE nodes SET state = 'offline'")
        await look(now, database, days=31)
        assert (asked(now, VmBackupsRemove), len(await listed(now))) == ([], 1)

        await database.execute("UPDATE nodes SET lost_at = now()")
        await look(now, database)
        assert (asked(now, VmBackupsRemove), await listed(now)) == ([], [])
        told = await database.fetchval(
            "SELECT details FROM audit WHERE operation = 'vm.backups.remove' AND target_id = $1", str(vm_id)
        )
        assert "left_at_the_target_of" in told
