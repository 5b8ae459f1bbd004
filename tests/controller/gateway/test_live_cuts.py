"""The network fails at each step of a live move: the machine runs once, somewhere, and the record says where.

The moves of one test go on side by side, each between two hosts of its own.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest
import trio

from svc_actors.controller.gateway.gateway import Gateway
from svc_actors.controller.images.files import ImageSources
from svc_actors.controller.machines import live_work, move_work
from svc_actors.controller.machines.creation import create_machine
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.moving import Move
from svc_actors.controller.machines.windows import WindowsPasswords
from svc_actors.controller.machines.work import install_machines
from svc_actors.controller.reconcile.power_watch import PowerWatch
from svc_actors.controller.reconcile.remains_watch import RemainsWatch
from svc_actors.controller.tasks.runner import Task, TaskRunner, TaskStatus, get_task
from svc_actors.runtime import ActorSystem, DomainError
from svc_actors.store import Database
from svc_nodeagent.hypervisor import live_receiving, live_sending, live_words
from tests.support.callers import ADMINISTRATOR
from tests.support.drawn import drawn
from tests.support.gateway import GatewayHarness
from tests.support.live_hosts import DISK, Case, Failure, LiveHost, a_case, reached
from tests.support.machine_service import SEALER, Fleet, make_fleet

AT_ONCE = 8
STEPS_A_TEST = 6
MENDED_SECONDS = {Failure.BROKEN: 0.5, Failure.SILENT: 2.5}
"""Longer than anybody waits for a link that is silent."""
GONE_SECONDS = 1.0
"""How long a node is away before it is declared lost."""
STEPS = (
    "target.dialled",
    "source.dialled",
    "live.begun",
    "live.luggage_sent",
    "live.ready",
    "live.sending",
    "prepared",
    "disk.half",
    "disk.copied",
    "memory.half",
    "stopped",
    "memory.sent",
    "finished",
    "confirmed",
    "live.sent",
    "live.arrived",
    "source.settle.asked",
    "source.settle.done",
    "target.look.asked",
    "target.look.done",
    "target.finish.asked",
    "live.carried",
    "live.gone_on",
    "target.finish.done",
    "source.delete.asked",
    "source.delete.done",
)


@dataclass
class Controller:
    database: Database
    actors: ActorSystem
    tasks: TaskRunner
    fleet: Fleet

    async def made(self, case: Case) -> None:
        """A machine that runs at the case's source."""
        new = self.fleet.machine(f"m-{case.nodes['source'].hex[:12]}", node_id=case.nodes["source"])
        created = await create_machine(self.database, SEALER, ADMINISTRATOR, new)
        case.vm_id = created.vm_id
        self.tasks.start(created.task)
        with trio.fail_after(60):
            while await self.database.fetchval("SELECT status FROM vms WHERE id = $1", case.vm_id) != "running":
                await trio.sleep(0.02)

    async def ordered(self, case: Case) -> Task:
        machine = self.actors.ref(Machine, str(case.vm_id))
        return await machine.ask(Machine.migrate, ADMINISTRATOR, Move(case.nodes["target"]))

    async def ended(self, task: Task) -> Task:
        with trio.fail_after(60):
            while (found := await get_task(self.database, task.id)) is None or found.status.open:
                await trio.sleep(0.02)
        return found

    async def settled(self, case: Case) -> UUID:
        """The node of the record, once nothing is to be done any more."""
        with trio.fail_after(60):
            while await self.database.fetchval(
                """SELECT moving_to IS NOT NULL OR moved_from IS NOT NULL
                          OR EXISTS (SELECT FROM tasks WHERE status IN ('queued', 'running') AND resource_id = vms.id)
                          OR (status = 'stopped' AND NOT EXISTS (SELECT FROM nodes
                                                                 WHERE id = vms.node_id AND lost_at IS NOT NULL))
                   FROM vms WHERE id = $1""",
                case.vm_id,
            ):
                await trio.sleep(0.02)
        return UUID(str(await self.database.fetchval("SELECT node_id FROM vms WHERE id = $1", case.vm_id)))


