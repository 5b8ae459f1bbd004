"""Real guests under a UEFI, with Secure Boot and a TPM: what these keep lasts as long as the machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import libvirt
import pytest
import trio

from svc_nodeagent.hypervisor import LibvirtHost, Naming
from svc_nodeagent.hypervisor.files import read_record
from svc_nodeagent.hypervisor.platform_state import TPM_STATES
from svc_nodeagent.protocol import (
    PLAIN,
    BackupResult,
    ConsoleKind,
    CpuMode,
    DomainState,
    Firmware,
    MachineSpec,
    NodeOperation,
    Platform,
    Tpm,
    VmBackup,
    VmCreate,
    VmDelete,
    VmForceStop,
    VmMigrate,
    VmReboot,
    VmReinstall,
    VmRestore,
    VmSend,
    VmStart,
)
from tests.nodeagent.hypervisor.builders import ADDRESS, FileStream, RecordedMove, image, machine, network, seed, silent
from tests.nodeagent.hypervisor.console_reader import ConsoleReader
from tests.support import tpm
from tests.support.guest import sha512_crypt

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[3]
PASSWORD, KEY = "Kelp-marble-41", "the key of the store"
SECURE = Platform(firmware=Firmware.UEFI_SECURE, tpm=Tpm.V2_0)
VARIABLES = "/sys/firmware/efi/efivars"
GUID = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
BOOT_START = 1024 * 1024
AUTHORITY = Path("/var/lib/swtpm-localca")


class Guest:
    """A guest that somebody has logged in to, as one who may become root."""

    def __init__(self, console: ConsoleReader) -> None:
        self._console = console

    @classmethod
    async def of(cls, host: LibvirtHost, vm_id: UUID) -> Guest:
        console = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
        await console.until_prompted()
        await console.log_in("alice", PASSWORD)
        guest = cls(console)
        await guest.root(f"mount -t efivarfs none {VARIABLES}")
        return guest

    async def root(self, command: str) -> str:
        return await self._console.run(f"doas sh -c '{command}'")

    async def tpm(self, command: bytes) -> bytes:
        """What the TPM has answered; its code of success is asserted."""
        return tpm.answered(await self.root(tpm.asking(command)))

    async def sealed(self) -> str:
        return tpm.value_of(await self.tpm(tpm.read(8)), 8).decode()

    async def keep(self, name: str) -> None:
        """Write a variable of the firmware."""
        await self.root(f'printf "\\007\\000\\000\\000kept" > {VARIABLES}/{name}-{GUID}')

    async def variables(self) -> list[str]:
        """Ours, of those that the firmware has."""
        return re.findall(rf"^(\w+)-{GUID}$", await self.root(f"ls {VARIABLES}"), re.MULTILINE)


@asynccontextmanager
async def opened(data_folder: Path, naming: Naming, demo_image: Path) -> AsyncIterator[LibvirtHost]:
    async def open_stream(token: str) -> trio.abc.Stream:
        if token.startswith("move:"):
            return RecordedMove(Path(token.removeprefix("move:")))
        return FileStream(await trio.Path(demo_image).read_bytes())

    async with LibvirtHost.open(data_folder, open_stream=open_stream, naming=naming) as host:
        yield host


async def killed(data_folder: Path, naming: Naming, demo_image: Path, operation: NodeOperation, at: str) -> None:
    """Have an agent begin the operation, and die at this point."""
    names = (naming.domain_prefix, naming.device_prefix, naming.table)
    done = await trio.run_process(
        [sys.executable, "-m", "tests.nodeagent.hypervisor.run_host", str(data_folder), str(demo_image), *names],
        stdin=operation.model_dump_json().encode(),
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SVC_FAULT_POINT": at},
        cwd=ROOT,
        check=False,
        capture_stderr=True,
    )
    assert done.returncode == -9, done.stderr.decode()[-3000:]


def secure_machine() -> MachineSpec:
    seeded = seed(password_hash=sha512_crypt(PASSWORD))
    return machine(network(ADDRESS), seeded=seeded).model_copy(update={"platform": SECURE})


def left_of(vm_id: UUID, data_folder: Path) -> list[str]:
    """Every file of the machine's firmware and TPM, and every process of its TPM."""
    folders = (
        data_folder / "machines",
        TPM_STATES,
        Path("/var/lib/libvirt/qemu/nvram"),
        Path("/run/libvirt/qemu/swtpm"),
    )
    files = [str(path) for folder in folders for path in folder.glob(f"*{vm_id}*")]
    processes = subprocess.run(["pgrep", "-af", f"^/usr/bin/swtpm .*{vm_id}"], capture_output=True, text=True)
    return files + processes.stdout.splitlines()


