"""The loops that count what customers use."""

from __future__ import annotations

from functools import partial

import trio

from svc_actors.host.folders import HostFolders
from svc_actors.panel.accounts.disk_use import LOOK_SECONDS, DiskUse, Measure
from svc_actors.panel.accounts.traffic import ROUND_SECONDS, TrafficCount
from svc_actors.store import Database, LoopAlert, keep_repeating


def start_accounting(
    nursery: trio.Nursery, database: Database, folders: HostFolders, measure: Measure, alert: LoopAlert
) -> None:
    disk, traffic = DiskUse(database, folders, measure), TrafficCount(database, folders)
    repeat = partial(keep_repeating, alert=alert)
    nursery.start_soon(repeat, "disk use of sites", LOOK_SECONDS, disk.round)
    nursery.start_soon(repeat, "traffic of sites", ROUND_SECONDS, traffic.round)
