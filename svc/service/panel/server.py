"""The server that the panel runs on: what starts its programs, and what each program is given."""

from __future__ import annotations

from pathlib import Path

from svc.panel.config import PanelConfig
from svc.service.panel.host import Host
from svc_actors.panel.releases.own import this_release
from svc_webhost.accounts import SystemAccounts
from svc_webhost.apps import AppReleases
from svc_webhost.databases import DatabaseServers, EngineKind
from svc_webhost.delegation import ParentServers
from svc_webhost.knot import KnotServer
from svc_webhost.launchers import launcher_of
from svc_webhost.mariadb import MariaDb
from svc_webhost.mariadb.tables import MariaDbTables
from svc_webhost.nginx import Generations, Ports
from svc_webhost.php import PhpMasters
from svc_webhost.php.extensions import PhpExtensions
from svc_webhost.postgres import Postgres
from svc_webhost.restic import SystemRestic
from svc_webhost.sftp import SftpServer
from svc_webhost.site_tasks import HostTasks
from svc_webhost.visitors import NftBound
from svc_webhost.wordpress import ServerWordPress, WordPressTree


def this_server(config: PanelConfig) -> Host:
    """The drivers of this server. Nothing is started yet."""
    launcher = launcher_of(config.folders)
    mariadb = MariaDb(config.folders, launcher)
    databases: DatabaseServers = {
        EngineKind.MARIADB: mariadb,
        EngineKind.POSTGRESQL: Postgres(config.folders, launcher),
    }
    ports = Ports(config.sites_http_port, config.sites_https_port, ipv6=Path("/proc/net/if_inet6").exists())
    return Host(
        launcher=launcher,
        name_server=KnotServer(config.folders.knot, config.dns.knot, launcher),
        delegations=ParentServers(),
        web=Generations(config.folders, launcher, ports),
        accounts=SystemAccounts(config.folders),
        databases=databases,
        tables=MariaDbTables(mariadb),
        restic=SystemRestic(),
        wordpress=ServerWordPress(config.folders, launcher, WordPressTree(config.wordpress, config.folders.wordpress)),
        php=PhpMasters(config.folders, launcher),
        apps=AppReleases(config.folders, launcher),
        tasks=HostTasks(config.folders, launcher, config.sites_http_port, config.sites_https_port),
        php_extensions=PhpExtensions(),
        sftp=SftpServer(config.folders, config.sftp, launcher),
        visitors=NftBound([config.sites_http_port, config.sites_https_port]),
        own_release=this_release(),
    )
