"""Files of a machine's backup copy: a task opens the copy on the machine's node, which then lists folders and reads
files.

The open copy exists only in the node's memory, and the node closes it by itself; so the controller records nothing
about it.

Why: docs/decisions/0032-files-of-a-machine-backup.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from svc_actors.controller.backups.records import copied_disks, place_of_copy, store_password
from svc_actors.controller.backups.targets import place_at
from svc_actors.controller.backups.temporary_keys import need_of
from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.images.files import ImageSources
from svc_actors.controller.machines import rescue
from svc_actors.controller.machines.records import MachineRow
from svc_actors.controller.tasks.runner import HostRefused, TaskRun, Work
from svc_actors.sealing import Sealer
from svc_actors.store import Database, Transaction
from svc_common.errors import ServiceError, conflict, not_found, not_ready, unavailable, wrong_field
from svc_nodeagent.protocol import MOST_PART_BYTES as MOST_PART_BYTES
from svc_nodeagent.protocol import (
    CopiedFolder,
    CopyFilesOperation,
    FailureCode,
    OperationResult,
    VmFilesClose,
    VmFilesList,
    VmFilesOpen,
    VmFilesRead,
    path_bytes,
)
from svc_nodeagent.protocol import CopiedPart as CopiedPart
from svc_nodeagent.protocol import CopyVolumeState as CopyVolumeState
from svc_nodeagent.protocol import EntryKind as EntryKind

OPEN: Final = "vm.files.open"
COPY: Final = "copy_id"
SYSTEM: Final = "image_id"
"""The names of the task's parameters: these three constants."""
_ANSWER_SECONDS: Final = 150.0
"""A node that emulates its guests reads some 40 MiB a second, and each query that the node makes has a limit of a
minute."""

AtTarget = Callable[[UUID | None, Awaitable[OperationResult]], Awaitable[OperationResult]]


class NodeQueries(Protocol):
    """The part of the gateway that is used here."""

    async def query(self, node_id: UUID, operation: CopyFilesOperation, *, timeout: float) -> OperationResult: ...


async def opening_parameters(tx: Transaction, vm: MachineRow, copy_id: UUID) -> dict[str, object]:
    """The task's parameters. The machine may be running: it is not affected. Raises conflict, not_found."""
    if vm.node_id is None:
        raise conflict("The machine is not placed on a node, so its backups cannot be read.")
    await copied_disks(tx, vm.id, copy_id)
    return {COPY: str(copy_id), SYSTEM: str(await rescue.newest_system(tx))}


@dataclass(frozen=True)
class OpenCopy:
    """A copy that may be open on its machine's node. Queries raise `ServiceError`: not_ready if it is not open."""

    gateway: NodeQueries
    node_id: UUID | None
    vm_id: UUID
    copy_id: UUID

    async def folder(self, volume: int, path: str, offset: int) -> CopiedFolder:
        operation = VmFilesList(vm_id=self.vm_id, copy_id=self.copy_id, volume=volume, path=path, offset=offset)
        result = await _ask(self.gateway, self.node_id, operation)
        if not isinstance(result, CopiedFolder):
            raise TypeError(f"vm.files.list was answered with {result.kind}")
        return result

    async def part(self, volume: int, path: str, offset: int, length: int) -> CopiedPart:
        operation = VmFilesRead(
            vm_id=self.vm_id, copy_id=self.copy_id, volume=volume, path=path, offset=offset, length=length
        )
        result = await _ask(self.gateway, self.node_id, operation)
        if not isinstance(result, CopiedPart):
            raise TypeError(f"vm.files.read was answered with {result.kind}")
        return result

    async def close(self) -> None:
        await _ask(self.gateway, self.node_id, VmFilesClose(vm_id=self.vm_id, copy_id=self.copy_id))


def require_path(path: str) -> None:
    """Raises `invalid` for text that cannot be a path."""
    try:
        path_bytes(path)
    except ValueError as error:
        raise wrong_field("path", str(error)) from error


async def _ask(gateway: NodeQueries, node_id: UUID | None, operation: CopyFilesOperation) -> OperationResult:
    if node_id is None:
        raise not_ready("The backup's files are not open.", hint="Open them first.")
    try:
        return await gateway.query(node_id, operation, timeout=_ANSWER_SECONDS)
    except OperationFailed as failure:
        raise _refusal(failure) from failure


def _refusal(failure: OperationFailed) -> ServiceError:
    match failure.code:
        case FailureCode.INTERRUPTED:
            return not_ready(failure.message, hint=failure.hint)
        case FailureCode.NOT_FOUND:
            return not_found(failure.message, hint=failure.hint)
        case FailureCode.INVALID:
            return wrong_field("path", failure.message, hint=failure.hint)
        case FailureCode.CONFLICT | FailureCode.UNSUPPORTED:
            return conflict(failure.message, hint=failure.hint)
        case _:
            return unavailable(failure.message, hint=failure.hint)


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