@asynccontextmanager
async def controller(database: Database, gateway: Gateway, rig: GatewayHarness) -> AsyncIterator[Controller]:
    fleet = await make_fleet(database)
    async with ActorSystem.open() as actors, trio.open_nursery() as nursery:
        tasks = TaskRunner(database, gateway, sweep_interval=0.5, cancel_interval=0.05)
        sources = ImageSources(database, gateway.offer_file)
        install_machines(database, SEALER, WindowsPasswords(), tasks, actors, sources, lambda _: None)
        await nursery.start(tasks.run)
        await nursery.start(RemainsWatch(database, gateway, interval=0.1).run)
        await nursery.start(PowerWatch(database, actors, interval=0.1).run)

        async def observe() -> None:
            while True:
                while rig.heard.changes:
                    node_id, change = rig.heard.changes.pop(0)
                    await actors.ref(Machine, str(change.vm_id)).ask(
                        Machine.observed, node_id, change.state, change.reason, cause=change.cause
                    )
                await trio.sleep(0.02)

        nursery.start_soon(observe)
        yield Controller(database, actors, tasks, fleet)
        nursery.cancel_scope.cancel()


@pytest.fixture
def heartbeat_seconds() -> float:
    return 1.0


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short: sockets are in it."""
    for module, name, value in (
        (live_sending, "fault_point", reached),
        (live_receiving, "fault_point", reached),
        (live_sending, "SILENCE_SECONDS", 1.5),
        (live_receiving, "SILENCE_SECONDS", 1.5),
        (live_words, "READY_SECONDS", 2.0),
        (live_receiving, "READY_SECONDS", 2.0),
        (live_receiving, "ARRIVAL_SECONDS", 1.0),
        (live_work, "_OTHER_ENDS_SECONDS", 1.0),
        (live_work, "_PAUSE_SECONDS", 0.05),
        (live_work, "_ASK_SECONDS", 2.0),
        (move_work, "_CLEAR_SECONDS", 2.0),
        (move_work, "AT_ONCE", 1000),
    ):
        monkeypatch.setattr(module, name, value)
    with tempfile.TemporaryDirectory(prefix="live-", dir="/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@dataclass
class Rehearsal:
    rig: GatewayHarness
    database: Database
    folder: Path
    service: Controller
    at_once: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(AT_ONCE))
    said: dict[str, str] = field(default_factory=dict)
    """What is wrong, by the step at which the link failed."""
    went_on: Counter[str] = field(default_factory=Counter)
    """Machines whose other node was lost, by where they went on."""

    async def play(self, case: Case, then: Callable[[Case, Task], Awaitable[None]]) -> None:
        """The case's move is ordered; `then` takes over at the step at which its link fails."""
        async with self.at_once, a_case(self.rig, self.folder, self.folder / "base.qcow2", case):
            try:
                await self._know(case)
                await self.service.made(case)
                await then(case, await self._come_to_its_step(case))
            except (DomainError, trio.TooSlowError) as error:
                self.said[case.step] = f"{error!r} after {case.came_to[-5:]}"

    async def _come_to_its_step(self, case: Case) -> Task:
        """The task of the move. One that a machine at work has cut short before is ordered again."""
        with trio.fail_after(60):
            while True:
                task = await self.service.ordered(case)
                while not case.failed.is_set():
                    found = await get_task(self.database, task.id)
                    if found is not None and found.status is TaskStatus.FAILED:
                        await self.service.settled(case)
                        break
                    await trio.sleep(0.02)
                if case.failed.is_set():
                    return task

    def told(self) -> str:
        return "\n" + "\n".join(f"{step}: {what}" for step, what in self.said.items())

    async def mended(self, case: Case, task: Task) -> None:
        """The link is back after a while."""
        ended = await self.service.ended(task)
        here = case.hosts[await self.service.settled(case)]
        await self._tell(case, here, f"{ended.status}: {ended.error_message}")
        if ended.status == "succeeded" and here is case.source:
            self.said[case.step] = "the move has succeeded, and the machine is where it was"

    async def lost(self, case: Case, task: Task) -> None:
        """The link never comes back: the host is switched off and declared lost."""
        await trio.sleep(GONE_SECONDS)
        gone = case.nodes[case.link_name]
        [other] = [host for node_id, host in case.hosts.items() if node_id != gone]
        expected = other if other.has_whole(case.vm_id) else case.hosts[gone]
        self.went_on[other.hostname] += other is expected
        case.hosts[gone].lose_power()
        await self.database.execute("UPDATE nodes SET lost_at = now(), state = 'offline' WHERE id = $1", gone)
        self.rig.gateway.mark_lost(gone)
        ended = await self.service.ended(task)
        here = case.hosts[await self.service.settled(case)]
        if here is not expected:
            self.said[case.step] = f"it is recorded at the {here.hostname} ({ended.status}: {ended.error_message})"
        elif not here.is_off:
            await self._tell(case, here, f"{ended.status}: {ended.error_message}")
        else:
            with trio.move_on_after(10):
                while case.has(other):
                    await trio.sleep(0.02)
            if case.has(other) or case.ran_twice:
                self.said[case.step] = f"the {other.hostname} has something of it, or it ran twice"

    async def _tell(self, case: Case, here: LiveHost, ended: str) -> None:
        with trio.move_on_after(10):
            while self.wrong(case, here):
                await trio.sleep(0.02)
        if why := self.wrong(case, here):
            self.said[case.step] = f"{'; '.join(why)} ({ended})"

    def wrong(self, case: Case, here: LiveHost) -> list[str]:
        """What is not as it shall be, where the record says that the machine is here."""
        found = []
        elsewhere = case.target if here is case.source else case.source
        if case.ran_twice:
            found.append("it ran twice")
        if case.running() != [here.hostname]:
            found.append(f"it is recorded at the {here.hostname}, and runs at {case.running()}")
        domain = here.libvirt.domains.get(case.vm_id)
        if domain is None or domain.disk != DISK or not here.folders.disk(case.vm_id, 0).exists():
            found.append("its disk is not whole")
        if not here.network.addresses(case.vm_id):
            found.append("its addresses are not carried")
        if (here.run_folder / str(case.vm_id)).exists() or here.folders.abandonment(case.vm_id).exists():
            found.append("the move has left something where it is")
        if not elsewhere.is_off and case.has(elsewhere):
            found.append(f"the {elsewhere.hostname} has something of it")
        return found

    async def _know(self, case: Case) -> None:
        capacity = {"cpus": 8, "memory_mib": 8192, "memory_free_mib": 8192, "disk_gib": 100, "disk_free_gib": 100}
        await self.database.execute(
            """UPDATE nodes SET state = 'online', capacity = $2, facts = $3, agent_protocol = 5
               WHERE id = ANY($1::uuid[])""",
            list(case.nodes.values()),
            capacity | {"load_1m": 0.0},
            {"accelerator": "tcg", "cpu_model": "x", "machine_types": [], "network_lacks": {}},
        )


