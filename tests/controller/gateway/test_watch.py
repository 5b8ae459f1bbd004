"""The watch over nodes: what goes wrong with one of them, or for a while, is made up for and holds up no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast
from uuid import UUID, uuid4

import pytest
import trio
import trio.testing

from svc_actors.controller.gateway.authority import Authority
from svc_actors.controller.gateway.gateway import Gateway
from svc_actors.controller.machines.observing import MachineReport
from svc_actors.controller.nodes.node import MOST_UNAUTHORISED_AN_HOUR, Node, NodeServices
from svc_actors.controller.reconcile import machine_reports
from svc_actors.controller.reconcile.machine_reports import MachineReports
from svc_actors.controller.reconcile.node_watch import Intervals, NodeWatch
from svc_actors.runtime import ActorSystem, MailboxFull
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_common.errors import unavailable
from svc_nodeagent.protocol import (
    CachedImage,
    DomainChanged,
    DomainState,
    Heartbeat,
    ImageFormat,
    InventoryResult,
    KeptDisk,
    NodeOperation,
    ObservedVolume,
    OperationResult,
)
from svc_nodeagent.simulated import Behaviour, SimulatedHost
from tests.support.machine_records import record_machines

AWAY = unavailable("The database is away.")


@dataclass
class Nodes:
    """A gateway whose nodes are hosts in memory, and machines that note what they are told."""

    database: Database
    hosts: dict[UUID, SimulatedHost] = field(default_factory=dict)
    connected: set[UUID] = field(default_factory=set)
    told: list[tuple[UUID, DomainState]] = field(default_factory=list)
    failures: dict[UUID, list[Exception]] = field(default_factory=dict)
    """What goes wrong, in this order, when a machine or a node's record is to be changed."""
    watch: NodeWatch = field(init=False)
    actors: ActorSystem = field(init=False)

    def is_online(self, node_id: UUID) -> bool:
        return node_id in self.connected

    def online(self) -> list[UUID]:
        return list(self.connected)

    def heartbeat(self, _: UUID) -> Heartbeat | None:
        return None

    def mark_lost(self, node_id: UUID) -> None:
        raise NotImplementedError

    def drop(self, node_id: UUID, reason: str) -> None:
        raise NotImplementedError

    async def query(self, node_id: UUID, operation: NodeOperation, *, timeout: float) -> OperationResult:
        async def report(_: int, __: str) -> None: ...

        return await self.hosts[node_id].perform(operation, report)

    async def deliver(self, _: UUID, vm_id: UUID, seen: MachineReport, __: datetime | None) -> None:
        await trio.lowlevel.checkpoint()
        self.fail(vm_id)
        self.told.append((vm_id, seen.state))

    def fail(self, whose: UUID) -> None:
        if failures := self.failures.get(whose):
            raise failures.pop(0)

    async def new(self, *, machines: int = 0) -> UUID:
        node_id: UUID = await self.database.fetchval(
            """INSERT INTO nodes (name, location_id, host_uuid, state, preflight_at)
               SELECT $1, id, $2, 'online', now() FROM locations LIMIT 1 RETURNING id""",
            str(uuid4()),
            uuid4(),
        )
        self.hosts[node_id] = SimulatedHost("host", uuid4(), behaviour=Behaviour(seed=len(self.hosts)))
        self.hosts[node_id].populate(machines)
        self.connected.add(node_id)
        await record_machines(self.database, node_id, self.hosts[node_id].machines)
        return node_id

    async def state(self, node_id: UUID) -> str:
        return str(await self.database.fetchval("SELECT state FROM nodes WHERE id = $1", node_id))

    async def observed(self, node_id: UUID) -> dict[UUID, str | None]:
        """What is recorded of the machines of a node: what their host last said."""
        rows = await self.database.fetch("SELECT id, observed_state FROM vms WHERE node_id = $1", node_id)
        return {row["id"]: row["observed_state"] for row in rows}

    async def until_observed(self, node_id: UUID, state: DomainState) -> None:
        """Until all machines of the node are recorded so."""
        with trio.fail_after(60):
            while set((await self.observed(node_id)).values()) != {state.value}:
                await trio.sleep(0.01)

    @asynccontextmanager
    async def holding(self, vm_id: UUID) -> AsyncIterator[None]:
        """Somebody decides about this machine for the length of the block."""
        async with self.database.transaction() as tx:
            await tx.execute("SELECT FROM vms WHERE id = $1 FOR NO KEY UPDATE", vm_id)
            yield


