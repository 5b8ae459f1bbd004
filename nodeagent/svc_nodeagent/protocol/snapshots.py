"""Operations on snapshots, each of which is inside all disks of its machine under the same id."""

from __future__ import annotations

from typing import ClassVar, Literal
from uuid import UUID

from svc_nodeagent.protocol.facts import Facts, Lane
from svc_nodeagent.protocol.values import Wire

__all__ = ["SnapshotOperation", "VmSnapshotDelete", "VmSnapshotRestore", "VmSnapshotTake"]


class VmSnapshotTake(Wire):
    """Take a snapshot of the disks, with the guest's file systems frozen if its agent answers. Remains of an earlier
    attempt with this id are removed first, since they are from another time. Result: `SnapshotResult`."""

    facts: ClassVar[Facts] = Facts(Lane.PATIENCE, "snapshot", task_seconds=900.0, yields_to_force_stop=True, since=5)
    op: Literal["vm.snapshot.take"] = "vm.snapshot.take"
    vm_id: UUID
    snapshot_id: UUID


class VmSnapshotRestore(Wire):
    """Restore the disks of a machine that is off from a snapshot, which stays. A disk that was smaller then keeps its
    present size. Result: `DomainResult`."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "domain", task_seconds=1800.0, since=5)
    op: Literal["vm.snapshot.restore"] = "vm.snapshot.restore"
    vm_id: UUID
    snapshot_id: UUID


class VmSnapshotDelete(Wire):
    """Delete a snapshot of a machine that runs or is off; a missing snapshot is success. Result: `Done`."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "done", task_seconds=1800.0, since=5)
    op: Literal["vm.snapshot.delete"] = "vm.snapshot.delete"
    vm_id: UUID
    snapshot_id: UUID


SnapshotOperation = VmSnapshotTake | VmSnapshotRestore | VmSnapshotDelete