@asynccontextmanager
async def a_rehearsal(rig: GatewayHarness, database: Database, folder: Path) -> AsyncIterator[Rehearsal]:
    await trio.run_process(["qemu-img", "create", "-q", "-f", "qcow2", str(folder / "base.qcow2"), "1M"])
    async with controller(database, rig.gateway, rig) as service:
        yield Rehearsal(rig, database, folder, service)


@pytest.mark.parametrize("how", list(Failure))
@pytest.mark.parametrize("link", ["streams", "source", "target"])
async def test_a_link_fails_for_a_while_at_each_step_and_the_machine_runs_once_where_the_record_says(
    rig: GatewayHarness, database: Database, folder: Path, link: str, how: Failure, request: pytest.FixtureRequest
) -> None:
    async with a_rehearsal(rig, database, folder) as rehearsal, trio.open_nursery() as nursery:
        async with trio.open_nursery() as cases:
            for step in drawn(STEPS, STEPS_A_TEST, request.config):
                case = Case(step, link, how, MENDED_SECONDS[how], nursery)
                cases.start_soon(rehearsal.play, case, rehearsal.mended)
        assert not rehearsal.said, rehearsal.told()


@pytest.mark.parametrize(("link", "other"), [("source", "target"), ("target", "source")])
async def test_a_node_never_comes_back_and_the_machine_goes_on_at_the_other_if_that_has_all_of_it(
    rig: GatewayHarness, database: Database, folder: Path, link: str, other: str, request: pytest.FixtureRequest
) -> None:
    first, *between, last = STEPS  # Of these it is known at which node the machine goes on.
    steps = [first, *drawn(between, STEPS_A_TEST - 2, request.config), last]
    async with a_rehearsal(rig, database, folder) as rehearsal, trio.open_nursery() as nursery:
        async with trio.open_nursery() as cases:
            for step in steps:
                case = Case(step, link, Failure.BROKEN, None, nursery)
                cases.start_soon(rehearsal.play, case, rehearsal.lost)
        assert not rehearsal.said, rehearsal.told()
        assert 0 < rehearsal.went_on[other] < len(steps)
