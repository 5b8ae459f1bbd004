"""Of a disk only what was written since the copy before is read, every copy comes back as it was, and where it is not
known what was written, everything is read. Real QEMU and qcow2 files, without libvirt and mostly without restic."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.backups import bases, bitmaps, copies, copying, reading
from svc_nodeagent.hypervisor.backups.blocks import BLOCK_BYTES
from svc_nodeagent.hypervisor.backups.chains import MOST_CHANGES
from svc_nodeagent.hypervisor.backups.store import store_at
from svc_nodeagent.hypervisor.domains import BaseImage
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import BackupResult, CopiedDisk, DiskSpec, VmBackupsForget, VmRestore
from tests.nodeagent.hypervisor.bare_machine import DISK_MIB, KEY, MIB, NAME, Machine, bare_machine, silent
from tests.nodeagent.hypervisor.bare_qemu import Domain
from tests.nodeagent.hypervisor.memory_store import Kept, MemoryStore


class PowerCutError(Exception):
    pass


@pytest.fixture
async def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machine]:
    async with bare_machine(tmp_path, monkeypatch) as made:
        yield made


WHOLE = (DISK_MIB, DISK_MIB)


async def test_each_of_a_chain_of_increments_comes_back_as_it_was(
    machine: Machine, request: pytest.FixtureRequest
) -> None:
    increments = 20 if request.config.getoption("--full") else 6
    made = [(await machine.back_up(), await machine.content())]
    assert machine.read == WHOLE
    for number in range(increments):
        place = machine.rng.randrange(DISK_MIB - 1)
        if number % 4 == 3:
            machine.qemu.write(NAME, f"discard {place * MIB} {MIB}")
        else:
            machine.write(place + machine.rng.random() / 2, 65536)
        content = await machine.content()
        # The guest goes on while it is copied: of that the next has everything
        later = machine.rng.randrange(DISK_MIB - 1)
        machine.during.append(partial(machine.write, later))
        made.append((await machine.back_up(), content))
        assert 0 < machine.read[0] <= 3
    for copy, content in (made[0], made[increments // 3], made[increments]):
        assert await machine.restored(copy) == content


@pytest.mark.parametrize("runs", [True, False])
async def test_zeros_of_a_disk_take_no_room_at_the_target(machine: Machine, runs: bool) -> None:
    machine.qemu.write(NAME, f"write -z {20 * MIB} {MIB}")
    content = await machine.content()
    if not runs:
        machine.stop()
    copy = await machine.back_up()
    [kept] = machine.store.kept_by_id.values()
    assert 8 * MIB < len(kept.content) < 9 * MIB
    assert await machine.restored(copy) == content


async def test_zeros_of_a_copy_take_the_place_of_what_the_image_has(machine: Machine, tmp_path: Path) -> None:
    image = tmp_path / "image"
    await run_program("qemu-img", "create", "-q", "-f", "qcow2", image, f"{DISK_MIB}M")
    await run_program("qemu-io", "-f", "qcow2", "-c", f"write -P 3 0 {DISK_MIB}M", image)
    machine.backups._images = cast(Any, SimpleNamespace(base_of=lambda _: BaseImage(image, "qcow2")))
    copy, content = await machine.back_up(), await machine.content()
    # It is its first disk, which stands on the image
    machine.disks = (DiskSpec(index=0, size_gib=1),)
    [kept] = machine.store.kept_by_id.values()
    kept.name = "disk-0.blocks"
    [disk] = copy.disks
    copy = copy.model_copy(update={"disks": (disk.model_copy(update={"index": 0}),)})
    assert await machine.restored(copy) == content


async def test_a_copy_by_the_first_release_is_restored(machine: Machine) -> None:
    content = bytes(MIB) + machine.rng.randbytes(3 * MIB) + bytes((DISK_MIB - 4) * MIB)
    digest, copy_id = hashlib.sha256(content).hexdigest(), uuid4()
    machine.store.kept_by_id["of old"] = Kept("disk-1.raw", (str(copy_id),), content)
    disk = CopiedDisk(index=1, size_bytes=len(content), digest=digest)
    copy = BackupResult(vm_id=machine.vm_id, copy_id=copy_id, disks=(disk,), stored_bytes=0, frozen=False, forgotten=())
    assert await machine.restored(copy) == digest


async def _killed(machine: Machine) -> None:
    machine.stop(killed=True)
    machine.start()


async def _stopped_and_started(machine: Machine) -> None:
    machine.stop()
    machine.start()


async def _snapshot_put_back(machine: Machine) -> None:
    """By an agent of any release, or by somebody: no part of it is ours."""
    machine.stop()
    await run_program("qemu-img", "snapshot", "-c", "before", machine.path)
    await run_program("qemu-io", "-f", "qcow2", "-c", f"write -P 9 {20 * MIB} 4096", machine.path)
    await run_program("qemu-img", "snapshot", "-a", "before", machine.path)
    machine.start()


async def _copied_while_off(machine: Machine) -> None:
    machine.stop()
    await machine.back_up()
    assert machine.read == WHOLE
    machine.start()


async def _unplugged_and_plugged_in(machine: Machine) -> None:
    machine.qemu.unplug(NAME)
    await run_program("qemu-io", "-f", "qcow2", "-c", f"write -P 9 {20 * MIB} 4096", machine.path)
    machine.qemu.plug(NAME, machine.path)


async def _moved(machine: Machine) -> None:
    """To another node, as live moves do: QEMU there has the disk's content, and whatever bitmaps libvirt brings."""
    names = await machine.guests.on_domain(machine.vm_id, "", lambda domain: bitmaps._bitmaps(domain, [NAME]))
    machine.stop()
    (machine.folders.machine(machine.vm_id) / "copied").unlink()
    machine.start()
    for name in names[NAME]:
        machine.qemu.ask("block-dirty-bitmap-add", node=NAME, name=name)


