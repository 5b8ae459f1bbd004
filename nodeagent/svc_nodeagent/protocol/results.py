"""The results of a node's successful operations."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from svc_nodeagent.protocol.copy_files import CopiedFolder, CopiedPart, OpenedCopy
from svc_nodeagent.protocol.live import LivePlace
from svc_nodeagent.protocol.machines import CopiedDisk, DiskSpec, ImageFormat, SeedSpec
from svc_nodeagent.protocol.networks import GuestTold, NetworkSpec, ObservedNetwork, ObservedTap, TrafficReading
from svc_nodeagent.protocol.platforms import PLAIN, Platform
from svc_nodeagent.protocol.values import (
    FEW,
    MANY,
    MOST_SENTENCES,
    Address,
    Count,
    DomainState,
    Generation,
    Mebibytes,
    Moment,
    Name,
    Quantity,
    Rate,
    Secret,
    Size,
    StateCause,
    Text,
    Wire,
)
from svc_nodeagent.protocol.versions import Since
from svc_nodeagent.protocol.volumes import KeptDisk, ObservedVolume


class Done(Wire):
    """Success without further results."""

    kind: Literal["done"] = "done"


class DomainResult(Wire):
    """The state of the domain on the host after the operation."""

    kind: Literal["domain"] = "domain"
    vm_id: UUID
    state: DomainState


class ReleaseResult(Wire):
    kind: Literal["release"] = "release"
    vm_id: UUID
    removed: Annotated[tuple[Address, ...], Field(max_length=FEW)]


class DeleteResult(Wire):
    kind: Literal["delete"] = "delete"
    vm_id: UUID
    removed_addresses: Annotated[tuple[Address, ...], Field(max_length=FEW)]
    retained_disks: Annotated[tuple[Name, ...], Field(max_length=FEW)]


class WindowsReport(Wire):
    """`booted`: its first boot has ended. `password`: the password that the machine generated, if it did. While it
    is off or its agent does not answer, `booted` is false and `password` null."""

    kind: Literal["windows"] = "windows"
    vm_id: UUID
    booted: bool
    password: Secret | None = Field(default=None, repr=False)


class BackupResult(Wire):
    """A complete copy. `frozen`: the guest's file systems were frozen while the snapshot was taken; otherwise it is as
    after a power cut. `forgotten`: copies that are no longer at the target. `stored_bytes`: the data that the target
    lacked, before compression. `lost`: the target has lost data that earlier copies need and that exists nowhere else.
    `state`: the SHA-256 of the state of firmware and TPM, `none` if the copy has no such state; None from older agents.
    """

    kind: Literal["backup"] = "backup"
    vm_id: UUID
    copy_id: UUID
    disks: Annotated[tuple[CopiedDisk, ...], Field(min_length=1, max_length=16)]
    stored_bytes: Size
    frozen: bool
    forgotten: Annotated[tuple[UUID, ...], Field(max_length=FEW)]
    lost: Annotated[bool, Since(5)] = False
    state: Annotated[Name | None, Since(5)] = None


class SnapshotResult(Wire):
    """`frozen`: as in `BackupResult`."""

    kind: Literal["snapshot"] = "snapshot"
    vm_id: UUID
    snapshot_id: UUID
    frozen: bool


class SentDisks(Wire):
    """The disks of a machine that moves: what the source has sent, or what the target has received. `size_bytes` is
    that of the file; `digest` is that of the stream and must be the same on both hosts."""

    kind: Literal["sent"] = "sent"
    vm_id: UUID
    disks: Annotated[tuple[CopiedDisk, ...], Field(min_length=1, max_length=16)]


class LiveResult(Wire):
    """Where the guest of a live migration is, as one host sees it. `state` is the state of the domain on that host."""

    kind: Literal["live"] = "live"
    vm_id: UUID
    place: LivePlace
    state: DomainState


class KeptMachine(Wire):
    """A machine as its agent has recorded it, without secrets. `image_digest`: of the image it was made from."""

    vm_id: UUID
    name: Name
    vcpus: Count
    memory_mib: Count
    disks: Annotated[tuple[DiskSpec, ...], Field(min_length=1, max_length=16)]
    network: NetworkSpec
    seed: SeedSpec
    image_digest: Name
    platform: Annotated[Platform, Since(5)] = PLAIN


class MachineResult(Wire):
    kind: Literal["machine"] = "machine"
    machine: KeptMachine


class MetricPoint(Wire):
    """`memory_used_mib` is None if the guest does not report it."""

    at: Moment
    cpu_percent: Rate
    memory_used_mib: Rate | None
    disk_read_bytes: Rate
    disk_written_bytes: Rate
    net_received_bytes: Rate
    net_sent_bytes: Rate


class MetricsResult(Wire):
    """Rates are per second, averaged over `resolution_seconds`; oldest first."""

    kind: Literal["metrics"] = "metrics"
    vm_id: UUID
    resolution_seconds: Count
    points: Annotated[tuple[MetricPoint, ...], Field(max_length=MANY)]


class NetworkResult(Wire):
    """`generation`: that of the network that the host has applied. `told`: whether the guest has configured it."""

    kind: Literal["network"] = "network"
    vm_id: UUID
    generation: Generation
    told: GuestTold


class ProbeResult(Wire):
    """`taps`: all whose name follows our scheme; `machines`: those that the agent has a record of. `ruleset_digest`:
    digest of our tables as nft lists them, without counters."""

    kind: Literal["probe"] = "probe"
    taps: Annotated[tuple[ObservedTap, ...], Field(max_length=MANY)]
    machines: Annotated[tuple[ObservedNetwork, ...], Field(max_length=MANY)]
    ruleset_digest: Name


class TrafficResult(Wire):
    """`ledger_id` changes if the agent had to create a new ledger: readings then start at zero."""

    kind: Literal["traffic"] = "traffic"
    ledger_id: UUID
    readings: Annotated[tuple[TrafficReading, ...], Field(max_length=MANY)]


class ObservedDomain(Wire):
    """A hypervisor domain on the node. `vm_id` is None for one that is not ours. `rescue`: whether the machine is in
    rescue."""

    uuid: UUID
    name: Name
    vm_id: UUID | None
    state: DomainState
    cause: StateCause | None = None
    vcpus: Count
    memory_mib: Count
    rescue: Annotated[bool, Since(5)] = False


class CachedImage(Wire):
    image_id: UUID
    format: ImageFormat
    size_bytes: Size
    digest: Name
    pulled_at: Moment


class Capacity(Wire):
    """The host's resources, and how much of them is free now."""

    cpus: Count
    memory_mib: Mebibytes
    memory_free_mib: Mebibytes
    disk_gib: Quantity
    disk_free_gib: Quantity
    load_1m: Quantity


