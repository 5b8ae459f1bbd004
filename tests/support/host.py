"""What this host itself says: domains, taps, routes, rules and files, asked with its own tools.

Only what belongs to the tests' own agent is told and touched, by the prefix of its names.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def domains(prefix: str) -> set[str]:
    """Ids of the machines that have a libvirt domain, running or not."""
    names = _output("virsh", "-q", "list", "--all", "--name").split()
    return {name.removeprefix(f"{prefix}-") for name in names if name.startswith(f"{prefix}-")}


def taps(prefix: str) -> set[str]:
    """Taps, and the shapers of those that are held to a rate."""
    links = json.loads(_output("ip", "-j", "link", "show"))
    return {link["ifname"] for link in links if link["ifname"].startswith((prefix, f"_{prefix}"))}


def tables(prefix: str) -> list[tuple[str, str]]:
    """Family and name of the nftables tables, those of rates among them."""
    listed = (line.split() for line in _output("nft", "list", "tables").splitlines())
    return [(family, name) for _, family, name in listed if name.startswith(prefix)]


def clear(prefix: str) -> None:
    """Remove what a test has left."""
    for vm_id in domains(prefix):
        subprocess.run(["virsh", "-q", "destroy", f"{prefix}-{vm_id}"], capture_output=True, check=False)
        subprocess.run(["virsh", "-q", "undefine", f"{prefix}-{vm_id}"], capture_output=True, check=False)
    clear_network(prefix)


def clear_network(prefix: str) -> None:
    """Taps, the routes and shapers that go with them, and tables of rules."""
    for tap in taps(prefix):
        _output("ip", "link", "delete", tap)
    for table in tables(prefix):
        _output("nft", "delete", "table", *table)


def routes_to(address: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(_output("ip", "-j", "route", "show", "table", "all", "to", address))
    return [route for route in found if route.get("dst") == address]


def ruleset() -> str:
    return _output("nft", "list", "ruleset")


def machine_files(node_data: Path, vm_id: str) -> list[Path]:
    return sorted(path for path in node_data.rglob("*") if vm_id in str(path))


def pings(address: str) -> bool:
    command = ("ping", "-c", "3", "-i", "0.2", "-W", "2", address)
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
