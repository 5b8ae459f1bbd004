"""Resizes and reinstallations that are cut short, by the end of their time or by libvirt's absence, and come again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast
from uuid import UUID
from xml.etree import ElementTree

import pytest
import trio
import trio.testing

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import Naming, definitions, disks, reinstallation, remaking, shutdown
from svc_nodeagent.hypervisor.acceleration import Acceleration, Verdict
from svc_nodeagent.hypervisor.connection import ConnectionLost
from svc_nodeagent.hypervisor.definitions import Definitions
from svc_nodeagent.hypervisor.domains import BaseImage
from svc_nodeagent.hypervisor.files import Folders, MachineRecord, read_record
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.images import ImageCache
from svc_nodeagent.hypervisor.machines import Machines
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.processors import Accelerator
from svc_nodeagent.hypervisor.remaking import Remaking
from svc_nodeagent.hypervisor.rescue import Rescues
from svc_nodeagent.hypervisor.turns import Turns
from svc_nodeagent.protocol import DomainState, FailureCode, MachineSize, VmReinstall, VmResize
from tests.nodeagent.hypervisor.builders import image, machine, record, seed, silent

SMALL, MOST_MEMORY_MIB = MachineSize(vcpus=1, memory_mib=256, disk_gib=1), 1024


async def nothing(*_: object) -> None:
    await trio.lowlevel.checkpoint()


class OneGuest:
    """In the place of `Guests`: one guest that runs, under a libvirt that may go away."""

    def __init__(self) -> None:
        self.running: tuple[int, int] | None = (SMALL.vcpus, SMALL.memory_mib)
        self.defined = self.running
        self.away = False
        self.before_start: Callable[[], Awaitable[None]] = nothing
        self.starts = 0
        self.presses = 0
        self.hears = True

    async def _reached(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.away:
            raise ConnectionLost("it is away")

    async def state(self, vm_id: UUID) -> DomainState:
        await self._reached()
        return DomainState.STOPPED if self.running is None else DomainState.RUNNING

    async def size(self, vm_id: UUID) -> tuple[int, int] | None:
        await self._reached()
        return self.running

    async def define(self, xml: str) -> None:
        await self._reached()
        domain = ElementTree.fromstring(xml)
        self.defined = int(domain.findtext("vcpu") or 0), int(domain.findtext("memory") or 0)

    async def start(self, vm_id: UUID) -> None:
        await self._reached()
        if self.running is not None:
            return
        self.starts += 1
        await self.before_start()
        await self._reached()
        assert self.defined is not None
        if self.defined[1] > MOST_MEMORY_MIB:
            raise HostError(FailureCode.CAPACITY, "The machine could not be started: no memory.")
        self.running = self.defined

    async def press_power_button(self, vm_id: UUID) -> None:
        await self._reached()
        self.presses += 1
        if self.hears:
            self.running = None

    async def destroy(self, vm_id: UUID) -> None:
        await self._reached()
        self.running = None

    async def grow_disk(self, vm_id: UUID, target: str, size_bytes: int) -> None:
        await self._reached()


class Images:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.fetched = 0

    async def ensure(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()
        self.fetched += 1

    def base_of(self, name: str) -> BaseImage:
        path = self._folder / name
        path.touch()
        return BaseImage(path, "qcow2")


class Network:
    """A host's network that carries nothing for long."""

    apply = staticmethod(nothing)

    async def absent(self, addresses: tuple[str, ...], vm_id: UUID) -> tuple[str, ...]:
        await trio.lowlevel.checkpoint()
        return addresses


class Emulation:
    async def verdict(self) -> Verdict:
        await trio.lowlevel.checkpoint()
        return Verdict(boot_id="", device="", guest="", accelerator=Accelerator.TCG, reason="")


