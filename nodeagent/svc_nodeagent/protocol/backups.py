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
    """Copy the machine's disks into its store at the node's target, as `copy_id`, while its guest keeps running; then
    remove the copies `forget`. `password` is that of the store. `place`: where the store is, unless it is on the file
    system that is mounted on the node. Result: `BackupResult`."""

    facts: ClassVar[Facts] = Facts(Lane.BACKUPS, "backup", task_seconds=6 * 3600.0, yields_to_force_stop=True, since=4)
    op: Literal["vm.backup"] = "vm.backup"
    vm_id: UUID
    copy_id: UUID
    password: Secret = Field(repr=False)
    forget: Annotated[tuple[UUID, ...], Field(max_length=FEW)] = ()
    place: Annotated[BackupPlace | None, Since(5)] = None


class VmRestore(Wire):
    """Restore the disks of a machine that is off from a copy. `disks` are those of the copy's result: if the data read
    do not match them, the machine stays as it was. `source_id`: the machine that was copied, if it is another one;
    `password` is that of its store. `platform`: the machine's platform at the time of the copy, if it differs now; the
    machine gets it back. The state of firmware and TPM is restored as well, and has to match `state` of the copy's
    result, if that has one. `place`: as for `VmBackup`."""

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
    """Create a machine with the disks of another machine's copy: as `VmCreate`, with `VmRestore` before the start. A
    failure leaves nothing. Result: `DomainResult`."""

    facts: ClassVar[Facts] = Facts(Lane.BACKUPS, "domain", task_seconds=6 * 3600.0, since=4)
    op: Literal["vm.create.from_copy"] = "vm.create.from_copy"
    machine: MachineSpec
    image: ImageSpec
    start: bool
    restoration: VmRestore


class VmBackupsForget(Wire):
    """Remove these copies at the target, of a machine that this node may no longer have; missing copies are no failure.
    `password` is that of the store. `place`: as for `VmBackup`. Result: `Done`."""

    facts: ClassVar[Facts] = Facts(Lane.BACKUPS, "done", task_seconds=6 * 3600.0, yields_to_force_stop=True, since=4)
    op: Literal["vm.backups.forget"] = "vm.backups.forget"
    vm_id: UUID
    password: Secret = Field(repr=False)
    copies: Annotated[tuple[UUID, ...], Field(max_length=FEW)]
    place: Annotated[BackupPlace | None, Since(5)] = None


class VmBackupsRemove(Wire):
    """Remove the store of a machine that was deleted, with all copies in it; a missing store is success. Refused while
    this node has the machine. It has the deadline of a backup, since it may have to wait for one. `place`: as for
    `VmBackup`; there the store is emptied with its `password`. Result: `Done`."""

    facts: ClassVar[Facts] = Facts(Lane.BACKUPS, "done", task_seconds=6 * 3600.0, since=4)
    op: Literal["vm.backups.remove"] = "vm.backups.remove"
    vm_id: UUID
    place: Annotated[BackupPlace | None, Since(5)] = None
    password: Annotated[Secret | None, Since(5)] = Field(default=None, repr=False)


BackupOperation = VmBackup | VmRestore | VmCreateFromCopy | VmBackupsForget | VmBackupsRemove
