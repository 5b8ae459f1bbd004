"""Firewalls as tests write them."""

from __future__ import annotations

from ipaddress import ip_network

from svc_nodeagent.protocol import Action, Direction, Firewall, FirewallRule, TransportProtocol
from tests.system.network.places import Family, IpAddress

_PROTOCOLS = {"any": TransportProtocol.ANY, "tcp": TransportProtocol.TCP, "udp": TransportProtocol.UDP}
_PROTOCOLS["icmp"] = TransportProtocol.ICMP


def firewall(*rules: FirewallRule, ingress: Action = Action.DROP, egress: Action = Action.ACCEPT) -> Firewall:
    return Firewall(default_ingress=ingress, default_egress=egress, rules=rules)


def rule(
    direction: Direction,
    protocol: str = "any",
    ports: tuple[int, int] | int | None = None,
    *,
    action: Action = Action.ACCEPT,
    family: Family | None = None,
    other: IpAddress | str | None = None,
    icmp_type: int | None = None,
) -> FirewallRule:
    """`other`: the other side's address or network."""
    cidr = None if other is None else ip_network(str(other))
    return FirewallRule(
        direction=direction,
        action=action,
        protocol=_PROTOCOLS[protocol],
        family=cidr.version if cidr else family,
        ports=(ports, ports) if isinstance(ports, int) else ports,
        cidr=cidr,
        icmp_type=icmp_type,
    )
