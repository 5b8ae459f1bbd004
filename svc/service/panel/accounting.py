"""The loops that count what customers use."""

from __future__ import annotations

from functools import partial

from svc.panel.loops import PanelLoops
from svc_actors.panel.accounts.disk_use import LOOK_SECONDS, DiskUse, Measure
from svc_actors.panel.accounts.traffic import ROUND_SECONDS, TrafficCount
from svc_actors.panel.databases.sizes import bytes_of_databases
from svc_actors.store import Database
from svc_webhost.databases import DatabaseServers
from svc_webhost.folders import HostFolders


def start_accounting(
    loops: PanelLoops, database: Database, folders: HostFolders, measure: Measure, servers: DatabaseServers
) -> None:
    sizes = partial(bytes_of_databases, database, servers)
    loops.repeat("disk use of sites", LOOK_SECONDS, DiskUse(database, folders, measure, sizes).round)
    loops.repeat("traffic of sites", ROUND_SECONDS, TrafficCount(database, folders).round)
