"""An isolated machine carries nothing at all, and what was open goes on when isolation ends."""

from __future__ import annotations

import pytest
import trio

from svc_nodeagent.protocol import Topology
from tests.system.network.matrix import ECHO, Connection, Matrix, Tcp, Udp
from tests.system.network.packets import PATIENCE_SECONDS, read
from tests.system.network.places import FAMILIES, GUESTS, Family, outside_of

pytestmark = [pytest.mark.system, pytest.mark.isolated]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", tuple(Topology))
async def test_nothing_leaves_or_reaches_an_isolated_guest(matrix: Matrix, topology: Topology, family: Family) -> None:
    isolated, neighbour = GUESTS[topology]
    own, others = isolated.addresses[family], neighbour.addresses[family]
    async with matrix.established(isolated, neighbour, family) as control:
        await matrix.apply(isolated, isolated=True)
        with matrix.capture(isolated) as at_isolated, matrix.capture(neighbour) as at_neighbour:
            await control.send(isolated)
            await control.send(neighbour)
            for flow in (Tcp(443), Udp(53), ECHO[family]):
                with matrix.sent(flow, isolated, others, family), matrix.sent(flow, neighbour, own, family):
                    pass
            with matrix.sent(ECHO[family], isolated, isolated.given[family == 6].interface.ip, family):
                pass
            await matrix.apply(isolated)
            left = await control.arrives(isolated, at_neighbour)
            reached = await control.arrives(neighbour, at_isolated)
    assert [packet for packet in left if packet.source == own] == []
    assert [packet for packet in reached if packet.source == others] == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", tuple(Topology))
async def test_an_isolated_guest_neither_reaches_the_outside_nor_its_gateway(
    matrix: Matrix, topology: Topology, family: Family
) -> None:
    (isolated, _), router = GUESTS[topology], outside_of(topology)
    async with matrix.established(isolated, router, family) as control:
        await matrix.apply(isolated, isolated=True)
        with matrix.capture(isolated) as at_isolated, matrix.capture(router) as outside:
            await control.send(isolated)
            await control.send(router)
            for flow in (Udp(53), ECHO[family]):
                with matrix.sent(flow, isolated, router.addresses[family], family):
                    pass
            if not isolated.gateway(family).is_link_local:
                with matrix.sent(ECHO[family], isolated, isolated.gateway(family), family):
                    pass
            left_while_isolated = [read(frame) for frame in outside.rest()]
            await matrix.apply(isolated)
            left = await control.arrives(isolated, outside)
            reached = await control.arrives(router, at_isolated)
    # Once isolation is over the kernels may look for each other again, so that only what was sent before counts then.
    assert [packet for packet in left_while_isolated if packet is not None] == []
    assert [packet for packet in left if packet.source == isolated.addresses[family]] == []
    assert [packet for packet in reached if packet.target == isolated.addresses[family]] == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", tuple(Topology))
async def test_a_connection_stops_while_isolated_and_goes_on_afterwards(
    matrix: Matrix, topology: Topology, family: Family
) -> None:
    isolated, neighbour = GUESTS[topology]
    heard: list[bytes] = []

    async def hear(connection: Connection) -> None:
        heard.append(await connection.server.receive_some(100))

    async with matrix.connection(neighbour, isolated, family, 443) as connection:
        await matrix.apply(isolated, isolated=True)
        with trio.fail_after(PATIENCE_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hear, connection)
                await connection.client.send_all(b"while isolated")
                await matrix.agent.probe()
                assert heard == []
                await matrix.apply(isolated)
        await connection.speaks()
    assert heard == [b"while isolated"]
