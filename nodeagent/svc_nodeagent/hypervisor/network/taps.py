"""Taps, addresses, routes and kernel settings of the host, by iproute2 and /proc/sys.

A tap is persistent and outlives its guest's process. Its alias says whose it is (`<table> vm <id>`), so that the
host's own listing answers that question without our records. Routes of ours lie on our taps only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any
from uuid import UUID

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.plan import TapPlan
from svc_nodeagent.hypervisor.programs import ProgramFailed, run_program

_CLASS = Path("/sys/class/net")
_SETTINGS = Path("/proc/sys/net")


@dataclass(frozen=True)
class SeenTap:
    device: str
    vm_id: UUID | None
    up: bool
    gateways: frozenset[IPv4Address]
    routes: frozenset[IPv4Address]


async def seen_taps(naming: Naming) -> dict[str, SeenTap]:
    """The taps of ours that the host has, with what is configured on them."""
    links = json.loads(await run_program("ip", "-json", "address", "show") or b"[]")
    routes = json.loads(await run_program("ip", "-json", "-4", "route", "show", "table", "main") or b"[]")
    taps = {}
    for link in links:
        device = link.get("ifname", "")
        if not naming.is_tap(device):
            continue
        taps[device] = SeenTap(
            device=device,
            vm_id=_owner(device),
            up="UP" in link.get("flags", ()),
            gateways=frozenset(IPv4Address(a["local"]) for a in link.get("addr_info", ()) if a.get("family") == "inet"),
            routes=frozenset(IPv4Address(r["dst"]) for r in routes if r.get("dev") == device and _is_host_route(r)),
        )
    return taps


async def create_tap(tap: TapPlan, naming: Naming) -> None:
    """Make the device, down: it is brought up by `open_tap`, when its rules are in."""
    device, alias = tap.device, f"{naming.table} vm {tap.vm_id}"
    commands = [] if exists(device) else [f"tuntap add dev {device} mode tap vnet_hdr"]
    if (_seen(device, "mtu"), _seen(device, "ifalias")) != (str(tap.mtu), alias):
        commands.append(f'link set dev {device} mtu {tap.mtu} alias "{alias}"')
    await _change(commands)
    _set(f"ipv6/conf/{device}/disable_ipv6", "1")
    _set(f"ipv4/conf/{device}/rp_filter", "1")
    _set(f"ipv4/conf/{device}/accept_redirects", "0")
    _set(f"ipv4/conf/{device}/send_redirects", "0")
    _set(f"ipv4/conf/{device}/proxy_arp", "1" if tap.answers_for_neighbours else "0")


async def open_tap(tap: TapPlan, seen: SeenTap | None) -> None:
    """Bring the tap up and give it exactly its gateways and routes. Only after its rules are in."""
    device = tap.device
    gateways, routes = (seen.gateways, seen.routes) if seen else (frozenset[IPv4Address](), frozenset[IPv4Address]())
    surplus = gateways - frozenset(tap.gateways)
    commands = [f"route del {address}/32 dev {device}" for address in routes - frozenset(tap.addresses)]
    # After the routes: a device's last address takes them with it.
    commands += [f"address del {gateway}/32 dev {device}" for gateway in surplus]
    commands += [f"address replace {gateway}/32 dev {device}" for gateway in frozenset(tap.gateways) - gateways]
    if seen is None or not seen.up:
        commands.append(f"link set dev {device} up")
    missing = frozenset(tap.addresses) - (frozenset() if surplus else routes)
    commands += [f"route replace {address}/32 dev {device}" for address in missing]
    await _change(commands)


async def remove_taps(devices: Iterable[str]) -> None:
    """Remove devices; their addresses and routes go with them."""
    for device in devices:
        try:
            await run_program("ip", "link", "del", "dev", device)
        except ProgramFailed:
            if exists(device):
                raise


def exists(device: str) -> bool:
    return (_CLASS / device).exists()


def forwards() -> bool:
    return (_SETTINGS / "ipv4/ip_forward").read_text().strip() == "1"


def forward() -> None:
    """Guests are routed by this host."""
    if not forwards():
        _set("ipv4/ip_forward", "1")


async def _change(commands: list[str]) -> None:
    """Several changes by one program; the first that fails ends them."""
    if commands:
        await run_program("ip", "-batch", "-", stdin="\n".join(commands).encode())


def _set(setting: str, value: str) -> None:
    path = _SETTINGS / setting
    if path.exists():  # a kernel without IPv6 has no settings for it
        path.write_text(value)


def _owner(device: str) -> UUID | None:
    try:
        return UUID(_seen(device, "ifalias").rpartition(" vm ")[2])
    except ValueError:
        return None


def _seen(device: str, attribute: str) -> str:
    """What the kernel says of a device; "" when it has gone."""
    try:
        return (_CLASS / device / attribute).read_text().strip()
    except FileNotFoundError:
        return ""


def _is_host_route(route: dict[str, Any]) -> bool:
    return "/" not in route["dst"] and route["dst"] != "default"
