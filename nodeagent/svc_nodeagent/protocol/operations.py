"""The named operations that a controller asks of a node."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal, get_args
from uuid import UUID

from pydantic import Field

from svc_nodeagent.protocol.backups import BackupOperation
from svc_nodeagent.protocol.copy_files import CopyFilesOperation
from svc_nodeagent.protocol.facts import GUEST_SHUTDOWN_SECONDS, Facts, Lane, query
from svc_nodeagent.protocol.live import LiveOperation
from svc_nodeagent.protocol.machines import CpuMode, ImageSpec, MachineSpec
from svc_nodeagent.protocol.media import VmIso
from svc_nodeagent.protocol.networks import NetworkSpec
from svc_nodeagent.protocol.remaking import RemakingOperation
from svc_nodeagent.protocol.rescue import RescueOperation
from svc_nodeagent.protocol.snapshots import SnapshotOperation
from svc_nodeagent.protocol.values import (
    FEW,
    Address,
    AnyText,
    Count,
    Moment,
    Name,
    Seconds,
    Secret,
    Size,
    Wire,
)
from svc_nodeagent.protocol.versions import Since
from svc_nodeagent.protocol.volumes import VolumeOperation

__all__ = [
    "FACTS",
    "CertificateRenew",
    "ConsoleKind",
    "ConsoleOpen",
    "ImagePull",
    "ImageRemove",
    "MachineOperation",
    "NodeInventory",
    "NodeNetProbe",
    "NodeOperation",
    "NodePreflight",
    "NodeTraffic",
    "NodeUpgrade",
    "VmCreate",
    "VmDelete",
    "VmDescribe",
    "VmForceStop",
    "VmMetrics",
    "VmMigrate",
    "VmNetApply",
    "VmNetRelease",
    "VmReboot",
    "VmReset",
    "VmSend",
    "VmSetPassword",
    "VmShutdown",
    "VmStart",
    "VmUpdate",
    "VmWindowsPassword",
    "VmWindowsReport",
]


class VmCreate(Wire):
    """Fetch the image if the cache lacks it, make disks and seed, apply the network, define, and start if asked. `iso`
    is in the CD-ROM drive from the first start on; the machine boots it if its disk is empty."""

    facts: ClassVar[Facts] = Facts(Lane.CREATIONS, "domain", task_seconds=1800.0)
    op: Literal["vm.create"] = "vm.create"
    machine: MachineSpec
    image: ImageSpec
    start: bool = True
    iso: Annotated[ImageSpec | None, Since(5)] = None


class VmStart(Wire):
    """Apply the network, then start. The deadline allows for several queued starts on a host whose libvirt probes QEMU
    at every call, so that each start takes two minutes."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "domain", task_seconds=600.0, yields_to_force_stop=True)
    op: Literal["vm.start"] = "vm.start"
    vm_id: UUID
    network: NetworkSpec


class VmShutdown(Wire):
    """Shut down by ACPI; `timed_out` if the guest still runs after `timeout_seconds`: it is left running."""

    facts: ClassVar[Facts] = Facts(
        Lane.PATIENCE, "domain", task_seconds=GUEST_SHUTDOWN_SECONDS + 30.0, yields_to_force_stop=True
    )
    op: Literal["vm.shutdown"] = "vm.shutdown"
    vm_id: UUID
    timeout_seconds: Seconds = GUEST_SHUTDOWN_SECONDS


class VmReboot(Wire):
    """Orderly restart: shut down, then start again; `timed_out` leaves the guest running."""

    facts: ClassVar[Facts] = Facts(
        Lane.PATIENCE, "domain", task_seconds=GUEST_SHUTDOWN_SECONDS + 600.0, yields_to_force_stop=True
    )
    op: Literal["vm.reboot"] = "vm.reboot"
    vm_id: UUID
    timeout_seconds: Seconds = GUEST_SHUTDOWN_SECONDS


class VmForceStop(Wire):
    facts: ClassVar[Facts] = Facts(Lane.FORCE, "domain", task_seconds=90.0)
    op: Literal["vm.force_stop"] = "vm.force_stop"
    vm_id: UUID


class VmReset(Wire):
    """Reset at once. A reset is not repeatable: a second one would interrupt the guest's start after the first. (A
    reboot is repeatable: it is orderly, and an interrupted one leaves the machine off.)"""

    facts: ClassVar[Facts] = Facts(Lane.FORCE, "domain", task_seconds=90.0, repeatable=False, yields_to_force_stop=True)
    op: Literal["vm.reset"] = "vm.reset"
    vm_id: UUID


