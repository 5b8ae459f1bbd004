"""Guests without security groups: what the topology carries, and from whom it seems to come."""

from __future__ import annotations

import pytest

from svc_nodeagent.protocol import Topology
from tests.system.network.lab import CARRIED
from tests.system.network.matrix import PROTOCOLS, Matrix, Tcp, flow_of
from tests.system.network.places import FAMILIES, GUESTS, OUTSIDE, UPLINK_ADDRESSES, Family

pytestmark = [pytest.mark.system, pytest.mark.isolated]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_guests_of_one_host_reach_each_other_under_their_own_addresses(
    matrix: Matrix, topology: Topology, family: Family, protocol: str
) -> None:
    one, other = GUESTS[topology]
    assert await matrix.passes(flow_of(protocol, family), one, other, family) == one.addresses[family]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_a_guest_reaches_the_outside(matrix: Matrix, topology: Topology, family: Family, protocol: str) -> None:
    guest, _ = GUESTS[topology]
    seen = await matrix.passes(flow_of(protocol, family), guest, OUTSIDE, family)
    behind = UPLINK_ADDRESSES if topology is Topology.NAT else guest.addresses
    assert seen == behind[family]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("family", FAMILIES)
async def test_the_outside_reaches_a_routed_guest(matrix: Matrix, family: Family, protocol: str) -> None:
    guest, _ = GUESTS[Topology.ROUTED]
    assert await matrix.passes(flow_of(protocol, family), OUTSIDE, guest, family) == OUTSIDE.addresses[family]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("family", FAMILIES)
async def test_the_outside_does_not_reach_a_guest_behind_nat(matrix: Matrix, family: Family, protocol: str) -> None:
    guest, _ = GUESTS[Topology.NAT]
    async with matrix.established(guest, OUTSIDE, family) as control:
        await matrix.refused(flow_of(protocol, family), OUTSIDE, guest, control)


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_guest_behind_nat_and_a_routed_one_reach_each_other(matrix: Matrix, family: Family) -> None:
    behind, routed = GUESTS[Topology.NAT][0], GUESTS[Topology.ROUTED][0]
    assert await matrix.passes(Tcp(443), behind, routed, family) == behind.addresses[family]
    assert await matrix.passes(Tcp(443), routed, behind, family) == routed.addresses[family]
