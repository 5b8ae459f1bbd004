"""The server that the sites run on, as the panel drives it."""

from __future__ import annotations

from dataclasses import dataclass, field

from svc_actors.certificates.keeper import OpenHttp
from svc_actors.panel.accounts.disk_use import Measure
from svc_actors.panel.imports.foreign_hosts import ForeignHosts, SystemForeignHosts
from svc_actors.panel.ports import Look
from svc_actors.panel.releases.own import OwnRelease
from svc_actors.panel.sites.php_extensions import Extensions
from svc_actors.webhooks.endpoint import Clock, utc_now
from svc_common.listening import listeners
from svc_common.outbound import Resolve, resolve
from svc_webhost.accounts import Accounts
from svc_webhost.apps import AppServing
from svc_webhost.databases import DatabaseServers
from svc_webhost.delegation import Delegations
from svc_webhost.disk_use import disk_use
from svc_webhost.knot import NameServer
from svc_webhost.launcher import SiteLauncher
from svc_webhost.mariadb.tables import StagedTables
from svc_webhost.nginx import WebServing
from svc_webhost.packages import DebianPackages, Packages
from svc_webhost.php import PhpServing
from svc_webhost.restic import Restic
from svc_webhost.sftp import SftpServing
from svc_webhost.site_tasks import SiteTasks
from svc_webhost.visitors import VisitorBound
from svc_webhost.vitals import SystemVitals, Vitals
from svc_webhost.wordpress import WordPressSites


@dataclass(frozen=True)
class Host:
    """This server (`svc.service.panel.server`), or a test's stand-in for it."""

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
    clock: Clock = utc_now
    foreign_hosts: ForeignHosts = field(default_factory=SystemForeignHosts)
    open_acme: OpenHttp | None = None
    """How certificate authorities are reached, if not as the settings say."""
