"""A node's disk is full: a volume is made or taken over whole or not at all, and once there is room again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import volume_files
from svc_nodeagent.hypervisor.disks import inspect
from svc_nodeagent.hypervisor.files import Folders
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import FailureCode
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MIB = 1024 * 1024
OWNER = (os.getuid(), os.getgid())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "data", 64) as disk:
        for name in ("volumes", "retained", "machines"):
            (disk.folder / name).mkdir()
        yield disk


async def test_a_new_one_is_refused_leaves_nothing_and_is_made_once_there_is_room(disk: SmallDisk) -> None:
    folders, volume_id = Folders(disk.folder), uuid4()
    disk.fill()
    with pytest.raises(HostError) as refused:
        await volume_files.make(folders, volume_id, 1, OWNER)
    assert refused.value.code is FailureCode.CAPACITY
    assert "No space left on device" in refused.value.message
    assert list(folders.volumes.iterdir()) == []

    disk.empty()
    await volume_files.make(folders, volume_id, 1, OWNER)
    assert [path.name for path in folders.volumes.iterdir()] == [f"{volume_id}.qcow2"]


async def test_a_kept_disk_stays_whole_where_it_is_until_there_is_room_for_what_it_needs_of_its_image(
    disk: SmallDisk, tmp_path: Path
) -> None:
    folders, volume_id, vm_id = Folders(disk.folder), uuid4(), uuid4()
    image = tmp_path / "image.raw"
    image.write_bytes(os.urandom(32 * MIB))
    kept = folders.retained / str(vm_id) / "disk-0.qcow2"
    kept.parent.mkdir()
    await run_program("qemu-img", "create", "-q", "-f", "qcow2", "-b", image, "-F", "raw", kept)
    disk.fill(leave=8 * MIB)
    name = f"retained/{vm_id}/disk-0.qcow2"
    with pytest.raises(HostError) as refused:
        await volume_files.take_over(folders, volume_id, name, OWNER)
    assert refused.value.code is FailureCode.CAPACITY
    assert list(folders.volumes.iterdir()) == []
    assert same(kept, image)

    disk.empty()
    path = await volume_files.take_over(folders, volume_id, name, OWNER)
    assert (await inspect(path, "qcow2")).refers_to == ()
    assert same(path, image)
    assert list(folders.retained.iterdir()) == []


def same(disk: Path, image: Path) -> bool:
    command: list[str | Path] = ["qemu-img", "compare", "-f", "qcow2", "-F", "raw", disk, image]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
