"""Named operations: what a controller asks of a node."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal, get_args
from uuid import UUID

from pydantic import Field

from svc_nodeagent.protocol.backups import BackupOperation
from svc_nodeagent.protocol.copy_files import CopyFilesOperation
from svc_nodeagent.protocol.facts import Facts, Lane, query
from svc_nodeagent.protocol.live import LiveOperation
from svc_nodeagent.protocol.machines import CpuMode, ImageSpec, MachineSpec, SeedSpec
from svc_nodeagent.protocol.media import VmIso
from svc_nodeagent.protocol.networks import NetworkSpec
from svc_nodeagent.protocol.platforms import PLAIN, Platform
from svc_nodeagent.protocol.rescue import RescueOperation
from svc_nodeagent.protocol.snapshots import SnapshotOperation
from svc_nodeagent.protocol.values import (
    FEW,
    Address,
    AnyText,
    Count,
    Gibibytes,
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
    "GUEST_SHUTDOWN_SECONDS",
    "CertificateRenew",
    "ConsoleKind",
    "ConsoleOpen",
    "CpuMode",
    "ImagePull",
    "ImageRemove",
    "MachineOperation",
    "MachineSize",
    "NodeInventory",
    "NodeNetProbe",
    "NodeOperation",
    "NodePreflight",
    "NodeTraffic",
    "NodeUpgrade",
    "RemakingOperation",
    "VmCpuSet",
    "VmCreate",
    "VmDelete",
    "VmDescribe",
    "VmForceStop",
    "VmMetrics",
    "VmMigrate",
    "VmNetApply",
    "VmNetRelease",
    "VmReboot",
    "VmReinstall",
    "VmReset",
    "VmResize",
    "VmSend",
    "VmSetPassword",
    "VmShutdown",
    "VmStart",
    "VmUpdate",
    "VmWindowsPassword",
    "VmWindowsReport",
]

GUEST_SHUTDOWN_SECONDS: Final = 90.0
"""How long a guest may take to shut down (vm-controller-api.md, Limits)."""

CPU_RESTART_SECONDS: Final = 180.0
"""How long it may take where it is restarted for another processor."""


class VmCreate(Wire):
    """Fetch the image if the cache lacks it, make disks and seed, apply the network, define, and start if asked. `iso`
    is in its CD-ROM drive from its first start on, which it boots where there is nothing on its disk."""

    facts: ClassVar[Facts] = Facts(Lane.CREATIONS, "domain", task_seconds=1800.0)
    op: Literal["vm.create"] = "vm.create"
    machine: MachineSpec
    image: ImageSpec
    start: bool = True
    iso: Annotated[ImageSpec | None, Since(5)] = None


class VmStart(Wire):
    """Apply the network, then start. It has room for a libvirt that probes QEMU anew at every call: two minutes a
    start, and several starts queue for it."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "domain", task_seconds=600.0, yields_to_force_stop=True)
    op: Literal["vm.start"] = "vm.start"
    vm_id: UUID
    network: NetworkSpec


class VmShutdown(Wire):
    """ACPI shutdown; `timed_out` when the guest still runs after `timeout_seconds`: it is left running."""

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
    """Done again it would cut off a guest that has come up from the first reset. A reboot is repeatable: it is orderly,
    and interrupted half-way it has left the machine off."""

    facts: ClassVar[Facts] = Facts(Lane.FORCE, "domain", task_seconds=90.0, repeatable=False, yields_to_force_stop=True)
    op: Literal["vm.reset"] = "vm.reset"
    vm_id: UUID


class VmDelete(Wire):
    """Stop at once, undefine, release the network. Without `destroy_disks` the disks move to the retained folder.

    Its seconds are counted while its node is online: the task itself has no deadline, and waits as long as its node is
    away."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "delete", task_seconds=600.0)
    op: Literal["vm.delete"] = "vm.delete"
    vm_id: UUID
    destroy_disks: bool
    destroy_volumes: Annotated[tuple[UUID, ...], Field(max_length=16), Since(5)] = ()
    """Of its volumes, those that go with it; the others stay."""


class VmUpdate(Wire):
    """Rewrite the stored definition; a running guest keeps what it has until it is stopped and started."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "domain", task_seconds=300.0)
    op: Literal["vm.update"] = "vm.update"
    vm_id: UUID
    name: Name
    vcpus: Count
    memory_mib: Count


class MachineSize(Wire):
    """`disk_gib` is of disk 0."""

    vcpus: int = Field(ge=1, le=256)
    memory_mib: int = Field(ge=64, le=2**31 - 1)
    disk_gib: Gibibytes


class VmResize(Wire):
    """Give the machine these sizes, and disk 0 at least `disk_gib`: it grows at once where the guest runs, and never
    shrinks. Processors and memory need `restart`: shut the guest down in order, and start it again, unless it runs with
    them already. `timed_out` leaves it running, and whatever fails leaves the machine with the sizes of `before`, which
    a repeat after an interruption could not find out."""

    facts: ClassVar[Facts] = Facts(Lane.PATIENCE, "domain", task_seconds=GUEST_SHUTDOWN_SECONDS + 600.0, since=4)
    op: Literal["vm.resize"] = "vm.resize"
    vm_id: UUID
    vcpus: int = Field(ge=1, le=256)
    memory_mib: int = Field(ge=64, le=2**31 - 1)
    disk_gib: Gibibytes
    before: MachineSize
    restart: bool
    timeout_seconds: Seconds = GUEST_SHUTDOWN_SECONDS


