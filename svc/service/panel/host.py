"""The server that the sites run on, as the panel drives it: what starts its programs, and what each is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from svc.panel.config import PanelConfig
from svc_actors.certificates.keeper import OpenHttp
from svc_actors.panel.accounts.disk_use import Measure
from svc_actors.panel.imports.foreign_hosts import ForeignHosts, SystemForeignHosts
from svc_actors.panel.ports import Look
from svc_actors.panel.releases.own import OwnRelease, this_release
from svc_actors.panel.sites.php_extensions import Extensions
from svc_actors.webhooks.endpoint import Clock, utc_now
from svc_common.listening import listeners
from svc_common.outbound import Resolve, resolve
from svc_webhost.accounts import Accounts, SystemAccounts
from svc_webhost.apps import AppReleases, AppServing
from svc_webhost.databases import DatabaseServers, EngineKind
from svc_webhost.delegation import Delegations, ParentServers
from svc_webhost.disk_use import disk_use
from svc_webhost.knot import KnotServer, NameServer
from svc_webhost.launcher import SiteLauncher
from svc_webhost.launchers import launcher_of
from svc_webhost.mariadb import MariaDb
from svc_webhost.mariadb.tables import MariaDbTables, StagedTables
from svc_webhost.name_addresses import NameAddresses, name_addresses
from svc_webhost.nginx import Generations, Ports, WebServing
from svc_webhost.packages import DebianPackages, Packages
from svc_webhost.php import PhpMasters, PhpServing
from svc_webhost.php.extensions import PhpExtensions
from svc_webhost.postgres import Postgres
from svc_webhost.restic import Restic, SystemRestic
from svc_webhost.sftp import SftpServer, SftpServing
from svc_webhost.site_tasks import HostTasks, SiteTasks
from svc_webhost.txt_records import TxtRecords, txt_records
from svc_webhost.visitors import NftBound, VisitorBound
from svc_webhost.vitals import SystemVitals, Vitals
from svc_webhost.wordpress import PhpWordPressSites, WordPressSites, WordPressTree


@dataclass(frozen=True)
class Host:
    """This server (`this_server`), or a test's stand-in for it."""

    launcher: SiteLauncher
    name_server: NameServer
    delegations: Delegations
    web: WebServing
    accounts: Accounts
    databases: DatabaseServers
    tables: StagedTables
    restic: Restic
    wordpress: WordPressSites
    php: PhpServing
    tasks: SiteTasks
    php_extensions: Extensions
    apps: AppServing
    sftp: SftpServing
    visitors: VisitorBound
    measure: Measure = disk_use
    listeners: Look = listeners
    vitals: Vitals = field(default_factory=SystemVitals)
    packages: Packages = field(default_factory=DebianPackages)
    own_release: OwnRelease | None = None
    """The panel's own release, if its package installed it."""
    resolve: Resolve = resolve
    txt_records: TxtRecords = txt_records
    name_addresses: NameAddresses = name_addresses
    clock: Clock = utc_now
    foreign_hosts: ForeignHosts = field(default_factory=SystemForeignHosts)
    open_acme: OpenHttp | None = None
    """Opens the client for certificate authorities; None: as the settings say. Tests replace it."""


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
        wordpress=PhpWordPressSites(
            config.folders, launcher, WordPressTree(config.wordpress, config.folders.wordpress)
        ),
        php=PhpMasters(config.folders, launcher),
        apps=AppReleases(config.folders, launcher),
        tasks=HostTasks(config.folders, launcher, config.sites_http_port, config.sites_https_port),
        php_extensions=PhpExtensions(),
        sftp=SftpServer(config.folders, config.sftp, launcher),
        visitors=NftBound([config.sites_http_port, config.sites_https_port]),
        own_release=this_release(),
    )
