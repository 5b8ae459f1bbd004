"""Is this host ready to run guests: a check for each question, answered by trying, and telling what to do.

Names of checks are stable: programs, libvirt, emulator, accelerator, nftables, forwarding, disk, storage. (Clock and
certificate are the agent's own to judge.)
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.acceleration import Acceleration, qemu_user
from svc_nodeagent.hypervisor.connection import Connection, version_text
from svc_nodeagent.hypervisor.domains import Accelerator
from svc_nodeagent.hypervisor.files import GIB, Folders, in_thread
from svc_nodeagent.hypervisor.network import taps
from svc_nodeagent.hypervisor.programs import try_program
from svc_nodeagent.protocol import CheckStatus, PreflightCheck

PROGRAMS = ("qemu-system-x86_64", "qemu-img", "genisoimage", "ip", "nft")
DISK_WARNING_FRACTION, DISK_FAILURE_GIB = 0.1, 1.0
OLDEST_QEMU = (6, 0)

# Table family, and a rule that only a kernel with the feature takes.
_FEATURES: dict[str, tuple[str, str]] = {
    "inet-conntrack": ("inet", "chain c { type filter hook forward priority 0; ct state established accept; }"),
    "nat": ("inet", "chain c { type nat hook postrouting priority 100; masquerade; }"),
    "netdev-ingress": ("netdev", 'chain c { type filter hook ingress device "lo" priority 0; }'),
    "concatenated-sets": ("inet", "set s { type ifname . ether_addr . ipv4_addr; }"),
    "limits": ("inet", "chain c { limit rate 1 mbytes/second accept; }"),
    "bridge": ("bridge", "chain c { type filter hook forward priority 0; arp operation request accept; }"),
    "bridge-conntrack": ("bridge", "chain c { type filter hook forward priority 0; ct state established accept; }"),
}
_NEEDED = ("inet-conntrack", "nat", "netdev-ingress", "concatenated-sets")


async def network_features() -> tuple[str, ...]:
    """Which nftables features this kernel has, by asking it to check rules that it does not keep."""
    found = []
    for name, (family, body) in _FEATURES.items():
        status, _, _ = await try_program(
            "nft", "-c", "-f", "-", stdin=f"table {family} svcprobe {{ {body}\n}}\n".encode()
        )
        if status == 0:
            found.append(name)
    return tuple(found)


async def preflight(
    *,
    connection: Connection,
    acceleration: Acceleration,
    folders: Folders,
    restore_failure: str | None,
) -> tuple[PreflightCheck, ...]:
    """All checks, in the order a reader would mend them. One that cannot be carried out has failed, and says why."""
    checks: dict[str, Callable[[], Awaitable[PreflightCheck]]] = {
        "programs": _programs,
        "libvirt": lambda: _libvirt(connection),
        "emulator": lambda: _emulator(connection),
        "accelerator": lambda: _accelerator(acceleration),
        "nftables": _nftables,
        "forwarding": lambda: _forwarding(restore_failure),
        "disk": lambda: _disk(folders),
        "storage": lambda: _storage(folders),
    }
    results = []
    for name, check in checks.items():
        try:
            results.append(await check())
        except HostError as error:
            results.append(_failed(name, f"{error.message} {error.hint or ''}".strip()))
    return tuple(results)


async def _programs() -> PreflightCheck:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return _failed("programs", f"Not installed: {', '.join(missing)}. Install the node's packages anew.")
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


async def _accelerator(acceleration: Acceleration) -> PreflightCheck:
    verdict = await acceleration.verdict()
    sentence = verdict.reason[0].upper() + verdict.reason[1:] + "."
    if verdict.accelerator is Accelerator.KVM:
        return _passed("accelerator", sentence)
    return _warning("accelerator", sentence)


async def _nftables() -> PreflightCheck:
    found = await network_features()
    missing = [name for name in _FEATURES if name not in found]
    lacking = [name for name in missing if name in _NEEDED]
    if lacking:
        return _failed(
            "nftables", f"The kernel lacks {', '.join(lacking)}; guests cannot be filtered. Use another kernel."
        )
    if missing:
        return _warning("nftables", f"nat and routed networks can be carried. The kernel lacks {', '.join(missing)}.")
    return _passed("nftables", "The kernel has every feature that networks of guests use.")


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
        return _failed("disk", sentence + " Free space, or no guest can write for long.")
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


def _passed(name: str, message: str) -> PreflightCheck:
    return PreflightCheck(name=name, status=CheckStatus.PASSED, message=message)


def _warning(name: str, message: str) -> PreflightCheck:
    return PreflightCheck(name=name, status=CheckStatus.WARNING, message=message)


def _failed(name: str, message: str) -> PreflightCheck:
    return PreflightCheck(name=name, status=CheckStatus.FAILED, message=message)