class VmDelete(Wire):
    """Stop at once, undefine, release the network. Without `destroy_disks` the disks move to the retained folder.

    The deadline runs only while the node is online. The task itself has no deadline: it waits while the node is
    offline."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "delete", task_seconds=600.0)
    op: Literal["vm.delete"] = "vm.delete"
    vm_id: UUID
    destroy_disks: bool
    destroy_volumes: Annotated[tuple[UUID, ...], Field(max_length=16), Since(5)] = ()
    """The volumes that are deleted with it; its other volumes stay."""


class VmUpdate(Wire):
    """Rewrite the stored definition. A running guest keeps its present sizes until it is stopped and started."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "domain", task_seconds=300.0)
    op: Literal["vm.update"] = "vm.update"
    vm_id: UUID
    name: Name
    vcpus: Count
    memory_mib: Count


class VmSetPassword(Wire):
    """Set a password by the guest agent. `password_hash` is SHA-512 crypt."""

    facts: ClassVar[Facts] = Facts(Lane.GUEST_AGENTS, "done", task_seconds=60.0)
    op: Literal["vm.set_password"] = "vm.set_password"
    vm_id: UUID
    account: Name
    password_hash: Secret = Field(repr=False)


class VmWindowsReport(Wire):
    """Ask the agent of a Windows guest whether its first boot has ended. Result: `WindowsReport`."""

    facts: ClassVar[Facts] = Facts(Lane.GUEST_AGENTS, "windows", recorded=False, since=4)
    op: Literal["vm.windows.report"] = "vm.windows.report"
    vm_id: UUID


class VmWindowsPassword(Wire):
    """Set a password by the guest agent of a Windows, which takes no crypt hash. If it is interrupted it is done again,
    so that the journal need not hold the password. Result: `Done`."""

    facts: ClassVar[Facts] = Facts(Lane.GUEST_AGENTS, "done", recorded=False, since=4)
    op: Literal["vm.windows.password"] = "vm.windows.password"
    vm_id: UUID
    account: Name
    password: Secret = Field(repr=False)


class VmMigrate(Wire):
    """Receive a machine that moves here: dial the gateway with this token, receive its disks from the source host
    (`VmSend`), and define it, off and without its network, which its start sets up. It becomes a machine only when
    everything has arrived, and a failure leaves nothing. `conflict` if the host has a machine with this id. Result:
    `SentDisks`.

    Its deadline is that of the task. It is not repeatable, since a stream is opened only once."""

    facts: ClassVar[Facts] = Facts(Lane.TRANSFERS, "sent", task_seconds=6 * 3600.0, repeatable=False, since=4)
    op: Literal["vm.migrate"] = "vm.migrate"
    machine: MachineSpec
    image: ImageSpec
    cpu_mode: CpuMode
    stream_token: Secret = Field(repr=False)

    @property
    def vm_id(self) -> UUID:
        return self.machine.vm_id


class VmSend(Wire):
    """Send the disks of a machine that is off to its target host (`VmMigrate`), over the stream of this token. The
    machine stays as it is. Result: `SentDisks`."""

    facts: ClassVar[Facts] = Facts(Lane.TRANSFERS, "sent", task_seconds=6 * 3600.0, repeatable=False, since=4)
    op: Literal["vm.send"] = "vm.send"
    vm_id: UUID
    stream_token: Secret = Field(repr=False)


class VmDescribe(Wire):
    """Return what the agent has recorded of a machine, for a controller that has lost its own record. Result:
    `MachineResult`."""

    facts: ClassVar[Facts] = query("machine", since=4)
    op: Literal["vm.describe"] = "vm.describe"
    vm_id: UUID


class VmMetrics(Wire):
    facts: ClassVar[Facts] = query("metrics")
    op: Literal["vm.metrics"] = "vm.metrics"
    vm_id: UUID
    resolution_seconds: Count
    hours: Count


class VmNetApply(Wire):
    """Apply addresses, topology, firewall and rate on the host, all of them or none; then have the guest configure its
    addresses. If the host has applied a newer generation, nothing is changed."""

    facts: ClassVar[Facts] = Facts(Lane.NETWORKS, "network")
    op: Literal["vm.net.apply"] = "vm.net.apply"
    vm_id: UUID
    network: NetworkSpec


