"""A machine's record as libvirt's domain XML, and libvirt's states as ours.

Invariants of the definition: no TCP listener (VNC on a private socket, reached through libvirt's descriptor only);
every file is named with its format, so no format is probed; libvirt does not change the owner of files, because images
are shared and the agent sets the owner of each disk; the network device is a tap that the agent has created, for which
it has set the rules, and which it has brought up.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID
from xml.etree import ElementTree

import libvirt

from svc_nodeagent.hypervisor.files import Folders, MachineRecord
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.platforms import add_firmware, add_tpm
from svc_nodeagent.hypervisor.processors import Accelerator, cpu_element
from svc_nodeagent.protocol import MOST_VOLUMES, PLAIN, DomainState, Firmware, StateCause, volume_serial

METADATA_NAMESPACE = "urn:svc:machine:1"
GUEST_AGENT_CHANNEL = "org.qemu.guest_agent.0"
BALLOON_PERIOD_SECONDS = 10
_DISK_LETTERS = "abcdefghijklmnopqrstuvwxyz"

ElementTree.register_namespace("svc", METADATA_NAMESPACE)


@dataclass(frozen=True)
class BaseImage:
    path: Path
    format: str


@dataclass(frozen=True)
class DirectBoot:
    """The kernel and initial file system that are booted instead of the machine's disk, and the disk that the booted
    system reads instead of the seed."""

    kernel: Path
    initrd: Path
    command_line: str
    seed: Path


@dataclass(frozen=True)
class Medium:
    """The medium in the CD-ROM drive; if `boot` is set, the machine boots the medium before its disk."""

    path: Path
    boot: bool


CD_TARGET = "sda"
"""The CD-ROM drive in the definition: every machine has one, so that media can be changed while the guest runs."""


def domain_xml(
    record: MachineRecord,
    base: BaseImage,
    folders: Folders,
    naming: Naming,
    accelerator: Accelerator,
    boot: DirectBoot | None = None,
    medium: Medium | None = None,
) -> str:
    """The definition of `record`. The domain's UUID is the machine's id. `boot`: for a machine in rescue."""
    kvm = accelerator is Accelerator.KVM
    domain = ElementTree.Element("domain", type="kvm" if kvm else "qemu")
    _text(domain, "name", naming.domain(record.vm_id))
    _text(domain, "uuid", str(record.vm_id))
    _text(domain, "title", record.name)
    metadata = ElementTree.SubElement(domain, "metadata")
    ElementTree.SubElement(metadata, f"{{{METADATA_NAMESPACE}}}machine", id=str(record.vm_id))
    _text(domain, "memory", str(record.memory_mib), unit="MiB")
    _text(domain, "vcpu", str(record.vcpus), placement="static")

    system = ElementTree.SubElement(domain, "os")
    _text(system, "type", "hvm", arch="x86_64", machine="q35")
    # The rescue system is not signed, so no Secure Boot firmware would start it. It boots with the plain platform, and
    # the state of the machine's firmware and TPM is not used.
    platform = record.platform if boot is None else PLAIN
    add_firmware(system, platform, folders.nvram(record.vm_id))
    if boot is not None:
        _text(system, "kernel", str(boot.kernel))
        _text(system, "initrd", str(boot.initrd))
        _text(system, "cmdline", boot.command_line)
    # A UEFI firmware boots only from the devices that are named here.
    drives = ["hd"] if medium is None else ["cdrom", "hd"] if medium.boot else ["hd", "cdrom"]
    for drive in drives:
        ElementTree.SubElement(system, "boot", dev=drive)
    features = ElementTree.SubElement(domain, "features")
    for feature in ("acpi", "apic"):
        ElementTree.SubElement(features, feature)
    if platform.firmware is Firmware.UEFI_SECURE:
        # With SMM only the firmware, in its own mode of the processor, can write the keys of Secure Boot; the guest's
        # system cannot.
        ElementTree.SubElement(features, "smm", state="on")
    domain.append(cpu_element(record.cpu_mode, accelerator))
    clock = ElementTree.SubElement(domain, "clock", offset="utc")
    for timer, policy in (("rtc", "catchup"), ("pit", "delay")):
        ElementTree.SubElement(clock, "timer", name=timer, tickpolicy=policy)
    ElementTree.SubElement(clock, "timer", name="hpet", present="no")
    for event, action in (("on_poweroff", "destroy"), ("on_reboot", "restart"), ("on_crash", "restart")):
        _text(domain, event, action)

    devices = ElementTree.SubElement(domain, "devices")
    for disk in record.disks:
        backing = base if disk.index == 0 else None
        serial = None if disk.volume_id is None else volume_serial(disk.volume_id)
        path = folders.disk_of(record.vm_id, disk)
        _disk(devices, disk_target(disk.index), path, "qcow2", backing=backing, serial=serial)
    # The seed is a read-only virtio disk and not a CD drive: every guest that can find its root disk can find this
    # disk, too.
    seed = folders.seed(record.vm_id) if boot is None else boot.seed
    _disk(devices, disk_target(len(_DISK_LETTERS) - 1), seed, "raw", readonly=True)
    ElementTree.SubElement(devices, "controller", type="scsi", model="virtio-scsi")
    devices.append(cd_drive(medium))
    for nic in record.network.nics:
        _interface(devices, naming.tap(nic.nic_id), nic.mac, nic.mtu)
    _consoles(devices, folders.serial_log(record.vm_id))
    add_tpm(devices, platform)
    rng = ElementTree.SubElement(devices, "rng", model="virtio")
    _text(rng, "backend", "/dev/urandom", model="random")
    balloon = ElementTree.SubElement(devices, "memballoon", model="virtio")
    ElementTree.SubElement(balloon, "stats", period=str(BALLOON_PERIOD_SECONDS))
    ElementTree.SubElement(devices, "panic", model="isa")
    _slots(devices, record)
    return ElementTree.tostring(domain, encoding="unicode")


def volume_xml(volume_id: UUID, index: int, folders: Folders) -> str:
    """The device element for attaching a volume to a running guest, identical to the one in the machine's
    definition."""
    devices = ElementTree.Element("devices")
    path, serial = folders.volume(volume_id), volume_serial(volume_id)
    _disk(devices, disk_target(index), path, "qcow2", serial=serial)
    return ElementTree.tostring(devices[0], encoding="unicode")


def plugged_volumes(xml: str) -> dict[str, str]:
    """The devices of a domain that have a serial number, by serial number."""
    found = ElementTree.fromstring(xml).findall("./devices/disk")  # noqa: S314 - from libvirt itself
    return {
        serial: ElementTree.tostring(disk, encoding="unicode")
        for disk in found
        if (serial := disk.findtext("serial")) is not None
    }


def disk_target(index: int) -> str:
    """The disk's name in the guest's definition: vda, vdb, ..."""
    return f"vd{_DISK_LETTERS[index]}"


def cd_drive(medium: Medium | None) -> ElementTree.Element:
    """The CD-ROM drive. It is on virtio-scsi: cloud kernels have no SATA, and the firmware and the installers of Linux
    support virtio-scsi."""
    drive = ElementTree.Element("disk", type="file", device="cdrom")
    ElementTree.SubElement(drive, "driver", name="qemu", type="raw")
    if medium is not None:
        _source(drive, medium.path)
    ElementTree.SubElement(drive, "target", dev=CD_TARGET, bus="scsi")
    ElementTree.SubElement(drive, "readonly")
    return drive


def serial_path(xml: str) -> Path | None:
    """The pseudo-terminal of a running domain's first serial port."""
    source = ElementTree.fromstring(xml).find("./devices/serial[@type='pty']/source")  # noqa: S314 - from libvirt itself
    path = None if source is None else source.get("path")
    return None if path is None else Path(path)


