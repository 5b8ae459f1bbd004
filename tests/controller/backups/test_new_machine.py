"""A new machine made from a backup: what the node is told, who may order it, and what waits meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from svc_actors.controller.backups import watch
from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.traffic.periods import utc_now
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import (
    FailureCode,
    NodeOperation,
    OperationId,
    OperationResult,
    VmBackup,
    VmBackupsRemove,
    VmCreateFromCopy,
)
from tests.controller.backups.test_backups import DISK, asked, copies, planned
from tests.controller.backups.test_deleted import deleted_machine, look
from tests.support.machine_service import FakeGateway
from tests.support.machines import MachineHarness, refusal, stage

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJhhOGuQFkx0wC1k2bn7L2sR5x2n5rC3bqf0Yd3q3s4B alice"


async def backed_up(now: MachineHarness, database: Database) -> tuple[UUID, UUID]:
    """A machine with a plan, and a backup of it."""
    _, vm_id = await planned(now, database)
    await database.execute("UPDATE vms SET ssh_keys = $2 WHERE id = $1", vm_id, [KEY])
    await now.service.ended((await now.staff("vm.backup", id=vm_id)).id)
    [copy_id] = await copies(now, vm_id)
    return vm_id, copy_id


async def under_way(gateway: FakeGateway, _: UUID, operation_id: OperationId, __: NodeOperation) -> OperationResult:
    await gateway.until_cancelled(operation_id)
    raise AssertionError


async def lost_data(*_: Any) -> OperationResult:
    raise OperationFailed(FailureCode.HOST, "The target returned other data than was backed up.", None)


async def test_its_owner_has_a_new_machine_made_from_it(database: Database) -> None:
    async with stage(database) as now:
        vm_id, copy_id = await backed_up(now, database)
        made = await now.customer("vm.create", name="again", backup_id=copy_id, idempotency_key="once")
        assert (await now.service.ended(made.task.id)).status == "succeeded"
        [told] = asked(now, VmCreateFromCopy)
        assert (told.start, told.machine.vm_id, told.restoration.vm_id) == (True, made.vm.id, made.vm.id)
        assert (told.restoration.source_id, told.restoration.copy_id) == (vm_id, copy_id)
        assert (told.restoration.disks, told.restoration.password) == ((DISK,), asked(now, VmBackup)[0].password)
        assert told.machine.seed.account.ssh_keys == (KEY,)

        # A machine of its own, with the sizes, the project and the node of the other
        before, after = await now.customer("vm.show", id=vm_id), await now.customer("vm.show", id=made.vm.id)
        assert after.status == "running"
        assert made.vm.id != vm_id
        assert told.machine.network.nics[0].addresses != ()
        assert (after.project_id, after.vcpus, after.disk_gib) == (before.project_id, 1, 1)
        where = await database.fetch("SELECT DISTINCT node_id FROM vms WHERE id = ANY($1)", [vm_id, made.vm.id])
        assert len(where) == 1

        again = await now.customer("vm.create", name="again", backup_id=copy_id, idempotency_key="once")
        assert (again.vm.id, again.replayed) == (made.vm.id, True)
        assert len(asked(now, VmCreateFromCopy)) == 1


async def test_it_counts_towards_the_projects_limit_of_machines(database: Database) -> None:
    async with stage(database) as now:
        _, copy_id = await backed_up(now, database)
        await now.administrator("settings.update", most_machines=1)
        refused = await refusal(now.customer, "vm.create", name="again", backup_id=copy_id)
        assert (refused.code, refused.details) == (ErrorCode.CAPACITY, {"limit": 1})
        await now.administrator("settings.update", most_machines=2)
        await now.service.ended((await now.customer("vm.create", name="again", backup_id=copy_id)).task.id)
        assert (await refusal(now.customer, "vm.create", name="more", backup_id=copy_id)).code is ErrorCode.CAPACITY


async def test_what_fails_is_a_failed_machine_without_an_address(database: Database) -> None:
    async with stage(database) as now:
        _, copy_id = await backed_up(now, database)
        now.service.gateway.answers["vm.create.from_copy"] = lost_data
        made = await now.customer("vm.create", name="again", backup_id=copy_id)
        ended = await now.service.ended(made.task.id)
        assert (ended.status, "than was backed up" in ended.message) == ("failed", True)
        vm = await now.customer("vm.show", id=made.vm.id)
        assert (vm.status, "than was backed up" in vm.status_reason) == ("failed", True)
        held = "SELECT count(*) FROM allocations WHERE vm_id = $1 AND state = 'allocated'"
        assert await database.fetchval(held, made.vm.id) == 0


async def test_who_may_order_it_and_of_what(database: Database) -> None:
    async with stage(database) as now:
        vm_id, copy_id = await backed_up(now, database)
        stranger = await refusal(now.stranger, "vm.create", name="again", backup_id=copy_id)
        unknown = await refusal(now.customer, "vm.create", name="again", backup_id=vm_id)
        both = await refusal(now.customer, "vm.create", name="again", backup_id=copy_id, image="debian")
        assert (stranger.code, unknown.code, both.code) == (
            ErrorCode.NOT_FOUND,
            ErrorCode.NOT_FOUND,
            ErrorCode.INVALID,
        )
        await database.execute("UPDATE images SET os_family = 'windows'")
        windows = await refusal(now.customer, "vm.create", name="again", backup_id=copy_id)
        assert (windows.code, "Windows" in windows.message) == (ErrorCode.CONFLICT, True)
        assert len(asked(now, VmCreateFromCopy)) == 0


async def test_a_disk_that_is_too_small_for_the_backup_is_refused(database: Database) -> None:
    async with stage(database) as now:
        _, copy_id = await backed_up(now, database)
        large = [DISK.model_copy(update={"size_bytes": 2 * DISK.size_bytes}).model_dump()]
        await database.execute("UPDATE machine_backups SET disks = $1", large)
        refused = await refusal(now.customer, "vm.create", name="again", backup_id=copy_id)
        assert (refused.code, "at least 2 GiB" in refused.message) == (ErrorCode.INVALID, True)


async def test_the_backups_it_is_made_from_are_left_alone_until_it_is_there(database: Database) -> None:
    async with stage(database) as now:
        vm_id, copy_id = await backed_up(now, database)
        now.service.gateway.answers["vm.create.from_copy"] = under_way
        made = await now.customer("vm.create", name="again", backup_id=copy_id)
        busy = await refusal(now.staff, "vm.backup", id=vm_id)
        assert (busy.code, "being created from a backup" in busy.message) == (ErrorCode.NOT_READY, True)

        await now.service.until_asked("vm.create.from_copy")
        await now.customer("task.cancel", id=made.task.id)
        assert (await now.service.ended(made.task.id)).status == "cancelled"
        now.service.gateway.answers["vm.backup"] = under_way
        backup = await now.staff("vm.backup", id=vm_id)
        refused = await refusal(now.customer, "vm.create", name="other", backup_id=copy_id)
        assert (refused.code, "are in use" in refused.message) == (ErrorCode.NOT_READY, True)
        await now.service.until_asked("vm.backup", 2)
        await now.administrator("task.cancel", id=backup.id)
        await now.service.ended(backup.id)


async def test_administrators_make_one_from_what_is_kept_of_a_deleted_machine(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await deleted_machine(now)
        await database.execute("UPDATE vms SET ssh_keys = $1", [KEY])
        copy_id = await database.fetchval("SELECT id FROM machine_backups LIMIT 1")
        sizes = {"vcpus": 1, "memory_mib": 256, "disk_gib": 1}
        for caller in (now.customer, now.staff):
            assert (await refusal(caller, "vm.create", name="a", backup_id=copy_id)).code is ErrorCode.NOT_FOUND
        now.service.gateway.answers["vm.create.from_copy"] = under_way
        made = await now.administrator("vm.create", name="again", backup_id=copy_id, **sizes)
        await now.service.until_asked("vm.create.from_copy")
        # Nor are they removed before it is there, whoever wants them gone
        await database.execute("UPDATE vms SET copies_until = now() WHERE id = $1", vm_id)
        await watch.remove_due(database, now.service.actors, utc_now() + timedelta(minutes=1))
        assert asked(now, VmBackupsRemove) == []
        await now.administrator("task.cancel", id=made.task.id)
        await now.service.ended(made.task.id)
        await look(now, database, days=1)
        assert [each.vm_id for each in asked(now, VmBackupsRemove)] == [vm_id]