class Node:
    """One machine on a host whose disks are text files."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.guest, self.images, self.folders = OneGuest(), Images(folder), Folders(folder / "data")
        self.folders.root.mkdir()
        self.folders.create()
        guests, images = cast(Guests, self.guest), cast(ImageCache, self.images)
        network, acceleration = cast(HostNetwork, Network()), cast(Acceleration, Emulation())
        turns = Turns(guests, self.folders)
        kept = Definitions(
            guests=guests,
            folders=self.folders,
            naming=Naming(),
            images=images,
            network=network,
            acceleration=acceleration,
        )
        self.machines = Machines(
            guests=guests, folders=self.folders, images=images, network=network, definitions=kept, turns=turns
        )
        self.remaking = Remaking(
            guests=guests,
            folders=self.folders,
            images=images,
            acceleration=acceleration,
            definitions=kept,
            turns=turns,
        )
        self.rescues = Rescues(guests=guests, folders=self.folders, images=images, definitions=kept, turns=turns)
        self.spec = machine()
        self.disk = self.folders.disk(self.spec.vm_id, 0)
        self.write(record(self.spec))
        self.disk.write_text("old")
        monkeypatch.setattr(definitions, "write_seed", nothing)
        monkeypatch.setattr(remaking, "FIRST_START_SECONDS", 0.3)
        monkeypatch.setattr(shutdown, "POLL_SECONDS", 0.01)
        monkeypatch.setattr(disks, "grow", nothing)
        monkeypatch.setattr(reinstallation, "make_disk", self._make_disk)

    async def _make_disk(self, _: object, __: object, path: Path, ___: object) -> None:
        await trio.Path(path).write_text("new")

    @property
    def record(self) -> MachineRecord:
        return read_record(self.folders.machine(self.spec.vm_id) / "machine.json")

    def write(self, record: MachineRecord) -> None:
        folder = self.folders.machine(self.spec.vm_id)
        folder.mkdir(exist_ok=True)
        (folder / "machine.json").write_text(record.model_dump_json())

    def resize(self, memory_mib: int, *, seconds: float = 5.0) -> VmResize:
        return VmResize(
            vm_id=self.spec.vm_id,
            vcpus=2,
            memory_mib=memory_mib,
            disk_gib=3,
            before=SMALL,
            restart=True,
            timeout_seconds=seconds,
        )

    def written_as(self, resize: VmResize) -> MachineRecord:
        """What an attempt at the resize leaves that ends once it has written the record."""
        now = self.record
        disk = now.disks[0].model_copy(update={"size_gib": resize.disk_gib})
        changed = {"vcpus": resize.vcpus, "memory_mib": resize.memory_mib, "disks": (disk,)}
        self.write(now.model_copy(update=changed))
        return now

    def reinstallation(self) -> VmReinstall:
        return VmReinstall(vm_id=self.spec.vm_id, image=image(b"demo"), seed=seed(), network=self.spec.network)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("lasts", "state"), [(0.0, DomainState.RUNNING), (60.0, DomainState.STOPPED)], ids=["started", "too slow"]
)
async def test_a_reinstallation_whose_time_ends_after_the_decision_is_a_success(
    node: Node, lasts: float, state: DomainState
) -> None:
    anew = node.reinstallation()
    with trio.CancelScope() as time:

        async def time_ends() -> None:
            time.cancel()
            await trio.sleep(lasts)

        node.guest.before_start = time_ends
        result = await node.remaking.reinstall(anew, silent)

    assert (result.state, time.cancelled_caught) == (state, False)
    assert node.record.seed.instance_id == anew.seed.instance_id
    assert node.disk.read_text() == "new"


async def test_a_reinstallation_decided_before_libvirt_goes_away_is_a_success_and_completed_when_it_is_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decided(point: str) -> None:
        if point == "reinstall.decided":
            node.guest.away = True

    monkeypatch.setattr(reinstallation, "fault_point", decided)
    anew = node.reinstallation()

    first = await node.remaking.reinstall(anew, silent)
    again = await node.remaking.reinstall(anew, silent)

    assert (first.state, again.state) == (DomainState.STOPPED, DomainState.STOPPED)
    assert node.images.fetched == 1
    assert (node.disk.read_text(), node.guest.running is not None) == ("old", True)

    node.guest.away = False
    await node.remaking.complete_reinstallations()

    assert (node.disk.read_text(), node.guest.running) == ("new", None)
    assert node.record.seed.instance_id == anew.seed.instance_id


async def test_a_reinstallation_whose_time_ends_before_the_decision_leaves_the_guest_running(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = node.record
    with trio.CancelScope() as time:

        async def never(*_: object) -> None:
            time.cancel()
            await trio.sleep_forever()

        monkeypatch.setattr(reinstallation, "make_disk", never)
        await node.remaking.reinstall(node.reinstallation(), silent)

    assert time.cancelled_caught
    assert (node.record, node.disk.read_text(), node.guest.starts) == (before, "old", 0)
    assert node.guest.running is not None


async def test_a_repeated_resize_that_fails_puts_the_size_back_that_was_before_the_first_attempt(node: Node) -> None:
    too_much = node.resize(2 * MOST_MEMORY_MIB)
    before = node.written_as(too_much)
    node.guest.running = None

    with pytest.raises(HostError, match="could not be started"):
        await node.remaking.resize(too_much, silent)

    assert node.record == before
    assert node.guest.running == (SMALL.vcpus, SMALL.memory_mib)


async def test_a_resize_that_libvirt_was_lost_over_and_then_fails_puts_the_old_size_back(node: Node) -> None:
    async def lost() -> None:
        await trio.lowlevel.checkpoint()
        node.guest.away = True

    too_much, before = node.resize(2 * MOST_MEMORY_MIB), node.record
    node.guest.before_start = lost
    with pytest.raises(ConnectionLost):
        await node.remaking.resize(too_much, silent)

    node.guest.away, node.guest.before_start = False, nothing
    with pytest.raises(HostError, match="could not be started"):
        await node.remaking.resize(too_much, silent)

    assert node.record == before
    assert node.guest.running == (SMALL.vcpus, SMALL.memory_mib)


async def test_a_guest_that_does_not_shut_down_for_a_repeated_resize_keeps_its_old_size(node: Node) -> None:
    larger = node.resize(512, seconds=0.05)
    before = node.written_as(larger)
    node.guest.hears = False

    with pytest.raises(HostError) as refused:
        await node.remaking.resize(larger, silent)

    assert refused.value.code is FailureCode.TIMED_OUT
    assert (node.record, node.guest.starts) == (before, 0)
    assert node.guest.defined == node.guest.running == (SMALL.vcpus, SMALL.memory_mib)


async def test_a_guest_that_was_started_with_the_new_size_is_not_restarted_by_a_repeat(node: Node) -> None:
    larger = node.resize(512)
    node.written_as(larger)
    node.guest.running = (2, 512)

    result = await node.remaking.resize(larger, silent)

    assert (result.state, node.guest.presses, node.guest.starts) == (DomainState.RUNNING, 0, 0)
    assert (node.record.memory_mib, node.record.disks[0].size_gib) == (512, 3)


async def test_a_forced_stop_that_ends_a_resize_leaves_the_guest_off_with_its_old_size(node: Node) -> None:
    before = node.record
    node.guest.hears = False

    async with trio.open_nursery() as nursery:

        async def resized() -> None:
            with pytest.raises(HostError) as refused:
                await node.remaking.resize(node.resize(512, seconds=60.0), silent)
            assert refused.value.code is FailureCode.CANCELLED

        nursery.start_soon(resized)
        await trio.testing.wait_all_tasks_blocked(0.005)
        await node.machines.force_stop(node.spec.vm_id)

    assert (node.record, node.guest.running, node.guest.starts) == (before, None, 0)
