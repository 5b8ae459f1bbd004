"""Snapshots of a machine: their records, written with the orders and the outcomes of their tasks.

    taking -> ready -> restoring -> ready
    taking, ready, failed -> deleting -> gone
    taking, deleting, restoring -> failed     it is incomplete or missing: it can only be deleted

A snapshot is stored inside the disks of its machine. It moves with the disks and is lost with them: a reinstallation,
the restoration of a backup and a deletion replace or remove the disks.

Invariant: every state except `ready` and `failed` belongs to an open task of the machine, which has one at a time. So
nothing else happens to the disks meanwhile: no backup, no migration, no resize.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID, uuid4

from svc_actors.controller.machines.records import MachineRow, announce_machine
from svc_actors.controller.machines.states import MachineStatus
from svc_actors.controller.tasks.records import Ending, Task
from svc_actors.controller.tasks.runner import HostRefused, TaskRun, Work
from svc_actors.store import Database, Queryable, Transaction, UniqueViolationError
from svc_common.errors import ErrorCode, conflict, not_found
from svc_nodeagent.protocol import (
    Done,
    FailureCode,
    OperationResult,
    SnapshotResult,
    VmSnapshotDelete,
    VmSnapshotRestore,
    VmSnapshotTake,
)

TAKE: Final = "vm.snapshot.take"
RESTORE: Final = "vm.snapshot.restore"
DELETE: Final = "vm.snapshot.delete"
OPS: Final = frozenset({TAKE, RESTORE, DELETE})
SNAPSHOT: Final = "snapshot_id"
"""The parameter of snapshot tasks that names the snapshot."""
MOST: Final = 5
"""The default limit of a machine's snapshots."""

_STEP: Final = "host"


class SnapshotState(StrEnum):
    TAKING = "taking"
    READY = "ready"
    RESTORING = "restoring"
    DELETING = "deleting"
    FAILED = "failed"


@dataclass(frozen=True)
class Take:
    name: str
    op: str = TAKE


@dataclass(frozen=True)
class Restore:
    snapshot_id: UUID
    op: str = RESTORE


@dataclass(frozen=True)
class Delete:
    snapshot_id: UUID
    op: str = DELETE


SnapshotOrder = Take | Restore | Delete


async def record_order(tx: Transaction, vm: MachineRow, order: SnapshotOrder) -> dict[str, object]:
    """Record the order; returns the task's parameters. `vm` is locked and has no task. Raises conflict, not_found."""
    if vm.status not in (MachineStatus.STOPPED, MachineStatus.RUNNING):
        raise conflict(
            f"The machine is {vm.status.value}, so its snapshots were not changed.",
            details={"status": vm.status.value},
        )
    match order:
        case Take(name=name):
            snapshot_id = await _begin_taking(tx, vm, name)
        case Restore(snapshot_id=snapshot_id):
            name = await _begin_restoring(tx, vm, snapshot_id)
        case Delete(snapshot_id=snapshot_id):
            name, _ = await _require(tx, vm.id, snapshot_id)
            await _move(tx, snapshot_id, SnapshotState.DELETING)
    await announce_machine(tx, vm.id)
    return {SNAPSHOT: str(snapshot_id), "name": name}


async def record_end(tx: Transaction, task: Task, ending: Ending) -> None:
    """Record the effect of a snapshot task's end, also if the host's outcome is unknown."""
    snapshot_id = UUID(task.parameters[SNAPSHOT])
    match task.op, ending.result:
        case "vm.snapshot.take", SnapshotResult(frozen=frozen):
            await tx.execute(
                "UPDATE machine_snapshots SET state = 'ready', taken_at = now(), frozen = $2 WHERE id = $1",
                snapshot_id,
                frozen,
            )
        case "vm.snapshot.restore", _ if ending.succeeded:
            await tx.execute(
                "UPDATE machine_snapshots SET state = 'ready', restored_at = now() WHERE id = $1", snapshot_id
            )
        case "vm.snapshot.restore", _ if ending.error_code is not ErrorCode.NOT_FOUND:
            await _move(tx, snapshot_id, SnapshotState.READY)
        case "vm.snapshot.delete", _ if ending.succeeded:
            await tx.execute("DELETE FROM machine_snapshots WHERE id = $1", snapshot_id)
        case _:
            await _move(tx, snapshot_id, SnapshotState.FAILED, error=ending.message)
    await announce_machine(tx, task.resource_id)


