"""The desired state of the host's network, derived from the machines' records by pure functions: rules and taps are
both made from it.

A network that this host does not support is refused here, with the name of the missing feature, before the host is
changed. Invariant: no two networks that are planned at the same time overlap (`Holders`), so no address is routed to
two machines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from uuid import UUID

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.protocol import (
    FailureCode,
    Firewall,
    GuestAddress,
    NetworkAddress,
    NetworkSpec,
    NicSpec,
    Topology,
)

HOST_LINK_LOCAL = IPv6Address("fe80::1")
"""The host's address on each tap that carries IPv6. A guest's own link-local address is derived from its MAC, and is
never this one."""
LINK_LOCALS = IPv6Network("fe80::/64")
"""RFC 4291, section 2.5.6."""
LEAST_MTU_OF_IPV6 = 1280
"""RFC 8200, section 5. If a device's MTU is smaller, Linux removes IPv6 from it, with its addresses and settings."""


@dataclass(frozen=True)
class Uplink:
    """The bridge that bridged NICs are plugged into. `filters`: the kernel tracks connections in the bridge family;
    `vlans`: the bridge separates VLANs."""

    bridge: str
    filters: bool = False
    vlans: bool = False


@dataclass(frozen=True)
class TapPlan:
    """One guest's NIC: the device, its machine, and what it may carry."""

    device: str
    vm_id: UUID
    nic: NicSpec
    firewall: Firewall | None
    isolated: bool
    bridge: str | None = None

    @property
    def mac(self) -> str:
        return self.nic.mac

    @cached_property
    def networks(self) -> tuple[NetworkAddress, ...]:
        """The networks from which the guest may send; unless it is bridged, the host routes them to it."""
        return tuple(dict.fromkeys(address.network for address in self.nic.addresses))

    @cached_property
    def ipv4(self) -> tuple[IPv4Network, ...]:
        return tuple(network for network in self.networks if isinstance(network, IPv4Network))

    @cached_property
    def ipv6(self) -> tuple[IPv6Network, ...]:
        return tuple(network for network in self.networks if isinstance(network, IPv6Network))

    @property
    def link_local(self) -> IPv6Address:
        """The link-local address that is derived from the MAC: the host routes to it."""
        return link_local(self.mac)

    @property
    def link_locals(self) -> IPv6Network:
        """The link-local addresses from which the guest may send. Windows and NetworkManager choose theirs at random,
        so all are allowed if the guest is alone behind the tap. On a bridge only `link_local` is: any other may be a
        router's or a neighbour's."""
        return LINK_LOCALS if self.bridge is None else IPv6Network(self.link_local)

    @cached_property
    def gateways(self) -> tuple[IPv4Address | IPv6Address, ...]:
        """The addresses that the host answers for at this tap."""
        if self.bridge is not None:
            return ()
        own = (HOST_LINK_LOCAL,) if self.ipv6 else ()
        return tuple(dict.fromkeys((*own, *(ip_address(address.gateway) for address in self.nic.addresses))))

    @cached_property
    def nat4(self) -> tuple[IPv4Network, ...]:
        return tuple(
            address.network
            for address in self.nic.addresses
            if address.topology is Topology.NAT and isinstance(address.network, IPv4Network)
        )

    @cached_property
    def nat6(self) -> bool:
        return any(a.topology is Topology.NAT and a.network.version == 6 for a in self.nic.addresses)

    @cached_property
    def resolvers(self) -> tuple[IPv4Address | IPv6Address, ...]:
        """The addresses at which this host answers DNS for the NIC: those of its gateways that are its nameservers
        too."""
        asked = {ip_address(server) for server in self.nic.nameservers}
        return tuple(gateway for gateway in self.gateways if gateway in asked)

    @property
    def believes_in_neighbours(self) -> bool:
        """Whether the guest considers others to be on its link: the host then answers ARP for what it can route to."""
        return self.bridge is None and any(
            a.network.version == 4 and a.interface.network.prefixlen < a.network.prefixlen for a in self.nic.addresses
        )


@dataclass
class Holders:
    """The holder of each network, over all machines of the host."""

    _machines: dict[NetworkAddress, UUID] = field(default_factory=dict)
    _lengths: dict[tuple[int, int], int] = field(default_factory=dict)

    def claim(self, vm_id: UUID, networks: tuple[NetworkAddress, ...]) -> None:
        """Record the networks as held by a machine. Raises `HostError(conflict)`, without changing anything, if another
        machine holds one of them or a part of one."""
        for network in networks:
            other = self._overlapping(network, vm_id)
            if other is not None:
                raise HostError(
                    FailureCode.CONFLICT,
                    f"{text_of(network)} is already carried on this node for machine {other}; nothing was changed.",
                    "Release it there first.",
                )
        for network in networks:
            if network not in self._machines:
                self._machines[network] = vm_id
                length = (network.version, network.prefixlen)
                self._lengths[length] = self._lengths.get(length, 0) + 1

    def holder(self, network: NetworkAddress) -> UUID | None:
        return self._machines.get(network)

    def release(self, vm_id: UUID, networks: tuple[NetworkAddress, ...]) -> None:
        for network in networks:
            if self._machines.get(network) == vm_id:
                del self._machines[network]
                length = (network.version, network.prefixlen)
                self._lengths[length] -= 1
                if not self._lengths[length]:
                    del self._lengths[length]

    def _overlapping(self, network: NetworkAddress, vm_id: UUID) -> UUID | None:
        """Another machine that holds a network which overlaps this one. Wider networks are looked up, one for each
        prefix length in use; only narrower ones need a search through all."""
        for version, length in self._lengths:
            if version == network.version and length <= network.prefixlen:
                holder = self._machines.get(network.supernet(new_prefix=length))
                if holder not in (None, vm_id):
                    return holder
        if any(version == network.version and length > network.prefixlen for version, length in self._lengths):
            for held, holder in self._machines.items():
                if held.version == network.version and holder != vm_id and held.overlaps(network):
                    return holder
        return None


