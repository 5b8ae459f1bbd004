"""The words between a controller and its node agents: frames, named operations, and what each carries.

The agent dials the controller's gateway (port 8444, TLS with certificates on both sides) and speaks one of two
protocols, chosen by ALPN:

- `http/1.1`: a websocket at `/agent` carrying JSON text frames, each a `DownFrame` (controller to agent) or an
  `UpFrame`;
- `svc-stream/1`: a raw byte stream for consoles and image files. The agent sends a stream token and a newline, then the
  bytes flow both ways with TCP's own back-pressure.

Rules both sides keep:

1. Every request carries an operation id. The agent journals id -> outcome before it answers, so a request repeated
   after a lost connection is answered from the journal, or joins the run still under way; it is never executed twice.
2. The journal keeps an outcome until the controller acknowledges it.
3. Operations are idempotent besides: each states what shall be, and finding it so is success.
4. Unknown fields are refused on both sides; `PROTOCOL_VERSION` changes when a field does.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Annotated, Literal, NewType
from uuid import UUID

from pydantic import AfterValidator, AnyUrl, BaseModel, ConfigDict, Field, TypeAdapter

PROTOCOL_VERSION = 1
AGENT_PATH = "/agent"
STREAM_ALPN = "svc-stream/1"
MAX_FRAME_BYTES = 4 * 1024 * 1024

OperationId = NewType("OperationId", str)
MacAddress = Annotated[str, Field(pattern=r"^([0-9a-f]{2}:){5}[0-9a-f]{2}$")]
GuestInterface = IPv4Interface | IPv6Interface
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Size = Annotated[int, Field(ge=0, le=2**53)]
Quantity = Annotated[float, Field(ge=0)]


def _an_address(text: str) -> str:
    ip_interface(text)
    return text


Address = Annotated[str, AfterValidator(_an_address)]
"""An address as text, with or without a prefix length."""


class Wire(BaseModel):
    """What a peer says ends in records, so a figure that none could hold is no frame."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DomainState(StrEnum):
    """What the host says of a guest. `absent`: the host has no such domain."""

    RUNNING = "running"
    PAUSED = "paused"
    SHUTTING_DOWN = "shutting_down"
    STOPPED = "stopped"
    CRASHED = "crashed"
    ABSENT = "absent"


class Topology(StrEnum):
    NAT = "nat"
    BRIDGED = "bridged"
    ROUTED = "routed"


class FailureCode(StrEnum):
    """Why an operation failed on the host; the controller turns it into an error of the API."""

    INVALID = "invalid"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    CAPACITY = "capacity"
    UNSUPPORTED = "unsupported"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    HOST = "host"
    INTERRUPTED = "interrupted"


# What a machine is


class ImageFormat(StrEnum):
    QCOW2 = "qcow2"
    RAW = "raw"


class UrlSource(Wire):
    kind: Literal["url"] = "url"
    url: AnyUrl


class ControllerSource(Wire):
    """The file is kept by the controller; the agent reads it from a stream opened with this token."""

    kind: Literal["controller"] = "controller"
    token: str


class ImageSpec(Wire):
    """One image file. `digest`, by the publisher's algorithm, is checked over the whole file before it is used."""

    image_id: UUID
    name: str
    format: ImageFormat
    source: Annotated[UrlSource | ControllerSource, Field(discriminator="kind")]
    digest_algorithm: Literal["sha256", "sha512"] = "sha256"
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64,128}$")]
    size_bytes: int | None = None


class GuestAddress(Wire):
    """`interface` is what the guest configures (address and prefix); on a nat or routed topology the prefix is 32 or
    128 and `gateway` is reached on-link through the tap."""

    interface: GuestInterface
    gateway: str
    on_link: bool
    primary: bool = False


class NicSpec(Wire):
    nic_id: UUID
    mac: MacAddress
    topology: Topology
    addresses: tuple[GuestAddress, ...]
    nameservers: tuple[str, ...] = ()
    mtu: int = 1500
    rate_mbps: int | None = None


