"""A machine of a simulated host: its state, and the answers that are computed from it. Its disks are empty."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from random import Random
from uuid import UUID

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import (
    CopiedDisk,
    CpuMode,
    DiskSpec,
    DomainResult,
    DomainState,
    Done,
    FailureCode,
    ImageKind,
    KeptMachine,
    LivePlace,
    LiveResult,
    MachineResult,
    MachineSpec,
    MetricPoint,
    MetricsResult,
    ObservedDomain,
    OperationResult,
    RescueOperation,
    SeedSpec,
    SnapshotOperation,
    SnapshotResult,
    StateCause,
    VmMetrics,
    VmRescue,
    VmSnapshotDelete,
    VmSnapshotRestore,
    VmSnapshotTake,
    Wire,
)
from svc_nodeagent.simulated_network import SimulatedNetworks


class SimulatedMachine(Wire):
    vm_id: UUID
    name: str
    vcpus: int
    memory_mib: int
    state: DomainState
    cause: StateCause | None = None
    defined: bool = True
    """False if somebody has removed the machine's domain; its files still exist."""
    started_at: datetime | None = None
    spec: MachineSpec | None = None
    """The specification with which the machine was created, without its password; None for a machine that existed from
    the beginning."""
    image_digest: str = ""
    cpu_mode: CpuMode = CpuMode.DEFAULT
    snapshots: tuple[UUID, ...] = ()
    rescue: bool = False
    iso: UUID | None = None
    place: LivePlace = LivePlace.HERE


def new_machine(spec: MachineSpec, image_digest: str, cpu_mode: CpuMode = CpuMode.DEFAULT) -> SimulatedMachine:
    return SimulatedMachine(
        vm_id=spec.vm_id,
        name=spec.name,
        vcpus=spec.vcpus,
        memory_mib=spec.memory_mib,
        state=DomainState.STOPPED,
        spec=spec,
        image_digest=image_digest,
        cpu_mode=cpu_mode,
    )


def without_password(seed: SeedSpec) -> SeedSpec:
    return seed.model_copy(update={"account": seed.account.model_copy(update={"password_hash": None})})


def copied(machine: SimulatedMachine) -> tuple[CopiedDisk, ...]:
    disks = machine.spec.disks if machine.spec is not None else (DiskSpec(index=0, size_gib=1),)
    return tuple(
        CopiedDisk(index=disk.index, size_bytes=0, digest=sha256().hexdigest(), volume_id=disk.volume_id)
        for disk in disks
    )


def observed_domain(machine: SimulatedMachine) -> ObservedDomain:
    return ObservedDomain(
        uuid=machine.vm_id,
        name=machine.name,
        vm_id=machine.vm_id,
        state=machine.state,
        cause=machine.cause,
        vcpus=machine.vcpus,
        memory_mib=machine.memory_mib,
        rescue=machine.rescue,
    )


def describe(machine: SimulatedMachine, networks: SimulatedNetworks) -> MachineResult:
    if machine.spec is None:
        raise HostError(FailureCode.NOT_FOUND, f"This host has no record of machine {machine.vm_id}.")
    kept = KeptMachine(
        vm_id=machine.vm_id,
        name=machine.name,
        vcpus=machine.vcpus,
        memory_mib=machine.memory_mib,
        disks=machine.spec.disks,
        network=networks.networks[machine.vm_id].spec,
        seed=machine.spec.seed,
        image_digest=machine.image_digest,
        platform=machine.spec.platform,
    )
    return MachineResult(machine=kept)


def metrics(machine: SimulatedMachine, operation: VmMetrics, random: Random) -> MetricsResult:
    resolution = max(1, operation.resolution_seconds)
    now = datetime.now(UTC)
    since = now - timedelta(hours=operation.hours)
    if machine.started_at is not None:
        since = max(since, machine.started_at)
    count = min(int((now - since).total_seconds() // resolution), 5_000) if machine.started_at else 0
    points = tuple(
        MetricPoint(
            at=now - timedelta(seconds=resolution * back),
            cpu_percent=round(random.uniform(1, 20), 1),
            memory_used_mib=machine.memory_mib / 2,
            disk_read_bytes=0.0,
            disk_written_bytes=4096.0,
            net_received_bytes=128.0,
            net_sent_bytes=64.0,
        )
        for back in range(count, 0, -1)
    )
    return MetricsResult(vm_id=operation.vm_id, resolution_seconds=resolution, points=points)


# Live migration: nothing is dialled, so the guest has left when it was sent, and has arrived when it was received.
def require_running(machine: SimulatedMachine) -> None:
    if machine.state is not DomainState.RUNNING:
        raise HostError(FailureCode.CONFLICT, "The guest does not run, so it was not moved.")


def live_result(vm_id: UUID, machine: SimulatedMachine | None) -> LiveResult:
    if machine is None:
        return LiveResult(vm_id=vm_id, place=LivePlace.ABSENT, state=DomainState.ABSENT)
    return LiveResult(vm_id=vm_id, place=machine.place, state=machine.state)


def in_rescue(operation: RescueOperation) -> bool:
    """Whether the machine is in rescue afterwards. Raises `HostError` as a real host does."""
    if not isinstance(operation, VmRescue):
        return False
    if operation.system.kind is not ImageKind.RESCUE:
        raise HostError(FailureCode.INVALID, f"The file {operation.system.name} is no rescue system.")
    return True


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
