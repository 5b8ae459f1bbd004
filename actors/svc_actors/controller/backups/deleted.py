"""Backup copies of deleted machines: retained for 30 days, then removed at their target.

`vms.copies_until` is set at the deletion; an administrator may bring it forward. Each place that was used for copies of
the machine has a row in `machine_backup_stores` until its node has reported that it holds nothing of the machine. With
the last row `copies_until` is cleared. So removals that are due are found again after any crash. If the machine has no
complete copy, what lies at the target is useless and due for removal at once.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.controller.backups.records import BackupLocation, loss_alert, place_of_task, removal_alert
from svc_actors.controller.machines.records import MachineRow
from svc_actors.controller.tasks.records import Ending, Task, TaskStatus
from svc_actors.store import Caller, Target, Transaction, audit
from svc_common.errors import not_found, wrong_field

KEPT_AFTER_DELETION: Final = timedelta(days=30)


async def set_copies_expiry(tx: Transaction, vm_id: UUID) -> None:
    """The machine is deleted: set the time until which its copies, complete or not, are kept."""
    await tx.execute(
        """UPDATE vms SET copies_until = now() + CASE
               WHEN EXISTS (SELECT FROM machine_backups WHERE vm_id = $1 AND removed_at IS NULL) THEN $2::interval
               ELSE interval '0' END
           WHERE id = $1 AND EXISTS (SELECT FROM machine_backup_stores WHERE vm_id = $1)""",
        vm_id,
        KEPT_AFTER_DELETION,
    )


async def end_now(tx: Transaction, caller: Caller, vm_id: UUID, confirm: str) -> None:
    """Make the copies of a deleted machine due for removal, for an administrator; `confirm` is its name. Raises
    not_found, invalid."""
    vm = await tx.fetchrow(
        "SELECT name, project_id FROM vms WHERE id = $1 AND copies_until IS NOT NULL FOR NO KEY UPDATE", vm_id
    )
    if vm is None:
        raise not_found("There is no deleted machine of this id that has backups.")
    if confirm != vm["name"]:
        raise wrong_field(
            "confirm", "this is not the machine's name; nothing was removed", hint="Repeat the name exactly."
        )
    await tx.execute("UPDATE vms SET copies_until = least(copies_until, now()) WHERE id = $1", vm_id)
    await audit.record(tx, caller, Target("vm", vm_id, vm["name"], vm["project_id"]), {})


async def is_due(tx: Transaction, vm_id: UUID) -> bool:
    return bool(await tx.fetchval("SELECT copies_until <= now() FROM vms WHERE id = $1", vm_id))


async def forget(tx: Transaction, vm_id: UUID, at: BackupLocation) -> None:
    """Delete the records of the machine's copies at this place."""
    there = "vm_id = $1 AND CASE WHEN $3::uuid IS NULL THEN target_id IS NULL AND node_id = $2 ELSE target_id = $3 END"
    await tx.execute(f"DELETE FROM machine_backups WHERE {there}", vm_id, at.node_id, at.target_id)
    await tx.execute(f"DELETE FROM machine_backup_stores WHERE {there}", vm_id, at.node_id, at.target_id)
    if not await tx.fetchval("SELECT EXISTS (SELECT FROM machine_backup_stores WHERE vm_id = $1)", vm_id):
        await tx.execute("UPDATE vms SET copies_until = NULL WHERE id = $1", vm_id)
        await close_alert(tx, removal_alert(vm_id))
        await close_alert(tx, loss_alert(vm_id))


async def forget_target(tx: Transaction, target_id: UUID) -> int:
    """Delete the records of all copies at a target that an administrator gives up; returns how many were listed."""
    gone = await tx.fetch(
        "UPDATE machine_backups SET removed_at = now() WHERE target_id = $1 AND removed_at IS NULL RETURNING id",
        target_id,
    )
    await tx.execute("DELETE FROM machine_backup_stores WHERE target_id = $1", target_id)
    await tx.execute(
        """UPDATE vms SET copies_until = NULL WHERE copies_until IS NOT NULL
               AND NOT EXISTS (SELECT FROM machine_backup_stores WHERE vm_id = vms.id)"""
    )
    return len(gone)


async def removal_ended(tx: Transaction, vm: MachineRow, task: Task, ending: Ending) -> None:
    if ending.succeeded and task.node_id is not None:
        await forget(tx, vm.id, place_of_task(task))
    elif ending.status is TaskStatus.FAILED:
        await raise_alert(
            tx,
            removal_alert(vm.id),
            f"The backups of the deleted machine {vm.name} could not be removed; this is retried every hour:"
            f" {ending.message}",
            resource_kind="vm",
            resource_id=vm.id,
        )