class NetworkSpec(Wire):
    """Everything the host must agree with for one machine's network: `vm.net.apply` makes it so, all together."""

    nics: tuple[NicSpec, ...]


class Account(Wire):
    """The account the access mode names. `password_hash` is SHA-512 crypt; None locks password login."""

    name: str
    sudo: bool
    password_hash: str | None = Field(default=None, repr=False)
    ssh_keys: tuple[str, ...] = ()


class SeedSpec(Wire):
    """First boot, by NoCloud: the agent renders meta-data, user-data and network-config from this."""

    instance_id: str
    hostname: str
    account: Account
    ssh_password_login: bool


class DiskSpec(Wire):
    """Disk 0 is created from the image and grown to `size_gib`; further ones are empty."""

    index: int = Field(ge=0, le=15)
    size_gib: int = Field(ge=1)


class MachineSpec(Wire):
    vm_id: UUID
    name: str
    vcpus: int = Field(ge=1, le=256)
    memory_mib: int = Field(ge=64)
    disks: tuple[DiskSpec, ...] = Field(min_length=1)
    network: NetworkSpec
    seed: SeedSpec


# Named operations: parameters and results


class VmCreate(Wire):
    """Fetch the image if the cache lacks it, make disks and seed, apply the network, define, and start if asked."""

    op: Literal["vm.create"] = "vm.create"
    machine: MachineSpec
    image: ImageSpec
    start: bool = True


class VmStart(Wire):
    """Apply the network, then start."""

    op: Literal["vm.start"] = "vm.start"
    vm_id: UUID
    network: NetworkSpec


class VmShutdown(Wire):
    """ACPI shutdown; `timed_out` when the guest still runs after `timeout_seconds`: it is left running."""

    op: Literal["vm.shutdown"] = "vm.shutdown"
    vm_id: UUID
    timeout_seconds: float = 90.0


class VmReboot(Wire):
    """Orderly restart: shut down, then start again; `timed_out` leaves the guest running."""

    op: Literal["vm.reboot"] = "vm.reboot"
    vm_id: UUID
    timeout_seconds: float = 90.0


class VmForceStop(Wire):
    op: Literal["vm.force_stop"] = "vm.force_stop"
    vm_id: UUID


class VmReset(Wire):
    op: Literal["vm.reset"] = "vm.reset"
    vm_id: UUID


class VmDelete(Wire):
    """Stop at once, undefine, release the network. Without `destroy_disks` the disks move to the retained folder."""

    op: Literal["vm.delete"] = "vm.delete"
    vm_id: UUID
    destroy_disks: bool


class VmUpdate(Wire):
    """Rewrite the stored definition; a running guest keeps what it has until it is stopped and started."""

    op: Literal["vm.update"] = "vm.update"
    vm_id: UUID
    name: str
    vcpus: int
    memory_mib: int


class VmSetPassword(Wire):
    """Through the guest agent. `password_hash` is SHA-512 crypt."""

    op: Literal["vm.set_password"] = "vm.set_password"
    vm_id: UUID
    account: str
    password_hash: str = Field(repr=False)


class VmMetrics(Wire):
    op: Literal["vm.metrics"] = "vm.metrics"
    vm_id: UUID
    resolution_seconds: int
    hours: int


class VmNetApply(Wire):
    op: Literal["vm.net.apply"] = "vm.net.apply"
    vm_id: UUID
    network: NetworkSpec


class VmNetRelease(Wire):
    """Remove host routes and rules; the result names exactly what was removed, and only that may be freed."""

    op: Literal["vm.net.release"] = "vm.net.release"
    vm_id: UUID
    addresses: tuple[Address, ...]


class NodeNetProbe(Wire):
    op: Literal["node.net.probe"] = "node.net.probe"


class NodeInventory(Wire):
    op: Literal["node.inventory"] = "node.inventory"


class NodePreflight(Wire):
    """`controller_time` lets the agent judge the skew of its own clock."""

    op: Literal["node.preflight"] = "node.preflight"
    controller_time: datetime


class ImagePull(Wire):
    op: Literal["image.pull"] = "image.pull"
    image: ImageSpec


