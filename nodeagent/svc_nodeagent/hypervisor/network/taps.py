"""Taps, addresses, routes and kernel settings of the host, by iproute2 and /proc/sys.

A tap is persistent and outlives its guest's process. Its alias names its machine (`<table> vm <id>`), so that the
host's own listing shows it without our records. All of our routes lead to our taps; the kernel's own routes to taps
(link-local networks) are ignored.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_interface, ip_network
from pathlib import Path
from typing import Any
from uuid import UUID

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.plan import HOST_LINK_LOCAL, LEAST_MTU_OF_IPV6, TapPlan
from svc_nodeagent.hypervisor.programs import ProgramFailed, run_program, try_program
from svc_nodeagent.protocol import NetworkAddress

_SETTINGS = Path("/proc/sys/net")
_CLASS = Path("/sys/class/net")
_NEW_MTU = 1500


@dataclass(frozen=True)
class SeenTap:
    device: str
    alias: str
    up: bool
    mtu: int
    bridge: str | None
    gateways: frozenset[IPv4Interface | IPv6Interface]
    has_own_link_local: bool
    """Whether the kernel gives the tap an IPv6 address that it generates itself."""
    routes: frozenset[NetworkAddress]

    @property
    def vm_id(self) -> UUID | None:
        try:
            return UUID(self.alias.rpartition(" vm ")[2])
        except ValueError:
            return None


async def seen_taps(naming: Naming) -> dict[str, SeenTap]:
    """All taps of ours that the host has, with their configuration."""
    links = json.loads(await run_program("ip", "-json", "-details", "address", "show") or b"[]")
    routes = json.loads(await run_program("ip", "-json", "-4", "route", "show", "table", "main") or b"[]")
    if _has_ipv6():
        routes += json.loads(await run_program("ip", "-json", "-6", "route", "show", "table", "main") or b"[]")
    by_device: dict[str, list[dict[str, Any]]] = {}
    for route in routes:
        by_device.setdefault(str(route.get("dev")), []).append(route)
    named = [(str(link.get("ifname", "")), link) for link in links]
    return {device: _seen(link, by_device.get(device, ())) for device, link in named if naming.is_tap(device)}


async def seen_of(devices: Iterable[str]) -> dict[str, SeenTap]:
    """The taps among `devices` that the host has. The cost does not depend on how many other taps there are."""
    found = {}
    for device in dict.fromkeys(devices):
        if not exists(device):
            continue
        asked = f"address show dev {device}\nroute show table main dev {device}\n"
        try:
            link, routes = _several(await run_program("ip", "-json", "-details", "-batch", "-", stdin=asked.encode()))
            if _has_ipv6():
                routes += json.loads(
                    await run_program("ip", "-json", "-6", "route", "show", "table", "main", "dev", device) or b"[]"
                )
        except ProgramFailed:
            if exists(device):
                raise
        else:
            found[device] = _seen(link[0], routes)
    return found


async def create_taps(taps: Iterable[TapPlan], seen: dict[str, SeenTap], naming: Naming) -> None:
    """Create the devices, which are down at first: `additions` brings a device up once its rules are in place."""
    taps = list(taps)
    commands = []
    for tap in taps:
        there, alias = seen.get(tap.device), alias_of(tap, naming)
        if there is None:
            commands.append(f"tuntap add dev {tap.device} mode tap vnet_hdr")
            # The tap's MAC address is derived from the NIC's, so it is the same on every host: when its tap is created
            # anew, the guest still knows the address of its gateway.
            commands.append(f"link set dev {tap.device} address fe{tap.mac[2:]}")
        if there is None or (there.mtu, there.alias, there.has_own_link_local) != (tap.nic.mtu, alias, False):
            commands += _described(tap, alias, there.mtu if there is not None else _NEW_MTU)
    await change(commands)
    for tap in taps:
        for setting, value in _settings(tap):
            _set(setting, value)
        if tap.ipv6 and tap.bridge is None:
            _set(f"ipv6/conf/{tap.device}/disable_ipv6", "0")


def removals(taps: Iterable[TapPlan], seen: dict[str, SeenTap]) -> list[str]:
    """Commands that remove routes and addresses of these taps that are not in the plans, and that close taps which are
    not in the plans."""
    wanted = {tap.device: tap for tap in taps}
    commands = []
    for device, there in seen.items():
        tap = wanted.get(device)
        if tap is None:
            commands.append(f"link set dev {device} down")
            continue
        routes, gateways = routes_and_addresses(tap)
        commands += [f"route del {route} dev {device}" for route in sorted(there.routes - routes, key=str)]
        # Removed after the routes: removing a device's last address also removes its routes.
        commands += [f"address del {each} dev {device}" for each in there.gateways - gateways]
        if there.bridge is not None and there.bridge != tap.bridge:
            commands.append(f"link set dev {device} nomaster")
    return commands


def plugs(taps: Iterable[TapPlan], seen: dict[str, SeenTap]) -> list[str]:
    """Commands that plug taps into their bridge. A tap of a VLAN is down meanwhile, since a new port is in the bridge's
    default VLAN at first.

    If a tap's bridge has gone, or no longer separates VLANs, the tap is plugged into no bridge, so that it does not
    delay others."""
    commands = []
    for tap in taps:
        if _is_plugged_anew(tap, seen.get(tap.device)):
            commands += [f"link set dev {tap.device} down"] if tap.nic.vlan is not None else []
            commands.append(f"link set dev {tap.device} master {tap.bridge}")
    return commands


def additions(taps: Iterable[TapPlan], seen: dict[str, SeenTap]) -> list[str]:
    """Commands that add the routes and addresses of these taps and bring them up. To be run only once their rules are
    in place and they are plugged into their bridges.

    Routes and addresses in `seen` are added again if the kernel may have removed them together with an address."""
    commands = []
    for tap in taps:
        device, there = tap.device, seen.get(tap.device)
        routes, gateways = routes_and_addresses(tap)
        had = there.routes if there is not None and there.up and not there.gateways - gateways else frozenset()
        had_gateways = there.gateways if there is not None else frozenset()
        commands += [
            f"address replace {each} dev {device}{' nodad' if each.version == 6 else ''}"
            for each in sorted(gateways - had_gateways, key=str)
        ]
        if there is None or not there.up or _is_plugged_anew(tap, there):
            commands.append(f"link set dev {device} up")
        commands += [f"route replace {each} dev {device}" for each in tap.ipv4 if each in routes - had]
        if tap.ipv6 and tap.bridge is None:
            # The neighbour entry is permanent, so the host never asks for neighbours. Otherwise a scan of a network
            # could fill the neighbour table, which all guests share (RFC 6583).
            commands.append(f"neighbour replace {tap.link_local} lladdr {tap.mac} dev {device} nud permanent")
            commands += [f"route replace {each} via {tap.link_local} dev {device}" for each in tap.ipv6]
    return commands


def routes_and_addresses(tap: TapPlan) -> tuple[frozenset[NetworkAddress], frozenset[IPv4Interface | IPv6Interface]]:
    """The routes and the host's addresses at a tap."""
    routes = frozenset(() if tap.bridge is not None else tap.networks)
    return routes, frozenset(_interface(gateway) for gateway in tap.gateways)


