"""Snapshots of a machine that is off and has two disks: in both or in none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from uuid import UUID, uuid4

import pytest
import trio

from svc_nodeagent.durable import write_whole
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.disks import inspect
from svc_nodeagent.hypervisor.files import RECORD, Folders
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.hypervisor.snapshots import Snapshots
from svc_nodeagent.protocol import (
    DiskSpec,
    DomainState,
    FailureCode,
    VmSnapshotDelete,
    VmSnapshotRestore,
    VmSnapshotTake,
)
from tests.nodeagent.hypervisor.builders import machine, network, record


class Off:
    """In the place of `Guests`."""

    async def state(self, vm_id: UUID) -> DomainState:
        await trio.lowlevel.checkpoint()
        return DomainState.STOPPED


@asynccontextmanager
async def alone(vm_id: UUID) -> AsyncIterator[None]:
    yield


@pytest.fixture
async def disks(tmp_path: Path) -> SimpleNamespace:
    spec = machine(network()).model_copy(update={"disks": tuple(DiskSpec(index=n, size_gib=1) for n in (0, 1))})
    folders = Folders(tmp_path)
    paths = [folders.disk(spec.vm_id, index) for index in (0, 1)]
    folders.machine(spec.vm_id).mkdir(parents=True)
    write_whole(folders.machine(spec.vm_id) / RECORD, record(spec).stored(), mode=0o600)
    for path in paths:
        await run_program("qemu-img", "create", "-q", "-f", "qcow2", path, "1G")
        await write(path, 1)
    snapshots = Snapshots(cast(Guests, Off()), folders, alone)
    return SimpleNamespace(vm_id=spec.vm_id, paths=paths, snapshots=snapshots, tag=uuid4())


async def write(path: Path, pattern: int) -> None:
    await run_program("qemu-io", "-f", "qcow2", "-c", f"write -P {pattern} 0 1M", path)


async def holds(path: Path, pattern: int) -> bool:
    said = await run_program("qemu-io", "-f", "qcow2", "-c", f"read -P {pattern} 0 1M", path)
    return b"Pattern verification failed" not in said


async def tags(disks: SimpleNamespace) -> list[tuple[str, ...]]:
    return [(await inspect(path, "qcow2")).snapshots for path in disks.paths]


async def test_both_disks_go_back_and_the_snapshot_goes_from_both(disks: SimpleNamespace) -> None:
    ids = {"vm_id": disks.vm_id, "snapshot_id": disks.tag}
    for _ in range(2):
        await disks.snapshots.perform(VmSnapshotTake(**ids))
    assert await tags(disks) == [(str(disks.tag),)] * 2
    for path in disks.paths:
        await write(path, 2)
    await disks.snapshots.perform(VmSnapshotRestore(**ids))
    assert [await holds(path, 1) for path in disks.paths] == [True, True]
    for _ in range(2):
        await disks.snapshots.perform(VmSnapshotDelete(**ids))
    assert await tags(disks) == [(), ()]


async def test_what_one_disk_cannot_take_is_in_neither(disks: SimpleNamespace) -> None:
    # A disk that another program has open is locked
    async with trio.open_nursery() as nursery:
        command = ["qemu-io", "-f", "qcow2", "-c", "write 0 1M", "-c", "sleep 60000", str(disks.paths[1])]
        process = await nursery.start(trio.run_process, command)
        with trio.fail_after(30):
            # Asked before, qemu-img would have the disk open itself, and the other program would end.
            inode = f":{disks.paths[1].stat().st_ino} "
            while inode not in Path("/proc/locks").read_text():
                await trio.sleep(0.01)  # It starts outside of this process.
            assert b"lock" in await failure_of(disks.paths[1])
        with pytest.raises(HostError):
            await disks.snapshots.perform(VmSnapshotTake(vm_id=disks.vm_id, snapshot_id=disks.tag))
        process.kill()
        nursery.cancel_scope.cancel()
    assert await tags(disks) == [(), ()]


async def test_nothing_goes_back_where_a_disk_is_newer_than_the_snapshot(disks: SimpleNamespace) -> None:
    await run_program("qemu-img", "snapshot", "-c", str(disks.tag), disks.paths[0])
    await write(disks.paths[0], 2)
    with pytest.raises(HostError) as refused:
        await disks.snapshots.perform(VmSnapshotRestore(vm_id=disks.vm_id, snapshot_id=disks.tag))
    assert (refused.value.code, "Disk 1" in refused.value.message) == (FailureCode.NOT_FOUND, True)
    assert await holds(disks.paths[0], 2)


async def failure_of(path: Path) -> bytes:
    """What qemu-img says of a disk that it may not open to write."""
    done = await trio.run_process(
        ["qemu-img", "snapshot", "-d", "none", str(path)], check=False, capture_stdout=True, capture_stderr=True
    )
    return bytes(done.stderr)
