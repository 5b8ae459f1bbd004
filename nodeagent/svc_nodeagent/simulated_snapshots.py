"""Snapshots of a simulated machine: their ids, since its disks are empty."""

from __future__ import annotations

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import (
    DomainResult,
    DomainState,
    Done,
    FailureCode,
    OperationResult,
    SnapshotOperation,
    SnapshotResult,
    VmSnapshotDelete,
    VmSnapshotRestore,
    VmSnapshotTake,
)
from svc_nodeagent.simulated_machines import SimulatedMachine


def snapshot(machine: SimulatedMachine, operation: SnapshotOperation) -> tuple[dict[str, object], OperationResult]:
    """The changed fields of the machine, and the answer. Raises `HostError` as a real host does."""
    vm_id, wanted = operation.vm_id, operation.snapshot_id
    others = tuple(each for each in machine.snapshots if each != wanted)
    match operation:
        case VmSnapshotTake():
            answer = SnapshotResult(vm_id=vm_id, snapshot_id=wanted, frozen=machine.state is DomainState.RUNNING)
            return {"snapshots": (*others, wanted)}, answer
        case VmSnapshotDelete():
            return {"snapshots": others}, Done()
        case VmSnapshotRestore():
            if machine.state is not DomainState.STOPPED:
                raise HostError(FailureCode.CONFLICT, "The machine is not off.")
            if wanted not in machine.snapshots:
                raise HostError(FailureCode.NOT_FOUND, "Disk 0 of the machine does not have this snapshot.")
            return {}, DomainResult(vm_id=vm_id, state=DomainState.STOPPED)