def plan(vm_id: UUID, network: NetworkSpec, naming: Naming, uplink: Uplink | None = None) -> tuple[TapPlan, ...]:
    """A machine's taps. Raises `HostError`: `unsupported` for what this host cannot carry, `conflict` for contradictory
    settings of a NIC."""
    return tuple(_tap(vm_id, nic, network, naming, uplink) for nic in network.nics)


def networks_of(network: NetworkSpec) -> tuple[NetworkAddress, ...]:
    return tuple(dict.fromkeys(address.network for nic in network.nics for address in nic.addresses))


def addresses_of(network: NetworkSpec) -> tuple[str, ...]:
    """The addresses of the network in the protocol's form, in the order of the NICs."""
    return tuple(text_of(each) for each in networks_of(network))


def without(network: NetworkSpec, addresses: frozenset[str]) -> NetworkSpec:
    """The same NICs without these addresses."""
    gone = {network_of(address) for address in addresses}

    def remaining(nic: NicSpec) -> NicSpec:
        return nic.model_copy(update={"addresses": tuple(each for each in nic.addresses if each.network not in gone)})

    return network.model_copy(update={"nics": tuple(remaining(nic) for nic in network.nics)})


def network_of(address: str) -> NetworkAddress:
    """An IPv4 address, or an IPv6 network, in the protocol's form."""
    return ip_network(address, strict=False)


def text_of(network: NetworkAddress) -> str:
    """IPv4 as the address alone; an IPv6 network with its prefix length."""
    alone = isinstance(network, IPv4Network) and network.prefixlen == network.max_prefixlen
    return str(network.network_address) if alone else str(network)


def link_local(mac: str) -> IPv6Address:
    """The link-local address derived from a MAC (RFC 4291, appendix A)."""
    octets = bytes.fromhex(mac.replace(":", ""))
    return IPv6Address(b"\xfe\x80" + bytes(6) + bytes([octets[0] ^ 2]) + octets[1:3] + b"\xff\xfe" + octets[3:])


def _tap(vm_id: UUID, nic: NicSpec, network: NetworkSpec, naming: Naming, uplink: Uplink | None) -> TapPlan:
    bridged = any(address.topology is Topology.BRIDGED for address in nic.addresses)
    if bridged and any(address.topology is not Topology.BRIDGED for address in nic.addresses):
        raise HostError(
            FailureCode.CONFLICT,
            f"NIC {nic.mac} has bridged addresses and others; a NIC is either plugged into a bridge or routed to.",
            "Give the machine a NIC for each.",
        )
    for address in nic.addresses:
        _check_address(address)
    if nic.vlan is not None and nic.addresses and not bridged:
        raise HostError(FailureCode.INVALID, f"NIC {nic.mac} needs VLAN {nic.vlan}, but is not plugged into a bridge.")
    if nic.mtu < LEAST_MTU_OF_IPV6 and any(address.network.version == 6 for address in nic.addresses):
        raise HostError(
            FailureCode.UNSUPPORTED,
            f"NIC {nic.mac} has an MTU of {nic.mtu}; IPv6 needs {LEAST_MTU_OF_IPV6} at least. Nothing was changed.",
            f"Give its network an MTU of {LEAST_MTU_OF_IPV6} or more, or take its IPv6 addresses away.",
        )
    nat = {address.topology for address in nic.addresses if address.network.version == 6}
    if len(nat) > 1:
        raise HostError(
            FailureCode.UNSUPPORTED,
            f"NIC {nic.mac} has both routed IPv6 networks and IPv6 networks behind NAT.",
        )
    return TapPlan(
        device=naming.tap(nic.nic_id),
        vm_id=vm_id,
        nic=nic,
        firewall=network.firewall,
        isolated=network.isolated,
        bridge=_bridge(nic, network, uplink) if bridged else None,
    )


def _bridge(nic: NicSpec, network: NetworkSpec, uplink: Uplink | None) -> str:
    if uplink is None:
        raise HostError(
            FailureCode.UNSUPPORTED,
            "This node has no bridge for bridged NICs.",
            "Start its agent with --bridge and the name of the bridge that holds the uplink.",
        )
    if network.firewall is not None and not uplink.filters:
        raise HostError(
            FailureCode.UNSUPPORTED,
            "This node's kernel does not track connections on a bridge (nf_conntrack_bridge), so a bridged machine "
            "cannot have security groups.",
            "Take the machine out of its groups, or give it a routed address.",
        )
    if nic.vlan is not None and not uplink.vlans:
        raise HostError(
            FailureCode.UNSUPPORTED,
            f"The bridge {uplink.bridge} of this node does not filter VLANs; the NIC asks for VLAN {nic.vlan}.",
        )
    return uplink.bridge


def _check_address(address: GuestAddress) -> None:
    if ip_address(address.gateway).version != address.network.version:
        raise HostError(FailureCode.INVALID, f"{address.gateway} is no gateway for {text_of(address.network)}.")
    if address.network.version == 4 and address.network.prefixlen != 32:
        raise HostError(FailureCode.INVALID, f"A NIC has single IPv4 addresses; {address.network} is a range.")
    if address.topology is Topology.BRIDGED or address.network.version == 4:
        return
    if address.interface.network.prefixlen < address.network.prefixlen:
        raise HostError(
            FailureCode.UNSUPPORTED,
            f"{address.interface} makes the guest look for IPv6 neighbours on its link, for whom this node does not "
            "answer.",
            "Let the pool's guests be configured with the length of their own network.",
        )
