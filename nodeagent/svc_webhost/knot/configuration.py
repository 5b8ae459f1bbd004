"""Renders Knot's configuration: the server's file, and one small file per zone next to it.

A zone is added by writing its file and removed by deleting it, followed by a reload: the files are the configuration,
also after a restart of Knot or of the host. Knot's journal alone stores the content of zones (`zonefile-load: none`);
the panel's records can recreate all of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

_ZONE_NAME: Final = re.compile(r"[a-z0-9_.-]+")
JOURNAL_MIB: Final = 1024
"""The size of a memory map, which is sparse until it is used: a zone takes some kilobytes of it."""


@dataclass(frozen=True)
class KnotSettings:
    """Where Knot listens; it answers everybody there and transfers zones to nobody."""

    listen: tuple[IPv4Address | IPv6Address, ...] = (IPv4Address("0.0.0.0"), IPv6Address("::"))  # noqa: S104
    port: int = 53
    user: str = "knot"
    group: str = "knot"


@dataclass(frozen=True)
class KnotFolders:
    folder: Path

    @property
    def configuration(self) -> Path:
        return self.folder / "knot.conf"

    @property
    def zones(self) -> Path:
        return self.folder / "zones"

    @property
    def database(self) -> Path:
        return self.folder / "db"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def socket(self) -> Path:
        return self.run / "knot.sock"

    @property
    def log(self) -> Path:
        return self.run / "knot.log"

    def zone(self, name: str) -> Path:
        return self.zones / f"{name}.conf"


def server_configuration(settings: KnotSettings, folders: KnotFolders) -> str:
    """Hides its version and name (`version.bind`, `id.server`): empty texts disable both."""
    listen = ", ".join(f'"{address}@{settings.port}"' for address in settings.listen)
    return f"""server:
    rundir: "{folders.run}"
    user: "{settings.user}:{settings.group}"
    listen: [ {listen} ]
    identity: ""
    version: ""
    udp-workers: 1
    tcp-workers: 1
    background-workers: 1

control:
    listen: "{folders.socket}"
    timeout: 10

log:
  - target: "stderr"
    any: "notice"

database:
    storage: "{folders.database}"
    journal-db-max-size: "{JOURNAL_MIB}M"

template:
  - id: "default"
    storage: "{folders.database}"
    zonefile-load: "none"
    zonefile-sync: "-1"
    journal-content: "all"
    serial-policy: "unixtime"
    semantic-checks: "on"

include: "{folders.zones}/*.conf"
"""


def zone_configuration(name: str) -> str:
    """`name` is in A-labels without the final dot."""
    if _ZONE_NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of a zone")
    return f'zone:\n  - domain: "{name}."\n'
