"""The host's own services are closed to guests, but for ping of the gateway, and name service where it is configured.

A service is one that the host's kernel would answer on any of its addresses. Whether it heard is asked of its socket,
after a ping that was sent behind was answered.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from svc_nodeagent.protocol import Topology
from tests.system.network.lab import CARRIED
from tests.system.network.matrix import Matrix, Tcp, Udp
from tests.system.network.packets import PATIENCE_SECONDS
from tests.system.network.places import FAMILIES, GUEST_DEVICE, GUESTS, UPLINK_ADDRESSES, Family, GuestPlace

pytestmark = [pytest.mark.system, pytest.mark.isolated]

SERVICE, NAME_SERVICE = 8080, 53


@contextmanager
def listening(matrix: Matrix, port: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A TCP and a UDP service of the host on every address of both families."""
    with (
        matrix.lab.host.open_socket(socket.AF_INET6, socket.SOCK_STREAM) as tcp,
        matrix.lab.host.open_socket(socket.AF_INET6, socket.SOCK_DGRAM) as udp,
    ):
        for service in (tcp, udp):
            service.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            service.bind(("::", port))
        tcp.listen(5)
        yield tcp, udp


def reached(tcp: socket.socket, udp: socket.socket) -> list[str]:
    """By what somebody came to the service."""
    found = []
    try:
        tcp.accept()[0].close()
        found.append("tcp")
    except BlockingIOError:
        pass
    try:
        udp.recv(100)
        found.append("udp")
    except BlockingIOError:
        pass
    return found


def knocks(matrix: Matrix, guest: GuestPlace, flow: Tcp | Udp, address: str, family: Family) -> None:
    """The first packet of a flow to the host, whether it is taken or not."""
    zone = f"%{GUEST_DEVICE}" if address.startswith("fe80:") else ""
    kind = socket.SOCK_STREAM if isinstance(flow, Tcp) else socket.SOCK_DGRAM
    namespace = matrix.lab.namespace(guest)
    with namespace.open_socket(socket.AF_INET if family == 4 else socket.AF_INET6, kind) as knocking:
        target = namespace.resolved(f"{address}{zone}", flow.port)
        if isinstance(flow, Tcp):
            knocking.connect_ex(target)
        else:
            knocking.sendto(b"knock", target)


def addresses_of_the_host(matrix: Matrix, guest: GuestPlace, family: Family) -> dict[str, str]:
    neighbour = GUESTS[Topology.ROUTED if guest.topology is Topology.NAT else Topology.NAT][0]
    addresses = {"gateway": str(guest.gateway(family)), "uplink": str(UPLINK_ADDRESSES[family])}
    addresses["another gateway"] = str(neighbour.gateway(family))
    return addresses


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_no_service_of_the_host_is_reached_at_any_of_its_addresses(
    matrix: Matrix, topology: Topology, family: Family
) -> None:
    guest, _ = GUESTS[topology]
    with listening(matrix, SERVICE) as services:
        for address in addresses_of_the_host(matrix, guest, family).values():
            knocks(matrix, guest, Tcp(SERVICE), address, family)
            knocks(matrix, guest, Udp(SERVICE), address, family)
        await matrix.pings_gateway(guest, family)
        assert reached(*services) == []


@pytest.mark.parametrize("topology", CARRIED)
async def test_no_service_is_reached_at_the_taps_link_local_address(matrix: Matrix, topology: Topology) -> None:
    guest, _ = GUESTS[topology]
    mac = bytes.fromhex(matrix.lab.tap_mac(guest).replace(":", ""))
    address = f"fe80::{mac[0] ^ 2:02x}{mac[1]:02x}:{mac[2]:02x}ff:fe{mac[3]:02x}:{mac[4]:02x}{mac[5]:02x}"
    with listening(matrix, SERVICE) as services:
        for to in (address, "ff02::1"):
            knocks(matrix, guest, Udp(SERVICE), to if to.startswith("fe80") else f"{to}%{GUEST_DEVICE}", 6)
        knocks(matrix, guest, Tcp(SERVICE), address, 6)
        await matrix.pings_gateway(guest, 6)
        assert reached(*services) == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_the_gateway_answers_ping(matrix: Matrix, topology: Topology, family: Family) -> None:
    await matrix.pings_gateway(GUESTS[topology][0], family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_name_service_of_the_gateway_is_reached_only_where_it_is_configured(
    matrix: Matrix, topology: Topology, family: Family
) -> None:
    guest, _ = GUESTS[topology]
    gateway = str(guest.gateway(family))
    with listening(matrix, NAME_SERVICE) as services:
        for flow in (Tcp(NAME_SERVICE), Udp(NAME_SERVICE)):
            knocks(matrix, guest, flow, gateway, family)
        await matrix.pings_gateway(guest, family)
        assert reached(*services) == []
    await matrix.apply(guest, nameservers=(gateway,))
    with listening(matrix, NAME_SERVICE) as services, listening(matrix, SERVICE) as others:
        for port in (NAME_SERVICE, SERVICE):
            for address in (gateway, str(UPLINK_ADDRESSES[family])):
                knocks(matrix, guest, Udp(port), address, family)
        await matrix.pings_gateway(guest, family)
        assert reached(*others) == []
        question, peer = services[1].recvfrom(100)
        assert question == b"knock"
        assert reached(*services) == []
        assert peer[0] in (str(guest.addresses[family]), f"::ffff:{guest.addresses[family]}", str(guest.link_local))
        knocks_once = matrix.tcp(guest, family)
        with knocks_once, trio.fail_after(PATIENCE_SECONDS):
            await knocks_once.connect(matrix.lab.namespace(guest).resolved(with_zone(gateway), NAME_SERVICE))


def with_zone(address: str) -> str:
    return f"{address}%{GUEST_DEVICE}" if address.startswith("fe80:") else address
