"""Operations on copies of a machine's disks: made, read, and removed in the machine's store at a target."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal
from uuid import UUID

from pydantic import Field

from svc_nodeagent.protocol.backup_places import BackupPlace
from svc_nodeagent.protocol.facts import Facts, Lane
from svc_nodeagent.protocol.machines import CopiedDisk, ImageSpec, MachineSpec
from svc_nodeagent.protocol.platforms import Platform
from svc_nodeagent.protocol.values import FEW, Name, Secret, Wire
from svc_nodeagent.protocol.versions import Since

__all__ = [
    "BackupOperation",
    "VmBackup",
    "VmBackupsForget",
    "VmBackupsRemove",
    "VmCreateFromCopy",
    "VmRestore",
]


class VmBackup(Wire):
    """Copy the machine's disks into its store at the node's target, under this id, while its guest goes on; then remove
    the copies `forget`. `password` is of the store. `place`: where the store is, when that is not the file system that
    is mounted on the node. Result: `BackupResult`."""

    facts: ClassVar[Facts] = Facts(Lane.BACKUPS, "backup", task_seconds=6 * 3600.0, yields_to_force_stop=True, since=4)
    op: Literal["vm.backup"] = "vm.backup"
    vm_id: UUID
    copy_id: UUID
    password: Secret = Field(repr=False)
    forget: Annotated[tuple[UUID, ...], Field(max_length=FEW)] = ()
    place: Annotated[BackupPlace | None, Since(5)] = None


class VmRestore(Wire):
    """Make the disks of a machine that is off what they were in a copy. `disks` are those of the copy's result: what
    is read has to agree with them, or the machine stays as it was. `source_id`: the machine that the copy is of, where
    that is another; `password` is of its store. `platform`: what the machine was at the time of the copy, where it is
    another now, and which it is again. What its firmware and its TPM kept at that time comes back as well, and has to
    be what `state` of the copy's result says, where that was said. `place`: as of `VmBackup`."""

    facts: ClassVar[Facts] = Facts(Lane.BACKUPS, "domain", task_seconds=6 * 3600.0, since=4)
    op: Literal["vm.restore"] = "vm.restore"
    vm_id: UUID
    copy_id: UUID
    password: Secret = Field(repr=False)
    disks: Annotated[tuple[CopiedDisk, ...], Field(min_length=1, max_length=16)]
    source_id: Annotated[UUID | None, Since(4)] = None
    platform: Annotated[Platform | None, Since(5)] = None
    state: Annotated[Name | None, Since(5)] = None
    place: Annotated[BackupPlace | None, Since(5)] = None


class VmCreateFromCopy(Wire):
    """Make a machine whose disks are what another's were in a copy: as `VmCreate` with `VmRestore` before the start.
    What fails leaves nothing of it. Result: `DomainResult`."""

    facts: ClassVar[Facts] = Facts(Lane.BACKUPS, "domain", task_seconds=6 * 3600.0, since=4)
    op: Literal["vm.create.from_copy"] = "vm.create.from_copy"
    machine: MachineSpec
    image: ImageSpec
    start: bool
    restoration: VmRestore


class VmBackupsForget(Wire):
    """Remove these copies at the target, of a machine that this node may no longer have; missing copies are no
    failure. `password` is of the store. `place`: as of `VmBackup`. Result: `Done`."""

    facts: ClassVar[Facts] = Facts(Lane.BACKUPS, "done", task_seconds=6 * 3600.0, yields_to_force_stop=True, since=4)
    op: Literal["vm.backups.forget"] = "vm.backups.forget"
    vm_id: UUID
    password: Secret = Field(repr=False)
    copies: Annotated[tuple[UUID, ...], Field(max_length=FEW)]
    place: Annotated[BackupPlace | None, Since(5)] = None


class VmBackupsRemove(Wire):
    """Remove the store of a machine that was deleted, with all copies in it; none there is success. Refused while this
    node has the machine. Its seconds are a backup's, which it may have to wait for. `place`: as of `VmBackup`; there
    the store is emptied by its `password`. Result: `Done`."""

    facts: ClassVar[Facts] = Facts(Lane.BACKUPS, "done", task_seconds=6 * 3600.0, since=4)
    op: Literal["vm.backups.remove"] = "vm.backups.remove"
    vm_id: UUID
    place: Annotated[BackupPlace | None, Since(5)] = None
    password: Annotated[Secret | None, Since(5)] = Field(default=None, repr=False)


BackupOperation = VmBackup | VmRestore | VmCreateFromCopy | VmBackupsForget | VmBackupsRemove
