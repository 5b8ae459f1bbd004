"""The agent is killed between each two of its calls over a volume; performed again, everything converges.

One order is killed several times in a row, each time later in it, before it is let through.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from svc_nodeagent.hypervisor import Naming
from svc_nodeagent.hypervisor.disks import inspect
from svc_nodeagent.hypervisor.files import read_record
from svc_nodeagent.protocol import (
    NodeOperation,
    VmCreate,
    VmDelete,
    VmForceStop,
    VmStart,
    VolumeAttach,
    VolumeCreate,
    VolumeDelete,
    VolumeDetach,
    VolumeGrow,
    volume_serial,
)
from tests.nodeagent.hypervisor.builders import ADDRESS, image, machine, network
from tests.nodeagent.hypervisor.killed_host import KILLED, Perform
from tests.nodeagent.hypervisor.test_faults import VOLUMES

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

GIB = 1024**3
WHILE_RUNNING = {"volume.plugged", "volume.unplugging"}
WHILE_OFF = (
    "volume.made",
    "volume.recorded",
    "volume.defined",
    "volume.grown",
    "volume.unplugged",
    "volume.removed",
    "volume.copied",
    "volume.taken_over",
    "delete.volume_removed",
)


def test_every_point_has_a_case() -> None:
    assert {*WHILE_OFF, *WHILE_RUNNING} == set(VOLUMES)


async def test_killed_anywhere_over_a_volume_of_a_machine_that_is_off_it_converges(
    perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    spec, volume_id = machine(network(ADDRESS)), uuid4()
    vm_id, path = spec.vm_id, data_folder / "volumes" / f"{volume_id}.qcow2"
    create = VolumeCreate(volume_id=volume_id, size_gib=1)
    attach = VolumeAttach(vm_id=vm_id, volume_id=volume_id, index=1, size_gib=1)
    grow = VolumeGrow(volume_id=volume_id, vm_id=vm_id, size_gib=2)
    detach, delete = VolumeDetach(vm_id=vm_id, volume_id=volume_id), VolumeDelete(volume_id=volume_id)

    before = VmCreate(machine=spec, image=image(demo_image), start=False)
    assert await perform(before, create, kill_at="volume.made") == KILLED
    assert not path.exists()
    assert await perform(create, attach, kill_at="volume.recorded") == KILLED
    assert await perform(attach, kill_at="volume.defined") == KILLED
    assert await perform(attach, grow, kill_at="volume.grown") == KILLED
    assert await perform(grow) == 0
    assert (recorded(data_folder, vm_id), defined(naming, vm_id, volume_id)) == ([volume_id], True)
    assert (await inspect(path, "qcow2")).virtual_bytes == 2 * GIB

    assert await perform(detach, kill_at="volume.unplugged") == KILLED
    assert recorded(data_folder, vm_id) == [volume_id]
    assert await perform(detach, kill_at="volume.recorded") == KILLED
    assert await perform(detach) == 0
    assert (recorded(data_folder, vm_id), defined(naming, vm_id, volume_id)) == ([], False)
    assert await perform(delete, kill_at="volume.removed") == KILLED
    assert await perform(delete, VmDelete(vm_id=vm_id, destroy_disks=True)) == 0
    assert list((data_folder / "volumes").iterdir()) == []


async def test_killed_while_a_kept_disk_becomes_a_volume_and_goes_with_its_machine_it_converges(
    perform: Perform, data_folder: Path, demo_image: Path
) -> None:
    spec, other, volume_id = machine(network(ADDRESS)), machine(network("10.9.9.9")), uuid4()
    folder, kept = data_folder / "volumes", f"retained/{other.vm_id}/disk-0.qcow2"
    attach = VolumeAttach(vm_id=spec.vm_id, volume_id=volume_id, index=1, size_gib=1, kept=kept)
    before: list[NodeOperation] = [
        VmCreate(machine=each, image=image(demo_image), start=False) for each in (spec, other)
    ]
    keep = VmDelete(vm_id=other.vm_id, destroy_disks=False)

    assert await perform(*before, keep, attach, kill_at="volume.copied") == KILLED
    assert await perform(attach, kill_at="volume.taken_over") == KILLED
    assert await perform(attach) == 0
    assert recorded(data_folder, spec.vm_id) == [volume_id]
    assert [path.name for path in folder.iterdir()] == [f"{volume_id}.qcow2"]
    info = await inspect(folder / f"{volume_id}.qcow2", "qcow2")
    assert (info.refers_to, info.virtual_bytes) == ((), GIB)
    assert list((data_folder / "retained").iterdir()) == []

    delete = VmDelete(vm_id=spec.vm_id, destroy_disks=True, destroy_volumes=(volume_id,))
    assert await perform(delete, kill_at="delete.volume_removed") == KILLED
    assert await perform(delete) == 0
    assert (list(folder.iterdir()), list((data_folder / "machines").iterdir())) == ([], [])


async def test_killed_while_a_running_guest_is_given_a_volume_and_asked_to_let_go_it_converges(
    perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    spec, volume_id = machine(network(ADDRESS)), uuid4()
    attach = VolumeAttach(vm_id=spec.vm_id, volume_id=volume_id, index=1, size_gib=1)
    detach = VolumeDetach(vm_id=spec.vm_id, volume_id=volume_id)
    create = VmCreate(machine=spec, image=image(demo_image))

    volume = VolumeCreate(volume_id=volume_id, size_gib=1)
    assert await perform(create, volume, attach, kill_at="volume.plugged") == KILLED
    assert await perform(attach) == 0
    assert runs_with(naming, spec.vm_id, volume_id)
    assert await perform(detach, kill_at="volume.unplugging") == KILLED
    assert recorded(data_folder, spec.vm_id) == [volume_id]
    # The guest still boots and hears nothing: its power is cut instead
    start = VmStart(vm_id=spec.vm_id, network=spec.network)
    assert await perform(VmForceStop(vm_id=spec.vm_id), detach, start, VolumeDelete(volume_id=volume_id)) == 0
    assert recorded(data_folder, spec.vm_id) == []
    assert not runs_with(naming, spec.vm_id, volume_id)
    assert await perform(VmForceStop(vm_id=spec.vm_id), VmDelete(vm_id=spec.vm_id, destroy_disks=True)) == 0


def recorded(data_folder: Path, vm_id: UUID) -> list[UUID]:
    disks = read_record(data_folder / "machines" / str(vm_id) / "machine.json").disks
    return [disk.volume_id for disk in disks if disk.volume_id is not None]


def definition(naming: Naming, vm_id: UUID, *options: str) -> str:
    command = ["virsh", "dumpxml", *options, naming.domain(vm_id)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def defined(naming: Naming, vm_id: UUID, volume_id: UUID) -> bool:
    return volume_serial(volume_id) in definition(naming, vm_id)


def runs_with(naming: Naming, vm_id: UUID, volume_id: UUID) -> bool:
    """The guest that runs, and the one that would be started next, agree."""
    now, then = (volume_serial(volume_id) in definition(naming, vm_id, *each) for each in ((), ("--inactive",)))
    assert now is then
    return now
