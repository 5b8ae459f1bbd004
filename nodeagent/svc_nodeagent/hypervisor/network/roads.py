"""The addresses that this host needs to reach others and to be reached. No machine's network may include them.

For each gateway of a guest the host gets an address at the guest's tap, and for each address of a guest a route to the
tap. If a machine gets the controller's address, the node cuts itself off from the controller, which can then send no
order to undo it; if it gets the next hop of the default route, the node is cut off from everybody. If it gets one of
the host's own addresses, the node is not cut off, but another host with the same pool of addresses would answer for
that address.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.plan import TapPlan, text_of
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import FailureCode, NetworkAddress

_RESOLVE_SECONDS: Final = 5.0
_FRESH_SECONDS: Final = 10.0
"""How long a result is reused. Otherwise a change of a thousand machines would resolve names three thousand times, and
a resolver that cannot be reached would make each of them wait for its deadline."""
_MOST: Final = 32
"""The most addresses that are sent to the controller, those first that would cut off the host: the controller knows the
host's own addresses anyway."""

Address = IPv4Address | IPv6Address


@dataclass(frozen=True)
class ProtectedAddresses:
    """The protected addresses, each with a text that says what it is. `elsewhere`: addresses of other hosts, without
    which this host is cut off."""

    elsewhere: Mapping[Address, str]
    own: Mapping[Address, str]

    def all(self) -> dict[Address, str]:
        return {**self.own, **self.elsewhere}

    def as_lacks(self) -> dict[str, str]:
        """The protected addresses in the form of `NodeFacts.network_lacks`."""
        most_important = [*self.elsewhere.items(), *self.own.items()][:_MOST]
        return {f"gateway:{address}": f"It is {meaning}." for address, meaning in most_important}


@dataclass
class ProtectedAddressFinder:
    """Finds the addresses of a host that no machine may take. `controller`: the name or address of its gateway. If that
    name does not resolve, no address is protected for the controller. Link-local addresses are not protected (fe80::1
    is that of many routers): a guest is on another link, so its address does not conflict."""

    naming: Naming
    controller: str | None = None
    _found: ProtectedAddresses | None = None
    _at: float = 0.0
    _looking: trio.Lock = field(default_factory=trio.Lock)

    async def find(self) -> ProtectedAddresses:
        async with self._looking:
            if self._found is None or trio.current_time() >= self._at + _FRESH_SECONDS:
                self._found, self._at = await self._look(), trio.current_time()
            return self._found

    async def _look(self) -> ProtectedAddresses:
        elsewhere = dict.fromkeys(await _resolved(self.controller), "the address of this node's controller")
        for family in ("-4", "-6"):
            for route in json.loads(await run_program("ip", "-json", family, "route", "show", "default") or b"[]"):
                for hop in _hops(route):
                    elsewhere.setdefault(ip_address(hop), "the next hop of this node's default route")
        own = {}
        for link in json.loads(await run_program("ip", "-json", "address", "show", "scope", "global") or b"[]"):
            for each in link.get("addr_info", ()):
                # Addresses that the scope filter leaves out are listed as empty objects.
                if "local" in each and not self.naming.is_tap(link.get("ifname", "")):
                    own[ip_address(each["local"])] = f"an address of this node ({link['ifname']})"
        return ProtectedAddresses(
            {address: what for address, what in elsewhere.items() if not address.is_link_local}, own
        )


def _hops(route: dict[str, object]) -> Iterator[str]:
    """The next hops of a route: if there are several, each is an object of its own; `via` has a next hop of the other
    family."""
    nexthops = route.get("nexthops", ())
    for hop in (route, *(nexthops if isinstance(nexthops, list) else ())):
        via = hop.get("via")
        if gateway := hop.get("gateway") or (via.get("host") if isinstance(via, dict) else None):
            yield str(gateway)


def require_unprotected_addresses(
    protected: Mapping[Address, str], taps: tuple[TapPlan, ...], held: Collection[NetworkAddress] = ()
) -> None:
    """Raise `HostError(conflict)` if the networks of these taps include a protected address. `held`: networks that the
    machine already has, which are allowed: the controller may itself be a guest of this node, and must be able to keep
    its address."""
    for tap in taps:
        if tap.bridge is not None:
            continue
        for address, meaning in protected.items():
            taken = next((network for network in tap.networks if address in network and network not in held), None)
            if address in tap.gateways or taken is not None:
                what = f"the gateway {address}" if taken is None else text_of(taken)
                raise HostError(
                    FailureCode.CONFLICT,
                    f"{what} cannot be carried here: {address} is {meaning}. Nothing was changed.",
                    "Give the pool another gateway or range, or name in node_ids the nodes that it serves.",
                )


async def _resolved(controller: str | None) -> list[Address]:
    if controller is None:
        return []
    with trio.move_on_after(_RESOLVE_SECONDS):
        try:
            answers = await trio.socket.getaddrinfo(controller, None, type=trio.socket.SOCK_STREAM)
        except OSError:
            return []
        found = [ip_address(str(place[0]).partition("%")[0]) for _, _, _, _, place in answers]
        return [address for address in found if not address.is_loopback]
    return []
