"""Security groups on real packets: what each rule lets in and out, over both topologies and families.

Guarded is the first guest of a topology. Ingress is tried by its neighbour on the host and, where it can be reached, by
the outside; egress towards both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from svc_nodeagent.protocol import Action, Direction, Firewall, FirewallRule, Topology
from tests.system.network.lab import CARRIED
from tests.system.network.matrix import ECHO, PROTOCOLS, Flow, Icmp, Matrix, Tcp, Udp, flow_of, opener_of
from tests.system.network.places import FAMILIES, GUESTS, OUTSIDE, Family, GuestPlace, IpAddress, Place
from tests.system.network.rules import firewall, rule

pytestmark = [pytest.mark.system, pytest.mark.isolated]

IN, OUT = Direction.INGRESS, Direction.EGRESS
DROP = Action.DROP
OTHER_FAMILY: dict[Family, Family] = {4: 6, 6: 4}
STRANGERS: dict[Family, str] = {4: "192.0.2.128/25", 6: "2001:db8:5::/48"}
UNANSWERED: dict[Family, Icmp] = {4: Icmp(13), 6: Icmp(139)}
"""A message other than an echo that connection tracking takes for the first of a flow: timestamp, node information."""


@dataclass(frozen=True)
class Case:
    """`firewall` is made of the direction, the family and the other side's address."""

    name: str
    firewall: Callable[[Direction, Family, IpAddress], Firewall]
    flow: Callable[[Family], Flow]
    passes: bool

    def __str__(self) -> str:
        return f"{self.name}-{'passes' if self.passes else 'refused'}"


def guarding(direction: Direction, *rules: FirewallRule) -> Firewall:
    """Drop by default in one direction, and accept in the other."""
    ingress, egress = (DROP, Action.ACCEPT) if direction is IN else (Action.ACCEPT, DROP)
    return Firewall(default_ingress=ingress, default_egress=egress, rules=rules)


def open_but(*rules: FirewallRule) -> Firewall:
    return Firewall(default_ingress=Action.ACCEPT, default_egress=Action.ACCEPT, rules=rules)


def tcp(port: int) -> Callable[[Family], Flow]:
    return lambda _: Tcp(port)


def udp(port: int) -> Callable[[Family], Flow]:
    return lambda _: Udp(port)


def echo(family: Family) -> Flow:
    return ECHO[family]


def unanswered(family: Family) -> Flow:
    return UNANSWERED[family]


def by_default(direction: Direction, _: Family, __: IpAddress) -> Firewall:
    return guarding(direction)


def web(direction: Direction, _: Family, __: IpAddress) -> Firewall:
    return guarding(direction, rule(direction, "tcp", 443))


def name_service(direction: Direction, _: Family, __: IpAddress) -> Firewall:
    return guarding(direction, rule(direction, "udp", 53))


def a_range(direction: Direction, _: Family, __: IpAddress) -> Firewall:
    return guarding(direction, rule(direction, "tcp", (8000, 8010)))


def from_the_other(direction: Direction, _: Family, other: IpAddress) -> Firewall:
    return guarding(direction, rule(direction, "tcp", 443, other=other))


def from_strangers(direction: Direction, family: Family, _: IpAddress) -> Firewall:
    return guarding(direction, rule(direction, "tcp", 443, other=STRANGERS[family]))


def anything_from_the_other(direction: Direction, _: Family, other: IpAddress) -> Firewall:
    return guarding(direction, rule(direction, other=other))


def this_family(direction: Direction, family: Family, _: IpAddress) -> Firewall:
    return guarding(direction, rule(direction, family=family))


def the_other_family(direction: Direction, family: Family, _: IpAddress) -> Firewall:
    return guarding(direction, rule(direction, family=OTHER_FAMILY[family]))


def echoes(direction: Direction, family: Family, _: IpAddress) -> Firewall:
    return guarding(direction, rule(direction, "icmp", family=family, icmp_type=ECHO[family].kind))


def any_icmp(direction: Direction, _: Family, __: IpAddress) -> Firewall:
    return guarding(direction, rule(direction, "icmp"))


