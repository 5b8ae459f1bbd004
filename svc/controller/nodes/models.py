"""Nodes as the API shows them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

from pydantic import Field

from svc.registry.operation import Model
from svc_actors.controller.nodes.records import NodeMode, NodeState
from svc_actors.disk_space import DiskLevel


class LocationName(Model):
    id: UUID
    name: str


class NodeCapacity(Model):
    """The host's resources, and how much of them is free now. Sizes in MiB and GiB; `load_1m` is the load average."""

    cpus: int
    memory_mib: int
    memory_free_mib: int
    disk_gib: float
    disk_free_gib: float
    load_1m: float


class Allocated(Model):
    """What the machines placed on the node may use, running or not."""

    machines: int
    vcpus: int
    memory_mib: int
    disk_gib: int


class NodeDisk(Model):
    """The disk for images and machines, in GiB. Machines' disks are thin: `promised` to them may be more than `size`,
    and up to `promisable` (with the overcommit); `used` and `free` are what the host counts. A node whose `level` is
    critical takes no new machine."""

    size_gib: float
    used_gib: float
    free_gib: float
    promised_gib: int
    promisable_gib: float
    level: DiskLevel


class Overcommit(Model):
    """The most that may be promised to machines, as multiples of the host's resources; with 1 nothing is promised
    twice."""

    cpu: float
    memory: float
    disk: float


class AgentUpgrade(StrEnum):
    """Whether an agent has the controller's release. `current`: it has; `available`: it can be upgraded; `under_way`:
    it is being upgraded; `failed`: the upgrade failed, and the former release runs; `by_hand`: the agent cannot replace
    itself."""

    CURRENT = "current"
    AVAILABLE = "available"
    UNDER_WAY = "under_way"
    FAILED = "failed"
    BY_HAND = "by_hand"


class NodeAgent(Model):
    """`protocol`: the protocol version that it speaks. `release`: the release that runs; null if the agent cannot
    replace it by itself."""

    version: str
    protocol: int
    release: str | None
    upgrade: AgentUpgrade


class NodeModel(Model):
    """`capacity`, `disk` and `agent` are null until the node was first seen. `seen_at`: its last sign of life.
    `state_reason`: why a node cannot be online, if that is known."""

    id: UUID
    name: str
    location: LocationName
    state: NodeState
    state_reason: str | None
    mode: NodeMode
    maintenance: bool
    overcommit: Overcommit
    capacity: NodeCapacity | None
    allocated: Allocated
    disk: NodeDisk | None
    agent: NodeAgent | None
    connected_at: datetime | None
    seen_at: datetime | None
    created_at: datetime


class NodeFactsModel(Model):
    """What the host is, by its last inventory. `accelerator`: kvm, tcg (slow: no hardware help) or simulated.
    `network_lacks` says for each kind of network that it does not support why not. `platform_features`: those of uefi,
    uefi_secure and tpm that machines there can have; `platform_lacks` says for each other one why not."""

    hostname: str
    host_uuid: UUID
    agent_version: str
    os: str
    kernel: str
    libvirt: str
    hypervisor: str
    cpu_model: str
    accelerator: str
    machine_types: list[str]
    network_features: list[str]
    network_lacks: dict[str, str] = Field(default_factory=dict)
    host_addresses: list[str] = Field(default_factory=list)
    platform_features: list[str] = Field(default_factory=list)
    platform_lacks: dict[str, str] = Field(default_factory=dict)


class HealthStatus(StrEnum):
    """The worst of the last preflight's checks; `unknown` when none was run, or the node is not online."""

    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"


class HealthCheck(Model):
    name: str
    status: HealthStatus
    message: str


class NodeHealth(Model):
    status: HealthStatus
    checks: list[HealthCheck]
    checked_at: datetime | None
    inventory_at: datetime | None
    certificate_expires_at: datetime | None


class NodeDetail(NodeModel):
    facts: NodeFactsModel | None
    health: NodeHealth


class ObservedDomainModel(Model):
    """A domain of the node's hypervisor. `vm_id` is null for one that is not ours; `managed` says whether the machine
    it names is placed on this node. `observed_at`: when the host was asked; if a host does not answer in time, its last
    answer is shown."""

    uuid: UUID
    name: str
    vm_id: UUID | None
    managed: bool
    state: str
    vcpus: int
    memory_mib: int
    observed_at: datetime


class NodeImageModel(Model):
    image_id: UUID
    name: str
    slug: str
    digest: str
    size_bytes: int
    pulled_at: datetime


class NodeSample(Model):
    """The mean of an hour, from one sample a minute while the node was connected."""

    hour: datetime
    samples: int
    load_1m: float
    memory_free_mib: float
    disk_free_gib: float
