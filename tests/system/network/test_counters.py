"""What the agent counts of a guest's traffic, against the bytes that were copied at the guest's end of the wire.

Never above; and less than a hundredth below as long as nothing is restarted. The wire is read before the agent begins
to count and after it has counted: a frame that passes in between is on the wire's side.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from svc_nodeagent.protocol import Direction, Topology, TrafficResult
from tests.system.network.lab import CARRIED
from tests.system.network.matrix import Matrix
from tests.system.network.places import FAMILIES, GUESTS, OUTSIDE, Family, GuestPlace
from tests.system.network.rules import firewall, rule
from tests.system.network.streams import MEGABIT, flood, measured_mbps, stream

pytestmark = [pytest.mark.system, pytest.mark.isolated]

MOST_MISSING = 0.01
SECONDS = 0.5


def counted(traffic: TrafficResult, guest: GuestPlace) -> tuple[int, int]:
    """Bytes to and from a guest, over all months."""
    readings = [reading for reading in traffic.readings if reading.vm_id == guest.vm_id]
    return sum(reading.received for reading in readings), sum(reading.sent for reading in readings)


async def traffic_both_ways(matrix: Matrix, guest: GuestPlace, family: Family) -> None:
    """A few megabytes by UDP and TCP; when this returns, all of it has passed the wire."""
    async with matrix.established(guest, OUTSIDE, family) as control:
        async with flood(matrix, guest, OUTSIDE, family, 40), stream(matrix, OUTSIDE, guest, family):
            await measured_mbps(matrix, guest, seconds=SECONDS, warm_up_bytes=MEGABIT // 8)
        await control.exchange()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_counters_are_never_above_and_hardly_below_what_passed(
    matrix: Matrix, topology: Topology, family: Family, tmp_path: Path
) -> None:
    guest, _ = GUESTS[topology]
    ledger = tmp_path / "traffic.json"
    async with matrix.lab.agents.agent(matrix.lab.start(ledger=ledger)) as agent:
        before = matrix.lab.copied(guest)
        await agent.traffic()
        await traffic_both_ways(matrix, guest, family)
        await agent.traffic()
    async with matrix.lab.agents.agent(matrix.lab.start(ledger=ledger)) as agent:
        await traffic_both_ways(matrix, guest, family)
        traffic = await agent.traffic()
    after = matrix.lab.copied(guest)
    passed = after.to_guest - before.to_guest, after.from_guest - before.from_guest
    for name, said, truth in zip(("to the guest", "from the guest"), counted(traffic, guest), passed, strict=True):
        print(f"{topology} IPv{family} {name}: counted {said}, passed {truth} ({100 * (1 - said / truth):.3f} % below)")
        assert said <= truth
        assert said >= (1 - MOST_MISSING) * truth


async def test_counters_of_a_limited_and_guarded_guest_are_as_true(matrix: Matrix, tmp_path: Path) -> None:
    guest, _ = GUESTS[Topology.ROUTED]
    await matrix.apply(guest, firewall=firewall(rule(Direction.INGRESS, "udp")), rate_mbps=20)
    async with matrix.lab.agents.agent(matrix.lab.start(ledger=tmp_path / "traffic.json")) as agent:
        before = matrix.lab.copied(guest)
        await agent.traffic()
        async with flood(matrix, guest, OUTSIDE, 4, 30), flood(matrix, OUTSIDE, guest, 4, 30):
            await measured_mbps(matrix, guest, seconds=SECONDS, warm_up_bytes=MEGABIT // 8)
            await matrix.apply(guest, firewall=firewall(rule(Direction.INGRESS, "udp")), rate_mbps=10)
            await measured_mbps(matrix, guest, seconds=SECONDS, warm_up_bytes=MEGABIT // 8)
        async with matrix.established(guest, OUTSIDE, 4) as control:
            await control.exchange()
        received, sent = counted(await agent.traffic(), guest)
    after = matrix.lab.copied(guest)
    assert 0.99 * (after.to_guest - before.to_guest) <= received <= after.to_guest - before.to_guest
    assert 0.99 * (after.from_guest - before.from_guest) <= sent <= after.from_guest - before.from_guest


async def test_counters_that_began_anew_are_never_above_what_passed(matrix: Matrix, tmp_path: Path) -> None:
    guest, _ = GUESTS[Topology.ROUTED]
    async with matrix.lab.agents.agent(matrix.lab.start(ledger=tmp_path / "traffic.json")) as agent:
        before = matrix.lab.copied(guest)
        await agent.traffic()
        await traffic_both_ways(matrix, guest, 4)
        await agent.traffic()
        await traffic_both_ways(matrix, guest, 4)
        await matrix.agent.remove(guest.vm_id)
        await matrix.apply(guest)
        matrix.lab.attach(guest)
        await traffic_both_ways(matrix, guest, 4)
        traffic = await agent.traffic()
    after = matrix.lab.copied(guest)
    received, sent = counted(traffic, guest)
    assert 0 < received <= after.to_guest - before.to_guest
    assert 0 < sent <= after.from_guest - before.from_guest
    assert [reading.resets for reading in traffic.readings if reading.vm_id == guest.vm_id] == [1]