def all_but_ssh(direction: Direction, _: Family, __: IpAddress) -> Firewall:
    return open_but(rule(direction, "tcp", 22, action=DROP))


def drop_after_accept(direction: Direction, _: Family, other: IpAddress) -> Firewall:
    return guarding(direction, rule(direction), rule(direction, "tcp", 22, other=other, action=DROP))


def several(direction: Direction, family: Family, other: IpAddress) -> Firewall:
    return guarding(
        direction,
        rule(direction, "tcp", 80),
        rule(direction, "tcp", 443, other=other),
        rule(direction, "udp", (5000, 6000), family=family),
        rule(direction, "udp", 5500, action=DROP),
    )


def the_opposite_direction(direction: Direction, _: Family, __: IpAddress) -> Firewall:
    return guarding(direction, rule(OUT if direction is IN else IN))


CASES = (
    Case("default-tcp", by_default, tcp(443), False),
    Case("default-udp", by_default, udp(53), False),
    Case("default-ping", by_default, echo, False),
    Case("tcp-port", web, tcp(443), True),
    Case("tcp-port-next", web, tcp(444), False),
    Case("tcp-port-by-udp", web, udp(443), False),
    Case("udp-port", name_service, udp(53), True),
    Case("udp-port-by-tcp", name_service, tcp(53), False),
    Case("range-before", a_range, tcp(7999), False),
    Case("range-first", a_range, tcp(8000), True),
    Case("range-last", a_range, tcp(8010), True),
    Case("range-after", a_range, tcp(8011), False),
    Case("cidr", from_the_other, tcp(443), True),
    Case("cidr-of-strangers", from_strangers, tcp(443), False),
    Case("any-protocol-udp", anything_from_the_other, udp(9), True),
    Case("any-protocol-ping", anything_from_the_other, echo, True),
    Case("family", this_family, tcp(443), True),
    Case("other-family", the_other_family, tcp(443), False),
    Case("other-family-ping", the_other_family, echo, False),
    Case("icmp-type", echoes, echo, True),
    Case("icmp-other-type", echoes, unanswered, False),
    Case("icmp-any-type", any_icmp, unanswered, True),
    Case("icmp-is-not-tcp", any_icmp, tcp(443), False),
    Case("default-accept-drop-rule", all_but_ssh, tcp(22), False),
    Case("default-accept-other-port", all_but_ssh, tcp(23), True),
    Case("drop-beats-accept", drop_after_accept, tcp(22), False),
    Case("drop-leaves-the-rest", drop_after_accept, tcp(23), True),
    Case("several-first", several, tcp(80), True),
    Case("several-udp", several, udp(5501), True),
    Case("several-udp-dropped", several, udp(5500), False),
    Case("several-none", several, tcp(8080), False),
    Case("opposite-direction", the_opposite_direction, tcp(443), False),
)
FROM_OUTSIDE = [case for case in CASES if case.name.startswith(("default-", "cidr", "icmp-type", "drop-", "tcp-port"))]


