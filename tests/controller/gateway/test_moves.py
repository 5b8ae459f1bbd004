"""Machines move between two agents with real disks, over the real gateway, with deaths at every step.

All of the agents but libvirt is real: their disks are qcow2 files, which travel by streams that the gateway joins.
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest
import trio

from svc_actors.controller.gateway.gateway import Gateway
from svc_actors.controller.images.files import ImageSources
from svc_actors.controller.machines.creation import create_machine
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.moving import Move
from svc_actors.controller.machines.windows import WindowsPasswords
from svc_actors.controller.machines.work import install_machines
from svc_actors.controller.reconcile.remains_watch import RemainsWatch
from svc_actors.controller.tasks.runner import Task, TaskRunner, get_task
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database
from svc_nodeagent.hypervisor import moving
from svc_nodeagent.protocol import DomainState
from tests.support.callers import ADMINISTRATOR
from tests.support.gateway import GatewayHarness
from tests.support.machine_service import SEALER, Fleet, make_fleet
from tests.support.moves import DiskHost, disk_host, keep_alive

AT_TARGET = ("move.begun", "move.disk0.received", "move.recorded", "move.defined", "move.complete")


@dataclass
class Controller:
    actors: ActorSystem
    tasks: TaskRunner


@dataclass
class Site:
    """Two nodes, and a machine on the first that is off."""

    rig: GatewayHarness
    database: Database
    hosts: dict[UUID, DiskHost]
    source: UUID
    target: UUID
    vm_id: UUID
    whole: Path
    """Another disk, with the content that the machine's has to have."""
    points: dict[str, Callable[[], None]] = field(default_factory=dict)
    """What happens when an agent comes to a point, the first time."""

    def disk(self, node_id: UUID) -> Path:
        return self.hosts[node_id].folders.disk(self.vm_id, 0)

    async def ended(self, task: Task) -> Task:
        with trio.fail_after(60):
            while True:
                found = await get_task(self.database, task.id)
                assert found is not None
                if not found.status.open:
                    return found
                await trio.sleep(0.01)

    async def settled(self) -> UUID:
        """Where the machine is, once nothing of it is anywhere else, and it is whole there."""
        with trio.fail_after(60):
            while await self.database.fetchval(
                "SELECT moving_to IS NOT NULL OR moved_from IS NOT NULL FROM vms WHERE id = $1", self.vm_id
            ):
                await trio.sleep(0.01)
        here: UUID = await self.database.fetchval("SELECT node_id FROM vms WHERE id = $1", self.vm_id)
        [elsewhere] = self.hosts.keys() - {here}
        assert not self.hosts[elsewhere].folders.machine(self.vm_id).exists()
        assert self.vm_id not in self.hosts[elsewhere].guests.domains
        assert self.vm_id in self.hosts[here].guests.domains
        qemu_img("compare", "-q", self.disk(here), self.whole)
        assert not self.hosts[here].folders.abandonment(self.vm_id).exists()
        return here


def qemu_img(*words: str | Path) -> str:
    return subprocess.run(["qemu-img", *words], check=True, capture_output=True, text=True).stdout


def qemu_io(disk: Path, *commands: str) -> None:
    words = [word for command in commands for word in ("-c", command)]
    subprocess.run(["qemu-io", "-f", "qcow2", *words, disk], check=True, capture_output=True)


@asynccontextmanager
async def controller(database: Database, gateway: Gateway) -> AsyncIterator[Controller]:
    """A controller's life; leaving the block is its sudden death."""
    async with ActorSystem.open() as actors, trio.open_nursery() as nursery:
        tasks = TaskRunner(database, gateway, sweep_interval=0.2, cancel_interval=0.05)
        sources = ImageSources(database, gateway.offer_file)
        install_machines(database, SEALER, WindowsPasswords(), tasks, actors, sources, lambda _: None)
        await nursery.start(tasks.run)
        await nursery.start(RemainsWatch(database, gateway, interval=0.05).run)
        yield Controller(actors, tasks)
        nursery.cancel_scope.cancel()


async def make_machine(fleet: Fleet, database: Database, rig: GatewayHarness, node_id: UUID) -> UUID:
    async with controller(database, rig.gateway) as service:
        created = await create_machine(database, SEALER, ADMINISTRATOR, fleet.machine(start=False, node_id=node_id))
        service.tasks.start(created.task)
        with trio.fail_after(60):
            while await database.fetchval("SELECT status FROM vms WHERE id = $1", created.vm_id) != "stopped":
                await trio.sleep(0.01)
        return created.vm_id