class VmNetRelease(Wire):
    """Remove the routes and rules of these addresses. The result names exactly the addresses that the host no longer
    carries; only those may be given to another machine. An address is an IPv4 address, or an IPv6 network as it was
    given in `GuestAddress.network`."""

    facts: ClassVar[Facts] = Facts(Lane.NETWORKS, "release")
    op: Literal["vm.net.release"] = "vm.net.release"
    vm_id: UUID
    addresses: Annotated[tuple[Address, ...], Field(max_length=FEW)]


class NodeNetProbe(Wire):
    """Observe the machines' networks on the host."""

    facts: ClassVar[Facts] = query("probe")
    op: Literal["node.net.probe"] = "node.net.probe"


class NodeTraffic(Wire):
    """Return the agent's traffic readings of every machine, for this month and for the earlier months that the agent
    still keeps."""

    facts: ClassVar[Facts] = query("traffic")
    op: Literal["node.traffic"] = "node.traffic"


class NodeInventory(Wire):
    facts: ClassVar[Facts] = query("inventory")
    op: Literal["node.inventory"] = "node.inventory"


class NodePreflight(Wire):
    """`controller_time` lets the agent judge the skew of its own clock."""

    facts: ClassVar[Facts] = query("preflight")
    op: Literal["node.preflight"] = "node.preflight"
    controller_time: Moment


class ImagePull(Wire):
    facts: ClassVar[Facts] = Facts(Lane.TRANSFERS, "image")
    op: Literal["image.pull"] = "image.pull"
    image: ImageSpec


class ImageRemove(Wire):
    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "done")
    op: Literal["image.remove"] = "image.remove"
    image_id: UUID


class ConsoleKind(StrEnum):
    VNC = "vnc"
    SERIAL = "serial"


class ConsoleOpen(Wire):
    """Dial the gateway with `svc-stream/1` and this token, and join the stream to the guest's console."""

    facts: ClassVar[Facts] = query("done")
    op: Literal["console.open"] = "console.open"
    vm_id: UUID
    kind: ConsoleKind
    stream_token: Secret = Field(repr=False)


class CertificateRenew(Wire):
    """Have the agent renew its certificate ahead of time. The operation succeeds as soon as the agent has noted this;
    the renewal itself follows as a `Renewal` frame. Result: `Done`."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "done", recorded=False)
    op: Literal["node.certificate.renew"] = "node.certificate.renew"


MachineOperation = (
    VmCreate
    | VmStart
    | VmShutdown
    | VmReboot
    | VmForceStop
    | VmReset
    | VmDelete
    | VmUpdate
    | VmSetPassword
    | VmNetApply
    | VmNetRelease
)
"""Operations that change one machine, or its network on the host."""


class NodeUpgrade(Wire):
    """Upgrade the agent: fetch the wheel of this release by `stream_token`, install it, and start it. The result comes
    from the release that runs afterwards: the new one once the controller has welcomed it, or the old one if that has
    not happened within `trial_seconds`. `signature` is that of the controller's authority for `statement` (ECDSA with
    SHA-256, base64). `order` distinguishes attempts."""

    facts: ClassVar[Facts] = Facts(Lane.TRANSFERS, "done", task_seconds=1800.0, since=4)
    op: Literal["node.upgrade"] = "node.upgrade"
    version: Name
    digest: Annotated[AnyText, Field(pattern="^[0-9a-f]{64}$")]
    size: Size
    signature: Name
    stream_token: Secret = Field(repr=False)
    order: Name
    trial_seconds: float = Field(gt=0, le=3600)

    @property
    def statement(self) -> bytes:
        """The signed text. It starts with its purpose, so that no other signature of the key is valid for it."""
        return f"svc-nodeagent release {self.version} {self.size} {self.digest}".encode()


NodeOperation = Annotated[
    MachineOperation
    | RemakingOperation
    | SnapshotOperation
    | RescueOperation
    | VmIso
    | VolumeOperation
    | LiveOperation
    | VmWindowsReport
    | VmWindowsPassword
    | BackupOperation
    | CopyFilesOperation
    | VmMigrate
    | VmSend
    | VmDescribe
    | VmMetrics
    | NodeNetProbe
    | NodeTraffic
    | NodeInventory
    | NodePreflight
    | ImagePull
    | ImageRemove
    | ConsoleOpen
    | CertificateRenew
    | NodeUpgrade,
    Field(discriminator="op"),
]

FACTS: Final[dict[str, Facts]] = {
    operation.model_fields["op"].default: operation.facts for operation in get_args(get_args(NodeOperation)[0])
}
"""The facts of each operation, by its name, which is also the name of its task."""