@asynccontextmanager
async def open_nodes(database: Database) -> AsyncIterator[Nodes]:
    await database.execute("INSERT INTO locations (name) VALUES ('default')")
    await database.execute("INSERT INTO projects (name) VALUES ('default')")
    authority = await Authority.open(database, Sealer(b"k" * 32))
    nodes = Nodes(database)
    async with ActorSystem.open() as actors:
        nodes.actors = actors
        intervals = Intervals(grace=0.0, look=0.05, inventory=3600.0)
        nodes.watch = NodeWatch(actors, database, nodes.deliver, intervals=intervals)
        nodes.watch.watch(cast(Gateway, nodes))
        services = NodeServices(database, nodes, authority)

        def make(key: str) -> Node:
            nodes.fail(UUID(key))
            return Node(services)

        actors.register(Node, make)
        yield nodes


def change(vm_id: UUID, state: DomainState) -> DomainChanged:
    return DomainChanged(vm_id=vm_id, state=state, reason="", at=datetime.now(UTC))


async def test_a_node_that_names_everything_twice_has_it_once(database: Database) -> None:
    async with open_nodes(database) as nodes:
        node_id = await nodes.new(machines=2)
        honest = nodes.query

        async def twice(node_id: UUID, operation: NodeOperation, *, timeout: float) -> OperationResult:
            answer = await honest(node_id, operation, timeout=timeout)
            if not isinstance(answer, InventoryResult):
                return answer
            disk = KeptDisk(name="retained/x", vm_id=uuid4(), vm_name="x", size_bytes=2**30)
            volume = ObservedVolume(volume_id=uuid4(), vm_id=None, index=None, size_bytes=2**30)
            image = CachedImage(
                image_id=await database.fetchval("SELECT id FROM images LIMIT 1"),
                format=ImageFormat.QCOW2,
                size_bytes=1,
                digest="0",
                pulled_at=datetime.now(),
            )
            return answer.model_copy(
                update={
                    "domains": answer.domains * 2,
                    "images": (image, image),
                    "volumes": (volume, volume),
                    "kept_disks": (disk, disk),
                }
            )

        nodes.query = twice  # type: ignore[method-assign]
        await nodes.watch.inspect(node_id)
        for table, number in {"observed_domains": 2, "node_images": 1, "volumes": 2}.items():
            assert await database.fetchval(f"SELECT count(*) FROM {table}") == number
        assert set((await nodes.observed(node_id)).values()) == {DomainState.RUNNING.value}


async def test_a_node_that_cannot_be_recorded_holds_up_no_other(database: Database) -> None:
    async with open_nodes(database) as nodes:
        made = [await nodes.new() for _ in range(3)]
        nodes.failures[made[0]] = [AWAY]
        nodes.connected.clear()
        await nodes.watch.look()
        assert [await nodes.state(node_id) for node_id in made] == ["online", "offline", "offline"]


async def test_a_machine_that_cannot_be_told_holds_up_none_of_its_node(database: Database) -> None:
    async with open_nodes(database) as nodes:
        node_id = await nodes.new(machines=3)
        first, *others = nodes.hosts[node_id].machines
        nodes.failures[first] = [MailboxFull(f"Machine:{first}", 256)]

        async with nodes.holding(first):
            await nodes.watch.inspect(node_id)

        assert await nodes.observed(node_id) == {first: None, **dict.fromkeys(others, "running")}


async def test_a_change_that_could_not_be_recorded_is_asked_for_again(database: Database) -> None:
    async with open_nodes(database) as nodes, trio.open_nursery() as nursery:
        node_id = await nodes.new(machines=1)
        [vm_id] = nodes.hosts[node_id].machines
        await nursery.start(nodes.watch.run)
        await nodes.until_observed(node_id, DomainState.RUNNING)
        nodes.failures[vm_id] = [MailboxFull(f"Machine:{vm_id}", 256)]
        nodes.hosts[node_id].set_state(vm_id, DomainState.STOPPED, "powered off")

        async with nodes.holding(vm_id):
            nodes.watch.hooks.domain_changed(node_id, change(vm_id, DomainState.STOPPED))
            with trio.fail_after(60):
                while nodes.failures[vm_id]:
                    await trio.sleep(0.01)

        await nodes.until_observed(node_id, DomainState.STOPPED)
        assert await database.fetchval("SELECT count(*) FROM alerts") == 0
        nursery.cancel_scope.cancel()


async def test_a_defect_in_one_round_does_not_end_the_watch(database: Database) -> None:
    async with open_nodes(database) as nodes, trio.open_nursery() as nursery:
        nodes.watch = NodeWatch(
            cast(ActorSystem, None), database, nodes.deliver, intervals=Intervals(grace=0.0, look=0.01, record=3600.0)
        )
        rounds = 0
        over = trio.Event()

        async def look() -> None:
            nonlocal rounds
            await trio.lowlevel.checkpoint()
            rounds += 1
            if rounds == 3:
                over.set()
            raise OverflowError("a figure that nobody thought of")

        nodes.watch.look = look  # type: ignore[method-assign]
        await nursery.start(nodes.watch.run)
        with trio.fail_after(60):
            await over.wait()
        nursery.cancel_scope.cancel()