async def _base_torn(machine: Machine) -> None:
    path = machine.folders.machine(machine.vm_id) / "copied"
    path.write_bytes(path.read_bytes()[:-5])


async def _base_changed(machine: Machine) -> None:
    path = machine.folders.machine(machine.vm_id) / "copied"
    path.write_bytes(path.read_bytes()[:-5] + b"other")


async def _bitmap_gone(machine: Machine) -> None:
    await machine.guests.on_domain(machine.vm_id, "", _remove_bitmaps)


def _remove_bitmaps(domain: Domain) -> None:
    for name in bitmaps._bitmaps(domain, [NAME])[NAME]:
        domain.qemu.ask("block-dirty-bitmap-remove", node=NAME, name=name)


async def _target_exchanged(machine: Machine) -> None:
    machine.store = MemoryStore()


async def _target_lost_data(machine: Machine) -> None:
    machine.store.lost = True


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    "change",
    [
        _killed,
        _stopped_and_started,
        _snapshot_put_back,
        _copied_while_off,
        _unplugged_and_plugged_in,
        _moved,
        _base_torn,
        _base_changed,
        _bitmap_gone,
        _target_exchanged,
        _target_lost_data,
    ],
)
async def test_where_it_is_not_known_what_was_written_everything_is_read(machine: Machine, change: Any) -> None:
    await machine.back_up()
    machine.write(12)
    await machine.back_up()
    assert machine.read == (1, DISK_MIB)
    machine.write(13)
    await change(machine)
    copy, content = await machine.back_up(), await machine.content()
    assert machine.read == WHOLE
    assert await machine.restored(copy) == content
    # And what was left of the time before is not in the way of the next
    machine.write(10)
    after, content = await machine.back_up(), await machine.content()
    assert machine.read == (1, DISK_MIB)
    assert await machine.restored(after) == content


async def test_a_disk_that_grows_while_its_guest_runs_is_read_as_a_whole(machine: Machine) -> None:
    await machine.back_up()
    machine.qemu.ask("block_resize", node_name=NAME, size=2 * DISK_MIB * MIB)
    machine.write(DISK_MIB + 3)
    copy = await machine.back_up()
    assert machine.read == (2 * DISK_MIB, 2 * DISK_MIB)
    assert copy.disks[0].size_bytes == 2 * DISK_MIB * MIB
    machine.write(DISK_MIB + 5)
    after, content = await machine.back_up(), await machine.content()
    assert machine.read == (1, 2 * DISK_MIB)
    assert await machine.restored(after) == content


