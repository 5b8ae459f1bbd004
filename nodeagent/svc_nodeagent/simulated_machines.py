"""A machine of a simulated host: its state, and what is read of it. Its disks are empty."""

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
    DomainState,
    FailureCode,
    KeptMachine,
    LivePlace,
    MachineResult,
    MachineSpec,
    MetricPoint,
    MetricsResult,
    ObservedDomain,
    SeedSpec,
    StateCause,
    VmMetrics,
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
