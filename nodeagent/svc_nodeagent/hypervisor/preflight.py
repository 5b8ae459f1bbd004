"""Checks whether this host is ready to run guests. Each check tries one thing, and says what to do if it fails.

Names of checks are stable: programs, libvirt, emulator, kvm, accelerator, nftables, forwarding, disk, storage, backups,
rescue, firmware. (The agent itself checks its clock and certificate.)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.acceleration import Acceleration, DeviceAccess, qemu_user
from svc_nodeagent.hypervisor.backups.mounted import MountedTarget
from svc_nodeagent.hypervisor.backups.store import PACKAGES, missing_programs
from svc_nodeagent.hypervisor.connection import Connection, version_text
from svc_nodeagent.hypervisor.files import GIB, Folders, in_thread
from svc_nodeagent.hypervisor.network import taps
from svc_nodeagent.hypervisor.network.plan import Uplink
from svc_nodeagent.hypervisor.network.rates import rates_lack
from svc_nodeagent.hypervisor.platforms import platform_features
from svc_nodeagent.hypervisor.processors import Accelerator
from svc_nodeagent.hypervisor.programs import try_program
from svc_nodeagent.hypervisor.rescued import rescue_systems
from svc_nodeagent.protocol import CheckStatus, FailureCode, PreflightCheck

PROGRAMS = ("qemu-system-x86_64", "qemu-img", "genisoimage", "ip", "bridge", "tc", "nft")
DISK_WARNING_FRACTION, DISK_FAILURE_GIB = 0.1, 1.0
OLDEST_QEMU = (6, 0)

# For each feature: the table family, a rule that only a kernel with the feature accepts, and what does not work without
# it.
_KERNEL: dict[str, tuple[str, str, str]] = {
    "guard": (
        "netdev",
        'counter n { }; chain c { type filter hook ingress device "lo" priority -300; counter name n drop; }',
        "nftables at a device's ingress (nf_tables_netdev)",
    ),
    "filter": (
        "inet",
        "map m { type ifname : verdict; }; "
        "chain c { type filter hook forward priority 0; iifname vmap @m; ct state established accept; }",
        "nftables with connection tracking (nf_tables_inet, nft_ct)",
    ),
    "masquerade": (
        "inet",
        "chain c { type nat hook postrouting priority 100; masquerade; }",
        "address translation by nftables (nft_masq)",
    ),
    "bridge": (
        "bridge",
        "map m { type ifname : verdict; }; chain c { type filter hook forward priority 0; oifname vmap @m; }",
        "nftables on a bridge (nf_tables_bridge)",
    ),
    "bridge-conntrack": (
        "bridge",
        "chain c { type filter hook forward priority 0; ct state established accept; }",
        "connection tracking on a bridge (nf_conntrack_bridge)",
    ),
}
_NEEDED = ("guard", "filter", "masquerade")
_IPV6_SETTINGS = Path("/proc/sys/net/ipv6")


@dataclass(frozen=True)
class NetworkFeatures:
    """The protocol's network features on this host. `found`: those that it has; `lacks`: for each of the others a
    sentence that says why not."""

    found: tuple[str, ...]
    lacks: dict[str, str]
    kernel_bridges: bool
    """Whether the kernel can guard bridged NICs, even if there is no bridge."""

    def uplink(self, bridge: str | None) -> Uplink | None:
        """The bridge that bridged NICs are plugged into, whether it exists or not: the taps of running guests stay
        while the bridge is away. Whether it filters VLANs is checked again when NICs are plugged in."""
        if bridge is None or not self.kernel_bridges:
            return None
        vlans = "vlan" in self.found or "bridged" not in self.found
        return Uplink(bridge, filters="bridge-conntrack" in self.found, vlans=vlans)


async def network_features(bridge: str | None = None) -> NetworkFeatures:
    """The features of this host, found by having its kernel check rules without installing them. `bridge`: what bridged
    NICs are plugged into."""
    short = await _kernel_is_short_of()
    no_bridge, no_vlans = await _bridge_lacks(bridge)
    lacks: dict[str, str | None] = {
        "nat": _missing(short, "guard", "filter", "masquerade"),
        "routed": _missing(short, "guard", "filter"),
        "bridged": no_bridge or _missing(short, "guard", "bridge"),
        "ipv6": _ipv6_lacks(),
        "rate": await rates_lack(),
        "vlan": no_bridge or no_vlans,
        "bridge-conntrack": _missing(short, "bridge", "bridge-conntrack"),
    }
    return NetworkFeatures(
        found=tuple(name for name, reason in lacks.items() if reason is None),
        lacks={name: reason for name, reason in lacks.items() if reason is not None},
        kernel_bridges=_missing(short, "guard", "bridge") is None,
    )


def _ipv6_lacks() -> str | None:
    return None if _IPV6_SETTINGS.exists() else "The kernel has no IPv6, or it was turned off at boot."


async def _kernel_is_short_of() -> dict[str, str]:
    short = {}
    for name, (family, body, meaning) in _KERNEL.items():
        table = f"table {family} svcprobe {{ {body}\n}}\n"
        status, _, _ = await try_program("nft", "-c", "-f", "-", stdin=table.encode())
        if status != 0:
            short[name] = meaning
    return short


def _missing(short: dict[str, str], *needed: str) -> str | None:
    missing = [short[name] for name in needed if name in short]
    return f"The kernel has no {' and no '.join(missing)}." if missing else None


async def _bridge_lacks(bridge: str | None) -> tuple[str | None, str | None]:
    """Why no NIC can be plugged into the bridge, and why no NIC can have a VLAN."""
    if bridge is None:
        return "The agent was started without --bridge, which names the bridge that holds the uplink.", None
    status, output, _ = await try_program("ip", "-json", "-details", "link", "show", "dev", bridge)
    details = json.loads(output or b"[]") if status == 0 else []
    info = details[0].get("linkinfo", {}) if details else {}
    if info.get("info_kind") != "bridge":
        return f"{bridge} is no bridge of this host.", None
    if info.get("info_data", {}).get("vlan_filtering") != 1:
        return None, f"The bridge {bridge} does not filter VLANs (vlan_filtering is off, or the kernel lacks it)."
    return None, None


async def preflight(
    *,
    connection: Connection,
    acceleration: Acceleration,
    folders: Folders,
    restore_failure: str | None,
    bridge: str | None,
) -> tuple[PreflightCheck, ...]:
    """All checks, in the order in which to fix them. A check that cannot be run has failed, and says why."""
    checks: dict[str, Callable[[], Awaitable[PreflightCheck]]] = {
        "programs": _programs,
        "libvirt": lambda: _libvirt(connection),
        "emulator": lambda: _emulator(connection),
        "kvm": lambda: _kvm(acceleration),
        "accelerator": lambda: _accelerator(acceleration),
        "nftables": lambda: _nftables(bridge),
        "forwarding": lambda: _forwarding(restore_failure),
        "disk": lambda: _disk(folders),
        "storage": lambda: _storage(folders),
        "backups": lambda: _backups(folders),
        "rescue": lambda: _rescue(folders),
        "firmware": _firmware,
    }
    results = []
    for name, check in checks.items():
        try:
            results.append(await check())
        except HostError as error:
            results.append(_failed(name, f"{error.message} {error.hint or ''}".strip()))
        except OSError as error:
            results.append(_failed(name, f"This check failed: {error}."))
    return tuple(results)


async def _programs() -> PreflightCheck:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return _failed("programs", f"Not installed: {', '.join(missing)}. Reinstall the node's packages.")
    return _passed("programs", "All programs the agent runs are installed.")


async def _libvirt(connection: Connection) -> PreflightCheck:
    version = version_text(await connection.call(lambda libvirt: int(libvirt.getLibVersion()), timeout=10))
    busy, threads = connection.statistics()["busy"], connection.statistics()["threads"]
    if busy > threads // 2:
        return _warning("libvirt", f"libvirt {version} answers, but {busy} of {threads} calls to it hang.")
    return _passed("libvirt", f"libvirt {version} answers.")


async def _emulator(connection: Connection) -> PreflightCheck:
    number = await connection.call(lambda libvirt: int(libvirt.getVersion()), timeout=10)
    if (number // 1_000_000, number // 1000 % 1000) < OLDEST_QEMU:
        return _failed(
            "emulator", f"QEMU {version_text(number)} is too old; {OLDEST_QEMU[0]}.{OLDEST_QEMU[1]} or newer is needed."
        )
    return _passed("emulator", f"QEMU {version_text(number)}.")


async def _kvm(acceleration: Acceleration) -> PreflightCheck:
    """Whether QEMU's account may use KVM. In two cases libvirt considers its knowledge of QEMU outdated, and probes
    again at every call: QEMU found KVM when libvirt probed it (with root's capabilities), but QEMU's account may not
    open the device; or QEMU found no KVM, but its account may open the device."""
    device = acceleration.device
    access = await acceleration.access()
    works = access is DeviceAccess.ABSENT or await acceleration.answers()
    match access:
        case DeviceAccess.GRANTED if not works:
            return _warning(
                "kvm",
                f"{device} does not answer as KVM does: guests are emulated, and every call to libvirt that asks for "
                f"QEMU's capabilities takes seconds while QEMU's account may open it. Mend it (modules kvm_intel or "
                f"kvm_amd), or close it: chown root:root {device} && chmod 600 {device}.",
            )
        case DeviceAccess.DENIED if not works:
            return _warning(
                "kvm",
                f"{device} does not answer as KVM does: guests are emulated. Load kvm_intel or kvm_amd, and turn "
                "virtualisation on in the firmware, or on the host that this one is a guest of.",
            )
        case DeviceAccess.GRANTED:
            return _passed("kvm", f"QEMU's account may use {device}.")
        case DeviceAccess.DENIED:
            return _warning(
                "kvm",
                f"QEMU's account may not open {device}: guests are emulated, and every call to libvirt that asks for "
                f"QEMU's capabilities takes seconds. Give it to the group kvm, as udev does where it runs: "
                f"chgrp kvm {device} && chmod 660 {device}.",
            )
        case DeviceAccess.ABSENT:
            return _warning(
                "kvm",
                f"There is no {device}: guests are emulated. Turn virtualisation on in the firmware, or on the host "
                "that this one is a guest of, and load kvm_intel or kvm_amd.",
            )


async def _accelerator(acceleration: Acceleration) -> PreflightCheck:
    verdict = await acceleration.verdict()
    sentence = verdict.reason[0].upper() + verdict.reason[1:] + "."
    if verdict.accelerator is Accelerator.KVM:
        return _passed("accelerator", sentence)
    return _warning("accelerator", sentence)


async def _nftables(bridge: str | None) -> PreflightCheck:
    short = await _kernel_is_short_of()
    lacking = [short[name] for name in _NEEDED if name in short]
    if lacking:
        return _failed(
            "nftables", f"The kernel has no {' and no '.join(lacking)}; guests cannot be filtered. Use another kernel."
        )
    features = await network_features(bridge)
    sentence = f"Networks can be {', '.join(features.found)}."
    if bridge is None and features.lacks.keys() <= {"bridged", "vlan", "bridge-conntrack"}:
        return _passed("nftables", sentence)
    if features.lacks:
        return _warning("nftables", " ".join((sentence, *dict.fromkeys(features.lacks.values()))))
    return _passed("nftables", sentence)


async def _forwarding(restore_failure: str | None) -> PreflightCheck:
    if restore_failure is not None:
        return _failed(
            "forwarding", f"The guests' networks could not be restored when the agent started: {restore_failure}"
        )
    if taps.forwards():
        return _passed("forwarding", "The host forwards IPv4 for its guests.")
    return _passed("forwarding", "IPv4 forwarding is off, and is turned on with the first guest's network.")


async def _disk(folders: Folders) -> PreflightCheck:
    usage = await in_thread(shutil.disk_usage, folders.root)
    sentence = f"{usage.free / GIB:.1f} of {usage.total / GIB:.1f} GiB free for disks and images."
    if usage.free / GIB < DISK_FAILURE_GIB:
        return _failed("disk", sentence + " Free disk space, or guests will soon be unable to write.")
    if usage.free < usage.total * DISK_WARNING_FRACTION:
        return _warning("disk", sentence)
    return _passed("disk", sentence)


async def _storage(folders: Folders) -> PreflightCheck:
    status, _, _ = await try_program("test", "-x", folders.machines, run_as=qemu_user(), timeout=10)
    if status != 0:
        return _failed(
            "storage", f"QEMU's user cannot reach {folders.machines}. Make the folders above it passable (chmod o+x)."
        )
    return _passed("storage", "QEMU's user reaches the folder of disks.")


async def _backups(folders: Folders) -> PreflightCheck:
    """Backups are optional: if the node has no target, this check says so, and the controller refuses orders for
    backups there."""
    if missing := missing_programs():
        packages = ", ".join(PACKAGES[name] for name in missing)
        return _warning(
            "backups", f"Not installed: {', '.join(missing)}. No machine can be backed up here: install {packages}."
        )
    try:
        await MountedTarget(folders.backups, UUID(int=0)).look(patience=10)
    except HostError as error:
        if error.code is not FailureCode.CONFLICT:
            return _warning("backups", f"No machine can be backed up here. {error.message}")
        return _passed(
            "backups",
            f"Machines are backed up once a target is mounted, as docs/machine-backups.md says: {folders.backups}.",
        )
    return _passed("backups", f"Machines are backed up to {folders.backups}.")


async def _rescue(folders: Folders) -> PreflightCheck:
    """Whether a rescue system is ready. It passes without one: the first rescue downloads it, as a creation downloads
    its image."""
    if await in_thread(rescue_systems, folders):
        return _passed("rescue", "The rescue system is here.")
    return _passed("rescue", "No rescue system is here yet; the first rescue fetches it from the controller.")


async def _firmware() -> PreflightCheck:
    """UEFI is optional: if the node lacks a firmware, this check says so, and the controller places no machine there
    that needs the firmware."""
    features = await in_thread(platform_features)
    if features.lacks:
        lacks = dict.fromkeys(features.lacks.values())
        return _warning("firmware", f"Not every machine can be made here: {'; '.join(lacks)}.")
    return _passed("firmware", "Machines can have a BIOS, a UEFI, Secure Boot and a TPM 2.0.")


def _passed(name: str, message: str) -> PreflightCheck:
    return PreflightCheck(name=name, status=CheckStatus.PASSED, message=message)


def _warning(name: str, message: str) -> PreflightCheck:
    return PreflightCheck(name=name, status=CheckStatus.WARNING, message=message)


def _failed(name: str, message: str) -> PreflightCheck:
    return PreflightCheck(name=name, status=CheckStatus.FAILED, message=message)
