"""The databases of sites put together, and their loops."""

from __future__ import annotations

from functools import partial

import trio

from svc.panel.config import PanelConfig
from svc_actors.host.databases import DatabaseServers
from svc_actors.panel.databases import RESUME_SECONDS, SiteDatabases
from svc_actors.panel.databases.transfers import EXPORT, IMPORT, SWEEP_SECONDS, DatabaseTransfers
from svc_actors.panel.jobs import Jobs
from svc_actors.store import Database, LoopAlert, keep_repeating


def compose_databases(
    config: PanelConfig, database: Database, servers: DatabaseServers, jobs: Jobs
) -> tuple[SiteDatabases, DatabaseTransfers]:
    databases = SiteDatabases(database, servers)
    transfers = DatabaseTransfers(database, databases, config.folders)
    for kind in (EXPORT, IMPORT):
        jobs.handle(kind, transfers)
    return databases, transfers


def run_databases(
    nursery: trio.Nursery, databases: SiteDatabases, transfers: DatabaseTransfers, alert: LoopAlert
) -> None:
    at_once = partial(keep_repeating, first_after=0)
    nursery.start_soon(at_once, "databases to resume", RESUME_SECONDS, databases.resume, alert)
    nursery.start_soon(at_once, "removal of old exports", SWEEP_SECONDS, transfers.sweep, alert)
