"""What several groups come to for one machine, against a model that asks the groups one by one."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from svc_actors.controller.networking.security_groups import Group, merged
from svc_nodeagent.protocol import Action, Direction, Firewall, FirewallRule, TransportProtocol


@dataclass(frozen=True)
class Packet:
    """The first of a flow, as its receiver or sender in the guest sees it. `port` of TCP and UDP, `kind` of ICMP."""

    direction: Direction
    family: Literal[4, 6]
    protocol: TransportProtocol
    other_side: str
    port: int
    kind: int


PORTS = st.integers(20, 25)
PLACES: dict[int, tuple[str, ...]] = {4: ("192.0.2.1", "198.51.100.1"), 6: ("2001:db8::1", "2001:db8:1::1")}
CIDRS: dict[int, tuple[IPv4Network | IPv6Network, ...]] = {
    4: (IPv4Network("192.0.2.0/24"), IPv4Network("0.0.0.0/0")),
    6: (IPv6Network("2001:db8::/48"), IPv6Network("::/0")),
}
FAMILIES: st.SearchStrategy[Literal[4, 6]] = st.sampled_from((4, 6))


@st.composite
def rules(draw: st.DrawFn) -> FirewallRule:
    protocol = draw(st.sampled_from(TransportProtocol))
    family = draw(st.none() | FAMILIES)
    ports, kind = None, None
    if protocol in (TransportProtocol.TCP, TransportProtocol.UDP) and draw(st.booleans()):
        first = draw(PORTS)
        ports = (first, draw(st.integers(first, 25)))
    if protocol is TransportProtocol.ICMP and family is not None:
        kind = draw(st.none() | st.integers(0, 3))
    return FirewallRule(
        direction=draw(st.sampled_from(Direction)),
        action=draw(st.sampled_from(Action)),
        protocol=protocol,
        family=family,
        ports=ports,
        cidr=None if family is None else draw(st.none() | st.sampled_from(CIDRS[family])),
        icmp_type=kind,
    )


@st.composite
def packets(draw: st.DrawFn) -> Packet:
    family = draw(FAMILIES)
    return Packet(
        direction=draw(st.sampled_from(Direction)),
        family=family,
        protocol=draw(st.sampled_from([p for p in TransportProtocol if p is not TransportProtocol.ANY])),
        other_side=draw(st.sampled_from(PLACES[family])),
        port=draw(PORTS),
        kind=draw(st.integers(0, 3)),
    )


GROUPS = st.lists(
    st.builds(Group, st.sampled_from(Action), st.sampled_from(Action), st.lists(rules(), max_size=4).map(tuple)),
    min_size=1,
    max_size=4,
)


def matches(rule: FirewallRule, packet: Packet) -> bool:
    return (
        rule.direction is packet.direction
        and rule.protocol in (TransportProtocol.ANY, packet.protocol)
        and rule.family in (None, packet.family)
        and (rule.ports is None or rule.ports[0] <= packet.port <= rule.ports[1])
        and (rule.cidr is None or ip_address(packet.other_side) in rule.cidr)
        and (rule.icmp_type is None or rule.icmp_type == packet.kind)
    )


def default(of: Group | Firewall, packet: Packet) -> Action:
    return of.default_ingress if packet.direction is Direction.INGRESS else of.default_egress


def verdict_of_groups(groups: list[Group], packet: Packet) -> Action:
    """As the groups are explained to people: a group that refuses wins, then one that allows, then the defaults."""
    said = {rule.action for group in groups for rule in group.rules if matches(rule, packet)}
    if not said:
        said = {default(group, packet) for group in groups}
    return Action.DROP if Action.DROP in said else Action.ACCEPT


def verdict_of_firewall(firewall: Firewall, packet: Packet) -> Action:
    """As a host reads it: rule by rule from the first, then the default."""
    for rule in firewall.rules:
        if matches(rule, packet):
            return rule.action
    return default(firewall, packet)


@given(GROUPS, packets())
def test_a_machine_in_several_groups_meets_what_the_groups_say_together(groups: list[Group], packet: Packet) -> None:
    firewall = merged(groups)
    assert firewall is not None
    assert verdict_of_firewall(firewall, packet) is verdict_of_groups(groups, packet)


@given(GROUPS.flatmap(lambda groups: st.tuples(st.just(groups), st.permutations(groups))), packets())
def test_the_order_of_the_groups_decides_nothing(groups: tuple[list[Group], list[Group]], packet: Packet) -> None:
    firewall, other = merged(groups[0]), merged(groups[1])
    assert firewall is not None
    assert other is not None
    assert verdict_of_firewall(firewall, packet) is verdict_of_firewall(other, packet)


def test_a_machine_in_no_group_is_not_filtered() -> None:
    assert merged([]) is None


def test_a_rule_that_two_groups_share_is_applied_once() -> None:
    ssh = FirewallRule(direction=Direction.INGRESS, protocol=TransportProtocol.TCP, ports=(22, 22))
    group = Group(Action.DROP, Action.ACCEPT, (ssh,))
    firewall = merged([group, group])
    assert firewall is not None
    assert firewall.rules == (ssh,)
