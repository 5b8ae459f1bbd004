"""A rate is held each way, within a tenth of what was asked, for what obeys it (TCP) and what does not (UDP)."""

from __future__ import annotations

import pytest

from svc_nodeagent.protocol import Topology
from tests.support.figures import report_figure
from tests.system.network.lab import CARRIED
from tests.system.network.matrix import Matrix, tap_of
from tests.system.network.places import FAMILIES, GUESTS, OUTSIDE, Family
from tests.system.network.streams import MEGABIT, flood, measured_mbps, stream

pytestmark = [pytest.mark.system, pytest.mark.isolated]

RATES = (10, 50)
TOLERANCE = 0.1
SECONDS, WARM_UP_SECONDS = 1.0, 0.4
PROTOCOLS = ("udp", "tcp")
DIRECTIONS = ("to_guest", "from_guest")


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_rate_is_held_within_a_tenth(matrix: Matrix, protocol: str, direction: str, rate: int) -> None:
    guest = GUESTS[Topology.ROUTED][0]
    source, target = (OUTSIDE, guest) if direction == "to_guest" else (guest, OUTSIDE)
    await matrix.apply(guest, rate_mbps=rate)
    flowing = flood(matrix, source, target, 4, 1.6 * rate) if protocol == "udp" else stream(matrix, source, target, 4)
    async with flowing:
        warm_up = int(rate * MEGABIT / 8 * WARM_UP_SECONDS)
        measured = await measured_mbps(matrix, target, seconds=SECONDS, warm_up_bytes=warm_up)
    report_figure(f"asked {rate} Mb/s, {protocol} {direction}: {measured:.2f} Mb/s")
    assert abs(measured - rate) <= TOLERANCE * rate


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_a_rate_is_held_between_guests_of_one_host(matrix: Matrix, topology: Topology, family: Family) -> None:
    sender, receiver = GUESTS[topology]
    await matrix.apply(sender, rate_mbps=20)
    async with flood(matrix, sender, receiver, family, 32):
        measured = await measured_mbps(matrix, receiver, seconds=SECONDS, warm_up_bytes=20 * MEGABIT // 20)
    report_figure(f"asked 20 Mb/s, between guests ({topology}, IPv{family}): {measured:.2f} Mb/s")
    assert abs(measured - 20) <= TOLERANCE * 20


async def test_a_rate_changes_and_is_lifted_under_a_running_stream(matrix: Matrix) -> None:
    guest = GUESTS[Topology.ROUTED][0]
    await matrix.apply(guest, rate_mbps=10)
    async with stream(matrix, guest, OUTSIDE, 4):
        slow = await measured_mbps(matrix, OUTSIDE, seconds=SECONDS, warm_up_bytes=MEGABIT)
        await matrix.apply(guest, rate_mbps=40)
        faster = await measured_mbps(matrix, OUTSIDE, seconds=SECONDS, warm_up_bytes=3 * MEGABIT)
        await matrix.apply(guest, rate_mbps=None)
        free = await measured_mbps(matrix, OUTSIDE, seconds=SECONDS, warm_up_bytes=3 * MEGABIT)
    report_figure(f"asked 10, then 40, then no cap: {slow:.2f}, {faster:.2f}, {free:.2f} Mb/s")
    assert abs(slow - 10) <= TOLERANCE * 10
    assert abs(faster - 40) <= TOLERANCE * 40
    assert free > 2 * 40


async def test_a_rate_of_one_guest_is_not_anothers(matrix: Matrix) -> None:
    limited, free = GUESTS[Topology.ROUTED]
    await matrix.apply(limited, rate_mbps=10)
    async with flood(matrix, OUTSIDE, limited, 4, 16), flood(matrix, OUTSIDE, free, 4, 40):
        measured = await measured_mbps(matrix, free, seconds=SECONDS, warm_up_bytes=3 * MEGABIT)
    assert measured > 36


async def test_the_host_says_what_it_holds_a_tap_to(matrix: Matrix) -> None:
    guest = GUESTS[Topology.ROUTED][0]
    for rate in (25, 10, None):
        await matrix.apply(guest, rate_mbps=rate)
        assert tap_of(await matrix.agent.probe(), matrix.lab.tap(guest)).rate_mbps == rate