async def holds(matrix: Matrix, case: Case, direction: Direction, source: Place, target: Place, family: Family) -> None:
    """Guard the guest that `direction` is of, and see whether the case's packet passes from source to target."""
    guarded, other = (target, source) if direction is IN else (source, target)
    assert isinstance(guarded, GuestPlace)
    async with matrix.established(*opener_of(source, target), family) as control:
        await matrix.apply(guarded, firewall=case.firewall(direction, family, other.addresses[family]))
        flow = case.flow(family)
        if case.passes:
            await matrix.passes(flow, source, target, family)
        else:
            await matrix.refused(flow, source, target, control)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_ingress_from_a_neighbour(matrix: Matrix, case: Case, topology: Topology, family: Family) -> None:
    guarded, neighbour = GUESTS[topology]
    await holds(matrix, case, IN, neighbour, guarded, family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
@pytest.mark.parametrize("case", CASES, ids=str)
async def test_egress_to_a_neighbour(matrix: Matrix, case: Case, topology: Topology, family: Family) -> None:
    guarded, neighbour = GUESTS[topology]
    await holds(matrix, case, OUT, guarded, neighbour, family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", FROM_OUTSIDE, ids=str)
async def test_ingress_from_the_outside(matrix: Matrix, case: Case, family: Family) -> None:
    await holds(matrix, case, IN, OUTSIDE, GUESTS[Topology.ROUTED][0], family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
@pytest.mark.parametrize("case", FROM_OUTSIDE, ids=str)
async def test_egress_to_the_outside(matrix: Matrix, case: Case, topology: Topology, family: Family) -> None:
    await holds(matrix, case, OUT, GUESTS[topology][0], OUTSIDE, family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_both_the_senders_egress_and_the_receivers_ingress_are_asked(
    matrix: Matrix, topology: Topology, family: Family
) -> None:
    sender, receiver = GUESTS[topology]
    async with matrix.established(sender, receiver, family) as control:
        await matrix.apply(sender, firewall=firewall(rule(OUT, "tcp", (443, 444)), egress=DROP))
        await matrix.apply(receiver, firewall=firewall(rule(IN, "tcp", (444, 445))))
        await matrix.refused(Tcp(443), sender, receiver, control)
        await matrix.refused(Tcp(445), sender, receiver, control)
        await matrix.passes(Tcp(444), sender, receiver, family)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_a_guest_that_lets_nothing_in_gets_its_answers(
    matrix: Matrix, topology: Topology, family: Family, protocol: str
) -> None:
    guarded, neighbour = GUESTS[topology]
    async with matrix.established(neighbour, guarded, family) as control:
        await matrix.apply(guarded, firewall=firewall())
        await matrix.refused(flow_of(protocol, family), neighbour, guarded, control)
        await matrix.passes(flow_of(protocol, family), guarded, neighbour, family)
        await matrix.passes(flow_of(protocol, family), guarded, OUTSIDE, family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_a_guest_that_drops_everything_both_ways_still_finds_its_gateway(
    matrix: Matrix, topology: Topology, family: Family
) -> None:
    guarded, neighbour = GUESTS[topology]
    async with matrix.established(neighbour, guarded, family) as control:
        await matrix.apply(guarded, firewall=firewall(egress=DROP))
        for place in (guarded, neighbour):
            matrix.lab.namespace(place).ip(f"neighbour flush dev {place.device}")
        matrix.lab.host.ip(f"neighbour flush dev {matrix.lab.tap(guarded)}")
        await control.exchange()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_errors_about_a_guests_own_packets_reach_it(matrix: Matrix, topology: Topology, family: Family) -> None:
    guarded, neighbour = GUESTS[topology]
    await matrix.apply(guarded, firewall=firewall())
    with matrix.udp(guarded, family) as client:
        await client.connect((str(neighbour.addresses[family]), 9))
        await client.send(b"nobody listens")
        with pytest.raises(ConnectionRefusedError):
            await client.recv(100)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_an_open_connection_outlives_a_change_that_refuses_new_ones(
    matrix: Matrix, topology: Topology, family: Family
) -> None:
    guarded, neighbour = GUESTS[topology]
    async with (
        matrix.established(neighbour, guarded, family) as control,
        matrix.connection(neighbour, guarded, family, 443) as connection,
    ):
        await matrix.apply(guarded, firewall=firewall(rule(IN, "tcp", (443, 444), action=DROP), egress=DROP))
        await connection.speaks()
        await matrix.refused(Tcp(444), neighbour, guarded, control)
        await matrix.apply(guarded, firewall=firewall(rule(IN, "tcp", (443, 444))))
        await connection.speaks()
        await matrix.passes(Tcp(444), neighbour, guarded, family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("topology", CARRIED)
async def test_without_groups_again_everything_passes(matrix: Matrix, topology: Topology, family: Family) -> None:
    guarded, neighbour = GUESTS[topology]
    await matrix.apply(guarded, firewall=firewall(egress=DROP))
    await matrix.apply(guarded)
    await matrix.passes(Tcp(443), neighbour, guarded, family)
    await matrix.passes(Udp(53), guarded, neighbour, family)
