"""The agent is killed while it reads or writes whole disks: for backups, for snapshots, and to another host."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
import trio

from svc_nodeagent.hypervisor import Naming
from svc_nodeagent.hypervisor.backups.store import store_at
from svc_nodeagent.hypervisor.disks import inspect
from svc_nodeagent.hypervisor.files import read_record
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import (
    CpuMode,
    VmBackup,
    VmCreate,
    VmCreateFromCopy,
    VmDelete,
    VmForceStop,
    VmMigrate,
    VmRestore,
    VmSend,
    VmSnapshotRestore,
    VmSnapshotTake,
    VmStart,
)
from tests.nodeagent.hypervisor.builders import ADDRESS, image, machine, network
from tests.nodeagent.hypervisor.killed_host import (
    KILLED,
    Perform,
    as_copied,
    asked_of_agent,
    content,
    made_once,
    nothing_left,
    state,
    until_agent_answers,
)

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

KEY = "the key of the store"
BACKING_UP = ("backup.disk0.read", "backup.frozen", "backup.begun", "backup.disk0.kept", "backup.forgotten")
RESTORING_A_COPY = ("restore.disk0.placed",)
FROM_A_COPY = ("copy.created", "restore.disk0.placed", "copy.started")
SNAPSHOT_OF_RUNNING = ("snapshot.frozen", "snapshot.taken")
SNAPSHOT_OF_STOPPED = ("snapshot.taken", "snapshot.disk0.restored")
TAKING_IN = (
    "move.begun",
    "move.disk0.received",
    "move.recorded",
    "move.defined",
    "move.complete",
)
SENDING = ("move.sent",)

drawn = pytest.mark.drawn(3, of="kills over disks of a host")
"""Each takes half a minute, and there are some twenty."""


@drawn
@pytest.mark.parametrize("point", BACKING_UP)
async def test_killed_anywhere_in_a_backup_the_guest_goes_on_and_the_next_copy_is_whole(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    target = data_folder / "backups" / "machines"
    target.mkdir(parents=True)
    spec = machine(network(ADDRESS))
    name = naming.domain(spec.vm_id)
    first = VmBackup(vm_id=spec.vm_id, copy_id=uuid4(), password=KEY)
    second = VmBackup(vm_id=spec.vm_id, copy_id=uuid4(), password=KEY, forget=(first.copy_id,))

    # libvirt 9 never hears of an agent that comes up while a backup is under way.
    assert await perform(VmCreate(machine=spec, image=image(demo_image))) == 0
    await until_agent_answers(name)
    assert await perform(first) == 0
    assert await perform(second, kill_at=point) == KILLED
    assert await perform(second) == 0

    assert await asked_of_agent(name, "guest-fsfreeze-status") == "thawed"
    await made_once(spec, naming, data_folder, True)
    kept = await store_at(target, spec.vm_id, KEY, None).listing()
    assert {each.copy_id for each in kept.snapshots} - kept.dropped == {second.copy_id}
    assert kept.chain(second.copy_id, "disk-0")
    assert await perform(VmForceStop(vm_id=spec.vm_id), VmDelete(vm_id=spec.vm_id, destroy_disks=True)) == 0


async def test_killed_in_the_backup_of_a_stopped_machine_nothing_keeps_it_from_starting(
    perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    (data_folder / "backups" / "machines").mkdir(parents=True)
    spec = machine(network(ADDRESS))
    backup = VmBackup(vm_id=spec.vm_id, copy_id=uuid4(), password=KEY)
    assert await perform(VmCreate(machine=spec, image=image(demo_image), start=False)) == 0

    # Its server outlives it, as where no systemd ends what an agent has begun
    assert await perform(backup, kill_at="backup.disk0.read") == KILLED
    serving = ["pgrep", "-f", f"qemu-nbd .*svc-backup-{spec.vm_id}"]
    assert (await trio.run_process(serving, check=False)).returncode == 0

    assert await perform(VmStart(vm_id=spec.vm_id, network=spec.network)) == 0
    assert (await trio.run_process(serving, check=False)).returncode == 1
    await made_once(spec, naming, data_folder, True)
    assert await perform(VmForceStop(vm_id=spec.vm_id), VmDelete(vm_id=spec.vm_id, destroy_disks=True)) == 0


@drawn
@pytest.mark.parametrize("point", RESTORING_A_COPY)
async def test_killed_anywhere_in_putting_a_copy_back_it_converges(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    (data_folder / "backups" / "machines").mkdir(parents=True)
    spec = machine(network(ADDRESS))
    disk = data_folder / "machines" / str(spec.vm_id) / "disk-0.qcow2"
    backup = VmBackup(vm_id=spec.vm_id, copy_id=uuid4(), password=KEY)
    assert await perform(VmCreate(machine=spec, image=image(demo_image), start=False), backup) == 0
    before, copied = await content(disk), await as_copied(disk)
    restore = VmRestore(vm_id=spec.vm_id, copy_id=backup.copy_id, password=KEY, disks=(copied,))

    assert await perform(restore, kill_at=point) == KILLED
    assert await perform(restore) == 0

    assert await content(disk) == before
    await made_once(spec, naming, data_folder, False)
    assert await perform(VmDelete(vm_id=spec.vm_id, destroy_disks=True)) == 0


@drawn
@pytest.mark.parametrize("point", SNAPSHOT_OF_RUNNING)
async def test_killed_over_a_snapshot_the_guest_writes_on_and_it_is_taken_again(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    spec = machine(network(ADDRESS))
    name, disk = naming.domain(spec.vm_id), data_folder / "machines" / str(spec.vm_id) / "disk-0.qcow2"
    take = VmSnapshotTake(vm_id=spec.vm_id, snapshot_id=uuid4())
    assert await perform(VmCreate(machine=spec, image=image(demo_image))) == 0
    await until_agent_answers(name)

    assert await perform(take, kill_at=point) == KILLED
    assert await perform(take) == 0

    assert await asked_of_agent(name, "guest-fsfreeze-status") == "thawed"
    assert (await inspect(disk, "qcow2")).snapshots == (str(take.snapshot_id),)
    await made_once(spec, naming, data_folder, True)
    assert await perform(VmForceStop(vm_id=spec.vm_id), VmDelete(vm_id=spec.vm_id, destroy_disks=True)) == 0


@drawn
@pytest.mark.parametrize("point", SNAPSHOT_OF_STOPPED)
async def test_killed_over_a_snapshot_of_a_stopped_machine_it_converges(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    spec = machine(network(ADDRESS))
    disk = data_folder / "machines" / str(spec.vm_id) / "disk-0.qcow2"
    take = VmSnapshotTake(vm_id=spec.vm_id, snapshot_id=uuid4())
    restore = VmSnapshotRestore(vm_id=spec.vm_id, snapshot_id=take.snapshot_id)
    assert await perform(VmCreate(machine=spec, image=image(demo_image), start=False)) == 0
    before = await content(disk)

    if point == "snapshot.taken":
        assert await perform(take, kill_at=point) == KILLED
    assert await perform(take) == 0
    await run_program("qemu-io", "-f", "qcow2", "-c", "write -P 7 100M 8M", disk)
    if point == "snapshot.disk0.restored":
        assert await perform(restore, kill_at=point) == KILLED
    assert await perform(restore) == 0

    assert await content(disk) == before
    assert (await inspect(disk, "qcow2")).snapshots == (str(take.snapshot_id),)
    await made_once(spec, naming, data_folder, False)
    assert await perform(VmDelete(vm_id=spec.vm_id, destroy_disks=True)) == 0


@drawn
@pytest.mark.parametrize("point", FROM_A_COPY)
async def test_killed_anywhere_in_making_a_machine_from_a_copy_it_converges(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    (data_folder / "backups" / "machines").mkdir(parents=True)
    spec, new = machine(network()), machine(network())
    disk = data_folder / "machines" / str(spec.vm_id) / "disk-0.qcow2"
    backup = VmBackup(vm_id=spec.vm_id, copy_id=uuid4(), password=KEY)
    assert await perform(VmCreate(machine=spec, image=image(demo_image), start=False), backup) == 0
    copied = await as_copied(disk)
    assert await perform(VmDelete(vm_id=spec.vm_id, destroy_disks=True)) == 0
    restore = VmRestore(vm_id=new.vm_id, source_id=spec.vm_id, copy_id=backup.copy_id, password=KEY, disks=(copied,))
    order = VmCreateFromCopy(machine=new, image=image(demo_image), start=True, restoration=restore)

    assert await perform(order, kill_at=point) == KILLED
    assert await perform(order) == 0

    await made_once(new, naming, data_folder, True)
    assert await perform(VmForceStop(vm_id=new.vm_id), VmDelete(vm_id=new.vm_id, destroy_disks=True)) == 0


@drawn
@pytest.mark.parametrize("point", TAKING_IN)
async def test_killed_anywhere_in_taking_a_machine_in_it_is_taken_in_again(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    spec, kept = machine(network(ADDRESS)), image(demo_image)
    disk, sent = data_folder / "machines" / str(spec.vm_id) / "disk-0.qcow2", data_folder / "sent"
    send = VmSend(vm_id=spec.vm_id, stream_token=f"move:{sent}")
    take_in = VmMigrate(machine=spec, image=kept, cpu_mode=CpuMode.MAXIMUM, stream_token=f"move:{sent}")
    delete = VmDelete(vm_id=spec.vm_id, destroy_disks=True)
    # A machine that has run, so that its disk has content of its own
    running = VmCreate(machine=spec, image=kept)
    assert await perform(running) == 0
    await until_agent_answers(naming.domain(spec.vm_id))
    assert await perform(VmForceStop(vm_id=spec.vm_id), send) == 0
    before = await content(disk)
    assert await perform(delete) == 0

    assert await perform(take_in, kill_at=point) == KILLED
    assert await perform(delete, take_in) == 0

    assert await content(disk) == before
    record = read_record(disk.with_name("machine.json"))
    assert (record.name, record.cpu_mode, record.network.nics) == (spec.name, CpuMode.MAXIMUM, ())
    assert not disk.with_name("abandoned").exists()
    assert state(naming.domain(spec.vm_id)) == "shut off"
    assert (await HostNetwork(naming, {}).probe()).taps == ()  # nothing is carried for it yet
    assert await perform(VmStart(vm_id=spec.vm_id, network=spec.network)) == 0
    await until_agent_answers(naming.domain(spec.vm_id))
    assert await perform(VmForceStop(vm_id=spec.vm_id), delete) == 0
    await nothing_left(spec, naming, data_folder, retained=False)


@drawn
@pytest.mark.parametrize("point", SENDING)
async def test_killed_in_sending_a_machine_it_is_whole_and_is_sent_again(
    point: str, perform: Perform, naming: Naming, data_folder: Path, demo_image: Path
) -> None:
    spec = machine(network(ADDRESS))
    first, second = data_folder / "first", data_folder / "second"
    assert await perform(VmCreate(machine=spec, image=image(demo_image), start=False)) == 0

    assert await perform(VmSend(vm_id=spec.vm_id, stream_token=f"move:{first}"), kill_at=point) == KILLED
    assert await perform(VmSend(vm_id=spec.vm_id, stream_token=f"move:{second}")) == 0

    assert first.read_bytes() == second.read_bytes()
    await made_once(spec, naming, data_folder, False)
    assert await perform(VmDelete(vm_id=spec.vm_id, destroy_disks=True)) == 0
