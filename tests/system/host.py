"""What this host itself says: domains, taps, routes, rules and files, asked with its own tools.

Only what belongs to the tests' own agent is told, by the beginning of its name.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.system.stack import PREFIX


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def domains() -> set[str]:
    """Ids of the machines that have a libvirt domain, running or not."""
    names = _output("virsh", "-q", "list", "--all", "--name").split()
    return {name.removeprefix(f"{PREFIX}-") for name in names if name.startswith(f"{PREFIX}-")}


def taps() -> set[str]:
    links = json.loads(_output("ip", "-j", "link", "show"))
    return {link["ifname"] for link in links if link["ifname"].startswith(PREFIX)}


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