class NodeFacts(Wire):
    """`network_features`: those of nat, routed, bridged, ipv6, rate, vlan and bridge-conntrack that this host supports;
    `network_lacks` says for each other one why not, and for `gateway:ADDRESS` why no nat or routed pool can have this
    gateway here. `host_addresses`: the host's own, with their prefixes, without those on guests' taps.
    `platform_features`: those of uefi, uefi_secure and tpm that machines here can have; `platform_lacks` says for each
    other one why not."""

    hostname: Name
    host_uuid: UUID
    agent_version: Name
    os: Name
    kernel: Name
    libvirt: Name
    hypervisor: Name
    cpu_model: Name
    accelerator: Literal["kvm", "tcg", "simulated"]
    machine_types: Annotated[tuple[Name, ...], Field(max_length=FEW)]
    network_features: Annotated[tuple[Name, ...], Field(max_length=FEW)]
    network_lacks: Annotated[dict[Name, Text], Field(default_factory=dict, max_length=MOST_SENTENCES)]
    host_addresses: Annotated[tuple[Address, ...], Field(max_length=FEW)] = ()
    platform_features: Annotated[tuple[Name, ...], Since(5), Field(max_length=FEW)] = ()
    platform_lacks: Annotated[dict[Name, Text], Since(5), Field(default_factory=dict, max_length=MOST_SENTENCES)]


class InventoryResult(Wire):
    kind: Literal["inventory"] = "inventory"
    facts: NodeFacts
    capacity: Capacity
    domains: Annotated[tuple[ObservedDomain, ...], Field(max_length=MANY)]
    images: Annotated[tuple[CachedImage, ...], Field(max_length=MANY)]
    retained_disks: Annotated[tuple[Name, ...], Field(max_length=MANY)] = ()
    volumes: Annotated[tuple[ObservedVolume, ...] | None, Field(max_length=MANY), Since(5)] = None
    """None from an agent that does not know volumes."""
    kept_disks: Annotated[tuple[KeptDisk, ...], Field(max_length=MANY), Since(5)] = ()


class CheckStatus(StrEnum):
    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"


class PreflightCheck(Wire):
    """One readiness check: `name` is stable (libvirt, accelerator, nftables, disk, time, certificate, ...)."""

    name: Name
    status: CheckStatus
    message: Text


class PreflightResult(Wire):
    kind: Literal["preflight"] = "preflight"
    checks: Annotated[tuple[PreflightCheck, ...], Field(max_length=MOST_SENTENCES)]


class ImageResult(Wire):
    kind: Literal["image"] = "image"
    image: CachedImage


OperationResult = Annotated[
    Done
    | DomainResult
    | ReleaseResult
    | DeleteResult
    | BackupResult
    | OpenedCopy
    | CopiedFolder
    | CopiedPart
    | SnapshotResult
    | SentDisks
    | LiveResult
    | WindowsReport
    | MachineResult
    | MetricsResult
    | NetworkResult
    | ProbeResult
    | TrafficResult
    | InventoryResult
    | PreflightResult
    | ImageResult,
    Field(discriminator="kind"),
]