@pytest.fixture
async def site(
    rig: GatewayHarness, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Site]:
    fleet = await make_fleet(database)
    base = tmp_path / "base.qcow2"
    qemu_img("create", "-q", "-f", "qcow2", base, "64M")
    qemu_io(base, "write -P 7 0 1M")
    hosts: dict[UUID, DiskHost] = {}
    async with trio.open_nursery() as nursery:
        for name in ("first", "second"):
            node = await rig.new_node()
            hosts[node.node_id] = disk_host(name, tmp_path, base)
            await nursery.start(keep_alive, node, hosts[node.node_id])
        await rig.until_online(*hosts)
        capacity = {"cpus": 8, "memory_mib": 8192, "memory_free_mib": 8192, "disk_gib": 100, "disk_free_gib": 100}
        await database.execute(
            "UPDATE nodes SET state = 'online', capacity = $2, facts = $3 WHERE id = ANY($1::uuid[])",
            list(hosts),
            capacity | {"load_1m": 0.0},
            {"accelerator": "tcg", "cpu_model": "x", "machine_types": [], "network_lacks": {}},
        )
        source, target = hosts
        vm_id = await make_machine(fleet, database, rig, source)
        disk = hosts[source].folders.disk(vm_id, 0)
        qemu_io(disk, "write -P 1 512k 3M", "write -z 4M 1M", "write -P 2 1000M 64k")
        qemu_img("convert", "-O", "qcow2", disk, tmp_path / "whole.qcow2")
        made = Site(rig, database, hosts, source, target, vm_id, tmp_path / "whole.qcow2")

        def reached(name: str) -> None:
            made.points.pop(name, lambda: None)()

        monkeypatch.setattr(moving, "fault_point", reached)
        yield made
        nursery.cancel_scope.cancel()


async def order(service: Controller, site: Site) -> Task:
    machine = service.actors.ref(Machine, str(site.vm_id))
    return await machine.ask(Machine.migrate, ADMINISTRATOR, Move(site.target))


async def test_a_machine_moves_with_its_disk(site: Site) -> None:
    seed = site.hosts[site.source].record(site.vm_id).seed
    async with controller(site.database, site.rig.gateway) as service:
        ended = await site.ended(await order(service, site))

        assert (ended.status, ended.error_message) == ("succeeded", None)
        assert await site.settled() == site.target
    record = site.hosts[site.target].record(site.vm_id)
    assert (record.seed.instance_id, record.network.nics) == (seed.instance_id, ())
    assert str(site.hosts[site.target].folders.images) in qemu_img("info", site.disk(site.target))
    assert site.hosts[site.target].machines[site.vm_id].state is DomainState.STOPPED


async def test_a_machine_moves_with_its_snapshots(site: Site) -> None:
    disk, before = site.disk(site.source), site.whole.with_name("before.qcow2")
    qemu_img("snapshot", "-c", "a snapshot", disk)
    site.whole.rename(before)
    qemu_io(disk, "write -P 3 1M 1M")
    qemu_img("convert", "-O", "qcow2", disk, site.whole)
    async with controller(site.database, site.rig.gateway) as service:
        assert (await site.ended(await order(service, site))).status == "succeeded"
        assert await site.settled() == site.target

    qemu_img("snapshot", "-a", "a snapshot", site.disk(site.target))
    qemu_img("compare", "-q", site.disk(site.target), before)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("point", [*AT_TARGET, "move.sent"])
async def test_killed_anywhere_an_agent_comes_back_and_the_machine_moves(site: Site, point: str) -> None:
    dies = site.hosts[site.source if point == "move.sent" else site.target]
    site.points[point] = lambda: dies.life.cancel()
    async with controller(site.database, site.rig.gateway) as service:
        ended = await site.ended(await order(service, site))

        assert site.points == {}
        assert (ended.status, ended.error_message) == ("succeeded", None)
        assert await site.settled() == site.target


@pytest.mark.drawn(2)
@pytest.mark.parametrize("point", [*AT_TARGET, "move.sent"])
async def test_killed_anywhere_the_controller_comes_back_and_the_machine_moves(site: Site, point: str) -> None:
    died = trio.Event()
    site.points[point] = died.set
    async with controller(site.database, site.rig.gateway) as service:
        task = await order(service, site)
        with trio.fail_after(60):
            await died.wait()
    await site.rig.stop_gateway()
    gateway = await site.rig.start_gateway()
    async with controller(site.database, gateway):
        ended = await site.ended(task)

        assert (ended.status, ended.error_message) == ("succeeded", None)
        assert await site.settled() == site.target


@pytest.mark.drawn(2)
@pytest.mark.parametrize("point", [*AT_TARGET, "move.sent"])
async def test_cancelled_anywhere_the_machine_is_whole_on_one_node(site: Site, point: str) -> None:
    reached = trio.Event()
    site.points[point] = reached.set
    async with controller(site.database, site.rig.gateway) as service:
        task = await order(service, site)
        with trio.fail_after(60):
            await reached.wait()
        await service.tasks.cancel(ADMINISTRATOR, task.id)
        ended = await site.ended(task)

        assert await site.settled() == (site.target if ended.status == "succeeded" else site.source)
        assert ended.status in ("succeeded", "cancelled")


async def test_a_disk_that_names_another_file_of_the_host_is_not_taken_in(site: Site, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(1024 * 1024))
    qemu_img("rebase", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", secret, site.disk(site.source))
    qemu_img("convert", "-O", "qcow2", site.disk(site.source), site.whole)
    async with controller(site.database, site.rig.gateway) as service:
        ended = await site.ended(await order(service, site))

        assert ended.status == "failed"
        assert "not as it is recorded" in (ended.error_message or "")
        assert await site.settled() == site.source
