"""Where everything is in the matrix: three topologies, two families, two guests each, and somebody outside.

Guests lie beneath the host's taps; `OUTSIDE` is a router one hop from the host, which knows the way to every pool, also
to those that shall not be reached. Subnets are those that documentation may use, and private ones behind nat.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network, ip_address
from typing import Literal
from uuid import UUID, uuid5

from svc_nodeagent.protocol import GuestAddress, Topology

Family = Literal[4, 6]
FAMILIES: tuple[Family, ...] = (4, 6)
IpAddress = IPv4Address | IPv6Address

GUEST_DEVICE = "eth0"
UPLINK, BRIDGE = "up0", "br0"
BRIDGE_ADDRESSES: dict[Family, IpAddress] = {
    4: IPv4Address("192.0.2.2"),
    6: IPv6Address("2001:db8:b::2"),
}
UPLINK_ADDRESSES: dict[Family, IpAddress] = {
    4: IPv4Address("198.51.100.1"),
    6: IPv6Address("2001:db8:ffff::1"),
}
_HERE = UUID("6e0f5c02-6f8e-4d5c-9a53-5b8f4f6b7c11")


@dataclass(frozen=True, eq=False)
class Place:
    """Where packets come from and go to."""

    name: str
    addresses: dict[Family, IpAddress]
    device: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class GuestPlace(Place):
    """A guest with one NIC. `number` tells guests of a topology apart, in every address."""

    topology: Topology
    number: int
    given: tuple[GuestAddress, ...]

    @property
    def vm_id(self) -> UUID:
        return uuid5(_HERE, f"machine {self.name}")

    @property
    def nic_id(self) -> UUID:
        return uuid5(_HERE, f"NIC {self.name}")

    @property
    def mac(self) -> str:
        return f"52:54:00:{list(Topology).index(self.topology):02x}:00:{self.number:02x}"

    @property
    def link_local(self) -> IPv6Address:
        """Made from the MAC (RFC 4291, appendix A)."""
        octets = bytes.fromhex(self.mac.replace(":", ""))
        return IPv6Address(
            bytes.fromhex("fe80000000000000") + bytes([octets[0] ^ 2]) + octets[1:3] + b"\xff\xfe" + octets[3:]
        )

    def gateway(self, family: Family) -> IpAddress:
        return next(ip_address(each.gateway) for each in self.given if each.interface.version == family)


def address(topology: Topology, family: Family, number: int, *, primary: bool = False) -> GuestAddress:
    """The address of a pool that a guest of this number is given."""
    return (_address4 if family == 4 else _address6)(topology, number, primary)


def _address4(topology: Topology, number: int, primary: bool) -> GuestAddress:
    network = {
        Topology.NAT: IPv4Network("10.77.0.0/24"),
        Topology.ROUTED: IPv4Network("203.0.113.0/24"),
        Topology.BRIDGED: IPv4Network("192.0.2.0/24"),
    }[topology]
    own = network[number]
    # Behind nat the guest has a host's address and an on-link gateway; else it believes its neighbours on its link.
    on_link = topology is Topology.NAT
    return GuestAddress(
        interface=IPv4Interface((own, 32 if on_link else network.prefixlen)),
        network=IPv4Network(own),
        gateway=str(network[1]),
        on_link=on_link,
        topology=topology,
        primary=primary,
    )


def _address6(topology: Topology, number: int, primary: bool) -> GuestAddress:
    prefix, gateway = {
        Topology.NAT: ("fd77:0:0", "fe80::1"),
        Topology.ROUTED: ("2001:db8:77", "2001:db8:77::1"),
        Topology.BRIDGED: ("2001:db8:b", "2001:db8:b::1"),
    }[topology]
    network = IPv6Network(f"{prefix}:{number:x}::/64")
    return GuestAddress(
        interface=IPv6Interface((network[1], 64)),
        network=network,
        gateway=gateway,
        on_link=True,
        topology=topology,
        primary=primary,
    )


def _guest(topology: Topology, letter: str, number: int) -> GuestPlace:
    given = tuple(address(topology, family, number, primary=True) for family in FAMILIES)
    return GuestPlace(
        name=f"{topology}.{letter}",
        addresses={4: given[0].interface.ip, 6: given[1].interface.ip},
        device=GUEST_DEVICE,
        topology=topology,
        number=number,
        given=given,
    )


GUESTS: dict[Topology, tuple[GuestPlace, GuestPlace]] = {
    topology: (_guest(topology, "a", 0x0A), _guest(topology, "b", 0x0B)) for topology in Topology
}
ROUTED_POOLS = ("10.77.0.0/24", "203.0.113.0/24", "fd77::/48", "2001:db8:77::/48")
"""What `OUTSIDE` sends to the host's uplink."""
OUTSIDE = Place(
    name="outside",
    addresses={4: IPv4Address("198.51.100.9"), 6: IPv6Address("2001:db8:ffff::9")},
    device="out0",
)
OUTSIDE_ON_THE_BRIDGE = Place(
    name="bridge.outside",
    addresses={4: IPv4Address("192.0.2.1"), 6: IPv6Address("2001:db8:b::1")},
    device="out1",
)


def outside_of(topology: Topology) -> Place:
    """The other end of the uplink that guests of a topology use."""
    return OUTSIDE_ON_THE_BRIDGE if topology is Topology.BRIDGED else OUTSIDE
