"""The panel's core put together: the only place that knows all of its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio

from svc.cli.identity_loops import start_identity_loops
from svc.cli.panel.accounting import start_accounting
from svc.cli.panel.databases import compose_databases, run_databases
from svc.cli.service_alerts import ActorAlerts, LoopAlerts
from svc.identity.passwords import Passwords
from svc.identity.retention import remove_old_records
from svc.identity.settings import read_settings
from svc.panel import account_deletion, account_termination
from svc.panel.config import PanelConfig
from svc.panel.downloads import Downloads
from svc.panel.services import Panel
from svc_actors.host.accounts import Accounts
from svc_actors.host.apps import AppServing
from svc_actors.host.certificate_files import CertificateFiles
from svc_actors.host.challenge_files import ChallengeFiles
from svc_actors.host.confined_client import ConfinedFiles
from svc_actors.host.databases import DatabaseServers
from svc_actors.host.delegation import Delegations, RememberedDelegations
from svc_actors.host.disk_use import disk_use
from svc_actors.host.knot import NameServer
from svc_actors.host.launcher import Launcher
from svc_actors.host.launcher_keeper import KeeperLauncher
from svc_actors.host.nginx import WebServing
from svc_actors.host.php import PhpServing
from svc_actors.host.restic import Restic
from svc_actors.host.sftp import SftpServing
from svc_actors.host.site_runtime import prepare_shared_sockets
from svc_actors.host.site_tasks import SiteTasks
from svc_actors.host.wordpress import WordPressSites
from svc_actors.mail import Outbox
from svc_actors.outbound import Outbound, Resolve, resolve
from svc_actors.panel.accounts.disk_use import Measure
from svc_actors.panel.apps import SiteApp
from svc_actors.panel.apps.watch import AppWatch
from svc_actors.panel.backups import ROUND_SECONDS as BACKUPS_ROUND
from svc_actors.panel.backups import Backups, DatabaseBackups, Places, Tools
from svc_actors.panel.certificates.site_certificates import Serving, SiteCertificates
from svc_actors.panel.dns.watch import ROUND_SECONDS, ZoneWatch
from svc_actors.panel.dns.zone import DnsZone, Naming
from svc_actors.panel.files import COMPRESS, EXTRACT, FileWork, Uploads
from svc_actors.panel.jobs import Jobs
from svc_actors.panel.jobs.retention import REMOVAL_PERIOD, forget_old_jobs
from svc_actors.panel.schedules.scheduler import Scheduler
from svc_actors.panel.sftp import SftpAccess
from svc_actors.panel.sites import deletion, php_extensions
from svc_actors.panel.sites.deletion import SiteDeletion
from svc_actors.panel.sites.php_extensions import Extensions
from svc_actors.panel.sites.programs import SitePrograms
from svc_actors.panel.sites.resuming import RESUME_SECONDS, resume_sites
from svc_actors.panel.sites.serving import all_servers
from svc_actors.panel.sites.site import Site
from svc_actors.panel.web_server import WebServer
from svc_actors.panel.webhooks.dispatch import install_webhooks, run_webhooks
from svc_actors.panel.webhooks.endpoint import Clock, Delivering, utc_now
from svc_actors.panel.webhooks.receivers import Receivers
from svc_actors.panel.wordpress import creation
from svc_actors.panel.wordpress.creation import WordPressCreation
from svc_actors.panel.wordpress.database import WordPressDatabases
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import LANE, Database, EventLog, keep_repeating, keep_running
from svc_actors.tracing import ORIGIN

DRAIN_SECONDS = 10.0
RETENTION_PERIOD = 3600.0
COUNTED = ("audit_numbers",)
"""The views that count the lists whose numbers are kept."""


@dataclass(frozen=True)
class Host:
    """The server that sites run on, or a test's stand-in for it."""

    launcher: Launcher
    name_server: NameServer
    delegations: Delegations
    web: WebServing
    accounts: Accounts
    databases: DatabaseServers
    restic: Restic
    wordpress: WordPressSites
    php: PhpServing
    tasks: SiteTasks
    php_extensions: Extensions
    apps: AppServing
    sftp: SftpServing
    measure: Measure = disk_use
    resolve: Resolve = resolve
    clock: Clock = utc_now


