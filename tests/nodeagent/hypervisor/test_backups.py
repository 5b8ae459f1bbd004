"""A real guest's disk is copied while it runs and while it is off, and comes back as it was."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import LibvirtHost
from svc_nodeagent.hypervisor.backups.store import store_at
from svc_nodeagent.protocol import (
    BackupResult,
    ConsoleKind,
    DomainResult,
    DomainState,
    FailureCode,
    OperationResult,
    VmBackup,
    VmBackupsForget,
    VmBackupsRemove,
    VmCreate,
    VmDelete,
    VmForceStop,
    VmRestore,
    VmStart,
)
from tests.nodeagent.hypervisor.builders import ADDRESS, image, machine, network, seed, silent
from tests.nodeagent.hypervisor.console_reader import ConsoleReader
from tests.support.guest import sha512_crypt

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

PASSWORD, KEY = "Kelp-marble-41", "the key of the store"
MIB = 1024 * 1024


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def copied(
    host: LibvirtHost, vm_id: UUID, *, forget: tuple[UUID, ...] = (), told: list[str] | None = None
) -> BackupResult:
    async def report(_: int, message: str) -> None:
        if told is not None:
            told.append(message)

    operation = VmBackup(vm_id=vm_id, copy_id=uuid4(), password=KEY, forget=forget)
    result = await host.perform(operation, report)
    assert isinstance(result, BackupResult)
    return result


def restoration(copy: BackupResult) -> VmRestore:
    return VmRestore(vm_id=copy.vm_id, copy_id=copy.copy_id, password=KEY, disks=copy.disks)


async def in_guest(host: LibvirtHost, vm_id: UUID) -> ConsoleReader:
    console = ConsoleReader(await host.open_console(vm_id, ConsoleKind.SERIAL))
    await console.until_prompted()
    await console.log_in("alice", PASSWORD)
    return console


async def test_a_guest_is_copied_while_it_runs_and_comes_back_as_it_was(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    target = data_folder / "backups" / "machines"
    spec = machine(network(ADDRESS), seeded=seed(password_hash=sha512_crypt(PASSWORD)))
    vm_id, folder = spec.vm_id, data_folder / "machines" / str(spec.vm_id)
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    console = await in_guest(host, vm_id)
    await console.run("dd if=/dev/urandom of=kept bs=1024 count=2048; sync")
    before = (await console.run("sha256sum kept")).split("sha256sum kept")[1].split()[0]

    # No target, no copy
    with pytest.raises(HostError) as refused:
        await copied(host, vm_id)
    assert (refused.value.code, target.exists()) == (FailureCode.CONFLICT, False)

    target.mkdir(parents=True)
    first = await copied(host, vm_id)
    assert first.frozen
    assert [(disk.index, disk.size_bytes) for disk in first.disks] == [(0, 1024 * MIB)]
    # The guest goes on, and nothing of the backup is left on its host
    assert before in await console.run("sha256sum kept")
    assert sorted(path.name for path in folder.iterdir() if "backup" in path.name) == []
    assert not Path(f"/run/svc-backup-{vm_id}").exists()

    # The second takes what the first has not, and what it replaces goes
    await console.run("echo changed > kept; sync")
    told: list[str] = []
    second = await copied(host, vm_id, forget=(first.copy_id,), told=told)
    [read] = [int(line.split()[1]) for line in told if line.startswith("read ")]
    assert 0 < read < 64
    assert second.forgotten == (first.copy_id,)
    assert second.stored_bytes < first.stored_bytes / 4
    await host.perform(VmForceStop(vm_id=vm_id), silent)
    with pytest.raises(HostError) as gone:
        await host.perform(restoration(first), silent)
    assert gone.value.code is FailureCode.NOT_FOUND


async def test_a_machine_is_restored_to_what_was_copied(host: LibvirtHost, demo_image: Path, data_folder: Path) -> None:
    (data_folder / "backups" / "machines").mkdir(parents=True)
    spec = machine(network(ADDRESS), seeded=seed(password_hash=sha512_crypt(PASSWORD)))
    vm_id, disk = spec.vm_id, data_folder / "machines" / str(spec.vm_id) / "disk-0.qcow2"
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    console = await in_guest(host, vm_id)
    await console.run("echo precious > kept; sync")
    await copied(host, vm_id)
    await console.run("echo more precious > kept; sync")
    # Made of what was written since the one before
    copy = await copied(host, vm_id)
    await console.run("rm kept; sync")
    with pytest.raises(HostError) as runs:
        await host.perform(restoration(copy), silent)
    assert runs.value.code is FailureCode.CONFLICT

    await host.perform(VmForceStop(vm_id=vm_id), silent)
    damaged = restoration(copy).model_copy(
        update={"disks": tuple(each.model_copy(update={"digest": "0" * 64}) for each in copy.disks)}
    )
    as_it_was = disk.stat()
    with pytest.raises(HostError, match="than was backed up"):
        await host.perform(damaged, silent)
    assert (disk.stat().st_ino, disk.stat().st_mtime_ns) == (as_it_was.st_ino, as_it_was.st_mtime_ns)

    await host.perform(restoration(copy), silent)
    # What is off is copied as well; it is, to the byte, what was restored
    again = await copied(host, vm_id)
    assert again.disks == copy.disks
    await host.perform(VmStart(vm_id=vm_id, network=spec.network), silent)
    assert "more precious" in await (await in_guest(host, vm_id)).run("cat kept")


async def test_a_backup_that_is_cancelled_leaves_nothing(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    (data_folder / "backups" / "machines").mkdir(parents=True)
    spec = machine(network(ADDRESS), seeded=seed(password_hash=sha512_crypt(PASSWORD)))
    vm_id, folder = spec.vm_id, data_folder / "machines" / str(spec.vm_id)
    await host.perform(VmCreate(machine=spec, image=image(demo_image)), silent)
    console = await in_guest(host, vm_id)
    under_way = trio.Event()

    async def report(percent: int, message: str) -> None:
        if "copying" in message:
            under_way.set()

    async with trio.open_nursery() as nursery:
        operation = VmBackup(vm_id=vm_id, copy_id=uuid4(), password=KEY)
        nursery.start_soon(host.perform, operation, report)
        await under_way.wait()
        nursery.cancel_scope.cancel()
    assert not [path.name for path in folder.iterdir() if "backup" in path.name]
    # What an agent that was killed has left is ended by the next one
    leftover = folder / "backup-0.qcow2"
    leftover.touch()
    await host._backups.end_abandoned()
    assert not leftover.exists()
    # ... and a guest whose file systems it had frozen writes again
    await host._guests.on_domain(vm_id, "virDomainFSFreeze", lambda domain: domain.fsFreeze())
    leftover.touch()
    await host._backups.end_abandoned()
    await console.run("echo written > after; sync")
    assert "written" in await console.run("cat after")
    # The next one finds no job, no lock and no half of a copy in its way, and its id may be the same
    result = await host.perform(operation, silent)
    assert isinstance(result, BackupResult)
    assert result.disks[0].size_bytes == 1024 * MIB


async def test_a_restoration_that_is_cancelled_too_late_is_told_as_done(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    (data_folder / "backups" / "machines").mkdir(parents=True)
    spec = machine(network(ADDRESS))
    disk = data_folder / "machines" / str(spec.vm_id) / "disk-0.qcow2"
    await host.perform(VmCreate(machine=spec, image=image(demo_image), start=False), silent)
    copy = await copied(host, spec.vm_id)
    before, told = disk.stat().st_ino, list[OperationResult]()

    async with trio.open_nursery() as nursery:
        placed = trio.Event()

        async def cancel_when_placed() -> None:
            while disk.stat().st_ino == before:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
            placed.set()

        nursery.start_soon(cancel_when_placed)
        told.append(await host.perform(restoration(copy), silent))
        with trio.CancelScope(shield=True):
            await placed.wait()
    assert told == [DomainResult(vm_id=spec.vm_id, state=DomainState.STOPPED)]


async def test_what_an_attempt_has_left_at_the_target_goes_with_the_next(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    target = data_folder / "backups" / "machines"
    target.mkdir(parents=True)
    spec = machine(network(ADDRESS))
    await host.perform(VmCreate(machine=spec, image=image(demo_image), start=False), silent)
    first = await copied(host, spec.vm_id)
    store = store_at(target, spec.vm_id, KEY, None)
    whole = size_of(target)
    with trio.CancelScope() as cut:
        async with store.writer(uuid4(), "disk-0.raw") as sink:
            for _ in range(64):
                await sink.send_all(os.urandom(MIB))
            cut.cancel()
            await trio.lowlevel.checkpoint()
    assert size_of(target) > whole + 16 * MIB
    second = await copied(host, spec.vm_id)
    assert second.disks == first.disks
    assert size_of(target) < whole + MIB


async def test_a_node_that_the_machine_has_left_removes_the_copies_that_are_named(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    target = data_folder / "backups" / "machines"
    target.mkdir(parents=True)
    spec = machine(network(ADDRESS))
    vm_id = spec.vm_id
    await host.perform(VmCreate(machine=spec, image=image(demo_image), start=False), silent)
    first, second = await copied(host, vm_id), await copied(host, vm_id)
    await host.perform(VmDelete(vm_id=vm_id, destroy_disks=True), silent)

    forgotten = VmBackupsForget(vm_id=vm_id, password=KEY, copies=(first.copy_id, uuid4()))
    away = target.rename(data_folder / "away")
    with pytest.raises(HostError, match="no target for backups"):
        await host.perform(forgotten, silent)
    away.rename(target)
    for _ in range(2):
        await host.perform(forgotten, silent)
    kept = (await store_at(target, vm_id, KEY, None).listing()).snapshots
    assert {each.copy_id for each in kept} == {second.copy_id}
    # Of a machine that has never had a copy here
    await host.perform(VmBackupsForget(vm_id=uuid4(), password=KEY, copies=(first.copy_id,)), silent)


async def test_the_copies_of_a_deleted_machine_are_removed_and_of_no_other(
    host: LibvirtHost, demo_image: Path, data_folder: Path
) -> None:
    target = data_folder / "backups" / "machines"
    target.mkdir(parents=True)
    (target / "of-another-node").mkdir()
    spec = machine(network(ADDRESS))
    vm_id, removal = spec.vm_id, VmBackupsRemove(vm_id=spec.vm_id)
    await host.perform(VmCreate(machine=spec, image=image(demo_image), start=False), silent)
    await copied(host, vm_id)

    with pytest.raises(HostError, match="still has the machine") as refused:
        await host.perform(removal, silent)
    assert (refused.value.code, (target / str(vm_id) / "config").exists()) == (FailureCode.CONFLICT, True)

    await host.perform(VmDelete(vm_id=vm_id, destroy_disks=True), silent)
    away = target.rename(data_folder / "away")
    with pytest.raises(HostError, match="no target for backups"):
        await host.perform(removal, silent)
    away.rename(target)
    # What an interrupted removal has left, and nothing at all, is removed as well
    (target / str(vm_id) / "config").unlink()
    await host.perform(removal, silent)
    await host.perform(removal, silent)
    assert [path.name for path in target.iterdir()] == ["of-another-node"]