async def test_a_node_that_speaks_for_others_without_end_is_audited_and_does_not_fill_the_audit(
    database: Database,
) -> None:
    async with open_nodes(database) as nodes:
        node = nodes.actors.ref(Node, str(await nodes.new()))
        for number in range(MOST_UNAUTHORISED_AN_HOUR + 20):
            await node.ask(Node.unauthorised_report, f"reported machine {number}")
        written = await database.fetchval("SELECT count(*) FROM audit WHERE outcome = 'denied'")
        assert written == MOST_UNAUTHORISED_AN_HOUR


async def test_what_the_gateway_says_against_a_node_is_recorded(database: Database) -> None:
    async with open_nodes(database) as nodes, trio.open_nursery() as nursery:
        node_id = await nodes.new()
        nodes.connected.clear()
        hooks = nodes.watch.hooks
        hooks.unauthorised_report(node_id, "reported machine 1")
        hooks.refused(node_id, "Its release is too old.")
        hooks.unauthorised_report(node_id, "reported machine 2")

        await nursery.start(nodes.watch.run)

        with trio.fail_after(60):
            while await database.fetchval("SELECT count(*) FROM audit WHERE outcome = 'denied'") < 2:
                await trio.sleep(0.005)
        reason = await database.fetchval("SELECT state_reason FROM nodes WHERE id = $1", node_id)
        assert reason == "Its release is too old."
        nursery.cancel_scope.cancel()