def undefine_by_hand(name: str) -> None:
    connection = libvirt.open("qemu:///system")
    try:
        connection.lookupByName(name).undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM)
    finally:
        connection.close()


def leave_to_root(vm_id: UUID) -> None:
    """As a libvirtd leaves it that has run swtpm as root."""
    logs = Path("/var/log/swtpm/libvirt/qemu").glob(f"*{vm_id}*")
    for path in (*AUTHORITY.iterdir(), *(TPM_STATES / str(vm_id)).rglob("*"), *logs):
        os.chown(path, 0, 0)


async def test_what_firmware_and_tpm_keep_lasts_as_long_as_the_system(
    data_folder: Path, naming: Naming, demo_image: Path, clean_host: None
) -> None:
    """Written once, and read once all of that has happened to the machine that may lose it."""
    (data_folder / "backups" / "machines").mkdir(parents=True)
    spec, image_spec = secure_machine(), image(demo_image)
    vm_id, moved = spec.vm_id, data_folder / "moved"
    nvram = data_folder / "machines" / str(vm_id) / "nvram.fd"
    variable = "Ours".encode("utf-16-le")

    async with opened(data_folder, naming, demo_image) as host:
        await host.perform(VmCreate(machine=spec, image=image_spec), silent)
        guest = await Guest.of(host, vm_id)
        assert "\n06 00 00 00 01\n" in await guest.root(f"xxd -p -c1 {VARIABLES}/SecureBoot-* | xargs echo")
        assert "\n2\n" in await guest.root("cat /sys/class/tpm/tpm0/tpm_version_major")
        await guest.keep("Ours")
        await guest.tpm(tpm.define(8))
        await guest.tpm(tpm.write(b"our seal"))
        await host.perform(VmReboot(vm_id=vm_id), silent)

        # Somebody takes the definition away, while the guest runs and while it is off
        for off in (False, True):
            undefine_by_hand(naming.domain(vm_id))
            if not off:
                await host.perform(VmForceStop(vm_id=vm_id), silent)
            leave_to_root(vm_id)
            await host.perform(VmStart(vm_id=vm_id, network=spec.network), silent)
            await host.perform(VmForceStop(vm_id=vm_id), silent)

        # To another host, as it were, where nothing of it is left at the first
        sent = await host.perform(VmSend(vm_id=vm_id, stream_token=f"move:{moved}"), silent)
        await host.perform(VmDelete(vm_id=vm_id, destroy_disks=True), silent)
        assert left_of(vm_id, data_folder) == []
        taken = VmMigrate(machine=spec, image=image_spec, cpu_mode=CpuMode.DEFAULT, stream_token=f"move:{moved}")
        assert await host.perform(taken, silent) == sent

        # Another system has a firmware and a TPM that know nothing of the old one
        copy = await host.perform(VmBackup(vm_id=vm_id, copy_id=uuid4(), password=KEY), silent)
        assert isinstance(copy, BackupResult)
        assert variable in nvram.read_bytes()
        anew = VmReinstall(
            vm_id=vm_id,
            image=image_spec,
            seed=seed(password_hash=sha512_crypt(PASSWORD)),
            network=spec.network,
            platform=SECURE,
        )
        await host.perform(anew, silent)
        await host.perform(VmForceStop(vm_id=vm_id), silent)
        assert variable not in nvram.read_bytes()

    # The copy brings the old system back with what they kept of it, also where the agent dies over that
    restore = VmRestore(vm_id=vm_id, copy_id=copy.copy_id, password=KEY, disks=copy.disks)
    await killed(data_folder, naming, demo_image, restore, "restore.disk0.placed")
    async with opened(data_folder, naming, demo_image) as host:
        await host.perform(restore, silent)
        await host.perform(VmStart(vm_id=vm_id, network=spec.network), silent)
        guest = await Guest.of(host, vm_id)
        assert await guest.variables() == ["Ours"]
        assert await guest.sealed() == "our seal"

        await host.perform(VmDelete(vm_id=vm_id, destroy_disks=True), silent)
        assert left_of(vm_id, data_folder) == []


