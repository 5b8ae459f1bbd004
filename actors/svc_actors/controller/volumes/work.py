"""The work of volume tasks on the node. `orders` records the effect of their outcomes.

Only the node knows what it has done with a disk, so each operation is repeated until the node reports its outcome. A
lost node is not asked; a volume there is deleted without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from svc_actors.controller.tasks.run import has_node_answer, retry_until_final
from svc_actors.controller.tasks.runner import (
    Ending,
    HostRefused,
    LogLevel,
    LostWithNode,
    ResourceKind,
    Task,
    TaskRun,
    Work,
    end_task,
)
from svc_actors.controller.volumes import orders
from svc_actors.controller.volumes.states import CREATE, VolumeOrder
from svc_actors.store import Database, Transaction
from svc_nodeagent.protocol import (
    Done,
    FailureCode,
    OperationResult,
    VolumeAttach,
    VolumeCreate,
    VolumeDelete,
    VolumeDetach,
    VolumeGrow,
    VolumeOperation,
)

IRREVOCABLE: Final = "An operation on a volume cannot be cancelled; it ends by itself."
_STEP: Final = "host"


class VolumeWork:
    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def works(self) -> Mapping[str, Work]:
        return {
            CREATE: self.create,
            VolumeOrder.ATTACH.op: self.attach,
            VolumeOrder.DETACH.op: self.detach,
            VolumeOrder.GROW.op: self.grow,
            VolumeOrder.DELETE.op: self.delete,
        }

    async def ended(self, task: Task, ending: Ending) -> None:
        """Record the end of a task of a free volume."""

        async def work(tx: Transaction) -> None:
            if await end_task(tx, task.id, ending) is not None:
                await orders.record_end(tx, task, ending)

        await self._database.transact(work)

    async def create(self, run: TaskRun) -> OperationResult:
        volume_id, size_gib = _volume(run), run.task.parameters["size_gib"]
        made = await _ask(run, VolumeCreate(volume_id=volume_id, size_gib=size_gib))
        if run.task.resource_kind is ResourceKind.VOLUME:
            return made
        return await self.attach(run, step="attach")

    async def attach(self, run: TaskRun, *, step: str = _STEP) -> OperationResult:
        parameters = run.task.parameters
        operation = VolumeAttach(
            vm_id=run.task.resource_id,
            volume_id=_volume(run),
            index=parameters["index"],
            size_gib=parameters["size_gib"],
            kept=parameters["kept"],
        )
        return await _ask(run, operation, step=step)

    async def detach(self, run: TaskRun) -> OperationResult:
        return await _ask(run, VolumeDetach(vm_id=run.task.resource_id, volume_id=_volume(run)))

    async def grow(self, run: TaskRun) -> OperationResult:
        vm_id = run.task.resource_id if run.task.resource_kind is ResourceKind.VM else None
        parameters = run.task.parameters
        operation = VolumeGrow(
            volume_id=_volume(run), vm_id=vm_id, size_gib=parameters["size_gib"], kept=parameters["kept"]
        )
        return await _ask(run, operation)

    async def delete(self, run: TaskRun) -> OperationResult:
        """Delete the volume. If the agent does not support volumes and this one was never created, there is nothing to
        delete."""
        try:
            return await _ask(run, VolumeDelete(volume_id=_volume(run), kept=run.task.parameters["kept"]))
        except LostWithNode:
            await run.log("The node was declared lost: its data of the volume stays there.", level=LogLevel.WARNING)
        except HostRefused as refusal:
            if refusal.failure is not FailureCode.UNSUPPORTED:
                raise
            if await self._database.fetchval("SELECT made_at IS NOT NULL FROM volumes WHERE id = $1", _volume(run)):
                raise
        return Done()


async def _ask(run: TaskRun, operation: VolumeOperation, *, step: str = _STEP) -> OperationResult:
    return await retry_until_final(run, operation, has_node_answer, step=step)


def _volume(run: TaskRun) -> UUID:
    return UUID(run.task.parameters[orders.VOLUME])
