"""The loops that count what customers use."""

from __future__ import annotations

from svc.cli.panel.loops import Loops
from svc_actors.host.folders import HostFolders
from svc_actors.panel.accounts.disk_use import LOOK_SECONDS, DiskUse, Measure
from svc_actors.panel.accounts.traffic import ROUND_SECONDS, TrafficCount
from svc_actors.store import Database


def start_accounting(loops: Loops, database: Database, folders: HostFolders, measure: Measure) -> None:
    loops.repeat("disk use of sites", LOOK_SECONDS, DiskUse(database, folders, measure).round)
    loops.repeat("traffic of sites", ROUND_SECONDS, TrafficCount(database, folders).round)
