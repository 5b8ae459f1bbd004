"""Snapshots of a real guest's disk: what was changed since is undone, and nothing else notices them."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import LibvirtHost
from svc_nodeagent.hypervisor.backups.blocks import BLOCK_BYTES, Digests, blocks_of
from svc_nodeagent.hypervisor.disks import inspect
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import (
    BackupResult,
    ConsoleKind,
    FailureCode,
    MachineSize,
    OperationResult,
    SnapshotResult,
    VmBackup,
    VmCreate,
    VmForceStop,
    VmReinstall,
    VmResize,
    VmRestore,
    VmSnapshotDelete,
    VmSnapshotRestore,
    VmSnapshotTake,
    VmStart,
)
from tests.nodeagent.hypervisor.builders import ADDRESS, image, machine, network, seed, silent
from tests.nodeagent.hypervisor.console_reader import ConsoleReader
from tests.support.guest import sha512_crypt

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

PASSWORD, KEY = "Kelp-marble-41", "the key of the store"
GIB = 1024**3


async def taken(host: LibvirtHost, vm_id: UUID, snapshot_id: UUID) -> SnapshotResult:
    result = await host.perform(VmSnapshotTake(vm_id=vm_id, snapshot_id=snapshot_id), silent)
    assert isinstance(result, SnapshotResult)
    return result


async def restored(host: LibvirtHost, vm_id: UUID, snapshot_id: UUID) -> OperationResult:
    return await host.perform(VmSnapshotRestore(vm_id=vm_id, snapshot_id=snapshot_id), silent)


async def in_guest(host: LibvirtHost, vm_id: UUID) -> ConsoleReader:
    console = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
    await console.until_prompted()
    await console.log_in("alice", PASSWORD)
    return console


def resized(vm_id: UUID, disk_gib: int) -> VmResize:
    before = MachineSize(vcpus=1, memory_mib=256, disk_gib=1)
    return VmResize(vm_id=vm_id, vcpus=1, memory_mib=256, disk_gib=disk_gib, before=before, restart=False)


async def tags(disk: Path) -> tuple[str, ...]:
    return (await inspect(disk, "qcow2")).snapshots


async def content(disk: Path) -> str:
    """Its digest, as a backup says it."""
    raw = disk.with_name("content.raw")
    await run_program("qemu-img", "convert", "-O", "raw", disk, raw)
    digests = Digests(raw.stat().st_size)
    with raw.open("rb") as file:
        for number in range(blocks_of(digests.size)):
            digests.put(number, file.read(BLOCK_BYTES))
    raw.unlink()
    return digests.root()


async def test_a_running_guest_goes_back_to_what_it_was_and_keeps_what_it_has_grown_to(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    (data_folder / "backups" / "machines").mkdir(parents=True)
    spec = machine(network(ADDRESS), seeded=seed(password_hash=sha512_crypt(PASSWORD)))
    vm_id, disk = spec.vm_id, data_folder / "machines" / str(spec.vm_id) / "disk-0.qcow2"
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    console = await in_guest(host, vm_id)
    first, second = uuid4(), uuid4()

    # Not synced by whoever wrote it: the agent held the file systems still, and they were written out for it
    await console.run("echo precious > kept")
    assert (await taken(host, vm_id, first)).frozen
    assert "precious" in await console.run("cat kept")  # it writes and reads on
    await console.run("echo spoiled > kept; sync")
    await taken(host, vm_id, second)
    # Under the same id it is of now: an attempt that was interrupted is made again
    await taken(host, vm_id, second)
    assert await tags(disk) == (str(first), str(second))
    assert not disk.with_name("frozen").exists()

    # A disk with snapshots grows and is backed up while its guest runs; one goes, and the guest goes on
    await host.perform(resized(vm_id, 2), silent)
    copy = await host.perform(VmBackup(vm_id=vm_id, copy_id=uuid4(), password=KEY), silent)
    assert isinstance(copy, BackupResult)
    assert copy.disks[0].size_bytes == 2 * GIB
    # Beside what QEMU records for the next backup
    await taken(host, vm_id, second)
    await host.perform(VmBackup(vm_id=vm_id, copy_id=uuid4(), password=KEY), silent)
    await host.perform(VmSnapshotDelete(vm_id=vm_id, snapshot_id=second), silent)
    await host.perform(VmSnapshotDelete(vm_id=vm_id, snapshot_id=second), silent)
    assert await tags(disk) == (str(first),)
    assert "spoiled" in await console.run("cat kept")
    with pytest.raises(HostError) as runs:
        await restored(host, vm_id, first)
    assert runs.value.code is FailureCode.CONFLICT

    await host.perform(VmForceStop(vm_id=vm_id), silent)
    with pytest.raises(HostError) as gone:
        await restored(host, vm_id, second)
    assert gone.value.code is FailureCode.NOT_FOUND
    for _ in range(2):
        await restored(host, vm_id, first)
    assert (await inspect(disk, "qcow2")).virtual_bytes == 2 * GIB
    await host.perform(VmStart(vm_id=vm_id, network=spec.network), silent)
    console = await in_guest(host, vm_id)
    assert "precious" in await console.run("cat kept")

    # The backup is of what was there when it was made, whatever was restored since; its disk has no snapshots
    await host.perform(VmForceStop(vm_id=vm_id), silent)
    restoration = VmRestore(vm_id=vm_id, copy_id=copy.copy_id, password=KEY, disks=copy.disks)
    await host.perform(restoration, silent)
    assert await tags(disk) == ()
    await host.perform(VmStart(vm_id=vm_id, network=spec.network), silent)
    assert "spoiled" in await (await in_guest(host, vm_id)).run("cat kept")


async def test_a_stopped_machine_goes_back_and_is_backed_up_as_it_is(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    (data_folder / "backups" / "machines").mkdir(parents=True)
    spec = machine(network(ADDRESS))
    vm_id, disk = spec.vm_id, data_folder / "machines" / str(spec.vm_id) / "disk-0.qcow2"
    await host.perform(VmCreate(machine=spec, image=image(demo_image), start=False), silent)
    before, first = await content(disk), uuid4()

    assert (await taken(host, vm_id, first)).frozen is False
    await run_program("qemu-io", "-f", "qcow2", "-c", "write -P 7 100M 8M", disk)
    changed = await content(disk)
    copy = await host.perform(VmBackup(vm_id=vm_id, copy_id=uuid4(), password=KEY), silent)
    assert isinstance(copy, BackupResult)
    assert (copy.disks[0].digest, changed == before) == (changed, False)

    await restored(host, vm_id, first)
    assert await content(disk) == before
    # Grown while it is off, it goes back with the size that it has now
    await host.perform(resized(vm_id, 2), silent)
    grown = await content(disk)
    await run_program("qemu-io", "-f", "qcow2", "-c", "write -P 7 1500M 8M", disk)
    await restored(host, vm_id, first)
    assert await content(disk) == grown

    # Another system has a disk of its own
    new = seed()
    await host.perform(VmReinstall(vm_id=vm_id, image=image(demo_image), seed=new, network=spec.network), silent)
    assert await tags(disk) == ()


async def test_a_guest_whose_agent_is_silent_is_taken_as_it_is_and_writes_on(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    spec = machine(network(ADDRESS), seeded=seed(password_hash=sha512_crypt(PASSWORD)))
    vm_id, folder = spec.vm_id, data_folder / "machines" / str(spec.vm_id)
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    console = await in_guest(host, vm_id)
    agent = "$(pidof qemu-ga)"
    await console.run(f"doas sh -c 'kill -STOP {agent}; (sleep 25; kill -CONT {agent}) >/dev/null 2>&1 &'")

    with trio.fail_after(300):
        result = await taken(host, vm_id, uuid4())
    # It has frozen the guest late, and was asked until it had let go
    assert result.frozen is False
    assert not (folder / "frozen").exists()
    await console.run("echo written > after; sync")
    assert "written" in await console.run("cat after")