def guest_agent_is_connected(xml: str) -> bool:
    target = ElementTree.fromstring(xml).find(f"./devices/channel/target[@name='{GUEST_AGENT_CHANNEL}']")  # noqa: S314 - from libvirt itself
    return target is not None and target.get("state") == "connected"


def domain_state(state: int, reason: int) -> DomainState:
    if state == libvirt.VIR_DOMAIN_SHUTOFF and reason == libvirt.VIR_DOMAIN_SHUTOFF_CRASHED:
        return DomainState.CRASHED
    return _STATES.get(state, DomainState.STOPPED)


def domain_cause(state: int, reason: int) -> StateCause | None:
    return _CAUSES.get((state, reason))


def lifecycle_state(event: int, detail: int) -> DomainState | None:
    """The state that an event announces; None for events that change no state. `absent` is not announced while a guest
    runs: it continues when its definition is removed."""
    if event == libvirt.VIR_DOMAIN_EVENT_STOPPED and detail in _UNEXPECTED:
        return DomainState.CRASHED
    return _EVENTS.get(event)


def lifecycle_cause(event: int, detail: int) -> StateCause | None:
    return _EVENT_CAUSES.get((event, detail))


def lifecycle_reason(event: int, detail: int) -> str:
    return _REASONS.get((event, detail), _EVENT_NAMES.get(event, "changed"))


