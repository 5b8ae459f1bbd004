"""Every database server that sites can have databases in."""

from __future__ import annotations

from svc_actors.host.databases import DatabaseServers, EngineKind
from svc_actors.host.folders import HostFolders
from svc_actors.host.launcher import SiteLauncher
from svc_actors.host.mariadb import MariaDb
from svc_actors.host.postgres import Postgres


def database_servers(folders: HostFolders, launcher: SiteLauncher) -> DatabaseServers:
    return {EngineKind.MARIADB: MariaDb(folders, launcher), EngineKind.POSTGRESQL: Postgres(folders, launcher)}