class VmCpuSet(Wire):
    """Rewrite the processor in the stored definition, and nothing else of it: a guest that runs keeps its own until it
    is stopped and started. `restart`: shut it down in order first, and start it after; `timed_out` leaves it running
    and its definition as it was. `before` is the mode of the definition, to which a failure goes back, which a repeat
    after an interruption could not find out."""

    facts: ClassVar[Facts] = Facts(Lane.PATIENCE, "domain", task_seconds=CPU_RESTART_SECONDS + 600.0, since=4)
    op: Literal["vm.cpu.set"] = "vm.cpu.set"
    vm_id: UUID
    cpu_mode: CpuMode
    before: CpuMode
    restart: bool
    timeout_seconds: Seconds = CPU_RESTART_SECONDS


class VmReinstall(Wire):
    """Make disk 0 anew from an image, and with it what firmware and TPM keep, and start its first boot. The guest runs
    on until the new disk is ready; a failure leaves it as it was, and success means that the machine is the new system,
    started or not.
    `seed.instance_id` tells one reinstallation from another. `iso` takes the place of what is in the CD-ROM drive, and
    is booted after the disk.

    Its seconds are of one attempt. The task itself has no deadline: only the host knows which system the machine is, so
    it is asked again until it has given its word."""

    facts: ClassVar[Facts] = Facts(Lane.CREATIONS, "domain", task_seconds=1800.0, since=4)
    op: Literal["vm.reinstall"] = "vm.reinstall"
    vm_id: UUID
    image: ImageSpec
    seed: SeedSpec
    network: NetworkSpec
    platform: Annotated[Platform, Since(5)] = PLAIN
    iso: Annotated[ImageSpec | None, Since(5)] = None


class VmSetPassword(Wire):
    """Through the guest agent. `password_hash` is SHA-512 crypt."""

    facts: ClassVar[Facts] = Facts(Lane.GUEST_AGENTS, "done", task_seconds=60.0)
    op: Literal["vm.set_password"] = "vm.set_password"
    vm_id: UUID
    account: Name
    password_hash: Secret = Field(repr=False)


class VmWindowsReport(Wire):
    """Has a Windows guest ended its first boot? It is asked through its agent. Result: `WindowsReport`."""

    facts: ClassVar[Facts] = Facts(Lane.GUEST_AGENTS, "windows", recorded=False, since=4)
    op: Literal["vm.windows.report"] = "vm.windows.report"
    vm_id: UUID


class VmWindowsPassword(Wire):
    """Through the guest agent of a Windows, which takes no crypt. It is set again where it was interrupted, so the
    journal has nothing of it. Result: `Done`."""

    facts: ClassVar[Facts] = Facts(Lane.GUEST_AGENTS, "done", recorded=False, since=4)
    op: Literal["vm.windows.password"] = "vm.windows.password"
    vm_id: UUID
    account: Name
    password: Secret = Field(repr=False)


class VmMigrate(Wire):
    """Take a machine in that moves here: dial the gateway with this token, receive its disks from the host that has it
    (`VmSend`), and define it, off and without its network, which its start brings. Until all of it is there it is no
    machine, and a failure leaves nothing. `conflict` where there is a machine of this id. Result: `SentDisks`.

    Its seconds are the task's. A stream is opened once, so it is not done again."""

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
    """Send the disks of a machine that is off to the host that takes it in (`VmMigrate`), by the stream of this token.
    The machine stays as it is. Result: `SentDisks`."""

    facts: ClassVar[Facts] = Facts(Lane.TRANSFERS, "sent", task_seconds=6 * 3600.0, repeatable=False, since=4)
    op: Literal["vm.send"] = "vm.send"
    vm_id: UUID
    stream_token: Secret = Field(repr=False)


class VmDescribe(Wire):
    """What the agent has recorded of a machine, for a controller that has lost its own record. Result:
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
    """Make the host agree with addresses, topology, firewall and rate together, or leave it as it was; then tell the
    guest. A generation older than the one applied changes nothing."""

    facts: ClassVar[Facts] = Facts(Lane.NETWORKS, "network")
    op: Literal["vm.net.apply"] = "vm.net.apply"
    vm_id: UUID
    network: NetworkSpec


class VmNetRelease(Wire):
    """Remove host routes and rules; the result names exactly what was removed, and only that may be freed. An address
    is an IPv4 address, or an IPv6 network as it was given in `GuestAddress.network`."""

    facts: ClassVar[Facts] = Facts(Lane.NETWORKS, "release")
    op: Literal["vm.net.release"] = "vm.net.release"
    vm_id: UUID
    addresses: Annotated[tuple[Address, ...], Field(max_length=FEW)]


class NodeNetProbe(Wire):
    """What the host actually has of networks of ours."""

    facts: ClassVar[Facts] = query("probe")
    op: Literal["node.net.probe"] = "node.net.probe"


class NodeTraffic(Wire):
    """The agent's readings of traffic: of every machine, for this month and the ones before it that it still keeps."""

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
    """Renew the certificate ahead of time: done once the agent has set about it (see `Renewal`)."""

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
"""What changes one machine, or what the host carries for it."""

RemakingOperation = VmResize | VmCpuSet | VmReinstall
"""What makes a part of a machine anew: its size, its processor, its system."""


class NodeUpgrade(Wire):
    """Be of this release: fetch its wheel by `stream_token`, install it, and start it. The release that then runs
    answers: the new one once the controller has welcomed it, or the old one after `trial_seconds` without. `signature`
    is of `statement`, by the controller's authority (ECDSA with SHA-256, base64). `order` tells attempts apart."""

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
        """What is signed. It begins with its purpose, so that no other signature of the key is good for it."""
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
"""By the name of the operation, which is the name of its task as well."""
