"""What the host's network shall be, derived from the machines' records: pure, so that rules and taps follow one truth.

This version carries IPv4 on the nat and routed topologies; everything else is refused here, by name, before the host is
touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from uuid import UUID

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.protocol import FailureCode, NetworkSpec, NicSpec, Topology


@dataclass(frozen=True)
class TapPlan:
    """One guest's card: the device, who is behind it, and the addresses it may speak from."""

    device: str
    vm_id: UUID
    mac: str
    mtu: int
    topology: Topology
    addresses: tuple[IPv4Address, ...]
    gateways: tuple[IPv4Address, ...]
    answers_for_neighbours: bool
    """The guest believes others to be on its link: the host answers ARP for what it can route to."""


def plan(networks: Mapping[UUID, NetworkSpec], naming: Naming) -> tuple[TapPlan, ...]:
    """Every tap that shall be. Raises `HostError`: `unsupported`, or `conflict` for an address in two hands."""
    taps = tuple(_tap(vm_id, nic, naming) for vm_id, network in sorted(networks.items()) for nic in network.nics)
    holders: dict[IPv4Address, TapPlan] = {}
    for tap in taps:
        for address in tap.addresses:
            if address in holders:
                raise HostError(
                    FailureCode.CONFLICT,
                    f"{address} is already carried on this node for machine {holders[address].vm_id}.",
                    "Release it there first.",
                )
            holders[address] = tap
    return taps


def addresses_of(network: NetworkSpec) -> tuple[str, ...]:
    return tuple(str(address.interface.ip) for nic in network.nics for address in nic.addresses)


def without(network: NetworkSpec, addresses: frozenset[str]) -> NetworkSpec:
    """The same cards without these addresses."""
    return NetworkSpec(
        nics=tuple(
            nic.model_copy(
                update={"addresses": tuple(kept for kept in nic.addresses if str(kept.interface.ip) not in addresses)}
            )
            for nic in network.nics
        )
    )


def _tap(vm_id: UUID, nic: NicSpec, naming: Naming) -> TapPlan:
    if nic.topology is Topology.BRIDGED:
        raise HostError(
            FailureCode.UNSUPPORTED, "This node carries nat and routed networks; the card asks for a bridged one."
        )
    addresses, gateways = [], []
    neighbours = False
    for address in nic.addresses:
        if not isinstance(address.interface, IPv4Interface):
            raise HostError(FailureCode.UNSUPPORTED, f"This node carries IPv4; {address.interface} is not.")
        addresses.append(address.interface.ip)
        gateways.append(IPv4Address(address.gateway))
        neighbours |= address.interface.network.prefixlen < 32
    return TapPlan(
        device=naming.tap(nic.nic_id),
        vm_id=vm_id,
        mac=nic.mac,
        mtu=nic.mtu,
        topology=nic.topology,
        addresses=tuple(addresses),
        gateways=tuple(dict.fromkeys(gateways)),
        answers_for_neighbours=neighbours,
    )