def disable_host_ipv6(taps: Iterable[TapPlan]) -> None:
    """Disable the host's own IPv6 on the taps of NICs without IPv6. Called after the addresses were removed, since
    disabling would remove them too."""
    for tap in taps:
        if not tap.ipv6 or tap.bridge is not None:
            _set(f"ipv6/conf/{tap.device}/disable_ipv6", "1")


async def set_vlan(tap: TapPlan) -> None:
    """Put a bridged NIC into exactly one VLAN, untagged: its own, or the default of the bridge's ports. Only if the
    bridge filters VLANs."""
    if tap.bridge is None or not filters_vlans(tap.bridge):
        return
    own = tap.nic.vlan or int((_CLASS / tap.bridge / "bridge/default_pvid").read_text())
    listed = json.loads(await run_program("bridge", "-json", "vlan", "show", "dev", tap.device) or b"[]")
    there = {int(vlan["vlan"]) for port in listed for vlan in port.get("vlans", ())}
    for surplus in there - {own}:
        await run_program("bridge", "vlan", "del", "dev", tap.device, "vid", str(surplus))
    if own and own not in there:  # a bridge may have no default VLAN for its ports
        await run_program("bridge", "vlan", "add", "dev", tap.device, "vid", str(own), "pvid", "untagged")


async def remove_taps(devices: Iterable[str]) -> None:
    """Remove devices; their addresses and routes go with them."""
    for device in devices:
        try:
            await run_program("ip", "link", "del", "dev", device)
        except ProgramFailed:
            if exists(device):
                raise


async def is_routed(network: NetworkAddress, naming: Naming) -> bool:
    """Whether the host routes exactly this to a tap of ours."""
    status, output, error = await try_program(
        "ip", "-json", f"-{network.version}", "route", "show", "table", "main", "exact", str(network)
    )
    if status != 0:
        raise ProgramFailed("ip", status, error)
    return any(naming.is_tap(str(route.get("dev"))) for route in json.loads(output or b"[]"))


async def change(commands: list[str]) -> None:
    """Run several commands by one program; the first failure ends it."""
    if commands:
        await run_program("ip", "-batch", "-", stdin="\n".join(commands).encode())


def exists(device: str) -> bool:
    try:
        socket.if_nametoindex(device)
    except OSError:
        return False
    return True


def is_bridge(device: str) -> bool:
    return (_CLASS / device / "bridge").is_dir()


