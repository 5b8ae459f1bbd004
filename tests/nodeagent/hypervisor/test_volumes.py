"""Volumes of real guests: seen by their serial, written, handed to another machine, grown while they are in use."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from uuid import UUID, uuid4
from xml.etree import ElementTree

import pytest

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import LibvirtHost, Naming
from svc_nodeagent.hypervisor.disks import inspect
from svc_nodeagent.protocol import (
    BackupResult,
    ConsoleKind,
    FailureCode,
    InventoryResult,
    NodeInventory,
    ObservedVolume,
    VmBackup,
    VmCreate,
    VmDelete,
    VmForceStop,
    VmReinstall,
    VmRestore,
    VmSnapshotTake,
    VmStart,
    VolumeAttach,
    VolumeCreate,
    VolumeDelete,
    VolumeDetach,
    VolumeGrow,
    volume_serial,
)
from tests.nodeagent.hypervisor.builders import ADDRESS, OTHER, image, machine, network, seed, silent
from tests.nodeagent.hypervisor.console_reader import ConsoleReader
from tests.support.guest import sha512_crypt

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

PASSWORD, KEY = "Kelp-marble-41", "the key of the store"
GIB = 1024**3


async def in_guest(host: LibvirtHost, vm_id: UUID) -> ConsoleReader:
    console = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
    await console.until_prompted()
    await console.log_in("alice", PASSWORD)
    return console


async def volume(host: LibvirtHost, size_gib: int = 1) -> UUID:
    volume_id = uuid4()
    for _ in range(2):
        await host.perform(VolumeCreate(volume_id=volume_id, size_gib=size_gib), silent)
    return volume_id


def attached(
    vm_id: UUID, volume_id: UUID, *, index: int = 1, size_gib: int = 1, kept: str | None = None
) -> VolumeAttach:
    return VolumeAttach(vm_id=vm_id, volume_id=volume_id, index=index, size_gib=size_gib, kept=kept)


async def device_of(console: ConsoleReader, volume_id: UUID) -> str:
    """The guest's name of the disk that has the volume's serial number."""
    said = await console.run(f"grep -l {volume_serial(volume_id)} /sys/block/vd*/serial | cut -d/ -f4 | tr '\\n' ' '")
    return next((word for word in said.split() if word.startswith("vd")), "")


async def digest_of(console: ConsoleReader, device: str) -> str:
    said = await console.run(f"doas sh -c 'head -c 16M /dev/{device} | sha256sum'")
    return next(word for word in said.split() if re.fullmatch("[0-9a-f]{64}", word))


async def seen_volumes(host: LibvirtHost) -> tuple[ObservedVolume, ...]:
    result = await host.perform(NodeInventory(), silent)
    assert isinstance(result, InventoryResult)
    assert result.volumes is not None
    return result.volumes


async def test_it_is_written_by_one_guest_read_by_another_and_grown_while_that_runs(
    host: LibvirtHost, demo_image: Path, data_folder: Path, naming: Naming
) -> None:
    one, other = (
        machine(network(address), seeded=seed(password_hash=sha512_crypt(PASSWORD))) for address in (ADDRESS, OTHER)
    )
    (data_folder / "backups" / "machines").mkdir(parents=True)
    for spec in (one, other):
        await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    volume_id = await volume(host)
    console = await in_guest(host, one.vm_id)

    # While the guest runs
    for _ in range(2):
        await host.perform(attached(one.vm_id, volume_id), silent)
    device = await device_of(console, volume_id)
    assert device != ""
    await console.run(f"doas sh -c 'dd if=/dev/urandom of=/dev/{device} bs=1M count=16 conv=fsync 2>/dev/null'")
    digest = await digest_of(console, device)
    copy = await host.perform(VmBackup(vm_id=one.vm_id, copy_id=uuid4(), password=KEY), silent)
    assert isinstance(copy, BackupResult)
    assert [disk.volume_id for disk in copy.disks] == [None, volume_id]
    with pytest.raises(HostError) as held:
        await host.perform(attached(other.vm_id, volume_id), silent)
    assert (held.value.code, "Another machine" in held.value.message) == (FailureCode.CONFLICT, True)
    with pytest.raises(HostError):
        await host.perform(VolumeDelete(volume_id=volume_id), silent)

    # Its power is cut: what was synced is there, and so is the disk
    await host.perform(VmForceStop(vm_id=one.vm_id), silent)
    await host.perform(VmStart(vm_id=one.vm_id, network=one.network), silent)
    console = await in_guest(host, one.vm_id)
    device = await device_of(console, volume_id)
    assert await digest_of(console, device) == digest

    # A guest that does not let go keeps it until it answers, also while QEMU records for the next backup
    await host.perform(VmBackup(vm_id=one.vm_id, copy_id=uuid4(), password=KEY), silent)
    virsh(naming, "suspend", one.vm_id)
    detach = VolumeDetach(vm_id=one.vm_id, volume_id=volume_id, timeout_seconds=3)
    with pytest.raises(HostError) as silence:
        await host.perform(detach, silent)
    assert (silence.value.code, "still attached" in silence.value.message) == (FailureCode.TIMED_OUT, True)
    assert [each.vm_id for each in await seen_volumes(host)] == [one.vm_id]
    virsh(naming, "resume", one.vm_id)
    for _ in range(2):
        await host.perform(VolumeDetach(vm_id=one.vm_id, volume_id=volume_id), silent)
    assert await device_of(console, volume_id) == ""
    await host.perform(attached(other.vm_id, volume_id, index=2), silent)
    assert await seen_volumes(host) == (
        ObservedVolume(volume_id=volume_id, vm_id=other.vm_id, index=2, size_bytes=GIB),
    )
    console = await in_guest(host, other.vm_id)
    device = await device_of(console, volume_id)
    assert await digest_of(console, device) == digest

    for _ in range(2):
        await host.perform(VolumeGrow(volume_id=volume_id, vm_id=other.vm_id, size_gib=2), silent)
    assert str(2 * GIB // 512) in await console.run(f"cat /sys/block/{device}/size")

    # The machine goes, and the volume stays
    await host.perform(VmDelete(vm_id=other.vm_id, destroy_disks=True), silent)
    assert await seen_volumes(host) == (
        ObservedVolume(volume_id=volume_id, vm_id=None, index=None, size_bytes=2 * GIB),
    )
    for _ in range(2):
        await host.perform(VolumeDelete(volume_id=volume_id), silent)
    assert (await seen_volumes(host), list((data_folder / "volumes").iterdir())) == ((), [])


async def test_a_machine_that_is_off_has_it_at_its_next_start_and_keeps_its_interfaces_names(
    host: LibvirtHost, demo_image: Path, naming: Naming
) -> None:
    spec = machine(network(ADDRESS))
    await host.perform(VmCreate(machine=spec, image=image(demo_image), start=False), silent)
    before = pci(naming, spec.vm_id)
    volumes = [await volume(host) for _ in range(2)]
    for index, volume_id in enumerate(volumes, start=1):
        await host.perform(attached(spec.vm_id, volume_id, index=index), silent)
    after = pci(naming, spec.vm_id)
    assert {name: after[name] for name in ("interface", "vda")} == {name: before[name] for name in ("interface", "vda")}
    await host.perform(VolumeDetach(vm_id=spec.vm_id, volume_id=volumes[0]), silent)
    with pytest.raises(HostError) as taken:
        await host.perform(attached(spec.vm_id, volumes[0], index=2), silent)
    assert taken.value.code is FailureCode.CONFLICT
    assert {each.volume_id: each.vm_id for each in await seen_volumes(host)} == {
        volumes[0]: None,
        volumes[1]: spec.vm_id,
    }


async def test_backups_hold_it_and_a_reinstallation_leaves_it(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    (data_folder / "backups" / "machines").mkdir(parents=True)
    spec = machine(network(ADDRESS))
    vm_id, volume_id = spec.vm_id, await volume(host)
    path = data_folder / "volumes" / f"{volume_id}.qcow2"
    await host.perform(VmCreate(machine=spec, image=image(demo_image), start=False), silent)
    await host.perform(attached(vm_id, volume_id), silent)
    write(path, 1)
    snapshot = VmSnapshotTake(vm_id=vm_id, snapshot_id=uuid4())
    await host.perform(snapshot, silent)
    assert (await inspect(path, "qcow2")).snapshots == (str(snapshot.snapshot_id),)

    copy = await host.perform(VmBackup(vm_id=vm_id, copy_id=uuid4(), password=KEY), silent)
    assert isinstance(copy, BackupResult)
    assert [disk.volume_id for disk in copy.disks] == [None, volume_id]
    write(path, 2)
    reinstallation = VmReinstall(vm_id=vm_id, image=image(demo_image), seed=seed(), network=spec.network)
    await host.perform(reinstallation, silent)
    await host.perform(VmForceStop(vm_id=vm_id), silent)
    assert holds(path, 2)

    # At another place among the disks it is still the one that the copy is of
    await host.perform(VolumeDetach(vm_id=vm_id, volume_id=volume_id), silent)
    assert (await inspect(path, "qcow2")).snapshots == ()
    other = await volume(host)
    await host.perform(attached(vm_id, other), silent)
    await host.perform(attached(vm_id, volume_id, index=2), silent)
    await host.perform(VmRestore(vm_id=vm_id, copy_id=copy.copy_id, password=KEY, disks=copy.disks), silent)
    assert holds(path, 1)
    assert holds(data_folder / "volumes" / f"{other}.qcow2", 0)


async def test_a_kept_disk_becomes_a_volume_that_needs_no_image(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    spec, other = machine(network(ADDRESS)), machine(network(OTHER))
    for each in (spec, other):
        await host.perform(VmCreate(machine=each, image=image(demo_image), start=False), silent)
    write(data_folder / "machines" / str(spec.vm_id) / "disk-0.qcow2", 7)
    await host.perform(VmDelete(vm_id=spec.vm_id, destroy_disks=False), silent)
    inventory = await host.perform(NodeInventory(), silent)
    assert isinstance(inventory, InventoryResult)
    [kept] = inventory.kept_disks
    assert (kept.vm_id, kept.vm_name, kept.size_bytes) == (spec.vm_id, spec.name, GIB)

    volume_id = uuid4()
    await host.perform(attached(other.vm_id, volume_id, kept=kept.name), silent)
    path = data_folder / "volumes" / f"{volume_id}.qcow2"
    assert ((await inspect(path, "qcow2")).refers_to, holds(path, 7)) == ((), True)
    assert list((data_folder / "retained").iterdir()) == []
    await host.perform(VmStart(vm_id=other.vm_id, network=other.network), silent)
    await host.perform(VmDelete(vm_id=other.vm_id, destroy_disks=True, destroy_volumes=(volume_id,)), silent)
    assert list((data_folder / "volumes").iterdir()) == []


def write(path: Path, pattern: int) -> None:
    subprocess.run(
        ["qemu-io", "-f", "qcow2", "-c", f"write -P {pattern} 700M 1M", path], check=True, capture_output=True
    )


def holds(path: Path, pattern: int) -> bool:
    command: list[str | Path] = ["qemu-io", "-f", "qcow2", "-c", f"read -P {pattern} 700M 1M", path]
    return b"failed" not in subprocess.run(command, check=True, capture_output=True).stdout


def virsh(naming: Naming, command: str, vm_id: UUID) -> str:
    done = subprocess.run(["virsh", command, naming.domain(vm_id)], check=True, capture_output=True, text=True)
    return done.stdout


def pci(naming: Naming, vm_id: UUID) -> dict[str, tuple[str | None, ...]]:
    """Where the definition has its devices: by the name of the disk, or the kind."""
    devices = ElementTree.fromstring(virsh(naming, "dumpxml", vm_id)).findall("./devices/*")
    found = {}
    for device in devices:
        place, target = device.find("address[@type='pci']"), device.find("target")
        if place is not None and device.tag in ("disk", "interface"):
            name = str(target.get("dev")) if device.tag == "disk" and target is not None else device.tag
            found[name] = tuple(place.get(part) for part in ("bus", "slot", "function"))
    return found
