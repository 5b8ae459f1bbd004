"""Data of sites besides their files: databases with their exports and imports, and backups of everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from svc.panel.backups.configuration import what_is_allowed
from svc.panel.config import PanelConfig
from svc.panel.services import PanelLoop, PanelLoops
from svc.service.panel.host import Host
from svc_actors.panel.backups import (
    ROUND_SECONDS,
    Allowed,
    Backups,
    ConfigurationRestore,
    DatabaseBackups,
    Places,
    Tools,
)
from svc_actors.panel.certificates.site_certificates import SiteCertificates
from svc_actors.panel.databases import RESUME_SECONDS, SiteDatabases
from svc_actors.panel.databases.transfers import SWEEP_SECONDS, DatabaseTransfers
from svc_actors.panel.staging.tools import Tools as StagingTools
from svc_actors.panel.staging.undoing import ROUND_SECONDS as UNDO_SECONDS
from svc_actors.panel.staging.undoing import PushRollback
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.databases import EngineKind
from svc_webhost.databases.memory import LOOK_SECONDS

_MEMORY: Final[Mapping[EngineKind, PanelLoop]] = {
    EngineKind.MARIADB: "memory of database sessions (mariadb)",
    EngineKind.POSTGRESQL: "memory of database sessions (postgresql)",
}


@dataclass(frozen=True)
class SiteData:
    databases: SiteDatabases
    transfers: DatabaseTransfers
    backups: Backups
    staging: StagingTools
    undoing: PushRollback


async def recover_site_data(
    config: PanelConfig,
    database: Database,
    host: Host,
    sealer: Sealer,
    files: ConfinedFiles,
    *,
    actors: ActorSystem,
    certificates: SiteCertificates,
) -> SiteData:
    """Undo and clean up what interrupted work of an earlier core has left. Called before any job starts."""
    databases = SiteDatabases(database, host.databases)
    dumps = DatabaseBackups(database, databases)

    async def allowed() -> Allowed:
        return what_is_allowed(config, await host.php.versions())

    configuration = ConfigurationRestore(database, actors, certificates, allowed, sealer)
    tools = Tools(database, sealer, host.restic, Places(config.folders), dumps)
    backups = Backups(tools, files, configuration, host.accounts)
    await backups.recover()
    staging = StagingTools(database, config.folders, databases, host.wordpress, host.tables, actors)
    undoing = PushRollback(staging)
    await undoing.recover()
    return SiteData(databases, DatabaseTransfers(database, databases, config.folders, tools), backups, staging, undoing)


def start_site_data(loops: PanelLoops, data: SiteData) -> None:
    loops.repeat_from_now("databases to resume", RESUME_SECONDS, data.databases.resume)
    for kind in EngineKind:
        # One loop for each engine, so that an engine that hangs, or whose connections have to be ended, does not delay
        # the others.
        look = partial(data.databases.end_greedy, kind)
        loops.repeat_from_now(_MEMORY[kind], LOOK_SECONDS, look)
    loops.repeat_from_now("removal of old exports", SWEEP_SECONDS, data.transfers.sweep)
    loops.repeat_from_now("pushes to undo", UNDO_SECONDS, data.undoing.round)
    for name, work in data.backups.rounds().items():
        loops.repeat_from_now(name, ROUND_SECONDS, work)
