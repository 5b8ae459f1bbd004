"""A guest sees what is put into its CD-ROM drive while it runs, and boots from it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from uuid import UUID
from xml.etree import ElementTree

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import LibvirtHost, Naming
from svc_nodeagent.protocol import (
    ConsoleKind,
    FailureCode,
    Firmware,
    ImageFormat,
    ImageRemove,
    Platform,
    VmCreate,
    VmForceStop,
    VmIso,
    VmReinstall,
    VmStart,
)
from tests.nodeagent.hypervisor.builders import ADDRESS, image, iso_image, machine, network, seed, silent
from tests.nodeagent.hypervisor.console_reader import ConsoleReader
from tests.support.guest import sha512_crypt

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

PASSWORD = "Kelp-marble-41"
LABEL = "sudo dd if=/dev/sr0 bs=8 skip=4101 count=2 2>/dev/null"
"""Where a volume descriptor says it."""
SYSLINUX, SAID = Path("/usr/lib"), "ISOLINUX"
TRIED = "QEMU CD-ROM"
"""A UEFI names what it tries; isolinux is for a BIOS."""


def data_iso(target: Path, label: str, word: str) -> Path:
    content = target.with_suffix(".d")
    content.mkdir()
    (content / "word").write_text(f"{word}\n")
    subprocess.run(["genisoimage", "-quiet", "-V", label, "-J", "-r", "-o", str(target), str(content)], check=True)
    return target


def bootable_iso(target: Path) -> Path:
    """isolinux, which says its name and waits: what is loaded from a CD under emulation takes its time."""
    content = target.with_suffix(".d")
    (content / "isolinux").mkdir(parents=True)
    for name in ("ISOLINUX/isolinux.bin", "syslinux/modules/bios/ldlinux.c32"):
        shutil.copy(SYSLINUX / name, content / "isolinux")
    (content / "isolinux/isolinux.cfg").write_text("SERIAL 0 115200\nPROMPT 1\nDEFAULT none\n")
    boot = ["-b", "isolinux/isolinux.bin", "-c", "isolinux/boot.cat", "-no-emul-boot", "-boot-load-size", "4"]
    options = ["-boot-info-table", "-J", "-r", "-V", "boots"]
    subprocess.run(["genisoimage", "-quiet", *boot, *options, "-o", str(target), str(content)], check=True)
    return target


def nic_address(name: str) -> dict[str, str]:
    """Where the guest finds its NIC: another drive does not move it."""
    shown = subprocess.run(["virsh", "dumpxml", name], check=True, capture_output=True, text=True).stdout
    found = ElementTree.fromstring(shown).find("./devices/interface/address")
    assert found is not None
    return dict(found.attrib)


async def test_a_guest_sees_the_medium_at_once_loses_it_when_it_is_ejected_and_boots_from_it(
    host: LibvirtHost,
    naming: Naming,
    demo_image: Path,
    data_folder: Path,
    files: dict[str, Path],
    tmp_path: Path,
) -> None:
    spec = machine(network(ADDRESS), seeded=seed(password_hash=sha512_crypt(PASSWORD)))
    vm_id = spec.vm_id
    first, second = data_iso(tmp_path / "one.iso", "first", "anemone"), data_iso(tmp_path / "two.iso", "second", "kelp")
    boots = bootable_iso(tmp_path / "boot.iso")
    specs = {path: iso_image(path) for path in (first, second, boots)}
    files |= {each.digest: path for path, each in specs.items()}
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    address = nic_address(naming.domain(vm_id))
    console = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
    await console.until(f"instance {spec.seed.instance_id} is set up")
    await console.until("login:")
    await console.log_in("alice", PASSWORD)
    await console.run("sudo modprobe -a virtio_scsi sr_mod isofs; sleep 1")

    # Inserted, changed and ejected while the guest runs, also while it has it mounted
    await host.perform(VmIso(vm_id=vm_id, image=specs[first]), silent)
    assert "first" in await console.run(LABEL)
    assert "anemone" in await console.run("sudo mount -o ro /dev/sr0 /mnt && cat /mnt/word")
    await host.perform(VmIso(vm_id=vm_id, image=specs[second]), silent)
    assert "kelp" in await console.run("sudo umount /mnt; sudo mount -o ro /dev/sr0 /mnt && cat /mnt/word")
    with pytest.raises(HostError) as used:
        await host.perform(ImageRemove(image_id=specs[second].image_id), silent)
    assert used.value.code is FailureCode.CONFLICT
    await host.perform(ImageRemove(image_id=specs[first].image_id), silent)
    await host.perform(VmIso(vm_id=vm_id, image=None), silent)
    assert "second" not in await console.run(f"sudo umount /mnt; {LABEL}")

    # From its next start on the CD before its disk; then, ejected, its disk again
    await host.perform(VmIso(vm_id=vm_id, image=specs[boots], boot=True), silent)
    assert "boots" in await console.run(LABEL)
    for system in (SAID, f"instance {spec.seed.instance_id} was set up before"):
        await host.perform(VmForceStop(vm_id=vm_id), silent)
        await host.perform(VmStart(vm_id=vm_id, network=spec.network), silent)
        assert nic_address(naming.domain(vm_id)) == address
        with trio.fail_after(300):
            console = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
            await console.until(system)
        if system == SAID:
            await host.perform(VmIso(vm_id=vm_id, image=None), silent)
    assert not (data_folder / "machines" / str(vm_id) / "iso.json").exists()


@pytest.mark.parametrize(("firmware", "says"), [(Firmware.BIOS, SAID), (Firmware.UEFI, TRIED)])
async def test_a_machine_whose_disk_is_empty_boots_the_iso_that_it_is_made_with(
    host: LibvirtHost, files: dict[str, Path], tmp_path: Path, firmware: Firmware, says: str
) -> None:
    boots, zeros = bootable_iso(tmp_path / "boot.iso"), tmp_path / "empty.raw"
    zeros.write_bytes(bytes(2**20))
    iso, empty = iso_image(boots), image(zeros, format=ImageFormat.RAW)
    files |= {iso.digest: boots, empty.digest: zeros}
    spec = machine(network(ADDRESS)).model_copy(update={"platform": Platform(firmware=firmware)})
    await host.perform(VmCreate(machine=spec, image=empty, iso=iso), silent)
    await until(host, spec.vm_id, says)


async def test_a_machine_is_made_anew_from_an_iso_on_an_empty_disk(
    host: LibvirtHost, demo_image: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    boots, zeros = bootable_iso(tmp_path / "boot.iso"), tmp_path / "empty.raw"
    zeros.write_bytes(bytes(2**20))
    iso, empty = iso_image(boots), image(zeros, format=ImageFormat.RAW)
    files |= {iso.digest: boots, empty.digest: zeros}
    spec, system, again = machine(network(ADDRESS)), seed(), seed()
    vm_id = spec.vm_id
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    await host.perform(VmReinstall(vm_id=vm_id, image=empty, iso=iso, seed=system, network=spec.network), silent)
    await until(host, vm_id, SAID)

    # The ISO stays in the drive of a system from an image, which boots its disk
    await host.perform(VmReinstall(vm_id=vm_id, image=image(demo_image), seed=again, network=spec.network), silent)
    await until(host, vm_id, f"instance {again.instance_id} is set up")


async def until(host: LibvirtHost, vm_id: UUID, words: str) -> None:
    with trio.fail_after(300):
        await ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL)).until(words)
