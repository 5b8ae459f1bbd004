"""Single files of a machine's backup: a copy is opened on the machine's node, listed, and read part by part.

A caller who may restore the machine may read its backups; nobody else may, nor may a support session. Opening a copy
and each download are in the audit.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.controller.machines.models import visible_machine
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.registry.declare import Operations
from svc.registry.downloads import FilePart
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.registry import SUPPORT_SESSION_REFUSAL
from svc.registry.scopes import Scope
from svc_actors.controller.backups.records import copied_disks
from svc_actors.controller.machines.copy_files import (
    MOST_PART_BYTES,
    CopiedPart,
    CopyVolumeState,
    EntryKind,
    OpenCopy,
    require_path,
)
from svc_actors.controller.machines.machine import Machine
from svc_actors.store import Record, Target, Transaction, audit
from svc_common.errors import conflict, forbidden

operations = Operations[Controller]()

_MOST_SHOWN: Final = 200
Path = Annotated[
    str,
    Field(
        max_length=4096,
        description="Path from the volume's root. Percent-encoded: %1B is a byte that cannot be shown, and %25 is %.",
    ),
]
Volume = Annotated[
    int, Field(ge=0, le=64, description="Number of the file system; 0 is the one with the guest's system.")
]


class CopyRequest(Request):
    id: UUID
    backup_id: UUID


class CopyListRequest(Request):
    id: UUID
    backup_id: UUID
    path: Path = "/"
    volume: Volume = 0
    offset: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class CopyDownloadRequest(Request):
    """`version`: that of the previous part."""

    id: UUID
    backup_id: UUID
    path: Path
    volume: Volume = 0
    offset: Annotated[int, Field(ge=0, le=1 << 50)] = 0
    limit: Annotated[int, Field(ge=1, le=MOST_PART_BYTES)] = 512 << 10
    version: Annotated[str, Field(max_length=64)] | None = None


class BackupVolume(Model):
    """A file system in a backup: of a partition, a logical volume or a whole disk. It can be read only if it is
    `mounted`. `system`: it contains a guest's operating system."""

    number: int
    device: str
    type: str
    size_bytes: int
    state: CopyVolumeState
    system: bool


class BackupEntry(Model):
    """`target`: the text of a link. A link is followed only within its own volume."""

    name: str
    kind: EntryKind
    size_bytes: int
    modified_at: datetime
    mode: str
    target: str | None


class BackupFolder(Model):
    """`path`: the folder's own path, after links were followed. `entries`: up to 1,000 from `offset` on, of `total`;
    folders first, then by name. `cut`: the folder has more entries, which are not listed."""

    path: str
    volume: int
    volumes: list[BackupVolume]
    entries: list[BackupEntry]
    total: int
    offset: int
    cut: bool


class BackupFilePart(FilePart):
    """A part of a file of a backup."""


@operations.declare(
    "vm.files.open",
    "Open the files of a machine's backup on its node; the machine is not changed",
    Route.post("/vms/{id}/backups/{backup_id}/files"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def open_files(context: Context[Controller], request: CopyRequest) -> TaskModel:
    await visible_machine(context.services.database, context.principal, request.id)
    machine = context.services.actors.ref(Machine, str(request.id))
    task = await machine.ask(Machine.open_copy, context.caller, request.backup_id)
    return TaskModel.of(task, context.principal)


@operations.declare(
    "vm.files.list",
    "List a folder of an open backup of a machine",
    Route.get("/vms/{id}/backups/{backup_id}/files"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "backup_id", "path"),
)
async def list_files(context: Context[Controller], request: CopyListRequest) -> BackupFolder:
    require_path(request.path)
    _, copy = await _authorised_copy(context, request.id, request.backup_id)
    told = await copy.folder(request.volume, request.path, request.offset)
    return BackupFolder(
        path=told.path,
        volume=told.volume,
        volumes=[BackupVolume(**volume.model_dump()) for volume in told.volumes],
        entries=[
            BackupEntry(
                name=entry.name,
                kind=entry.kind,
                size_bytes=entry.size_bytes,
                modified_at=datetime.fromtimestamp(entry.modified, UTC),
                mode=f"{entry.mode:04o}",
                target=entry.target,
            )
            for entry in told.entries
        ],
        total=told.total,
        offset=request.offset,
        cut=told.cut,
    )


@operations.declare(
    "vm.files.download",
    "Download a file of an open backup of a machine, part by part",
    Route.get("/vms/{id}/backups/{backup_id}/files/download"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "backup_id", "path"),
    secret=True,
)
async def download_file(context: Context[Controller], request: CopyDownloadRequest) -> BackupFilePart:
    require_path(request.path)
    vm, copy = await _authorised_copy(context, request.id, request.backup_id)
    told = await copy.part(request.volume, request.path, request.offset, request.limit)
    version = _version(request.backup_id, told)
    if request.version is not None and request.version != version:
        raise conflict("The file has changed since the download started.", hint="Start again at offset 0.")
    # The first request of a download writes the audit row, whatever its offset: a download need not start at 0.
    download = (context.principal.user_id, request.id, f"{told.volume}:{told.path}", version)
    if context.services.downloads.needs_audit(download, anew=request.offset == 0):
        await _record(context, vm, request, told)
    data = base64.b64decode(told.data)
    return BackupFilePart(
        offset=request.offset,
        data_base64=told.data,
        size=told.size_bytes,
        sha256=hashlib.sha256(data).hexdigest(),
        version=version,
        name=request.path.rstrip("/").rpartition("/")[2] or "file",
    )


@operations.declare(
    "vm.files.close",
    "Close the files of a machine's backup; an unused one is closed automatically",
    Route.delete("/vms/{id}/backups/{backup_id}/files"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def close_files(context: Context[Controller], request: CopyRequest) -> None:
    vm, copy = await _authorised_copy(context, request.id, request.backup_id)
    await copy.close()
    async with context.services.database.transaction() as tx:
        await audit.record(tx, context.caller, _target(vm), {"copy_id": str(request.backup_id)})


async def _authorised_copy(context: Context[Controller], vm_id: UUID, copy_id: UUID) -> tuple[Record, OpenCopy]:
    """Check that the caller may read this backup, and return its machine and the copy to read from. Raises not_found,
    forbidden."""
    if context.principal.impersonation_id is not None:
        raise forbidden(SUPPORT_SESSION_REFUSAL)
    vm = await visible_machine(context.services.database, context.principal, vm_id)
    await copied_disks(context.services.database, vm_id, copy_id)
    return vm, OpenCopy(context.services.gateway, vm["node_id"], vm_id, copy_id)


async def _record(context: Context[Controller], vm: Record, request: CopyDownloadRequest, told: CopiedPart) -> None:
    async def write(tx: Transaction) -> None:
        details = {
            "copy_id": str(request.backup_id),
            "volume": told.volume,
            "path": told.path[:_MOST_SHOWN],
            "size": told.size_bytes,
        }
        await audit.record(tx, context.caller, _target(vm), details)

    await context.services.database.transact(write)


def _target(vm: Record) -> Target:
    return Target("vm", vm["id"], vm["name"], vm["project_id"])


def _version(copy_id: UUID, told: CopiedPart) -> str:
    """The version of the file, from the copy's id and the file's path, size and time: a copy never changes, so these
    identify the content."""
    told_of = f"{copy_id} {told.volume} {told.size_bytes} {told.modified} {told.path}"
    return hashlib.sha256(told_of.encode()).hexdigest()[:32]