async def test_a_volume_that_takes_anothers_place_is_read_as_a_whole(machine: Machine) -> None:
    copied = list[tuple[BackupResult, str, tuple[DiskSpec, ...]]]()
    for _ in range(2):
        machine.disks = (DiskSpec(index=1, size_gib=1, volume_id=uuid4()),)
        await machine.make()
        machine.qemu.unplug(NAME)
        machine.qemu.plug(NAME, machine.path)
        machine.write(len(copied), MIB)
        await machine.back_up()
        assert machine.read == WHOLE
        machine.write(5 + len(copied))
        copy = await machine.back_up()
        assert machine.read == (1, DISK_MIB)
        copied.append((copy, await machine.content(), machine.disks))
    machine.stop()
    for copy, content, machine.disks in copied:
        operation = VmRestore(vm_id=machine.vm_id, copy_id=copy.copy_id, password=KEY, disks=copy.disks)
        await machine.backups.restore(operation, silent)
        assert await machine.content() == content


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("point", "again"),
    [
        ("begin", 2),
        ("backup.frozen", 2),
        ("backup.begun", 2),
        ("backup.disk1.read", 2),
        ("backup.disk1.kept", 2),
        ("before write_base", 2),
        ("after write_base", DISK_MIB),
        ("backup.forgotten", DISK_MIB),
    ],
)
async def test_a_backup_that_is_cut_short_loses_nothing_and_is_repeated(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, point: str, again: int
) -> None:
    first = await machine.back_up()
    machine.write(20)

    def cut(name: Any, *_: Any) -> None:
        if name == point:
            raise PowerCutError

    def cut_base(*arguments: Any) -> None:
        cut("before write_base")
        bases.write_base(*arguments)
        cut("after write_base")

    def cut_begin(*arguments: Any) -> Any:
        begun = bitmaps.start(*arguments)
        cut("begin")
        return begun

    async def nothing(*_: Any) -> None:
        pass

    copy_id = uuid4()
    with monkeypatch.context() as failing:
        for module in (copies, copying, reading):
            failing.setattr(module, "fault_point", cut)
        failing.setattr(copies, "write_base", cut_base)
        failing.setattr(reading, "bitmaps", SimpleNamespace(**{**vars(bitmaps), "start": cut_begin}))
        # Whoever dies ends no job, and takes no scratch file away
        failing.setattr(reading, "end_job", nothing)
        failing.setattr(reading, "remove_scratch", lambda *_: None)
        with pytest.raises(PowerCutError):
            await machine.back_up(copy_id=copy_id)
    machine.write(16)
    # The same one: what it kept is of another moment
    copy, content = await machine.back_up(copy_id=copy_id), await machine.content()
    assert machine.read == (again, DISK_MIB)
    assert machine.store.copies() == {first.copy_id, copy_id}
    assert await machine.restored(copy) == content
    machine.write(3)
    after, content = await machine.back_up(), await machine.content()
    assert machine.read == (1, DISK_MIB)
    assert await machine.restored(after) == content


async def test_a_guest_that_dies_while_it_is_copied_is_no_copy(machine: Machine) -> None:
    await machine.back_up()
    kept = machine.store.copies()
    machine.write(1, 20 * MIB)

    def die() -> None:
        machine.qemu.process.kill()
        machine.qemu.process.wait(30)

    machine.during.append(die)
    with pytest.raises(HostError):
        await machine.back_up()
    assert machine.store.copies() == kept
    machine.stop(killed=True)


async def test_a_copy_that_others_stand_on_stays_for_them_and_goes_with_the_last(machine: Machine) -> None:
    first = await machine.back_up()
    machine.write(20)
    second, content = await machine.back_up(first.copy_id), await machine.content()
    before = set(machine.store.kept_by_id)
    with pytest.raises(HostError, match="no longer has this backup"):
        await machine.restored(first)
    assert await machine.restored(second) == content
    # The third reads everything, and nobody needs the others then
    await _stopped_and_started(machine)
    third = await machine.back_up(second.copy_id)
    assert machine.store.copies() == {third.copy_id}
    assert not before & set(machine.store.kept_by_id)
    await machine.backups.forget(VmBackupsForget(vm_id=machine.vm_id, password=KEY, copies=(third.copy_id,)))
    assert not machine.store.kept_by_id


async def test_what_is_dropped_while_it_is_read_is_read_to_its_end(machine: Machine) -> None:
    first = await machine.back_up()
    machine.write(20)
    second = await machine.back_up()
    ids = set(machine.store.kept_by_id)
    await machine.store.forget_copies({first.copy_id})
    # A restoration goes by these, and none of them has another name since
    assert ids < set(machine.store.kept_by_id)
    assert len((await machine.store.listing()).chain(second.copy_id, "disk-1")) == 2


async def test_after_so_many_increments_everything_is_read_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST_CHANGES == 30
    monkeypatch.setattr(copies, "MOST_CHANGES", 2)
    read = []
    for _ in range(4):
        await machine.back_up()
        read.append(machine.read[0])
    assert read == [DISK_MIB, 0, 0, DISK_MIB]


async def test_an_increment_by_restic_comes_back_and_outlives_the_copy_that_it_stands_on(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "store_at", store_at)
    first, content = await machine.back_up(), await machine.content()
    assert await machine.restored(first) == content
    machine.write(20)
    second, content = await machine.back_up(first.copy_id), await machine.content()
    assert machine.read == (1, DISK_MIB)
    assert 0 < second.stored_bytes < 2 * BLOCK_BYTES
    assert await machine.restored(second) == content
    await machine.backups.forget(VmBackupsForget(vm_id=machine.vm_id, password=KEY, copies=(second.copy_id,)))
    kept = await store_at(machine.folders.backups, machine.vm_id, KEY, None).listing()
    assert (kept.snapshots, kept.notes) == ((), ())