@asynccontextmanager
async def open_services(
    config: PanelConfig,
    database: Database,
    host: Host,
    *,
    sealer: Sealer,
    passwords: Passwords | None = None,
    work: Mapping[str, object] | None = None,
) -> AsyncIterator[Panel]:
    """What operations use, running. No listener. `work` is that of further kinds of jobs."""
    await trio.to_thread.run_sync(prepare_shared_sockets, config.folders)
    alerts, loop_alerts = ActorAlerts(database), LoopAlerts(database)
    outbox = Outbox(sealer, config.mail, config.public_url)
    events = EventLog(database, alert=loop_alerts.notice)
    receivers = Receivers(
        Outbound(config.webhooks.networks, config.sites_https_port, host.resolve), config.webhooks.ca_file
    )
    delivering = Delivering(database, sealer, receivers, host.clock)
    authority = config.dns.authority(config.public_host)
    naming = Naming(database, host.name_server, authority)
    async with (
        ActorSystem.open(on_alert=alerts.notice, carried=(LANE, ORIGIN)) as actors,
        ConfinedFiles.open() as files,
        trio.open_nursery() as nursery,
    ):
        install_webhooks(actors, delivering)
        actors.register(DnsZone, lambda key: DnsZone(naming))
        zones = ZoneWatch(database, actors, host.name_server)
        await nursery.start(events.run)
        nursery.start_soon(keep_running, "alerts of actors", alerts.run, loop_alerts.notice)
        nursery.start_soon(keep_running, "alerts of loops", loop_alerts.run)
        if isinstance(host.launcher, KeeperLauncher):
            nursery.start_soon(keep_running, "keeper of programs", host.launcher.watch, loop_alerts.notice)
        certificates = _certificates(config, database, sealer, actors)
        # The web server is told of these files as soon as it starts.
        await certificates.restore_files()
        web_server = WebServer(database, host.web, lambda: all_servers(database, config.folders))
        nursery.start_soon(keep_running, "web server", web_server.run, loop_alerts.notice)
        programs = SitePrograms(database, host.php)
        nursery.start_soon(keep_running, "programs of sites", programs.run, loop_alerts.notice)
        actors.register(Site, lambda key: Site(database, host.accounts, programs, web_server, config.folders))
        actors.register(SiteApp, lambda key: SiteApp(database, host.apps))
        app_watch = AppWatch(database, actors, host.apps)
        nursery.start_soon(keep_running, "applications of sites", app_watch.run, loop_alerts.notice)
        nursery.start_soon(keep_running, "certificates of sites", certificates.run, loop_alerts.notice)
        jobs = Jobs(database, actors, alert=loop_alerts.notice)
        databases, transfers = compose_databases(config, database, host.databases, jobs)
        dumps = DatabaseBackups(database, databases)
        backups = Backups(Tools(database, sealer, host.restic, Places(config.folders), dumps), files)
        await backups.recover()
        backups.install(jobs)
        sftp = SftpAccess(database, events, host.sftp)
        nursery.start_soon(keep_running, "access by SFTP", sftp.run, loop_alerts.notice)
        removal = SiteDeletion(
            database,
            host.accounts,
            actors,
            programs,
            host.apps,
            certificates.forget,
            backups,
            transfers.remove_all,
            sftp.agree,
        )
        jobs.handle(deletion.KIND, removal, irrevocable=deletion.IRREVOCABLE)
        resume_all = partial(resume_sites, database, actors)
        extensions = php_extensions.ExtensionWork(database, host.php_extensions, resume_all)
        jobs.handle(php_extensions.KIND, extensions, irrevocable=php_extensions.IRREVOCABLE)
        make_database = WordPressDatabases(database, databases).make
        made = WordPressCreation(database, host.accounts, host.wordpress, make_database, actors, certificates)
        jobs.handle(creation.KIND, made, seconds=creation.SECONDS)
        for kind, done_by in (work or {}).items():
            jobs.handle(kind, done_by)
        for kind in (EXTRACT, COMPRESS):
            jobs.handle(kind, FileWork(database, files, config.folders))
        jobs.handle(account_deletion.KIND, account_deletion.AccountDeletion(database, backups.account_removed))
        jobs.handle(
            account_termination.KIND, account_termination.AccountTermination(database, actors, backups.account_removed)
        )
        # All work is known from here on: what was queued before a restart begins now.
        await nursery.start(jobs.run)
        await nursery.start(Scheduler(database, host.tasks, host.clock, loop_alerts.notice).run)
        run_databases(nursery, databases, transfers, loop_alerts.notice)
        await start_identity_loops(nursery, database, outbox, config.mail, COUNTED, loop_alerts.notice)
        retention = partial(_remove_what_is_old, database, events, config)
        nursery.start_soon(keep_repeating, "retention", RETENTION_PERIOD, retention, loop_alerts.notice)
        forget = partial(forget_old_jobs, database)
        nursery.start_soon(keep_repeating, "removal of old jobs", REMOVAL_PERIOD, forget, loop_alerts.notice)
        start_accounting(nursery, database, config.folders, host.measure, loop_alerts.notice)
        uploads = Uploads(database, files, config.folders)
        remove = uploads.remove_abandoned
        nursery.start_soon(keep_repeating, "removal of abandoned uploads", 3600.0, remove, loop_alerts.notice)
        compare = partial(keep_repeating, first_after=0)
        nursery.start_soon(compare, "backups", BACKUPS_ROUND, backups.round, loop_alerts.notice)
        nursery.start_soon(run_webhooks, actors, delivering, loop_alerts.notice)
        nursery.start_soon(compare, "zones", ROUND_SECONDS, zones.round, loop_alerts.notice)
        resume = partial(keep_repeating, first_after=0)
        nursery.start_soon(resume, "sites to resume", RESUME_SECONDS, resume_all, loop_alerts.notice)
        try:
            yield Panel(
                config=config,
                database=database,
                events=events,
                actors=actors,
                sealer=sealer,
                passwords=passwords or Passwords(),
                outbox=outbox,
                jobs=jobs,
                files=files,
                uploads=uploads,
                downloads=Downloads(),
                receivers=receivers,
                authority=authority,
                delegations=RememberedDelegations(host.delegations),
                php=host.php,
                php_extensions=host.php_extensions,
                certificates=certificates,
                clock=host.clock,
                sftp=sftp,
                databases=databases,
                transfers=transfers,
                apps=host.apps,
                wordpress=host.wordpress,
            )
        finally:
            with trio.CancelScope(shield=True, relative_deadline=2 * DRAIN_SECONDS + 5):
                await jobs.drain(DRAIN_SECONDS)
                await actors.drain(DRAIN_SECONDS)
            nursery.cancel_scope.cancel()


async def _remove_what_is_old(database: Database, events: EventLog, config: PanelConfig) -> None:
    await remove_old_records(database, events, config.data_dir, await read_settings(database))


def _certificates(config: PanelConfig, database: Database, sealer: Sealer, actors: ActorSystem) -> SiteCertificates:
    folders = config.folders
    return SiteCertificates(
        database,
        sealer,
        actors,
        CertificateFiles(folders.certificates),
        ChallengeFiles(folders.challenges),
        Serving("127.0.0.1", config.sites_https_port),
        config.acme,
    )