def filters_vlans(bridge: str) -> bool:
    filtering = _CLASS / bridge / "bridge/vlan_filtering"
    return filtering.exists() and filtering.read_text().strip() == "1"  # a kernel without VLANs has no such setting


def is_unplugged(tap: TapPlan) -> bool:
    """Whether the tap and its bridge exist, and the tap is no port of the bridge: the bridge went away and came
    back."""
    if tap.bridge is None or not _can_be_plugged(tap) or not exists(tap.device):
        return False
    return not (_CLASS / tap.bridge / "brif" / tap.device).exists()


def alias_of(tap: TapPlan, naming: Naming) -> str:
    return f"{naming.table} vm {tap.vm_id}"


def forwards() -> bool:
    return (_SETTINGS / "ipv4/ip_forward").read_text().strip() == "1"


def forward(*, ipv6: bool) -> None:
    """Let this host route for its guests. An uplink that learns its own IPv6 route from a router continues to learn it,
    although forwarding would normally end that (Linux: Documentation/networking/ip-sysctl, accept_ra)."""
    if not forwards():
        _set("ipv4/ip_forward", "1")
    everywhere = _SETTINGS / "ipv6/conf/all/forwarding"
    if not ipv6 or not everywhere.exists() or everywhere.read_text().strip() == "1":
        return
    for setting in sorted((_SETTINGS / "ipv6/conf").glob("*/accept_ra")):
        if setting.read_text().strip() == "1":
            setting.write_text("2")
    everywhere.write_text("1")


def _can_be_plugged(tap: TapPlan) -> bool:
    """Whether the NIC can be plugged in: a NIC of a VLAN must not be plugged into a bridge that does not separate
    VLANs."""
    if tap.bridge is None or not is_bridge(tap.bridge):
        return False
    return tap.nic.vlan is None or filters_vlans(tap.bridge)


def _is_plugged_anew(tap: TapPlan, there: SeenTap | None) -> bool:
    return _can_be_plugged(tap) and (there is None or there.bridge != tap.bridge)


def _described(tap: TapPlan, alias: str, mtu: int) -> list[str]:
    """Commands for a tap's MTU, its alias, and against an IPv6 address generated by the kernel.

    One command each: the kernel refuses a whole message with `addrgenmode` if the device has no IPv6, which depends on
    its MTU before and after."""
    device, wanted = tap.device, tap.nic.mtu
    no_address = [f"link set dev {device} addrgenmode none"] if _has_ipv6() else []
    commands = list(no_address) if mtu >= LEAST_MTU_OF_IPV6 else []
    commands.append(f'link set dev {device} mtu {wanted} alias "{alias}"')
    if mtu < LEAST_MTU_OF_IPV6 <= wanted:
        commands += no_address
    return commands


def _settings(tap: TapPlan) -> Iterator[tuple[str, str]]:
    device = tap.device
    yield f"ipv6/conf/{device}/accept_ra", "0"
    yield f"ipv6/conf/{device}/accept_redirects", "0"
    yield f"ipv4/conf/{device}/rp_filter", "1"
    yield f"ipv4/conf/{device}/accept_redirects", "0"
    yield f"ipv4/conf/{device}/send_redirects", "0"
    yield f"ipv4/conf/{device}/proxy_arp", "1" if tap.believes_in_neighbours else "0"
    yield f"ipv4/neigh/{device}/proxy_delay", "0"


def _seen(link: dict[str, Any], routes: Iterable[dict[str, Any]]) -> SeenTap:
    return SeenTap(
        device=link["ifname"],
        alias=link.get("ifalias", ""),
        up="UP" in link.get("flags", ()),
        mtu=link["mtu"],
        bridge=link.get("master"),
        gateways=frozenset(
            ip_interface(f"{each['local']}/{each['prefixlen']}")
            for each in link.get("addr_info", ())
            if "local" in each
        ),
        has_own_link_local=link.get("inet6_addr_gen_mode", "none") != "none",
        routes=frozenset(
            ip_network(route["dst"])
            for route in routes
            if route["dst"] != "default" and route.get("protocol") != "kernel"
        ),
    )


def _several(output: bytes) -> Iterator[list[dict[str, Any]]]:
    """The lists that a batch wrote, one a command."""
    decoder, text, position = json.JSONDecoder(), output.decode(), 0
    while position < len(text):
        value, end = decoder.raw_decode(text, position)
        yield value
        position = end + len(text[end:]) - len(text[end:].lstrip())


def _interface(address: IPv4Address | IPv6Address) -> IPv4Interface | IPv6Interface:
    return ip_interface(f"{address}/64" if address == HOST_LINK_LOCAL else address)


def _has_ipv6() -> bool:
    return (_SETTINGS / "ipv6").exists()


def _set(setting: str, value: str) -> None:
    path = _SETTINGS / setting
    if path.exists():  # a kernel without IPv6 has no such settings
        path.write_text(value)
