"""The watch: who is asked when, and what becomes of the answers."""

from __future__ import annotations

from collections import Counter
from typing import cast
from uuid import UUID, uuid4

import pytest
import trio
import trio.testing

from svc_actors.controller.gateway.authority import Authority
from svc_actors.controller.gateway.gateway import Gateway
from svc_actors.controller.nodes.node import Node, NodeServices, Presence
from svc_actors.controller.reconcile.node_watch import NodeWatch, machine_deliverer
from svc_actors.controller.traffic.periods import Period
from svc_actors.controller.traffic.policy import GIB, Policy, TrafficAction
from svc_actors.controller.traffic.readings import Month, month_of
from svc_actors.controller.traffic.watch import TrafficIntervals, TrafficWatch
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database
from svc_common.errors import unavailable
from svc_nodeagent.protocol import NodeOperation, OperationResult, TrafficResult
from tests.support.traffic import CountingNodes, TrafficHarness, reading

NOVEMBER = Period("2026-11")
NEVER = 1e9


def no_report(node_id: UUID, what: str) -> None:
    raise AssertionError(what)


async def test_a_watch_counts_and_enforces_by_itself(stage: TrafficHarness) -> None:
    plan = await stage.plan()
    await stage.allow(plan, Policy(1, action=TrafficAction.SUSPEND))
    vm_id = await stage.machine("web", plan)
    nodes = CountingNodes({stage.node_id: TrafficResult(ledger_id=uuid4(), readings=(reading(vm_id, 2 * GIB),))})
    intervals = TrafficIntervals(ask=0.01, look=0.005, enforce=0.01)
    watch = TrafficWatch(
        stage.database, nodes, unauthorised_report=no_report, clock=lambda: stage.now, intervals=intervals
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.run)
        with trio.fail_after(60):
            while await stage.in_force(vm_id) != (None, True):
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def test_a_node_that_counts_for_anothers_machine_is_told_of_once(stage: TrafficHarness) -> None:
    own, foreign = await stage.machine("own"), await stage.machine("foreign", node_id=await stage.node("beta"))
    reports: list[tuple[UUID, str]] = []
    nodes = CountingNodes(
        {stage.node_id: TrafficResult(ledger_id=uuid4(), readings=(reading(own, 5), reading(foreign, 7)))}
    )
    watch = TrafficWatch(
        stage.database, nodes, unauthorised_report=lambda *said: reports.append(said), clock=lambda: stage.now
    )
    for _ in range(3):
        await watch.ask(stage.node_id)
    what = f"counted traffic of machine {foreign}, which is not placed on it"
    assert reports == [(stage.node_id, what)]
    assert (await month_of(stage.database, own, NOVEMBER)).sent_bytes == 5
    assert await month_of(stage.database, foreign, NOVEMBER) == Month(NOVEMBER)


async def test_a_node_that_counts_for_anothers_machine_is_audited(stage: TrafficHarness) -> None:
    foreign = await stage.machine("foreign", node_id=await stage.node("beta"))
    nodes = CountingNodes({stage.node_id: TrafficResult(ledger_id=uuid4(), readings=(reading(foreign, 7),))})

    async with ActorSystem.open() as system:
        services = NodeServices(stage.database, cast(Presence, None), cast(Authority, None))
        system.register(Node, lambda _: Node(services))
        node_watch = NodeWatch(system, stage.database, machine_deliverer(system))
        node_watch.watch(cast(Gateway, CountingNodes()))
        report = node_watch.hooks.unauthorised_report
        watch = TrafficWatch(stage.database, nodes, unauthorised_report=report, clock=lambda: stage.now)
        async with trio.open_nursery() as nursery:
            await nursery.start(node_watch.run)
            await watch.ask(stage.node_id)
            with trio.fail_after(60):
                while not (rows := await stage.database.fetch("SELECT * FROM audit WHERE outcome = 'denied'")):
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    [row] = rows
    assert (row["via"], row["target_id"]) == ("node", str(stage.node_id))
    assert str(foreign) in row["details"]["what"]


class Away(CountingNodes):
    """Nodes of a service whose database is away: nobody's answer can be kept."""

    async def query(self, node_id: UUID, operation: NodeOperation, *, timeout: float) -> OperationResult:
        await super().query(node_id, operation, timeout=timeout)
        raise unavailable("The database is away.")


def many(count: int) -> list[UUID]:
    return [UUID(int=number * 37) for number in range(count)]


@pytest.fixture
async def none() -> Database:
    """For watches that never come so far as to need a database."""
    return cast(Database, None)


async def test_every_node_is_asked_once_a_minute_and_not_all_at_the_same_time(
    none: Database, autojump_clock: trio.testing.MockClock
) -> None:
    nodes = Away(dict.fromkeys(many(200), TrafficResult(ledger_id=uuid4(), readings=())))
    watch = TrafficWatch(none, nodes, unauthorised_report=no_report, intervals=TrafficIntervals(enforce=NEVER))
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.run)
        await trio.sleep(31)
        assert 50 < len(nodes.asked) < 150
        await trio.sleep(600)
        nursery.cancel_scope.cancel()
    counts = Counter(nodes.asked)
    assert set(counts) == set(nodes.answers)
    assert all(9 <= count <= 11 for count in counts.values())


async def test_a_node_that_hangs_has_one_question_and_holds_up_no_other(
    none: Database, autojump_clock: trio.testing.MockClock
) -> None:
    hanging, answering = many(40)[:20], many(40)[20:]
    nodes = Away(dict.fromkeys(answering, TrafficResult(ledger_id=uuid4(), readings=())), set(hanging))
    watch = TrafficWatch(
        none, nodes, unauthorised_report=no_report, intervals=TrafficIntervals(enforce=NEVER, patience=NEVER)
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(watch.run)
        await trio.sleep(305)
        nursery.cancel_scope.cancel()
    counts = Counter(nodes.asked)
    assert {counts[node_id] for node_id in hanging} == {1}
    assert all(counts[node_id] >= 4 for node_id in answering)
