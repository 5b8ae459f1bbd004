"""The agent is killed between each two steps of a change; guests are never less guarded than both ends of it say.

While an agent is killed over a change of addresses, firewall and rate together, packets that neither the state before
nor the one after allows are sent without a pause, from both sides; none may arrive, at no moment. A flow both allow
goes on. Another agent then makes the host agree, from the records of before the change or of after it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio

from svc_nodeagent.protocol import Direction, Firewall, NetworkSpec, ProbeResult, Topology
from tests.system.network.agent import Agent, Killed
from tests.system.network.forged import MARK, Stage, udp4, udp6
from tests.system.network.lab import ROOT, Lab
from tests.system.network.matrix import Control, Matrix, Udp
from tests.system.network.places import FAMILIES, GUESTS, OUTSIDE, Family, Place, address
from tests.system.network.rules import firewall, rule

pytestmark = [pytest.mark.system, pytest.mark.isolated]

SOURCES = (ROOT / "nodeagent" / "svc_nodeagent" / "hypervisor" / "network").glob("*.py")
POINTS = sorted({point for path in SOURCES for point in re.findall(r'fault_point\("([^"]+)"\)', path.read_text())})

PAUSE_SECONDS = 0.001
KNOCK = b"let me in"
RESTORE_POINTS = [point for point in POINTS if point.startswith("restore.")]
CHANGE_POINTS = [point for point in POINTS if point not in RESTORE_POINTS]
REMOVAL_POINTS = [point for point in POINTS if point.startswith(("network.", "rate.un"))]
FORBIDDEN, GONE, KEPT, NEW = 9999, 7001, 7002, 7003
GUARDED, NEIGHBOUR = GUESTS[Topology.ROUTED]
OLD_ADDRESSES = tuple(address(Topology.ROUTED, family, 0x1E) for family in FAMILIES)
NEW_ADDRESSES = tuple(address(Topology.ROUTED, family, 0x1F) for family in FAMILIES)
BEFORE: Firewall = firewall(*(rule(Direction.INGRESS, "udp", port) for port in (GONE, KEPT)))
AFTER: Firewall = firewall(*(rule(Direction.INGRESS, "udp", port) for port in (KEPT, NEW)))


@dataclass(frozen=True)
class Change:
    """From one rate to another, with addresses and firewall; `removed`: the machine is taken away instead."""

    name: str
    rate_before: int | None
    rate_after: int | None
    removed: bool = False


CHANGES = (
    Change("another rate", 50, 20),
    Change("a first rate", None, 20),
    Change("no more rate", 50, None),
)
REMOVAL = Change("removal", 50, None, removed=True)


@pytest.mark.parametrize("point", CHANGE_POINTS)
async def test_killed_at_any_step_of_a_change_nothing_leaks_and_the_next_agent_makes_it_whole(
    alone: Lab, point: str
) -> None:
    for change in CHANGES:
        if await killed_over(alone, change, point):
            return
    pytest.fail(f"no change passes {point}")


@pytest.mark.parametrize("point", REMOVAL_POINTS)
async def test_killed_at_any_step_of_a_removal_nothing_leaks_and_the_next_agent_ends_it(alone: Lab, point: str) -> None:
    assert await killed_over(alone, REMOVAL, point)


@pytest.mark.parametrize("point", RESTORE_POINTS)
async def test_killed_while_restoring_nothing_leaks_and_the_next_agent_ends_it(alone: Lab, point: str) -> None:
    change = CHANGES[0]
    before, after = ends_of(alone, change)
    async with alone.agents.agent(alone.start(alone.as_found())) as agent:
        await agent.restore()
        matrix = Matrix(alone, agent)
        async with (
            matrix.established(GUARDED, OUTSIDE, 4) as outwards,
            matrix.established(NEIGHBOUR, GUARDED, 6) as across,
        ):
            await agent.apply({GUARDED.vm_id: before})
            async with nothing_forbidden_arrives(matrix):
                async with alone.agents.agent(alone.start(alone.as_found() | {GUARDED: after})) as doomed:
                    await doomed.arm(point)
                    with pytest.raises(Killed):
                        await doomed.restore()
                await carried_on(outwards, across)
                await recover(alone, change, after, after)
                await carried_on(outwards, across)


async def test_while_tables_are_replaced_others_filter_alike(alone: Lab) -> None:
    """A packet that is between the chains of a table that goes and one that comes, when they change places, would be
    judged by neither: so it is not for these two to keep it out. Here both are away for longer than that."""
    change = CHANGES[0]
    before, after = ends_of(alone, change)
    async with alone.agents.agent(alone.start(alone.as_found())) as agent:
        await agent.restore()
        matrix = Matrix(alone, agent)
        async with (
            matrix.established(GUARDED, OUTSIDE, 4) as outwards,
            matrix.established(NEIGHBOUR, GUARDED, 6) as across,
        ):
            await agent.apply({GUARDED.vm_id: before})
            tables = sorted(alone.host.output("nft", "list", "tables").splitlines())
            async with nothing_forbidden_arrives(matrix):
                async with alone.agents.agent(alone.start(alone.as_found() | {GUARDED: after})) as doomed:
                    await doomed.arm("restore.held")
                    with pytest.raises(Killed):
                        await doomed.restore()
                alone.host.output("nft", "delete", "table", "inet", alone.naming.table)
                await carried_on(outwards, across)
                await recover(alone, change, after, after)
            assert sorted(alone.host.output("nft", "list", "tables").splitlines()) == tables


async def killed_over(lab: Lab, change: Change, point: str) -> bool:
    """Go through a change with an agent that is killed at a point; False when it does not come there."""
    before, after = ends_of(lab, change)
    async with lab.agents.agent(lab.start(lab.as_found())) as agent:
        await agent.restore()
        if not lab.copied(GUARDED).attached:
            lab.attach(GUARDED)
        matrix = Matrix(lab, agent)
        async with (
            matrix.established(GUARDED, OUTSIDE, 4) as outwards,
            matrix.established(NEIGHBOUR, GUARDED, 6) as across,
        ):
            await agent.apply({GUARDED.vm_id: before})
            async with nothing_forbidden_arrives(matrix):
                await agent.arm(point)
                try:
                    await carry_out(agent, change, after)
                    killed = False
                except Killed:
                    killed = True
                if not change.removed:
                    await carried_on(outwards, across)
                for records in (before, after) if killed else ():
                    await recover(lab, change, records, after)
                    if not change.removed:
                        await carried_on(outwards, across)
    return killed


def ends_of(lab: Lab, change: Change) -> tuple[NetworkSpec, NetworkSpec]:
    """What the records say before and after a change."""
    before = lab.spec(GUARDED, firewall=BEFORE, given=(*GUARDED.given, *OLD_ADDRESSES), rate_mbps=change.rate_before)
    after = lab.spec(GUARDED, firewall=AFTER, given=(*GUARDED.given, *NEW_ADDRESSES), rate_mbps=change.rate_after)
    return before, after


async def recover(lab: Lab, change: Change, recorded: NetworkSpec, after: NetworkSpec) -> None:
    """What the next agent does, with what was recorded when the last one was killed."""
    records = lab.as_found() | {GUARDED: recorded}
    async with lab.agents.agent(lab.start(records)) as heir:
        await heir.restore()
        assert disagreements(await heir.probe()) == {}
        await carry_out(heir, change, after)
        probe = await heir.probe()
        assert disagreements(probe) == {}
        carried = {machine.vm_id: set(machine.addresses) for machine in probe.machines}
        assert carried.get(GUARDED.vm_id, set()) == (set() if change.removed else networks_of(after))
        if not change.removed:
            matrix = Matrix(lab, heir)
            await matrix.passes(Udp(NEW), NEIGHBOUR, GUARDED, 4)
            await matrix.passes(Udp(KEPT), OUTSIDE, GUARDED, 6)


async def carry_out(agent: Agent, change: Change, after: NetworkSpec) -> None:
    if change.removed:
        await agent.remove(GUARDED.vm_id)
    else:
        await agent.apply({GUARDED.vm_id: after})


async def carried_on(*flows: Control) -> None:
    for flow in flows:
        await flow.exchange()


def disagreements(probe: ProbeResult) -> dict[str, tuple[str, ...]]:
    return {str(machine.vm_id): machine.differences for machine in probe.machines if machine.differences}


def networks_of(spec: NetworkSpec) -> set[str]:
    """As the wire writes them: an IPv4 address without its length."""
    networks = [given.network for nic in spec.nics for given in nic.addresses]
    return {str(network if network.version == 6 else network.network_address) for network in networks}


@asynccontextmanager
async def nothing_forbidden_arrives(matrix: Matrix) -> AsyncIterator[None]:
    """Send what is forbidden without a pause, and look at every place where it could arrive."""
    stage = Stage(GUARDED, NEIGHBOUR, matrix.lab.tap_mac(GUARDED))
    forged = (
        bytes(udp4(stage, str(NEIGHBOUR.addresses[4]))),
        bytes(udp6(stage, str(NEIGHBOUR.addresses[6]))),
        bytes(udp4(stage, str(GUARDED.addresses[4]), mac=NEIGHBOUR.mac)),
    )
    with (
        matrix.capture(GUARDED) as at_guarded,
        matrix.capture(NEIGHBOUR) as at_neighbour,
        matrix.capture(OUTSIDE) as outside,
    ):
        async with trio.open_nursery() as nursery:
            for family in FAMILIES:
                for source in (NEIGHBOUR, OUTSIDE):
                    nursery.start_soon(_knock, matrix, source, family)
            nursery.start_soon(_forge, matrix, forged)
            yield
            nursery.cancel_scope.cancel()
        arrived = [frame for capture in (at_guarded, at_neighbour, outside) for frame in capture.rest()]
        assert [frame for frame in arrived if MARK in frame] == []
        # What is sent to a machine that was removed may go anywhere but there.
        assert [frame for frame in at_guarded.rest() if KNOCK in frame] == []


async def _knock(matrix: Matrix, source: Place, family: Family) -> None:
    with matrix.udp(source, family) as knocking:
        while True:
            await knocking.sendto(KNOCK, (str(GUARDED.addresses[family]), FORBIDDEN))
            await trio.sleep(PAUSE_SECONDS)


async def _forge(matrix: Matrix, frames: tuple[bytes, ...]) -> None:
    while True:
        for frame in frames:
            matrix.lab.inject(GUARDED, frame)
        await trio.sleep(PAUSE_SECONDS)