async def delete_snapshots(tx: Transaction, vm_id: UUID) -> None:
    await tx.execute("DELETE FROM machine_snapshots WHERE vm_id = $1", vm_id)


async def was_taken(queryable: Queryable, snapshot_id: UUID) -> bool:
    """Whether the machine's host has ever reported that the snapshot exists."""
    taken: bool | None = await queryable.fetchval(
        "SELECT taken_at IS NOT NULL FROM machine_snapshots WHERE id = $1", snapshot_id
    )
    return bool(taken)


async def _begin_taking(tx: Transaction, vm: MachineRow, name: str) -> UUID:
    most = await tx.fetchval("SELECT value FROM settings WHERE name = 'most_snapshots'")
    limit = MOST if most is None else int(most)
    there: int = await tx.fetchval("SELECT count(*) FROM machine_snapshots WHERE vm_id = $1", vm.id)
    if there >= limit:
        raise conflict(
            f"The machine has {there} snapshots, and may have {limit}; none was taken.",
            hint="Delete one of them first.",
            details={"limit": limit},
        )
    snapshot_id = uuid4()
    try:
        async with tx.savepoint():
            await tx.execute(
                "INSERT INTO machine_snapshots (id, vm_id, name, state) VALUES ($1, $2, $3, 'taking')",
                snapshot_id,
                vm.id,
                name,
            )
    except UniqueViolationError:
        raise conflict(f"The machine already has a snapshot named {name}; none was taken.") from None
    return snapshot_id


async def _begin_restoring(tx: Transaction, vm: MachineRow, snapshot_id: UUID) -> str:
    if vm.status is not MachineStatus.STOPPED:
        raise conflict(
            f"The machine is {vm.status.value}; a snapshot is restored while it is stopped.",
            hint="Shut it down first.",
            details={"status": vm.status.value},
        )
    name, state = await _require(tx, vm.id, snapshot_id)
    if state is not SnapshotState.READY:
        raise conflict(
            f"Snapshot {name} is incomplete and cannot be restored; nothing was changed.",
            hint="Restore another snapshot, or a backup.",
        )
    await _move(tx, snapshot_id, SnapshotState.RESTORING)
    return name


async def _require(tx: Transaction, vm_id: UUID, snapshot_id: UUID) -> tuple[str, SnapshotState]:
    row = await tx.fetchrow(
        "SELECT name, state FROM machine_snapshots WHERE id = $1 AND vm_id = $2", snapshot_id, vm_id
    )
    if row is None:
        raise not_found("The machine has no such snapshot.")
    return row["name"], SnapshotState(row["state"])


async def _move(tx: Transaction, snapshot_id: UUID, state: SnapshotState, *, error: str | None = None) -> None:
    await tx.execute(
        "UPDATE machine_snapshots SET state = $2, error = $3 WHERE id = $1", snapshot_id, state.value, error
    )


class SnapshotWork:
    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def works(self) -> Mapping[str, Work]:
        return {TAKE: self.take, RESTORE: self.restore, DELETE: self.delete}

    async def take(self, run: TaskRun) -> OperationResult:
        operation = VmSnapshotTake(vm_id=run.task.resource_id, snapshot_id=_snapshot(run))
        return await run.perform(operation, step=_STEP)

    async def restore(self, run: TaskRun) -> OperationResult:
        operation = VmSnapshotRestore(vm_id=run.task.resource_id, snapshot_id=_snapshot(run))
        return await run.perform(operation, step=_STEP)

    async def delete(self, run: TaskRun) -> OperationResult:
        """Delete the snapshot. If the agent does not support snapshots and this one was never taken, there is nothing
        to delete."""
        operation = VmSnapshotDelete(vm_id=run.task.resource_id, snapshot_id=_snapshot(run))
        try:
            return await run.perform(operation, step=_STEP)
        except HostRefused as refusal:
            if refusal.failure is not FailureCode.UNSUPPORTED:
                raise
            if await was_taken(self._database, operation.snapshot_id):
                raise
            return Done()


def _snapshot(run: TaskRun) -> UUID:
    return UUID(run.task.parameters[SNAPSHOT])