async def test_secure_boot_refuses_a_changed_loader_that_a_plain_uefi_starts(
    data_folder: Path, naming: Naming, demo_image: Path, clean_host: None
) -> None:
    changed = data_folder / "changed.qcow2"
    _with_changed_loader(demo_image, changed)
    spec = secure_machine()
    for path in AUTHORITY.glob("*"):
        os.chown(path, 0, 0)
    async with opened(data_folder, naming, changed) as host:
        await host.perform(VmCreate(machine=spec, image=image(changed)), silent)
        console = ConsoleReader(await host.open_console(spec.vm_id, ConsoleKind.SERIAL))
        assert "login:" not in await console.until("Access Denied", "Security Violation")

        order = VmReinstall(
            vm_id=spec.vm_id,
            image=image(changed),
            seed=seed(),
            network=spec.network,
            platform=Platform(firmware=Firmware.UEFI),
        )
        await host.perform(order, silent)
        console = ConsoleReader(await host.open_console(spec.vm_id, ConsoleKind.SERIAL))
        await console.until("Linux version")
        assert not (TPM_STATES / str(spec.vm_id)).exists()

        # A BIOS keeps nothing, and has nothing to be kept with the disk
        order = order.model_copy(update={"platform": PLAIN, "seed": seed()})
        await host.perform(order, silent)
        folder = data_folder / "machines" / str(spec.vm_id)
        assert read_record(folder / "machine.json").platform == PLAIN
        assert not (folder / "nvram.fd").exists()
        await host.perform(VmDelete(vm_id=spec.vm_id, destroy_disks=False), silent)
        assert left_of(spec.vm_id, data_folder) == []
        kept = data_folder / "retained" / str(spec.vm_id)
        assert sorted(path.name for path in kept.iterdir()) == ["disk-0.qcow2", "machine.json"]


def _with_changed_loader(source: Path, target: Path) -> None:
    """The first letter of what the loader says where it is started under DOS is another, which its signature covers."""
    raw, loader = target.with_suffix(".raw"), target.with_suffix(".efi")
    partition, name = f"{raw}@@{BOOT_START}", "::EFI/BOOT/BOOTX64.EFI"
    subprocess.run(["qemu-img", "convert", "-O", "raw", source, raw], check=True)
    subprocess.run(["mcopy", "-i", partition, name, loader], check=True)
    content = loader.read_bytes()
    assert b"This program" in content
    loader.write_bytes(content.replace(b"This program", b"That program", 1))
    subprocess.run(["mcopy", "-o", "-i", partition, loader, name], check=True)
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", raw, target], check=True)


async def test_a_machine_with_all_of_it_that_never_ran_is_removed_whole(
    data_folder: Path, naming: Naming, demo_image: Path, clean_host: None
) -> None:
    spec = secure_machine()
    async with opened(data_folder, naming, demo_image) as host:
        made = await host.perform(VmCreate(machine=spec, image=image(demo_image), start=False), silent)
        assert getattr(made, "state", None) is DomainState.STOPPED
        await host.perform(VmDelete(vm_id=spec.vm_id, destroy_disks=True), silent)
    assert left_of(spec.vm_id, data_folder) == []
