"""A rescue that fails on its way, is cut short, or comes again: the machine is in rescue, or as it was."""

from __future__ import annotations

import tarfile
from io import BytesIO
from pathlib import Path

import pytest
import trio
import trio.testing

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import rescued
from svc_nodeagent.hypervisor.connection import ConnectionLost
from svc_nodeagent.hypervisor.images import file_name
from svc_nodeagent.hypervisor.rescued import boot_of, rescue_of, unpack
from svc_nodeagent.protocol import DomainState, FailureCode, VmRescue, VmRescueEnd
from tests.nodeagent.hypervisor.builders import rescue_image, silent
from tests.nodeagent.hypervisor.test_remaking_interrupted import Node, nothing


def packed(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            tar.addfile(member, BytesIO(name.encode()))
    return path


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr(rescued, "write_seed", nothing)
    return Node(tmp_path, monkeypatch)


@pytest.fixture
def begin(node: Node, tmp_path: Path) -> VmRescue:
    system = rescue_image(packed(tmp_path / "rescue.tar", "vmlinuz", "initrd"))
    packed(node.folders.images / file_name(system), "vmlinuz", "initrd")
    return VmRescue(
        vm_id=node.spec.vm_id,
        instance_id="r-1",
        system=system,
        password_hash="$6$x$y",
        network=node.spec.network,
        runs=True,
        timeout_seconds=0.05,
    )


def end(node: Node) -> VmRescueEnd:
    return VmRescueEnd(vm_id=node.spec.vm_id, network=node.spec.network, runs=True, timeout_seconds=0.05)


def in_rescue(node: Node) -> bool:
    return rescue_of(node.folders, node.spec.vm_id) is not None


async def test_a_guest_that_does_not_shut_down_is_left_running_or_in_rescue_unless_it_is_forced(
    node: Node, begin: VmRescue
) -> None:
    node.guest.hears = False
    with pytest.raises(HostError) as refused:
        await node.rescues.enter(begin, silent)
    assert (refused.value.code, in_rescue(node), node.guest.starts) == (FailureCode.TIMED_OUT, False, 0)

    forced = await node.rescues.enter(begin.model_copy(update={"force": True}), silent)
    assert (forced.state, in_rescue(node), node.guest.starts) == (DomainState.RUNNING, True, 1)
    with pytest.raises(HostError) as refused:
        await node.rescues.end(end(node), silent)
    assert (refused.value.code, in_rescue(node), node.guest.starts) == (FailureCode.TIMED_OUT, True, 1)
    await node.rescues.end(end(node).model_copy(update={"force": True}), silent)
    assert (in_rescue(node), node.guest.starts) == (False, 2)


async def test_one_that_cannot_be_started_runs_its_own_system_again_and_one_that_was_off_stays_off(
    node: Node, begin: VmRescue
) -> None:
    async def fails() -> None:
        node.guest.before_start = nothing
        raise HostError(FailureCode.CAPACITY, "no memory")

    node.guest.before_start = fails
    with pytest.raises(HostError, match="no memory"):
        await node.rescues.enter(begin, silent)
    assert (in_rescue(node), node.guest.running is not None) == (False, True)

    node.guest.running, node.guest.before_start = None, fails
    with pytest.raises(HostError, match="no memory"):
        await node.rescues.enter(begin.model_copy(update={"runs": False}), silent)
    assert (in_rescue(node), node.guest.running) == (False, None)


async def test_the_end_of_a_rescue_that_fails_leaves_it_in_rescue(node: Node, begin: VmRescue) -> None:
    await node.rescues.enter(begin, silent)
    before = rescue_of(node.folders, node.spec.vm_id)

    async def fails() -> None:
        node.guest.before_start = nothing
        raise HostError(FailureCode.CAPACITY, "no memory")

    node.guest.before_start = fails
    with pytest.raises(HostError, match="no memory"):
        await node.rescues.end(end(node), silent)
    assert (rescue_of(node.folders, node.spec.vm_id), node.guest.running is not None) == (before, True)


async def test_one_that_libvirt_was_lost_over_goes_on_when_it_is_back(node: Node, begin: VmRescue) -> None:
    async def lost() -> None:
        await trio.lowlevel.checkpoint()
        node.guest.away = True

    node.guest.before_start = lost
    with pytest.raises(ConnectionLost):
        await node.rescues.enter(begin, silent)
    node.guest.away, node.guest.before_start = False, nothing

    result = await node.rescues.enter(begin, silent)

    assert (result.state, in_rescue(node), node.guest.presses) == (DomainState.RUNNING, True, 1)
    await node.rescues.enter(begin, silent)
    assert node.guest.presses == 1


async def test_a_forced_stop_takes_the_place_of_one_and_the_machine_is_off_as_it_was(
    node: Node, begin: VmRescue
) -> None:
    node.guest.hears = False
    patient = begin.model_copy(update={"timeout_seconds": 60.0})
    async with trio.open_nursery() as nursery:

        async def refused() -> None:
            with pytest.raises(HostError) as superseded:
                await node.rescues.enter(patient, silent)
            assert superseded.value.code is FailureCode.CANCELLED

        nursery.start_soon(refused)
        await trio.testing.wait_all_tasks_blocked(0.005)
        await node.machines.force_stop(node.spec.vm_id)

    assert (in_rescue(node), node.guest.running, node.guest.starts) == (False, None, 0)


async def test_a_file_that_is_no_rescue_system_stops_no_guest(node: Node, begin: VmRescue) -> None:
    packed(node.folders.images / file_name(begin.system), "vmlinuz")
    with pytest.raises(HostError) as refused:
        await node.rescues.enter(begin, silent)
    assert (refused.value.code, node.guest.presses) == (FailureCode.INVALID, 0)
    assert not list(node.folders.images.glob("*.boot*"))


async def test_a_machine_in_rescue_is_not_started_without_its_system_and_says_why(node: Node, begin: VmRescue) -> None:
    await node.rescues.enter(begin, silent)
    assert node.folders.bases_in_use()[file_name(begin.system)] == 1
    [folder] = node.folders.images.glob("*.boot")
    (folder / "initrd").unlink()
    with pytest.raises(HostError, match="rescue system is no longer on its node"):
        boot_of(node.folders, node.spec.vm_id)
    node.guest.running = None
    with pytest.raises(HostError, match="rescue system is no longer on its node"):
        await node.machines.start(node.spec.vm_id, node.spec.network)
    await node.rescues.end(end(node), silent)
    assert node.guest.running is not None


def test_nothing_but_kernel_and_initial_file_system_is_taken_from_a_rescue_systems_file(tmp_path: Path) -> None:
    unpack(packed(tmp_path / "system.tar", "vmlinuz", "../outside", "initrd"))
    assert sorted(path.name for path in (tmp_path / "system.tar.boot").iterdir()) == ["initrd", "vmlinuz"]
    assert not (tmp_path.parent / "outside").exists()
