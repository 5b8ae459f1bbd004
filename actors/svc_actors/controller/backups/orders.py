"""Orders about a machine's backup copies: decides whether to accept each order, and computes the parameters of its
task. Each function runs in the transaction of the Machine actor, which has locked the machine's row and creates the
task.
"""

from __future__ import annotations

from uuid import UUID

from svc_actors.controller.backups import deleted
from svc_actors.controller.backups.records import (
    FORGET,
    BackupLocation,
    copied_disks,
    forget_copies,
    is_held,
    note_store,
    require_backups,
    require_not_held,
    superseded_at,
    superseded_copies,
)
from svc_actors.controller.backups.targets import target_of_node
from svc_actors.controller.machines import platforms
from svc_actors.controller.machines.admission import require_idle, require_not_in_rescue
from svc_actors.controller.machines.records import MachineRow
from svc_actors.controller.machines.states import MachineStatus
from svc_actors.store import Caller, Transaction, audit
from svc_common.errors import conflict


async def start_backup(tx: Transaction, vm: MachineRow, *, scheduled: bool) -> dict[str, object]:
    """Copy its disks to its node's target. Raises conflict, not_ready."""
    if vm.status not in (MachineStatus.STOPPED, MachineStatus.RUNNING):
        raise conflict(f"The machine is {vm.status.value}, so its disks are not copied.")
    require_not_in_rescue(vm, "backed up")
    if not scheduled:
        # A scheduled backup asks the node itself: the recorded problem may have been fixed since.
        await require_backups(tx, vm.node_id)
    await require_not_held(tx, vm.id)
    at = BackupLocation(vm.node_id, await target_of_node(tx, vm.node_id))
    await note_store(tx, vm.id, at)
    return {**_told(at), FORGET: [str(copy_id) for copy_id in await superseded_copies(tx, vm.id, at)]}


async def start_restoration(tx: Transaction, vm: MachineRow, copy_id: UUID) -> dict[str, object]:
    """Restore its disks from a copy. Raises conflict, not_found."""
    if vm.status is not MachineStatus.STOPPED:
        raise conflict(
            f"The machine is {vm.status.value}; its disks are restored while it is stopped.",
            hint="Shut it down first.",
            details={"status": vm.status.value},
        )
    require_not_in_rescue(vm, "restored")
    await copied_disks(tx, vm.id, copy_id)
    parameters = await platforms.restoration_parameters(tx, vm, copy_id)
    return {"copy_id": str(copy_id), **parameters}


async def start_removal(
    tx: Transaction, caller: Caller, vm: MachineRow, at: BackupLocation
) -> dict[str, object] | None:
    """Remove a deleted machine's copies at one place. Returns None if their removal is not due, or if the node is lost
    or was removed: then the storage mounted on the node keeps the copies, and the audit says so. Raises not_ready."""
    if not await deleted.is_due(tx, vm.id) or await is_held(tx, vm.id):
        return None
    await require_idle(tx, vm.id)
    if (gone := await _gone(tx, at)) is not None:
        await deleted.forget(tx, vm.id, at)
        await audit.record(tx, caller, vm.target, {"left_at_the_target_of": gone})
        return None
    return _told(at)


async def start_superseded_removal(
    tx: Transaction, caller: Caller, vm: MachineRow, at: BackupLocation
) -> dict[str, object] | None:
    """Remove superseded copies at a place to which the machine is no longer copied. Returns None if there are none, or
    if the node is lost or was removed, as in `start_removal`. Raises not_ready."""
    copies = await superseded_at(tx, vm.id, at)
    if not copies or await is_held(tx, vm.id):
        return None
    await require_idle(tx, vm.id)
    told: dict[str, object] = {"copies": [str(copy_id) for copy_id in copies]}
    if (gone := await _gone(tx, at)) is not None:
        await forget_copies(tx, vm.id, copies)
        await audit.record(tx, caller, vm.target, {"left_at_the_target_of": gone, **told})
        return None
    return told | _told(at)


async def _gone(tx: Transaction, at: BackupLocation) -> str | None:
    """The name of the copies' node, if they lie at storage mounted on that node and it was declared lost or removed."""
    if at.target_id is not None:
        return None
    name: str | None = await tx.fetchval(
        "SELECT name FROM nodes WHERE id = $1 AND (lost_at IS NOT NULL OR deleted_at IS NOT NULL)", at.node_id
    )
    return name


def _told(at: BackupLocation) -> dict[str, object]:
    """Parameters of a task for copies that lie at a target and not at storage mounted on the node."""
    return {} if at.target_id is None else {"target_id": str(at.target_id)}
