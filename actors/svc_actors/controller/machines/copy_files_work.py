"""The work of the task that opens a copy's files on the node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

from svc_actors.controller.backups.records import copied_disks, place_of_copy, store_password
from svc_actors.controller.backups.targets import place_at
from svc_actors.controller.backups.temporary_keys import need_of
from svc_actors.controller.images.files import ImageSources
from svc_actors.controller.machines.copy_files import COPY, OPEN, SYSTEM
from svc_actors.controller.tasks.runner import HostRefused, TaskRun, Work
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_common.errors import not_found
from svc_nodeagent.protocol import FailureCode, OperationResult, VmFilesOpen

AtTarget = Callable[[UUID | None, Awaitable[OperationResult]], Awaitable[OperationResult]]


class CopyFilesWork:
    """`at`: wraps an operation, and raises the alert of a backup target if the target is at fault."""

    def __init__(self, database: Database, sealer: Sealer, images: ImageSources, at: AtTarget) -> None:
        self._database = database
        self._sealer = sealer
        self._images = images
        self._at = at

    @property
    def works(self) -> Mapping[str, Work]:
        return {OPEN: self.open}

    async def open(self, run: TaskRun) -> OperationResult:
        vm_id, copy_id = run.task.resource_id, UUID(run.task.parameters[COPY])
        at = await place_of_copy(self._database, copy_id)
        system, fetched = await self._images.of_task(run, UUID(run.task.parameters[SYSTEM]), span=(0, 30))
        need = need_of(VmFilesOpen.facts, vm_id, reads_only=True)
        operation = VmFilesOpen(
            vm_id=vm_id,
            copy_id=copy_id,
            password=store_password(self._sealer, vm_id),
            disks=await copied_disks(self._database, vm_id, copy_id),
            place=await place_at(self._database, self._sealer, at.target_id, need),
            system=system,
            owner_id=run.task.project_id,
        )
        performed = run.perform(operation, step="host", span=(30, 100) if fetched else (0, 100))
        try:
            return await self._at(at.target_id, performed)
        except HostRefused as refusal:
            elsewhere = at.target_id is None and at.node_id != run.task.node_id
            if refusal.failure is not FailureCode.NOT_FOUND or not elsewhere:
                raise
            raise not_found(
                "The backup is at the target of the machine's earlier node, and the target of its current node does "
                "not have it.",
                hint="Choose a backup made since the machine moved, or ask your provider to mount the same target.",
            ) from refusal