class ImageRemove(Wire):
    op: Literal["image.remove"] = "image.remove"
    image_id: UUID


class ConsoleKind(StrEnum):
    VNC = "vnc"
    SERIAL = "serial"


class ConsoleOpen(Wire):
    """Dial the gateway with `svc-stream/1` and this token, and join the stream to the guest's console."""

    op: Literal["console.open"] = "console.open"
    vm_id: UUID
    kind: ConsoleKind
    stream_token: str = Field(repr=False)


class CertificateRenew(Wire):
    """Renew the certificate ahead of time: done once the agent has set about it (see `Renewal`)."""

    op: Literal["node.certificate.renew"] = "node.certificate.renew"


NodeOperation = Annotated[
    VmCreate
    | VmStart
    | VmShutdown
    | VmReboot
    | VmForceStop
    | VmReset
    | VmDelete
    | VmUpdate
    | VmSetPassword
    | VmMetrics
    | VmNetApply
    | VmNetRelease
    | NodeNetProbe
    | NodeInventory
    | NodePreflight
    | ImagePull
    | ImageRemove
    | ConsoleOpen
    | CertificateRenew,
    Field(discriminator="op"),
]


class Done(Wire):
    """Nothing to tell beyond success."""

    kind: Literal["done"] = "done"


class DomainResult(Wire):
    """What the host said of the domain once the operation had ended."""

    kind: Literal["domain"] = "domain"
    vm_id: UUID
    state: DomainState


class ReleaseResult(Wire):
    kind: Literal["release"] = "release"
    vm_id: UUID
    removed: tuple[Address, ...]


class DeleteResult(Wire):
    kind: Literal["delete"] = "delete"
    vm_id: UUID
    removed_addresses: tuple[Address, ...]
    retained_disks: tuple[str, ...]


class MetricPoint(Wire):
    at: datetime
    cpu_percent: float
    memory_used_mib: float | None
    disk_read_bytes: float
    disk_written_bytes: float
    net_received_bytes: float
    net_sent_bytes: float


class MetricsResult(Wire):
    """Rates are per second, averaged over `resolution_seconds`; oldest first."""

    kind: Literal["metrics"] = "metrics"
    vm_id: UUID
    resolution_seconds: int
    points: tuple[MetricPoint, ...]


class ObservedTap(Wire):
    device: str
    vm_id: UUID | None
    up: bool
    routes: tuple[str, ...]
    filtered: bool


class ProbeResult(Wire):
    kind: Literal["probe"] = "probe"
    taps: tuple[ObservedTap, ...]
    addresses: tuple[str, ...]
    ruleset_digest: str


class ObservedDomain(Wire):
    """A hypervisor domain on the node. `vm_id` is None for one that is not ours."""

    uuid: UUID
    name: str
    vm_id: UUID | None
    state: DomainState
    vcpus: Count
    memory_mib: Count


class CachedImage(Wire):
    image_id: UUID
    format: ImageFormat
    size_bytes: Size
    digest: str
    pulled_at: datetime


class Capacity(Wire):
    """What the host has, and what running guests use now."""

    cpus: Count
    memory_mib: Size
    memory_free_mib: Size
    disk_gib: Quantity
    disk_free_gib: Quantity
    load_1m: Quantity


class NodeFacts(Wire):
    hostname: str
    host_uuid: UUID
    agent_version: str
    os: str
    kernel: str
    libvirt: str
    hypervisor: str
    cpu_model: str
    accelerator: Literal["kvm", "tcg", "simulated"]
    machine_types: tuple[str, ...]
    network_features: tuple[str, ...]


class InventoryResult(Wire):
    kind: Literal["inventory"] = "inventory"
    facts: NodeFacts
    capacity: Capacity
    domains: tuple[ObservedDomain, ...]
    images: tuple[CachedImage, ...]
    retained_disks: tuple[str, ...] = ()


class CheckStatus(StrEnum):
    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"


