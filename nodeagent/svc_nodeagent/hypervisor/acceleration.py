"""Determines whether guests run under KVM on this host, by running a small guest as QEMU's account.

That /dev/kvm exists is not enough: on some nested hosts guests never get past their firmware or boot loader, and the
device may be closed to the account that runs guests (udev did not give it to the group kvm). So a small guest is
started under KVM, which goes through the processor modes of a boot and ends by QEMU's exit port. It has a few seconds
for that.

Invariant: a verdict holds only for the state of /dev/kvm in which it was found. It is determined again after the host
was booted again, after /dev/kvm appeared, disappeared or changed its owner, and after an upgrade of the agent that
brought another guest to try.

Why: docs/decisions/0037-hosts-kvm-and-windows.md.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import pwd
import tempfile
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import structlog
import trio
from pydantic import BaseModel, ConfigDict, ValidationError

from svc_nodeagent.durable import write_whole
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.boot_sector import BOOT_SECTOR, EXIT_PORT, EXIT_STATUS
from svc_nodeagent.hypervisor.files import in_thread
from svc_nodeagent.hypervisor.processors import Accelerator
from svc_nodeagent.hypervisor.programs import RunAs, try_program
from svc_nodeagent.protocol import FailureCode

DEVICE = Path("/dev/kvm")
EMULATOR = "qemu-system-x86_64"
PROBE_SECONDS = 5.0
_KVM_GET_API_VERSION = 0xAE00  # an ioctl request of linux/kvm.h
_DISK_BYTES = 1024 * 1024  # Firmware does not boot from a disk of a single sector, so the sector is padded.
_GUEST = hashlib.sha256(BOOT_SECTOR).hexdigest()

log = structlog.get_logger()


class DeviceAccess(StrEnum):
    """What QEMU's account may do with /dev/kvm."""

    ABSENT = "absent"
    DENIED = "denied"
    GRANTED = "granted"


class Verdict(BaseModel):
    """`boot_id`, `device` and `guest`: the boot, the state of /dev/kvm and the guest with which the verdict was
    found."""

    model_config = ConfigDict(frozen=True)

    boot_id: str
    device: str
    guest: str
    accelerator: Accelerator
    reason: str


@dataclass(frozen=True)
class Acceleration:
    """The verdict, stored in the file `cache`. Device and emulator are parameters so that tests can replace them."""

    cache: Path
    device: Path = DEVICE
    emulator: str | Path = EMULATOR
    probe_seconds: float = PROBE_SECONDS
    _lock: trio.Lock = field(default_factory=trio.Lock)

    async def verdict(self) -> Verdict:
        async with self._lock:
            boot_id = (await trio.Path("/proc/sys/kernel/random/boot_id").read_text()).strip()
            device = await in_thread(_state_of, self.device)
            known = await in_thread(_read, self.cache)
            if known is not None and (known.boot_id, known.device, known.guest) == (boot_id, device, _GUEST):
                return known
            accelerator, reason = await self._probe()
            verdict = Verdict(boot_id=boot_id, device=device, guest=_GUEST, accelerator=accelerator, reason=reason)
            await in_thread(write_whole, self.cache, verdict.model_dump_json().encode(), mode=0o644)
            log.info("accelerator.chosen", accelerator=accelerator, reason=reason)
            return verdict

    async def access(self) -> DeviceAccess:
        """What QEMU's account may do with the device. The kernel is asked as that account, so that groups, ACLs and
        capabilities count as they do for QEMU."""
        if not await trio.Path(self.device).exists():
            return DeviceAccess.ABSENT
        status, _, _ = await try_program(
            *("test", "-r", self.device, "-a", "-w", self.device), run_as=qemu_user(), timeout=10
        )
        return DeviceAccess.GRANTED if status == 0 else DeviceAccess.DENIED

    async def answers(self) -> bool:
        """Whether the device is really KVM. The kernel is asked as root, so it does not matter who else may open the
        device."""
        return await in_thread(_answers, self.device)

    async def _probe(self) -> tuple[Accelerator, str]:
        match await self.access():
            case DeviceAccess.ABSENT:
                return Accelerator.TCG, f"there is no {self.device}: guests are emulated, and slow"
            case DeviceAccess.DENIED:
                return Accelerator.TCG, f"QEMU's account may not open {self.device}: guests are emulated, and slow"
            case DeviceAccess.GRANTED:
                return await self._boot_a_guest()

    async def _boot_a_guest(self) -> tuple[Accelerator, str]:
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o711)  # noqa: S103  (QEMU's user has to pass through)
            disk = Path(folder) / "boot-sector"
            await in_thread(disk.write_bytes, BOOT_SECTOR.ljust(_DISK_BYTES, b"\0"))
            arguments = [
                *(self.emulator, "-accel", "kvm", "-machine", "q35", "-cpu", "host", "-m", "64"),
                *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
                *("-drive", f"file={disk},format=raw,if=ide,snapshot=on"),
                *("-device", f"isa-debug-exit,iobase={EXIT_PORT:#x},iosize=0x4"),
            ]
            try:
                status, _, error = await try_program(*arguments, timeout=self.probe_seconds, run_as=qemu_user())
            except HostError as failure:
                if failure.code is not FailureCode.TIMED_OUT:
                    return Accelerator.TCG, f"{self.device} could not be tried ({failure.message}): guests are emulated"
                return Accelerator.TCG, (
                    f"{self.device} is there, but a guest on it did not boot within {self.probe_seconds:g} s: "
                    "guests are emulated"
                )
        if status == EXIT_STATUS:
            return Accelerator.KVM, "a guest booted under KVM"
        said = " ".join(error.split())[-200:] or f"QEMU ended with status {status}"
        return Accelerator.TCG, f"{self.device} is there and not usable ({said}): guests are emulated"


def _state_of(device: Path) -> str:
    """The device's identity and owner. Its change time (ctime) is included: it changes when the owner, the mode or the
    ACL change, and not by anything that guests do."""
    try:
        status = device.stat()
    except FileNotFoundError:
        return "absent"
    return (
        f"{status.st_dev}:{status.st_ino} {status.st_rdev} {status.st_mode:o} {status.st_uid}:{status.st_gid} "
        f"{status.st_ctime_ns}"
    )


def _answers(device: Path) -> bool:
    try:
        opened = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError as failure:
        if failure.errno in (errno.ENODEV, errno.ENXIO, errno.EIO):  # The device file exists, but no driver is loaded.
            return False
        raise
    try:
        fcntl.ioctl(opened, _KVM_GET_API_VERSION)
    except OSError as failure:
        if failure.errno == errno.ENOTTY:  # The device belongs to another driver, which does not know this request.
            return False
        raise
    finally:
        os.close(opened)
    return True


def _read(path: Path) -> Verdict | None:
    try:
        return Verdict.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def qemu_user() -> RunAs:
    """The account as which libvirt runs guests, by the name that libvirt's package gives it; root if there is none."""
    for name in ("libvirt-qemu", "qemu"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return RunAs(entry.pw_uid, entry.pw_gid, tuple(os.getgrouplist(name, entry.pw_gid)))
    return RunAs(0, 0, ())