_STATES = {
    libvirt.VIR_DOMAIN_RUNNING: DomainState.RUNNING,
    libvirt.VIR_DOMAIN_BLOCKED: DomainState.RUNNING,
    libvirt.VIR_DOMAIN_PAUSED: DomainState.PAUSED,
    libvirt.VIR_DOMAIN_PMSUSPENDED: DomainState.PAUSED,
    libvirt.VIR_DOMAIN_SHUTDOWN: DomainState.SHUTTING_DOWN,
    libvirt.VIR_DOMAIN_SHUTOFF: DomainState.STOPPED,
    libvirt.VIR_DOMAIN_CRASHED: DomainState.CRASHED,
}

_EVENTS = {
    libvirt.VIR_DOMAIN_EVENT_STARTED: DomainState.RUNNING,
    libvirt.VIR_DOMAIN_EVENT_RESUMED: DomainState.RUNNING,
    libvirt.VIR_DOMAIN_EVENT_SUSPENDED: DomainState.PAUSED,
    libvirt.VIR_DOMAIN_EVENT_PMSUSPENDED: DomainState.PAUSED,
    libvirt.VIR_DOMAIN_EVENT_SHUTDOWN: DomainState.SHUTTING_DOWN,
    libvirt.VIR_DOMAIN_EVENT_STOPPED: DomainState.STOPPED,
    libvirt.VIR_DOMAIN_EVENT_CRASHED: DomainState.CRASHED,
    libvirt.VIR_DOMAIN_EVENT_UNDEFINED: DomainState.ABSENT,
}

_UNEXPECTED = (libvirt.VIR_DOMAIN_EVENT_STOPPED_CRASHED, libvirt.VIR_DOMAIN_EVENT_STOPPED_FAILED)
"""QEMU was killed (`failed`: its monitor was closed without a message), or has given up."""

_CAUSES = {
    (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_SHUTDOWN): StateCause.GUEST,
    (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_DESTROYED): StateCause.FORCED,
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR): StateCause.IO_ERROR,
}

_EVENT_CAUSES = {
    (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN): StateCause.GUEST,
    (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_DESTROYED): StateCause.FORCED,
    (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_SUSPENDED_IOERROR): StateCause.IO_ERROR,
}

_EVENT_NAMES = {
    libvirt.VIR_DOMAIN_EVENT_STARTED: "started",
    libvirt.VIR_DOMAIN_EVENT_RESUMED: "resumed",
    libvirt.VIR_DOMAIN_EVENT_SUSPENDED: "paused",
    libvirt.VIR_DOMAIN_EVENT_PMSUSPENDED: "the guest suspended itself",
    libvirt.VIR_DOMAIN_EVENT_SHUTDOWN: "the guest is shutting down",
    libvirt.VIR_DOMAIN_EVENT_STOPPED: "stopped",
    libvirt.VIR_DOMAIN_EVENT_CRASHED: "the guest crashed",
    libvirt.VIR_DOMAIN_EVENT_UNDEFINED: "removed from the host",
}

