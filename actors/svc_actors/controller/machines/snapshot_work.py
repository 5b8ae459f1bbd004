"""The work of snapshot tasks on the node. `snapshots` records the effect of their outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from svc_actors.controller.machines import snapshots
from svc_actors.controller.tasks.runner import HostRefused, TaskRun, Work
from svc_actors.store import Database
from svc_nodeagent.protocol import (
    Done,
    FailureCode,
    OperationResult,
    VmSnapshotDelete,
    VmSnapshotRestore,
    VmSnapshotTake,
)

_STEP: Final = "host"


class SnapshotWork:
    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def works(self) -> Mapping[str, Work]:
        return {snapshots.TAKE: self.take, snapshots.RESTORE: self.restore, snapshots.DELETE: self.delete}

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
            if await snapshots.was_taken(self._database, operation.snapshot_id):
                raise
            return Done()


def _snapshot(run: TaskRun) -> UUID:
    return UUID(run.task.parameters[snapshots.SNAPSHOT])