async def test_what_the_gateway_says_against_a_node_waits_in_a_bounded_queue(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[str] = []

    async def record(_: Node, what: str) -> None:
        recorded.append(what)

    monkeypatch.setattr(Node, "unauthorised_report", record)
    async with open_nodes(database) as nodes, trio.open_nursery() as nursery:
        noisy, other = await nodes.new(), await nodes.new()
        for number in range(1000):
            nodes.watch.hooks.unauthorised_report(noisy, f"reported machine {number}")
        nodes.watch.hooks.unauthorised_report(other, "the last")

        await nursery.start(nodes.watch.run)

        with trio.fail_after(60):
            while "the last" not in recorded or len(recorded) < 65:
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    assert len(recorded) == 65


async def test_an_inventory_that_differs_in_everything_wakes_no_machine(database: Database) -> None:
    async with open_nodes(database) as nodes:
        node_id = await nodes.new(machines=600)

        await nodes.watch.inspect(node_id)

        assert set((await nodes.observed(node_id)).values()) == {"running"}
        assert nodes.told == []


async def test_a_machine_that_does_not_answer_holds_up_none_of_its_node(database: Database) -> None:
    async with open_nodes(database) as nodes:
        node_id = await nodes.new(machines=20)
        first, *others = nodes.hosts[node_id].machines

        async def deliver(*_: object) -> None:
            await trio.sleep_forever()

        nodes.watch = NodeWatch(nodes.actors, database, deliver, intervals=Intervals(look_deadline=0.2))
        nodes.watch.watch(cast(Gateway, nodes))

        async with nodes.holding(first):
            with trio.fail_after(60):
                await nodes.watch.inspect(node_id)

        assert await nodes.observed(node_id) == {first: None, **dict.fromkeys(others, "running")}


async def test_what_many_nodes_say_at_once_does_not_queue_for_connections(database: Database) -> None:
    async with open_nodes(database) as nodes, trio.open_nursery() as nursery:
        made = [await nodes.new(machines=40) for _ in range(25)]
        await nursery.start(nodes.watch.run)
        most = 0

        for node_id in made:
            for vm_id in nodes.hosts[node_id].machines:
                nodes.hosts[node_id].set_state(vm_id, DomainState.CRASHED, "panic")
                nodes.watch.hooks.domain_changed(node_id, change(vm_id, DomainState.CRASHED))
        with trio.fail_after(30):
            while await database.fetchval("SELECT count(*) FROM vms WHERE observed_state = 'crashed'") < 1000:
                most = max(most, database.statistics().waiting)
                await trio.sleep(0.01)

        assert most < 50
        nursery.cancel_scope.cancel()


async def test_what_many_nodes_say_at_once_is_recorded_together(database: Database) -> None:
    async with open_nodes(database) as nodes, trio.open_nursery() as nursery:
        made = [await nodes.new(machines=1) for _ in range(30)]
        await nursery.start(nodes.watch.run)
        for node_id in made:  # Their first inventories, each of which is recorded by itself, are behind them.
            await nodes.until_observed(node_id, DomainState.RUNNING)

        for node_id in made:
            [vm_id] = nodes.hosts[node_id].machines
            nodes.watch.hooks.domain_changed(node_id, change(vm_id, DomainState.CRASHED))
        with trio.fail_after(60):
            while await database.fetchval("SELECT count(*) FROM vms WHERE observed_state = 'crashed'") < 30:
                await trio.sleep(0.01)

        # One at a time it would be thirty; a busy machine cuts them into a few more than one or two.
        assert await database.fetchval("SELECT count(DISTINCT xmin::text) FROM vms") <= 10
        nursery.cancel_scope.cancel()


async def test_of_nodes_that_speak_at_once_the_one_that_speaks_of_another_is_audited(database: Database) -> None:
    async with open_nodes(database) as nodes, trio.open_nursery() as nursery:
        honest, other = await nodes.new(machines=1), await nodes.new()
        [vm_id] = nodes.hosts[honest].machines
        await nursery.start(nodes.watch.run)

        nodes.watch.hooks.domain_changed(honest, change(vm_id, DomainState.RUNNING))
        nodes.watch.hooks.domain_changed(other, change(vm_id, DomainState.CRASHED))
        with trio.fail_after(60):
            while not await database.fetchval("SELECT count(*) FROM audit WHERE outcome = 'denied'"):
                await trio.sleep(0.01)

        await nodes.until_observed(honest, DomainState.RUNNING)
        assert await database.fetchval("SELECT target_id FROM audit WHERE outcome = 'denied'") == str(other)
        nursery.cancel_scope.cancel()


async def test_no_change_overtakes_one_that_is_on_its_way_to_the_machine(database: Database) -> None:
    async with open_nodes(database) as nodes, trio.open_nursery() as nursery:
        node_id = await nodes.new(machines=1)
        [vm_id] = nodes.hosts[node_id].machines
        told: list[DomainState] = []
        second, go_on = trio.Event(), trio.Event()

        async def deliver(_: UUID, __: UUID, seen: MachineReport, ___: datetime | None) -> None:
            told.append(seen.state)
            if len(told) == 2:
                second.set()
            await go_on.wait()

        nodes.watch = NodeWatch(nodes.actors, database, deliver, intervals=Intervals(grace=3600.0))
        nodes.watch.watch(cast(Gateway, nodes))
        await nursery.start(nodes.watch.run)

        async with nodes.holding(vm_id):
            nodes.watch.hooks.domain_changed(node_id, change(vm_id, DomainState.RUNNING))
            with trio.fail_after(60):
                while not told:
                    await trio.sleep(0.01)
        nodes.watch.hooks.domain_changed(node_id, change(vm_id, DomainState.CRASHED))
        with trio.fail_after(60):
            await second.wait()

        assert told == [DomainState.RUNNING, DomainState.CRASHED]
        nursery.cancel_scope.cancel()


async def test_changes_that_a_node_makes_up_without_end_are_left_to_its_inventories(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_reports, "MOST_CHANGES_A_MINUTE", 5.0)
    async with open_nodes(database) as nodes:
        evil, good = await nodes.new(machines=1), await nodes.new(machines=1)
        [of_evil], [of_good] = nodes.hosts[evil].machines, nodes.hosts[good].machines
        rechecked = list[UUID]()
        reports = MachineReports(nodes.actors, database, nodes.deliver, rechecked.append, deadline=5.0)
        for number in range(50):
            reports.changed(evil, change(of_evil, DomainState.RUNNING if number % 2 else DomainState.CRASHED))
        assert rechecked == [evil] * 45
        reports.changed(good, change(of_good, DomainState.CRASHED))
        async with trio.open_nursery() as nursery:
            await nursery.start(reports.run)
            await nodes.until_observed(good, DomainState.CRASHED)
            await nodes.until_observed(evil, DomainState.CRASHED)
            nursery.cancel_scope.cancel()


async def test_of_two_changes_of_a_machine_the_last_one_counts(database: Database) -> None:
    async with open_nodes(database) as nodes, trio.open_nursery() as nursery:
        node_id = await nodes.new(machines=1)
        [vm_id] = nodes.hosts[node_id].machines
        nodes.hosts[node_id].set_state(vm_id, DomainState.STOPPED, "powered off")
        await nursery.start(nodes.watch.run)
        await nodes.until_observed(node_id, DomainState.STOPPED)

        nodes.watch.hooks.domain_changed(node_id, change(vm_id, DomainState.CRASHED))
        await trio.testing.wait_all_tasks_blocked()
        nodes.watch.hooks.domain_changed(node_id, change(vm_id, DomainState.RUNNING))

        await nodes.until_observed(node_id, DomainState.RUNNING)
        nursery.cancel_scope.cancel()
