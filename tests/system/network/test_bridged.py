"""Guests on the host's bridge: neighbours of the outside, and as little able to reach the host as others."""

from __future__ import annotations

import socket

import pytest

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import FailureCode, Topology
from tests.system.network.matrix import PROTOCOLS, Matrix, Tcp, flow_of
from tests.system.network.places import BRIDGE_ADDRESSES, FAMILIES, GUESTS, OUTSIDE_ON_THE_BRIDGE, Family
from tests.system.network.rules import firewall

pytestmark = [pytest.mark.system, pytest.mark.isolated]

GUEST, NEIGHBOUR = GUESTS[Topology.BRIDGED]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("family", FAMILIES)
async def test_bridged_guests_reach_each_other(matrix: Matrix, family: Family, protocol: str) -> None:
    assert await matrix.passes(flow_of(protocol, family), GUEST, NEIGHBOUR, family) == GUEST.addresses[family]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("family", FAMILIES)
async def test_a_bridged_guest_and_the_outside_reach_each_other(matrix: Matrix, family: Family, protocol: str) -> None:
    flow, outside = flow_of(protocol, family), OUTSIDE_ON_THE_BRIDGE
    assert await matrix.passes(flow, GUEST, outside, family) == GUEST.addresses[family]
    assert await matrix.passes(flow, outside, GUEST, family) == outside.addresses[family]


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_bridged_guest_reaches_no_service_of_the_host(matrix: Matrix, family: Family) -> None:
    to = BRIDGE_ADDRESSES[family]
    # Straight, and not by way of the router, whom the host hears as anybody outside.
    matrix.lab.namespace(GUEST).ip(f"route replace {to} dev {GUEST.device}")
    with matrix.lab.host.open_socket(socket.AF_INET6, socket.SOCK_DGRAM) as service:
        service.bind(("::", 8080))
        with matrix.udp(OUTSIDE_ON_THE_BRIDGE, family) as outside, matrix.udp(GUEST, family) as guest:
            await guest.sendto(b"from the guest", (str(to), 8080))
            await matrix.passes(Tcp(443), GUEST, OUTSIDE_ON_THE_BRIDGE, family)
            await outside.sendto(b"from the outside", (str(to), 8080))
            await matrix.passes(flow_of("ping", family), OUTSIDE_ON_THE_BRIDGE, GUEST, family)
        assert service.recv(100) == b"from the outside"


async def test_security_groups_on_a_bridge_are_refused_where_the_kernel_cannot_track_connections(
    matrix: Matrix,
) -> None:
    with pytest.raises(HostError) as refused:
        await matrix.apply(GUEST, firewall=firewall())
    assert refused.value.code is FailureCode.UNSUPPORTED
    assert "conntrack" in refused.value.message
    await matrix.passes(Tcp(443), NEIGHBOUR, GUEST, 4)
