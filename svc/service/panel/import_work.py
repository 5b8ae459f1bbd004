"""The work of imports: the parts of the panel that create sites from an archive."""

from __future__ import annotations

from svc.panel.config import PanelConfig
from svc.service.panel.host import Host
from svc.service.panel.served_sites import ServedSites
from svc.service.panel.site_data import SiteData
from svc_actors.panel.imports import analysing, applying, fetching, verifying
from svc_actors.panel.imports.applied import Parts
from svc_actors.panel.imports.contents import Contents
from svc_actors.panel.imports.fetching import ForeignSites
from svc_actors.panel.imports.zone_checks import ZoneChecks
from svc_actors.panel.jobs import Jobs
from svc_actors.panel.wordpress.database import WordPressDatabases
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database
from svc_common.outbound import Outbound
from svc_webhost.confined_client import ConfinedFiles


def handle_imports(
    jobs: Jobs,
    config: PanelConfig,
    database: Database,
    host: Host,
    *,
    actors: ActorSystem,
    files: ConfinedFiles,
    served: ServedSites,
    data: SiteData,
    outbound: Outbound,
    foreign_sites: ForeignSites,
) -> None:
    analysis = analysing.ImportAnalysis(database, config.folders)
    jobs.handle(analysing.KIND, analysis, seconds=analysing.SECONDS)
    fetch = fetching.ImportFetch(foreign_sites, analysis, config.folders)
    jobs.handle(fetching.KIND, fetch, seconds=fetching.SECONDS)
    parts = Parts(
        database=database,
        actors=actors,
        files=files,
        folders=config.folders,
        databases=data.databases,
        tables=host.tables,
        wordpress=WordPressDatabases(database, data.databases),
        certificates=served.certificates,
        php_versions=host.php.versions,
        addresses=config.dns.site_addresses(),
        clock=host.clock,
    )
    ports = verifying.SitesPorts(config.sites_http_port, config.sites_https_port)
    verification = verifying.MigrationVerification(
        database,
        files,
        config.folders,
        outbound,
        ports,
        Contents(database, host.tables, host.php_extensions.loaded),
        ZoneChecks(database, parts.addresses, outbound.resolve),
    )
    jobs.handle(verifying.KIND, verification, seconds=verifying.SECONDS)
    jobs.handle(applying.KIND, applying.ImportApplication(parts), seconds=applying.SECONDS)
