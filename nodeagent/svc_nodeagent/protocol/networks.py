"""A machine's network: the desired state in the records, and what a host observes.

`NetworkSpec` is complete: addresses, topology, firewall and rate of one machine, which `vm.net.apply` applies together
(specification, "What the service does", 6).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal
from uuid import UUID

from pydantic import AfterValidator, Field, model_validator

from svc_nodeagent.protocol.values import (
    FEW,
    MANY,
    Address,
    AnyText,
    Count,
    Generation,
    GuestInterface,
    MacAddress,
    Moment,
    Name,
    NetworkAddress,
    Size,
    Text,
    Topology,
    Wire,
)

Port = Annotated[int, Field(ge=0, le=65535)]
Period = Annotated[AnyText, Field(pattern=r"^\d{4}-(0[1-9]|1[0-2])$")]
"""A calendar month, UTC: YYYY-MM."""


class GuestAddress(Wire):
    """`interface` is what the guest configures (address and prefix); `network` is what the host routes to the guest and
    accepts as its source: the address alone (/32), or an IPv6 sub-prefix. On a nat or routed topology the host answers
    for `gateway` at the guest's tap; on a bridged one another router does."""

    interface: GuestInterface
    network: NetworkAddress
    gateway: Address
    on_link: bool
    topology: Topology
    primary: bool = False


class Direction(StrEnum):
    """The direction from the guest's point of view: `ingress` is traffic to the guest."""

    INGRESS = "ingress"
    EGRESS = "egress"


class Action(StrEnum):
    ACCEPT = "accept"
    DROP = "drop"


class TransportProtocol(StrEnum):
    """`icmp` is ICMP or ICMPv6, by the rule's family."""

    ANY = "any"
    TCP = "tcp"
    UDP = "udp"
    ICMP = "icmp"


class FirewallRule(Wire):
    """A rule about a guest's traffic. `cidr` is the other end. Ports are destination ports, only for TCP and UDP;
    `icmp_type` is only for ICMP of one family. Family None means both."""

    direction: Direction
    action: Action = Action.ACCEPT
    protocol: TransportProtocol
    family: Literal[4, 6] | None = None
    ports: tuple[Port, Port] | None = None
    cidr: NetworkAddress | None = None
    icmp_type: Annotated[int, Field(ge=0, le=255)] | None = None

    @model_validator(mode="after")
    def _agrees(self) -> FirewallRule:
        if self.ports is not None:
            if self.protocol not in (TransportProtocol.TCP, TransportProtocol.UDP):
                raise ValueError("only TCP and UDP have ports")
            if self.ports[0] > self.ports[1]:
                raise ValueError("the ports end before they start")
        if self.icmp_type is not None and (self.protocol is not TransportProtocol.ICMP or self.family is None):
            raise ValueError("only ICMP has types, and they differ by family")
        if self.cidr is not None and self.family != self.cidr.version:
            raise ValueError("the rule's family is not that of its cidr")
        return self


class Firewall(Wire):
    """The rules of all security groups of a machine together. Replies to accepted traffic always pass; then a matching
    `drop` rule takes precedence over any `accept`; traffic that no rule matches gets the default of its direction."""

    default_ingress: Action
    default_egress: Action
    rules: Annotated[tuple[FirewallRule, ...], Field(max_length=MANY)] = ()


class NicSpec(Wire):
    """`rate_mbps`: megabits a second each way; None is no cap. `vlan` only on a bridged topology."""

    nic_id: UUID
    mac: MacAddress
    addresses: Annotated[tuple[GuestAddress, ...], Field(max_length=FEW)]
    nameservers: Annotated[tuple[Address, ...], Field(max_length=FEW)] = ()
    mtu: Count = 1500
    rate_mbps: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    vlan: Annotated[int, Field(ge=1, le=4094)] | None = None


class NetworkSpec(Wire):
    """`generation` grows with every change of the record: a host that has applied a later generation ignores an earlier
    one. Without `firewall` only spoofing is filtered; `isolated` blocks all traffic, whatever the firewall says."""

    nics: Annotated[tuple[NicSpec, ...], Field(max_length=FEW)]
    firewall: Firewall | None = None
    isolated: bool = False
    generation: Generation = 0


# Observations of the host


class Spoof(StrEnum):
    """Why a frame of a guest was dropped at its tap. `protocol`: neither IPv4, IPv6 nor ARP."""

    MAC = "mac"
    IPV4 = "ipv4"
    IPV6 = "ipv6"
    ARP = "arp"
    NEIGHBOUR = "neighbour"
    ROUTER = "router"
    DHCP = "dhcp"
    PROTOCOL = "protocol"


class ObservedTap(Wire):
    """A tap whose name follows our scheme. `vm_id` None: no machine's. `routes`: networks that the host routes to it.
    `filtered`: its frames pass the rules against spoofing first. `dropped`: dropped frames since the tap was created,
    by reason."""

    device: Name
    vm_id: UUID | None
    up: bool
    routes: Annotated[tuple[Address, ...], Field(max_length=FEW)]
    filtered: bool
    rate_mbps: Count | None = None
    dropped: dict[Spoof, Size] = Field(default_factory=dict)


class ObservedNetwork(Wire):
    """One machine's network on its host. `addresses`: networks that are routed and let through. `differences`: a
    sentence for each difference between the host and the ordered network; empty if they match."""

    vm_id: UUID
    generation: Generation
    addresses: Annotated[tuple[Address, ...], Field(max_length=FEW)]
    isolated: bool
    differences: Annotated[tuple[Text, ...], AfterValidator(lambda told: told[:FEW])] = ()


class GuestTold(StrEnum):
    """Whether the guest has configured the addresses. `told`: it has, by its agent. `at_boot`: it reads them at its
    next start, since it is off or its agent did not answer."""

    TOLD = "told"
    AT_BOOT = "at_boot"


class TrafficReading(Wire):
    """Bytes of one machine in one month (UTC), counted at its taps on this host. They are lower bounds, and only grow.
    `resets`: how often the counters restarted (with the guest or the host); `samples`: how often they were read."""

    vm_id: UUID
    period: Period
    received: Size
    sent: Size
    resets: Size
    samples: Size
    first_at: Moment
    last_at: Moment