_REASONS = {
    (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN): "the guest shut down",
    (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_DESTROYED): "stopped by force",
    (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_CRASHED): "its QEMU crashed",
    (libvirt.VIR_DOMAIN_EVENT_STOPPED, libvirt.VIR_DOMAIN_EVENT_STOPPED_FAILED): "its QEMU ended unexpectedly",
    (libvirt.VIR_DOMAIN_EVENT_SUSPENDED, libvirt.VIR_DOMAIN_EVENT_SUSPENDED_IOERROR): "paused after a disk error",
}


def _text(parent: ElementTree.Element, tag: str, text: str, **attributes: str) -> None:
    ElementTree.SubElement(parent, tag, attributes).text = text


def _disk(
    devices: ElementTree.Element,
    target: str,
    path: Path,
    format: str,
    *,
    backing: BaseImage | None = None,
    readonly: bool = False,
    serial: str | None = None,
) -> None:
    disk = ElementTree.SubElement(devices, "disk", type="file", device="disk")
    ElementTree.SubElement(
        disk, "driver", name="qemu", type=format, discard="unmap", cache="none" if not readonly else "default"
    )
    _source(disk, path)
    if format == "qcow2":
        store = ElementTree.SubElement(disk, "backingStore")
        if backing is not None:
            store.set("type", "file")
            ElementTree.SubElement(store, "format", type=backing.format)
            _source(store, backing.path)
            ElementTree.SubElement(store, "backingStore")
    ElementTree.SubElement(disk, "target", dev=target, bus="virtio")
    if serial is not None:
        _text(disk, "serial", serial)
    if readonly:
        ElementTree.SubElement(disk, "readonly")


def _slots(devices: ElementTree.Element, record: MachineRecord) -> None:
    """Add a PCI Express port for each device, and for each volume that the machine may get while it runs, since ports
    cannot be added to a running guest. NICs get the first ports, so that the names of the guest's network interfaces do
    not depend on the number of volumes."""
    # PCI devices other than volumes: the machine's first disk, the seed, the NICs; then the buses of the serial ports
    # and of the CD drive, the tablet, the rng and the balloon.
    others = 2 + len(record.network.nics) + 5
    ElementTree.SubElement(devices, "controller", type="pci", index="0", model="pcie-root")
    for index in range(1, 1 + others + MOST_VOLUMES):
        ElementTree.SubElement(devices, "controller", type="pci", index=str(index), model="pcie-root-port")


def _source(parent: ElementTree.Element, path: Path) -> None:
    source = ElementTree.SubElement(parent, "source", file=str(path))
    ElementTree.SubElement(source, "seclabel", model="dac", relabel="no")


def _interface(devices: ElementTree.Element, tap: str, mac: str, mtu: int) -> None:
    interface = ElementTree.SubElement(devices, "interface", type="ethernet")
    ElementTree.SubElement(interface, "mac", address=mac)
    ElementTree.SubElement(interface, "target", dev=tap, managed="no")
    ElementTree.SubElement(interface, "model", type="virtio")
    if mtu != 1500:
        ElementTree.SubElement(interface, "mtu", size=str(mtu))


def _consoles(devices: ElementTree.Element, log: Path) -> None:
    serial = ElementTree.SubElement(devices, "serial", type="pty")
    ElementTree.SubElement(serial, "log", file=str(log), append="on")
    ElementTree.SubElement(serial, "target", port="0")
    channel = ElementTree.SubElement(devices, "channel", type="unix")
    ElementTree.SubElement(channel, "target", type="virtio", name=GUEST_AGENT_CHANNEL)
    graphics = ElementTree.SubElement(devices, "graphics", type="vnc", sharePolicy="force-shared")
    ElementTree.SubElement(graphics, "listen", type="socket")
    video = ElementTree.SubElement(devices, "video")
    ElementTree.SubElement(video, "model", type="vga")
    # The keyboard is the PS/2 keyboard that every machine has. Without USB, firmware and guest have one bus less to
    # search.
    ElementTree.SubElement(devices, "input", type="tablet", bus="virtio")
    ElementTree.SubElement(devices, "controller", type="usb", model="none")
