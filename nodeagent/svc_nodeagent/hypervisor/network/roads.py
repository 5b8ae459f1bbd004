"""The addresses by which this host reaches others and is reached: no machine's network may take them.

A gateway is an address of the host at the guest's tap, and a guest's address is a route to it. Where one of them is the
controller's, the node cuts itself off and can no longer be told to undo it; where it is the next hop of the default
route, it is cut off from everybody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address

import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.plan import TapPlan, text_of
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import FailureCode

_RESOLVE_SECONDS = 5.0

Roads = Mapping[IPv4Address | IPv6Address, str]
"""What each address is to this host, in words."""


async def roads(naming: Naming, controller: str | None) -> Roads:
    """`controller`: the name or address of its gateway. A name that resolves to nothing has no road to keep, and an
    address of one link alone (fe80::1 is many a router's) takes nothing from another link."""
    found: dict[IPv4Address | IPv6Address, str] = {}
    for family in ("-4", "-6"):
        for route in json.loads(await run_program("ip", "-json", family, "route", "show", "default") or b"[]"):
            # Of several next hops at once, each has an object of its own.
            for hop in (route, *route.get("nexthops", ())):
                # `via`: one of the other family.
                if gateway := hop.get("gateway") or hop.get("via", {}).get("host"):
                    found[ip_address(gateway)] = "the next hop of this node's default route"
    for link in json.loads(await run_program("ip", "-json", "address", "show", "scope", "global") or b"[]"):
        if naming.is_tap(link.get("ifname", "")):
            continue
        for each in link.get("addr_info", ()):
            if "local" in each:  # what the scope leaves out stays as an empty object
                found[ip_address(each["local"])] = f"an address of this node ({link['ifname']})"
    for address in await _resolved(controller):
        found[address] = "the address of this node's controller"
    return {address: meaning for address, meaning in found.items() if not address.is_link_local}


def spare(roads: Roads, taps: tuple[TapPlan, ...]) -> None:
    """Raises `HostError(conflict)` where these taps would take one of the roads."""
    for tap in taps:
        if tap.bridge is not None:
            continue
        for address, meaning in roads.items():
            taken = next((network for network in tap.networks if address in network), None)
            if address in tap.gateways or taken is not None:
                what = f"the gateway {address}" if taken is None else text_of(taken)
                raise HostError(
                    FailureCode.CONFLICT,
                    f"{what} cannot be carried here: {address} is {meaning}. Nothing was changed.",
                    "Give the pool another gateway or range, or name in node_ids the nodes that it serves.",
                )


async def _resolved(controller: str | None) -> list[IPv4Address | IPv6Address]:
    if controller is None:
        return []
    with trio.move_on_after(_RESOLVE_SECONDS):
        try:
            answers = await trio.socket.getaddrinfo(controller, None, type=trio.socket.SOCK_STREAM)
        except OSError:
            return []
        return [
            ip for _, _, _, _, place in answers if not (ip := ip_address(str(place[0]).partition("%")[0])).is_loopback
        ]
    return []
