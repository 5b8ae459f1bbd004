"""What a simulated host carries for its machines: applied networks, released addresses, counted bytes.

It keeps a real agent's promises: a generation older than the applied one changes nothing, a release names the addresses
that are no longer carried, readings only grow. `drift` makes it differ from its orders, for tests of how that is
noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from ipaddress import ip_interface
from typing import Final
from uuid import UUID

from pydantic import Field

from svc_nodeagent.protocol import (
    GuestAddress,
    NetworkAddress,
    NetworkSpec,
    ObservedNetwork,
    ObservedTap,
    ProbeResult,
    TrafficResult,
    Wire,
)
from svc_nodeagent.traffic import Ledger, TapReading

FEATURES: Final = ("nat", "routed", "bridged", "ipv6", "rate", "vlan", "bridge-conntrack")
_RECEIVED: Final = 1_000_000
_SENT: Final = 250_000
"""Bytes that each running machine transfers between two readings."""


class SimulatedNetwork(Wire):
    """The network of one simulated machine: what was applied, and what the host carries of it."""

    spec: NetworkSpec
    carried: tuple[str, ...]
    differences: tuple[str, ...] = ()


class NetworkState(Wire):
    """What outlives the process."""

    networks: dict[UUID, SimulatedNetwork] = Field(default_factory=dict)
    counters: dict[UUID, tuple[int, int]] = Field(default_factory=dict)
    ledger: str = ""


class SimulatedNetworks:
    def __init__(self, state: NetworkState) -> None:
        self.networks = dict(state.networks)
        self._counters = dict(state.counters)
        self._ledger = Ledger(state.ledger.encode() or None)
        if not state.ledger:
            self._ledger.observe((), datetime.now(UTC))  # Traffic from here on is counted.

    def state(self) -> NetworkState:
        return NetworkState(networks=self.networks, counters=self._counters, ledger=self._ledger.text().decode())

    def apply(self, vm_id: UUID, spec: NetworkSpec) -> int:
        """Returns the generation that the host has now."""
        before = self.networks.get(vm_id)
        if before is not None and before.spec.generation > spec.generation:
            return before.spec.generation
        carried = tuple(address_text(address) for address in _addresses(spec))
        self.networks[vm_id] = SimulatedNetwork(spec=spec, carried=carried)
        return spec.generation

    def release(self, vm_id: UUID, addresses: Iterable[str]) -> tuple[str, ...]:
        """Returns those that are not carried now, including those that never were."""
        named = {_network(address) for address in addresses}
        network = self.networks.get(vm_id)
        if network is not None:
            nics = tuple(
                nic.model_copy(update={"addresses": tuple(each for each in nic.addresses if each.network not in named)})
                for nic in network.spec.nics
            )
            self.networks[vm_id] = network.model_copy(
                update={
                    "spec": network.spec.model_copy(update={"nics": nics}),
                    "carried": tuple(each for each in network.carried if _network(each) not in named),
                }
            )
        return tuple(addresses)

    def remove(self, vm_id: UUID) -> tuple[str, ...]:
        """Remove the network of a deleted machine; returns the addresses that the host carried for it."""
        network = self.networks.pop(vm_id, None)
        return network.carried if network is not None else ()

    def drift(
        self, vm_id: UUID, *, carried: Iterable[str] | None = None, generation: int | None = None, differences: str = ""
    ) -> None:
        """Differ from the orders: carry other addresses, have another generation, or report a difference in words."""
        network = self.networks.get(vm_id) or SimulatedNetwork(spec=NetworkSpec(nics=()), carried=())
        spec = network.spec
        self.networks[vm_id] = SimulatedNetwork(
            spec=spec if generation is None else spec.model_copy(update={"generation": generation}),
            carried=network.carried if carried is None else tuple(carried),
            differences=(differences,) if differences else (),
        )

    def probe(self, running: Mapping[UUID, bool]) -> ProbeResult:
        """`running`: whether each of the host's machines runs."""
        taps = tuple(
            ObservedTap(
                device=f"svc{vm_id.hex[:11]}",
                vm_id=vm_id,
                up=running.get(vm_id, False),
                routes=network.carried,
                filtered=True,
                rate_mbps=network.spec.nics[0].rate_mbps if network.spec.nics else None,
            )
            for vm_id, network in self.networks.items()
        )
        machines = tuple(
            ObservedNetwork(
                vm_id=vm_id,
                generation=network.spec.generation,
                addresses=network.carried,
                isolated=network.spec.isolated,
                differences=network.differences,
            )
            for vm_id, network in self.networks.items()
        )
        return ProbeResult(taps=taps, machines=machines, ruleset_digest="simulated")

    def count(self, vm_id: UUID, *, received: int, sent: int) -> None:
        """Increase the machine's counters by so many bytes."""
        before = self._counters.get(vm_id, (0, 0))
        self._counters[vm_id] = before[0] + received, before[1] + sent

    def traffic(self, running: Iterable[UUID]) -> TrafficResult:
        """The ledger, after each running machine has transferred a little more."""
        for vm_id in running:
            self.count(vm_id, received=_RECEIVED, sent=_SENT)
        taps = [
            TapReading(device=str(vm_id), vm_id=vm_id, origin="simulated", received=received, sent=sent)
            for vm_id, (received, sent) in self._counters.items()
        ]
        self._ledger.observe(taps, datetime.now(UTC))
        return self._ledger.result()


def address_text(address: GuestAddress) -> str:
    """The address in the protocol's form."""
    network = address.network
    return str(network.network_address) if network.version == 4 else str(network)


def _addresses(spec: NetworkSpec) -> list[GuestAddress]:
    return [address for nic in spec.nics for address in nic.addresses]


def _network(text: str) -> NetworkAddress:
    return ip_interface(text).network
