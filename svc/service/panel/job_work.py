"""The work of every kind of job: the parts of the panel that do it."""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path

from svc.panel.accounts import deletion as account_deletion
from svc.panel.accounts import termination as account_termination
from svc.panel.config import PanelConfig
from svc.panel.services import PanelLoops
from svc.service.panel.host import Host
from svc.service.panel.served_sites import ServedSites
from svc.service.panel.site_data import SiteData
from svc_actors.panel import handover
from svc_actors.panel.apps import deploying
from svc_actors.panel.databases.transfers import EXPORT, IMPORT
from svc_actors.panel.files import COMPRESS, EXTRACT, FileWork
from svc_actors.panel.imports import analysing, applying, fetching, verifying
from svc_actors.panel.imports.applied import Parts as ImportParts
from svc_actors.panel.imports.contents import Contents
from svc_actors.panel.imports.fetching import ForeignSites
from svc_actors.panel.imports.zone_checks import ZoneChecks
from svc_actors.panel.jobs import Jobs
from svc_actors.panel.releases.sources import FolderSource, HttpsSource, Source
from svc_actors.panel.releases.watch import DAILY_SECONDS, ROUND_SECONDS, ReleaseWatch
from svc_actors.panel.releases.work import INSTALL as INSTALL_RELEASE
from svc_actors.panel.releases.work import LOOK as LOOK_FOR_RELEASES
from svc_actors.panel.releases.work import ReleaseWork
from svc_actors.panel.repairs import Parts, Repair
from svc_actors.panel.repairs import work as repairs
from svc_actors.panel.repairs.certificate import SiteCertificatePart
from svc_actors.panel.repairs.databases import Databases
from svc_actors.panel.repairs.permissions import Permissions
from svc_actors.panel.repairs.serving import Configuration, Runtime
from svc_actors.panel.repairs.zones import Zones
from svc_actors.panel.sites import deletion, php_extensions
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.resuming import resume_sites
from svc_actors.panel.staging import copying, pushing
from svc_actors.panel.updates.work import INSTALL, IRREVOCABLE, LOOK, UpdateWork
from svc_actors.panel.wordpress import creation
from svc_actors.panel.wordpress.database import WordPressDatabases
from svc_actors.panel.wordpress.records import write_incomplete
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_common.outbound import Outbound
from svc_webhost.certificate_files import CertificateFiles
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.folders import HostFolders
from svc_webhost.releases.layout import Ports


def handle_jobs(
    jobs: Jobs,
    database: Database,
    host: Host,
    folders: HostFolders,
    sealer: Sealer,
    *,
    actors: ActorSystem,
    files: ConfinedFiles,
    served: ServedSites,
    data: SiteData,
    parts: Parts,
    outbound: Outbound,
    authorities: Path | None,
) -> None:
    """Register the handler of every kind of job, before the queues are served: a job without a handler would fail.
    `outbound`: where repositories of code may be; `authorities`: which certificate authorities are trusted for these
    servers."""
    wordpress_databases = WordPressDatabases(database, data.databases)
    wordpress = creation.WordPressCreation(
        database,
        host.accounts,
        host.wordpress,
        wordpress_databases.make,
        actors,
        served.certificates,
        host.clock,
    )
    jobs.handle(creation.KIND, wordpress, seconds=creation.SECONDS)

    handed_over = handover.SiteHandover(
        database, host.wordpress, wordpress_databases, data.databases, served.sftp.agree, sealer
    )
    jobs.handle(handover.KIND, handed_over, irrevocable=handover.IRREVOCABLE)

    async def remove_databases(site: SiteRow) -> None:
        await database.transact(lambda tx: write_incomplete(tx, site.id))
        await data.transfers.remove_all(site)

    removal = deletion.SiteDeletion(
        database,
        host.accounts,
        actors,
        served.programs,
        host.apps,
        served.certificates.forget,
        data.backups,
        remove_databases,
        served.sftp.agree,
    )
    jobs.handle(deletion.KIND, removal, irrevocable=deletion.IRREVOCABLE)

    remove_backups = data.backups.account_removed
    jobs.handle(account_deletion.KIND, account_deletion.AccountDeletion(database, remove_backups))
    jobs.handle(account_termination.KIND, account_termination.AccountTermination(database, actors, remove_backups))

    resume = partial(resume_sites, database, actors)
    extensions = php_extensions.ExtensionWork(database, host.php_extensions, resume)
    jobs.handle(php_extensions.KIND, extensions, irrevocable=php_extensions.IRREVOCABLE)

    jobs.handle(repairs.KIND, repairs.RepairWork(database, parts), seconds=repairs.SECONDS)

    updates = UpdateWork(database, host.packages, host.launcher, host.tasks, parts[Repair.RUNTIME].mend)
    jobs.handle(INSTALL, updates, irrevocable=IRREVOCABLE)
    jobs.handle(LOOK, updates)
    deployment = deploying.AppDeployment(database, actors, files, folders, host.launcher, outbound, sealer, authorities)
    jobs.handle(deploying.KIND, deployment, seconds=deploying.SECONDS)
    copies = copying.StagingCopy(data.staging, host.accounts, wordpress_databases.make)
    for kind in (copying.CREATE, copying.REFRESH):
        jobs.handle(kind, copies, seconds=copying.SECONDS)
    pushes = pushing.StagingPush(data.staging, data.undoing, data.backups.back_up_before, host.tasks)
    jobs.handle(pushing.PUSH, pushes, seconds=pushing.SECONDS)

    for kind in (EXTRACT, COMPRESS):
        jobs.handle(kind, FileWork(database, files, folders))
    for kind in (EXPORT, IMPORT):
        jobs.handle(kind, data.transfers)
    data.backups.install(jobs)


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
    parts = ImportParts(
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


def repaired_parts(
    config: PanelConfig,
    database: Database,
    host: Host,
    sealer: Sealer,
    *,
    actors: ActorSystem,
    served: ServedSites,
    data: SiteData,
) -> Parts:
    folders = config.folders
    files = CertificateFiles(folders.certificates)
    return {
        Repair.PERMISSIONS: Permissions(host.accounts),
        Repair.CONFIGURATION: Configuration(database, actors, folders, host.web, host.php),
        Repair.RUNTIME: Runtime(database, actors, host.php, host.apps),
        Repair.CERTIFICATE: SiteCertificatePart(database, actors, sealer, files, served.serving, served.certificates),
        Repair.DNS: Zones(database, actors, host.name_server, config.dns.authority(config.public_host)),
        Repair.DATABASE: Databases(database, data.databases),
    }


# The panel's own releases: where newer ones come from, and the supervision of trials.
async def start_releases(config: PanelConfig, database: Database, host: Host, jobs: Jobs, loops: PanelLoops) -> None:
    """Called before jobs start."""
    work = ReleaseWork(
        database,
        host.own_release,
        _source(config.update_source),
        config.socket,
        Ports(config.port, config.sites_http_port),
    )
    for kind in (INSTALL_RELEASE, LOOK_FOR_RELEASES):
        jobs.handle(kind, work)
    watch = ReleaseWatch(database, host.own_release, offered=config.update_source is not None)
    await watch.withdraw_stale_order()
    if host.own_release is not None:
        loops.repeat_from_now("trials of releases", ROUND_SECONDS, watch.round)
        loops.repeat("releases of the panel", DAILY_SECONDS, watch.look_daily)


def _source(named: str | None) -> Source | None:
    if named is None:
        return None
    if named.startswith("/"):
        return FolderSource(Path(named))
    return HttpsSource(named.rstrip("/"), ssl.create_default_context())
