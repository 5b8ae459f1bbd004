"""Whether guests run under KVM here, found out by running one.

/dev/kvm may exist and its guests never get past their firmware (some nested hosts). So a guest of the kind that
machines are, whose boot sector does one thing, leave through QEMU's exit port, is given a few seconds under KVM. The
verdict holds until the host is booted again.
"""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import structlog
import trio
from pydantic import BaseModel, ConfigDict, ValidationError

from svc_nodeagent.durable import write_whole
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.domains import Accelerator
from svc_nodeagent.hypervisor.files import in_thread
from svc_nodeagent.hypervisor.programs import RunAs, try_program

PROBE_SECONDS = 5.0
_EXIT_PORT = 0xF4
_EXIT_VALUE = 0x2A
# mov dx, port; mov al, value; out dx, al; hlt; jump back to the hlt; padding; the boot signature
_BOOT_SECTOR = (bytes([0xBA, _EXIT_PORT, 0x00, 0xB0, _EXIT_VALUE, 0xEE, 0xF4, 0xEB, 0xFD])).ljust(
    510, b"\0"
) + b"\x55\xaa"
_DISK_BYTES = 1024 * 1024  # firmware boots from no disk of a single sector
_EXPECTED_STATUS = _EXIT_VALUE << 1 | 1

log = structlog.get_logger()


class Verdict(BaseModel):
    model_config = ConfigDict(frozen=True)

    boot_id: str
    accelerator: Accelerator
    reason: str


class Acceleration:
    """The verdict of this boot: asked once, kept in the data folder."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._verdict: Verdict | None = None
        self._lock = trio.Lock()

    async def verdict(self) -> Verdict:
        async with self._lock:
            if self._verdict is None:
                boot_id = (await trio.Path("/proc/sys/kernel/random/boot_id").read_text()).strip()
                kept = await in_thread(_read, self._cache)
                if kept is None or kept.boot_id != boot_id:
                    kept = await probe(boot_id)
                    await in_thread(write_whole, self._cache, kept.model_dump_json().encode(), mode=0o644)
                    log.info("accelerator chosen", accelerator=kept.accelerator, reason=kept.reason)
                self._verdict = kept
            return self._verdict


async def probe(boot_id: str) -> Verdict:
    def tcg(reason: str) -> Verdict:
        return Verdict(boot_id=boot_id, accelerator=Accelerator.TCG, reason=reason)

    if not await trio.Path("/dev/kvm").exists():
        return tcg("there is no /dev/kvm: guests are emulated, and slow")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)  # noqa: S103  (QEMU's user passes through)
        disk = Path(folder) / "boot-sector"
        await in_thread(disk.write_bytes, _BOOT_SECTOR.ljust(_DISK_BYTES, b"\0"))
        arguments = [
            *("qemu-system-x86_64", "-accel", "kvm", "-machine", "q35", "-cpu", "host", "-m", "64"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-drive", f"file={disk},format=raw,if=ide,snapshot=on"),
            *("-device", f"isa-debug-exit,iobase={_EXIT_PORT:#x},iosize=0x4"),
        ]
        try:
            status, _, error = await try_program(*arguments, timeout=PROBE_SECONDS, run_as=qemu_user())
        except HostError:
            return tcg(
                f"/dev/kvm is there, but a guest on it did not boot within {PROBE_SECONDS:g} s: guests are emulated"
            )
    if status == _EXPECTED_STATUS:
        return Verdict(boot_id=boot_id, accelerator=Accelerator.KVM, reason="a guest booted under KVM")
    said = " ".join(error.split())[-200:] or f"QEMU ended with status {status}"
    return tcg(f"/dev/kvm is there and not usable ({said}): guests are emulated")


def _read(path: Path) -> Verdict | None:
    try:
        return Verdict.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def qemu_user() -> RunAs:
    """Who libvirt runs guests as, by the name its package gives the account; root where there is none."""
    for name in ("libvirt-qemu", "qemu"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return RunAs(entry.pw_uid, entry.pw_gid, tuple(os.getgrouplist(name, entry.pw_gid)))
    return RunAs(0, 0, ())
