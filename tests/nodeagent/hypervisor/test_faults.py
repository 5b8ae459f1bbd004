"""The agent is killed between each two of its calls to the host; performed again, everything converges.

Each case creates a machine, with a kill on the way, creates it again, deletes it with a kill on the way, and deletes it
again; the cases go through every fault point there is. Guests are started only where the point lies behind the start.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import trio

from svc_nodeagent.hypervisor import Naming
from svc_nodeagent.hypervisor.files import read_record
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.protocol import (
    CpuMode,
    ImageRemove,
    MachineSize,
    MachineSpec,
    NetworkSpec,
    NodeNetProbe,
    NodeOperation,
    VmCpuSet,
    VmCreate,
    VmDelete,
    VmForceStop,
    VmIso,
    VmNetApply,
    VmNetRelease,
    VmReboot,
    VmReinstall,
    VmRescue,
    VmRescueEnd,
    VmResize,
    VmStart,
)
from tests.nodeagent.hypervisor.builders import (
    ADDRESS,
    OTHER,
    address,
    image,
    iso_image,
    machine,
    network,
    nic,
    rescue_image,
    seed,
)
from tests.nodeagent.hypervisor.killed_host import KILLED, ROOT, Perform, made_once, nothing_left, state
from tests.nodeagent.hypervisor.test_copy_files import OPENED as FILES_OF_A_COPY
from tests.nodeagent.hypervisor.test_disk_faults import (
    BACKING_UP,
    FROM_A_COPY,
    RESTORING_A_COPY,
    SENDING,
    SNAPSHOT_OF_RUNNING,
    SNAPSHOT_OF_STOPPED,
    TAKING_IN,
)
from tests.system.live.test_live_moves import AT_SOURCE as LIVE_AT_SOURCE
from tests.system.live.test_live_moves import AT_TARGET as LIVE_AT_TARGET

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

CREATION = (
    "image.verified",
    "image.in_place",
    "create.image",
    "create.record",
    "create.disk0.made",
    "create.disks",
    "create.seed",
    "network.tap",
    "network.withdrawn",
    "network.rules",
    "network.routes",
    "rate.shaper",
    "rate.buckets",
    "rate.chain",
    "network.rate",
    "network.removed",
    "create.network",
    "create.defined",
    "create.started",
)
DELETION = (
    "delete.stopped",
    "delete.undefined",
    "network.withdrawn",
    "network.rules",
    "rate.unchained",
    "rate.unbucketed",
    "network.removed",
    "delete.network",
    "delete.removed.disk-0.qcow2",
    "delete.removed.seed.iso",
    "delete.removed.machine.json",
    "delete.removed",
    "delete.record_retained",
    "delete.retained.disk-0.qcow2",
)
RESTORING = ("restore.taps", "restore.held", "restore.rules", "restore.routes")
CHANGING = ("network.applied", "network.released")
STARTING = ("network.recorded", "start.network", "start.defined", "reboot.off")
RESIZING = ("resize.off", "resize.recorded", "resize.defined")
PROCESSOR = ("processor.off", "processor.recorded", "processor.defined")
REINSTALLING = (
    "reinstall.prepared",
    "reinstall.decided",
    "reinstall.disk",
    "reinstall.recorded",
    "reinstall.defined",
)
UNPACKED = "rescue.system"
RESCUE = ("rescue.off", "rescue.decided", "rescue.defined", "rescue.started")
MEDIUM = ("iso.recorded", "iso.defined")
VOLUMES = (
    "volume.made",
    "volume.recorded",
    "volume.defined",
    "volume.plugged",
    "volume.unplugging",
    "volume.unplugged",
    "volume.grown",
    "volume.removed",
    "volume.copied",
    "volume.taken_over",
    "delete.volume_removed",
)
"""See test_volume_faults."""
RETAINING = ("delete.record_retained", "delete.retained.disk-0.qcow2")

drawn = pytest.mark.drawn(9, of="kills on a host")
"""Each takes half a minute, and there are some fifty."""

SMALL = MachineSize(vcpus=1, memory_mib=256, disk_gib=1)


@drawn
@pytest.mark.parametrize("index", range(len(CREATION)))
async def test_killed_anywhere_in_creation_and_deletion_it_converges(
    index: int, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    killed_creating, killed_deleting = CREATION[index], DELETION[index % len(DELETION)]
    spec, image_spec = machine(NetworkSpec(nics=(nic(ADDRESS, rate_mbps=50),))), image(demo_image)
    start = killed_creating == "create.started" or killed_deleting == "delete.stopped"
    create = VmCreate(machine=spec, image=image_spec, start=start)
    delete = VmDelete(vm_id=spec.vm_id, destroy_disks=killed_deleting not in RETAINING)

    assert await perform(create, kill_at=killed_creating) == KILLED
    assert await perform(create) == 0
    await made_once(spec, naming, data_folder, start)
    assert await perform(delete, kill_at=killed_deleting) == KILLED
    assert await perform(delete) == 0
    await nothing_left(spec, naming, data_folder, retained=not delete.destroy_disks)
    if delete.destroy_disks:
        assert await perform(ImageRemove(image_id=image_spec.image_id)) == 0
        assert list((data_folder / "images").iterdir()) == []


@drawn
@pytest.mark.parametrize("point", STARTING)
async def test_killed_anywhere_in_a_start_it_converges(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    spec = machine(network(ADDRESS))
    order: NodeOperation = VmStart(vm_id=spec.vm_id, network=spec.network)
    if point == "reboot.off":
        order = VmReboot(vm_id=spec.vm_id)
    create = VmCreate(machine=spec, image=image(demo_image), start=False)
    assert await perform(create, order, kill_at=point) == KILLED
    assert state(naming.domain(spec.vm_id)) == "shut off"
    assert await perform(order) == 0
    await made_once(spec, naming, data_folder, True)
    assert await perform(VmForceStop(vm_id=spec.vm_id), VmDelete(vm_id=spec.vm_id, destroy_disks=True)) == 0


@drawn
@pytest.mark.parametrize("point", RESTORING)
async def test_killed_anywhere_in_a_restore_it_converges(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    spec = machine(network(ADDRESS))
    assert await perform(VmCreate(machine=spec, image=image(demo_image), start=False)) == 0
    if point != "restore.held":  # which is where there is something to be replaced
        await HostNetwork(naming, {}).clear()
    assert await perform(NodeNetProbe(), kill_at=point) == KILLED
    assert await perform(NodeNetProbe()) == 0
    await made_once(spec, naming, data_folder, False)


@drawn
@pytest.mark.parametrize("point", RESIZING)
async def test_killed_anywhere_in_a_resize_it_converges(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    spec = machine(network(ADDRESS))
    resize = VmResize(vm_id=spec.vm_id, vcpus=2, memory_mib=320, disk_gib=2, before=SMALL, restart=True)
    create = VmCreate(machine=spec, image=image(demo_image), start=False)
    assert await perform(create, resize, kill_at=point) == KILLED
    assert await perform(resize) == 0
    await made_once(spec, naming, data_folder, True)
    record = read_record(data_folder / "machines" / str(spec.vm_id) / "machine.json")
    assert (record.vcpus, record.memory_mib, record.disks[0].size_gib) == (2, 320, 2)
    assert await perform(VmDelete(vm_id=spec.vm_id, destroy_disks=True)) == 0


@drawn
@pytest.mark.parametrize("point", PROCESSOR)
async def test_killed_anywhere_in_a_change_of_the_processor_it_converges(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    spec = machine(network(ADDRESS))
    change = VmCpuSet(vm_id=spec.vm_id, cpu_mode=CpuMode.MAXIMUM, before=CpuMode.DEFAULT, restart=True)
    create = VmCreate(machine=spec, image=image(demo_image), start=False)
    assert await perform(create, change, kill_at=point) == KILLED
    assert await perform(change) == 0
    await made_once(spec, naming, data_folder, True)
    assert read_record(data_folder / "machines" / str(spec.vm_id) / "machine.json").cpu_mode is CpuMode.MAXIMUM
    assert await perform(VmDelete(vm_id=spec.vm_id, destroy_disks=True)) == 0


async def test_a_resize_that_was_killed_and_then_fails_puts_the_old_size_back(
    perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    spec, path = machine(network(ADDRESS)), data_folder / "machines"
    too_much = VmResize(vm_id=spec.vm_id, vcpus=2, memory_mib=4 * 1024 * 1024, disk_gib=2, before=SMALL, restart=True)
    assert await perform(VmCreate(machine=spec, image=image(demo_image), start=False)) == 0
    before = read_record(path / str(spec.vm_id) / "machine.json")
    assert await perform(too_much, kill_at="resize.recorded") == KILLED
    with pytest.raises(AssertionError, match="could not be started"):
        await perform(too_much)
    assert read_record(path / str(spec.vm_id) / "machine.json") == before
    assert state(naming.domain(spec.vm_id)) == "running"
    assert await perform(VmForceStop(vm_id=spec.vm_id), VmDelete(vm_id=spec.vm_id, destroy_disks=True)) == 0


@drawn
@pytest.mark.parametrize("point", REINSTALLING)
async def test_killed_anywhere_in_a_reinstallation_the_machine_is_the_old_system_or_the_new_one(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    """Whatever is asked of it next: another order, or the same again."""
    spec, folder = machine(network(ADDRESS)), data_folder / "machines"
    anew = VmReinstall(vm_id=spec.vm_id, image=image(demo_image), seed=seed(), network=spec.network)
    files = folder / str(spec.vm_id)

    def systems() -> tuple[bool, bool]:
        """Whether the record is of the new system, and whether the disk is."""
        new_record = read_record(files / "machine.json").seed.instance_id == anew.seed.instance_id
        return new_record, (files / "disk-0.qcow2").stat().st_ino != old_disk

    assert await perform(VmCreate(machine=spec, image=image(demo_image), start=False)) == 0
    old_disk = (files / "disk-0.qcow2").stat().st_ino
    assert await perform(anew, kill_at=point) == KILLED
    assert await perform(VmStart(vm_id=spec.vm_id, network=spec.network)) == 0
    assert state(naming.domain(spec.vm_id)) == "running"
    assert systems() == ((False, False) if point == "reinstall.prepared" else (True, True))
    assert await perform(anew) == 0
    assert systems() == (True, True)
    await made_once(spec, naming, data_folder, True)
    assert await perform(VmDelete(vm_id=spec.vm_id, destroy_disks=True)) == 0
    await nothing_left(spec, naming, data_folder, retained=False)


@drawn
@pytest.mark.parametrize("point", RESCUE)
async def test_killed_anywhere_on_the_way_into_a_rescue_and_out_of_it_it_converges(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path, rescue_system: Path
) -> None:
    """What the machine boots after the kill, whoever starts it, is the rescue system or its own disk."""
    spec = machine(network(ADDRESS))
    vm_id, name, decision = spec.vm_id, naming.domain(spec.vm_id), data_folder / "machines" / str(spec.vm_id)
    begin = into_rescue(spec, rescue_system)
    end = VmRescueEnd(vm_id=vm_id, network=spec.network, runs=False, force=True)
    start, stop = VmStart(vm_id=vm_id, network=spec.network), VmForceStop(vm_id=vm_id)

    def boots_rescue() -> bool:
        """As its definition says, and what is recorded says the same."""
        shown = subprocess.run(["virsh", "dumpxml", "--inactive", name], check=True, capture_output=True, text=True)
        assert (decision / "rescue.json").exists() is ("<kernel>" in shown.stdout)
        return "<kernel>" in shown.stdout

    create = VmCreate(machine=spec, image=image(demo_image), start=False)
    assert await perform(create, begin, kill_at=point) == KILLED
    assert await perform(start) == 0
    assert boots_rescue() is (point != "rescue.off")
    assert await perform(begin.model_copy(update={"force": True})) == 0
    assert (boots_rescue(), state(name)) == (True, "running")

    assert await perform(end, kill_at=point) == KILLED
    assert await perform(stop, start) == 0
    assert boots_rescue() is (point == "rescue.off")
    assert await perform(end) == 0
    assert (boots_rescue(), state(name)) == (False, "running")
    await made_once(spec, naming, data_folder, True)
    if point == RESCUE[-1]:
        anew = begin.model_copy(update={"instance_id": "r-2", "force": True})
        assert await perform(anew, VmDelete(vm_id=vm_id, destroy_disks=True)) == 0
        await nothing_left(spec, naming, data_folder, retained=False)


def into_rescue(spec: MachineSpec, system: Path) -> VmRescue:
    return VmRescue(
        vm_id=spec.vm_id,
        instance_id="r-1",
        system=rescue_image(system),
        password_hash="$6$salt$hash",
        network=spec.network,
        runs=False,
    )


async def test_killed_before_a_rescue_is_decided_the_machine_is_what_it_was(
    perform: Perform, naming: Naming, data_folder: Path, demo_image: Path, rescue_system: Path
) -> None:
    spec = machine(network(ADDRESS))
    create, begin = VmCreate(machine=spec, image=image(demo_image), start=False), into_rescue(spec, rescue_system)
    decision = data_folder / "machines" / str(spec.vm_id) / "rescue.json"
    assert await perform(create, begin, kill_at=UNPACKED) == KILLED
    assert not decision.exists()
    assert state(naming.domain(spec.vm_id)) == "shut off"
    assert await perform(begin) == 0
    assert decision.exists()
    assert state(naming.domain(spec.vm_id)) == "running"


@drawn
@pytest.mark.parametrize("point", MEDIUM)
async def test_killed_anywhere_in_a_change_of_the_medium_it_converges(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    spec = machine(network(ADDRESS))
    insert, eject = VmIso(vm_id=spec.vm_id, image=iso_image(demo_image)), VmIso(vm_id=spec.vm_id, image=None)
    create = VmCreate(machine=spec, image=image(demo_image), start=False)
    assert await perform(create, insert, kill_at=point) == KILLED
    assert await perform(insert) == 0
    shown = ["virsh", "dumpxml", "--inactive", naming.domain(spec.vm_id)]
    assert b".raw" in (await trio.run_process(shown, capture_stdout=True)).stdout
    assert await perform(eject, kill_at=point) == KILLED
    assert await perform(eject) == 0
    assert b".raw" not in (await trio.run_process(shown, capture_stdout=True)).stdout
    await made_once(spec, naming, data_folder, False)


@drawn
@pytest.mark.parametrize("point", CHANGING)
async def test_killed_after_a_change_it_is_done_again_with_the_same_answer(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    spec = machine(network(OTHER))
    changed = network(ADDRESS).model_copy(update={"generation": 2})
    kept = changed.nics[0].model_copy(update={"addresses": (*changed.nics[0].addresses, address(OTHER))})
    assert await perform(VmCreate(machine=spec, image=image(demo_image), start=False)) == 0
    applied = VmNetApply(vm_id=spec.vm_id, network=changed.model_copy(update={"nics": (kept,)}))
    released = VmNetRelease(vm_id=spec.vm_id, addresses=(OTHER,))
    assert await perform(applied, released, kill_at=point) == KILLED
    assert await perform(applied, released, released) == 0
    await made_once(spec.model_copy(update={"network": changed}), naming, data_folder, False)


def test_every_fault_point_of_the_hypervisor_is_killed_at() -> None:
    sources = (ROOT / "nodeagent" / "svc_nodeagent" / "hypervisor").rglob("*.py")
    named = {name for source in sources for name in re.findall(r'fault_point\(f?"([^"]+)"\)', source.read_text())}
    passed = (
        *CREATION,
        *DELETION,
        *STARTING,
        *RESTORING,
        *CHANGING,
        *RESIZING,
        *PROCESSOR,
        *REINSTALLING,
        *BACKING_UP,
        *RESTORING_A_COPY,
        *FROM_A_COPY,
        FILES_OF_A_COPY,
        *SNAPSHOT_OF_RUNNING,
        *SNAPSHOT_OF_STOPPED,
        *TAKING_IN,
        *SENDING,
        *VOLUMES,
        UNPACKED,
        *RESCUE,
        *MEDIUM,
        *LIVE_AT_SOURCE,
        *LIVE_AT_TARGET,
    )
    killed_at = {point.partition(":")[0] for point in passed}
    patterns = {name: re.escape(re.sub(r"\{.*?\}", "*", name)).replace(r"\*", ".+") for name in named}
    assert named
    assert [name for name in named if not any(re.fullmatch(patterns[name], point) for point in killed_at)] == []