class PreflightCheck(Wire):
    """One readiness check: `name` is stable (libvirt, accelerator, nftables, disk, time, certificate, ...)."""

    name: str
    status: CheckStatus
    message: str


class PreflightResult(Wire):
    kind: Literal["preflight"] = "preflight"
    checks: tuple[PreflightCheck, ...]


class ImageResult(Wire):
    kind: Literal["image"] = "image"
    image: CachedImage


OperationResult = Annotated[
    Done
    | DomainResult
    | ReleaseResult
    | DeleteResult
    | MetricsResult
    | ProbeResult
    | InventoryResult
    | PreflightResult
    | ImageResult,
    Field(discriminator="kind"),
]


# Frames, controller to agent


class Welcome(Wire):
    """Answer to `Hello`. The agent sends a heartbeat at least this often, and holds the connection dead after three."""

    frame: Literal["welcome"] = "welcome"
    protocol: int
    node_id: UUID
    heartbeat_seconds: float
    controller_time: datetime


class Request(Wire):
    frame: Literal["request"] = "request"
    id: OperationId
    operation: NodeOperation
    timeout_seconds: float


class Cancel(Wire):
    """Give the operation up where that is still possible; its outcome (done, or `cancelled`) is reported as ever."""

    frame: Literal["cancel"] = "cancel"
    id: OperationId


class Acknowledge(Wire):
    """The controller has stored these outcomes; the journal may forget them."""

    frame: Literal["acknowledge"] = "acknowledge"
    ids: tuple[OperationId, ...]


class Renewed(Wire):
    """The new certificate, PEM, with the chain of the controller's authority."""

    frame: Literal["renewed"] = "renewed"
    certificate: str
    authority: str


DownFrame = Annotated[Welcome | Request | Cancel | Acknowledge | Renewed, Field(discriminator="frame")]


# Frames, agent to controller


class Hello(Wire):
    """First frame of a connection. `unacknowledged`: operations the journal still holds, running or ended."""

    frame: Literal["hello"] = "hello"
    protocol: int
    agent_version: str
    boot_id: str
    unacknowledged: tuple[OperationId, ...] = ()


class Heartbeat(Wire):
    frame: Literal["heartbeat"] = "heartbeat"
    at: datetime
    capacity: Capacity


class Progress(Wire):
    """`percent` of the operation as a whole; `message` is for people and becomes a line of the task's log."""

    frame: Literal["progress"] = "progress"
    id: OperationId
    percent: int = Field(ge=0, le=100)
    message: str


class Succeeded(Wire):
    outcome: Literal["succeeded"] = "succeeded"
    result: OperationResult


class Failed(Wire):
    outcome: Literal["failed"] = "failed"
    code: FailureCode
    message: str
    hint: str | None = None


Outcome = Annotated[Succeeded | Failed, Field(discriminator="outcome")]


class Result(Wire):
    """Sent again on every new connection until acknowledged."""

    frame: Literal["result"] = "result"
    id: OperationId
    outcome: Outcome


class DomainChanged(Wire):
    """The host saw a guest of ours change state, whoever changed it."""

    frame: Literal["domain_changed"] = "domain_changed"
    vm_id: UUID
    state: DomainState
    reason: str
    at: datetime


class Renewal(Wire):
    """A certificate signing request, PEM, sent at two thirds of the lifetime over the open channel."""

    frame: Literal["renewal"] = "renewal"
    csr: str


UpFrame = Annotated[Hello | Heartbeat | Progress | Result | DomainChanged | Renewal, Field(discriminator="frame")]

DOWN: TypeAdapter[DownFrame] = TypeAdapter(DownFrame)
UP: TypeAdapter[UpFrame] = TypeAdapter(UpFrame)


# Enrolment, over the controller's public HTTPS port before there is a certificate


class EnrolRequest(Wire):
    """POST /api/v1/nodes/enrol. The agent makes its key; only the request leaves the host."""

    token: str = Field(repr=False)
    csr: str
    hostname: str
    host_uuid: UUID


class EnrolResult(Wire):
    node_id: UUID
    certificate: str
    authority: str
    gateway_host: str
    gateway_port: int
