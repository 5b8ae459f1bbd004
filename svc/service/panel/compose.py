"""Composes the panel's core: the only place that knows all of its parts.

Parts open in the order of their dependencies: events and alerts first, then what serves the sites, then jobs, whose
work uses all of it, and the loops that resume what an earlier core has left. They close in reverse order: running jobs
are given time to end, then actors, then work in progress on the server; the loops are cancelled last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Final

import trio

from svc.identity.passwords import Passwords
from svc.identity.retention import remove_old_records
from svc.identity.settings import read_settings
from svc.panel.config import PanelConfig
from svc.panel.mail.notices import telling_owners
from svc.panel.services import Panel, PanelLoop, PanelLoops
from svc.registry.downloads import Downloads
from svc.service.alerts import ActorAlerts, LoopAlerts
from svc.service.identity_loops import add_identity_loops
from svc.service.panel.host import Host
from svc.service.panel.job_work import handle_imports, handle_jobs, repaired_parts, start_releases
from svc.service.panel.recovery import Recovering, start_recovery
from svc.service.panel.served_sites import serve_sites
from svc.service.panel.site_data import recover_site_data, start_site_data
from svc_actors.alerts import close_alert
from svc_actors.mail import Delivery, Outbox
from svc_actors.mail.alert import SITE_MAIL, DeliveryAlert
from svc_actors.panel.accounts.disk_use import LOOK_SECONDS as DISK_USE_SECONDS
from svc_actors.panel.accounts.disk_use import DiskUse, Measure
from svc_actors.panel.accounts.traffic import ROUND_SECONDS as TRAFFIC_SECONDS
from svc_actors.panel.accounts.traffic import TrafficCount
from svc_actors.panel.databases.sizes import bytes_of_databases
from svc_actors.panel.dns.pointing import PublicNames
from svc_actors.panel.dns.proving import Proving
from svc_actors.panel.dns.watch import ROUND_SECONDS as ZONES_SECONDS
from svc_actors.panel.dns.watch import ZoneWatch
from svc_actors.panel.dns.zone import DnsZone, ZoneServices
from svc_actors.panel.files import Uploads
from svc_actors.panel.handover import ROUND_SECONDS as HANDOVER_SECONDS
from svc_actors.panel.handover import retry_handovers
from svc_actors.panel.health.busiest import TopConsumers
from svc_actors.panel.health.checks import Checks
from svc_actors.panel.health.watch import ROUND_SECONDS as HEALTH_SECONDS
from svc_actors.panel.health.watch import HealthWatch
from svc_actors.panel.host_work import HostWork
from svc_actors.panel.imports.fetching import ForeignSites
from svc_actors.panel.imports.uploads import SWEEP_SECONDS as IMPORTS_SECONDS
from svc_actors.panel.imports.uploads import Imports
from svc_actors.panel.jobs import Jobs
from svc_actors.panel.jobs.retention import REMOVAL_PERIOD, forget_old_jobs
from svc_actors.panel.mail.holds import LOOK_SECONDS as HOLDS_SECONDS
from svc_actors.panel.mail.holds import release_ended_holds
from svc_actors.panel.mail.intake import Intake
from svc_actors.panel.mail.keys import SWEEP_SECONDS as DKIM_SECONDS
from svc_actors.panel.mail.keys import DkimKeys
from svc_actors.panel.mail.queue import SWEEP_SECONDS, QueuedSiteMails, remove_ended_site_mails
from svc_actors.panel.mail.signing import Signatures
from svc_actors.panel.mail.spool import Spool
from svc_actors.panel.recovery.sites import make_accounts
from svc_actors.panel.repairs import Diagnosis, Repair
from svc_actors.panel.repairs.permissions import Permissions
from svc_actors.panel.schedules.scheduler import Scheduler
from svc_actors.panel.sites.resuming import RESUME_SECONDS, resume_sites
from svc_actors.panel.stepped_back import ROUND_SECONDS as UNRECORDED_SECONDS
from svc_actors.panel.stepped_back import UnrecordedSites
from svc_actors.panel.updates.work import ROUND_SECONDS as UPDATES_SECONDS
from svc_actors.panel.updates.work import check_daily
from svc_actors.panel.webhooks import after_round
from svc_actors.panel.wordpress.cron import ROUND_SECONDS as CRON_SECONDS
from svc_actors.panel.wordpress.cron import WordPressCron
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import LANE, Database, EventLog
from svc_actors.tracing import ORIGIN
from svc_actors.webhooks.dispatch import Dispatcher, add_webhook_loops
from svc_actors.webhooks.endpoint import DeliveryServices
from svc_actors.webhooks.receivers import Receivers
from svc_common.outbound import Outbound
from svc_webhost.accounts import NICENESS_OF_A_LOOK
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.databases import DatabaseServers
from svc_webhost.delegation import RememberedDelegations
from svc_webhost.folders import HostFolders
from svc_webhost.launcher_keeper import KeeperLauncher
from svc_webhost.mail import socket_of
from svc_webhost.site_runtime import prepare_shared_sockets
from svc_webhost.txt_records import RememberedTexts

DRAIN_SECONDS = 10.0
COUNTED = ("audit_numbers",)
"""The views that count the lists with maintained counts."""

RECORDS_SECONDS: Final = 3600.0
UPLOADS_SECONDS: Final = 3600.0


@asynccontextmanager
async def open_services(
    config: PanelConfig,
    database: Database,
    host: Host,
    *,
    sealer: Sealer,
    passwords: Passwords | None = None,
    work: Mapping[str, object] | None = None,
    recovering: Recovering | None = None,
    enabled_loops: Collection[PanelLoop] | None = None,
) -> AsyncIterator[Panel]:
    """The running services that operations use, without a listener. `work` has the handlers of further kinds of jobs.
    Without `recovering` no manifest is written. Only the `enabled_loops` run, or all with None."""
    folders = config.folders
    await trio.to_thread.run_sync(partial(prepare_shared_sockets, folders, relay=config.mail is not None))
    alerts, loop_alerts = ActorAlerts(database), LoopAlerts(database)
    outbox = Outbox(sealer, config.mail, config.public_url)
    events = EventLog(database, alert=loop_alerts.notice)
    outbound = Outbound(config.webhooks.networks, config.sites_https_port, host.resolve)
    receivers = Receivers(outbound, config.webhooks.ca_file)
    delivering = DeliveryServices(database, sealer, receivers, after_round, host.clock)
    authority = config.dns.authority(config.public_host)
    await make_accounts(database, host.accounts)
    async with (
        HostWork.open(alerts.notice) as host_work,
        ActorSystem.open(on_crash=alerts.notice, carried=(LANE, ORIGIN)) as actors,
        ConfinedFiles.open() as files,
        trio.open_nursery() as nursery,
    ):
        loops = PanelLoops(nursery, loop_alerts.notice, enabled_loops)
        naming = ZoneServices(database, host.name_server, authority, host_work)
        actors.register(DnsZone, lambda _: DnsZone(naming))
        await loops.start("events", events.run)
        loops.keep("alerts of actors", alerts.run)
        loops.keep_untold("alerts of loops", loop_alerts.run)
        if isinstance(host.launcher, KeeperLauncher):
            loops.keep("keeper of programs", host.launcher.watch)
        delegations = RememberedDelegations(host.delegations)
        served = await serve_sites(
            config,
            database,
            host,
            sealer=sealer,
            events=events,
            actors=actors,
            host_work=host_work,
            loops=loops,
            proving=Proving(database, actors, authority, delegations),
            outbox=outbox,
        )

        data = await recover_site_data(
            config, database, host, sealer, files, actors=actors, certificates=served.certificates
        )
        parts = repaired_parts(config, database, host, sealer, actors=actors, served=served, data=data)
        jobs = Jobs(database, actors, alert=loops.alert)
        handle_jobs(
            jobs,
            database,
            host,
            folders,
            sealer,
            actors=actors,
            files=files,
            served=served,
            data=data,
            parts=parts,
            outbound=outbound,
            authorities=config.webhooks.ca_file,
        )
        imports = Imports(database, files, folders)
        foreign_sites = ForeignSites(database, sealer, host.foreign_hosts, outbound, imports)
        handle_imports(
            jobs,
            config,
            database,
            host,
            actors=actors,
            files=files,
            served=served,
            data=data,
            outbound=outbound,
            foreign_sites=foreign_sites,
        )
        await start_releases(config, database, host, jobs, loops)
        manifests = start_recovery(config, database, host, sealer, jobs, actors, data, loops, recovering)
        for kind, done_by in (work or {}).items():
            jobs.handle(kind, done_by)
        # All kinds of work are registered by now: jobs that were queued before a restart start here.
        await loops.start("jobs", jobs.run)

        await loops.start("schedules", Scheduler(database, host.tasks, host.clock, loops.alert).run)
        start_site_data(loops, data)
        loops.repeat_from_now("zones", ZONES_SECONDS, ZoneWatch(database, actors, host.name_server).round)
        loops.repeat_from_now("sites to resume", RESUME_SECONDS, partial(resume_sites, database, actors))
        loops.repeat_from_now("handovers of sites", HANDOVER_SECONDS, partial(retry_handovers, database))
        cron = WordPressCron(database, host.wordpress, host.clock)
        loops.repeat_from_now("cron of WordPress", CRON_SECONDS, cron.round)
        dkim_keys = DkimKeys(database, actors, sealer)
        loops.keep("keys of mail", dkim_keys.run)
        loops.repeat("replaced keys of mail", DKIM_SECONDS, dkim_keys.sweep)
        webhooks = Dispatcher(delivering, nursery, alerts.notice)
        add_webhook_loops(loops, webhooks, delivering)
        uploads = Uploads(database, files, folders)
        loops.repeat_from_now("removal of old imports", IMPORTS_SECONDS, imports.sweep)
        start_accounting(loops, database, folders, host.measure, host.databases)
        ports = (config.sites_http_port, config.sites_https_port)
        busiest = TopConsumers(database, host.vitals, host.databases, data.databases.ended, ports)
        checks = Checks(
            database,
            host.launcher,
            host.name_server,
            host.vitals,
            host.databases,
            config.data_dir,
            busiest,
            relay=config.mail is not None,
        )
        loops.repeat("health", HEALTH_SECONDS, HealthWatch(database, checks.all()).round)
        loops.repeat("updates of packages", UPDATES_SECONDS, partial(check_daily, database))
        loops.repeat("sites without a record", UNRECORDED_SECONDS, UnrecordedSites(database, folders).round)
        start_retention(loops, config, database, events, uploads)
        await start_site_mail(loops, config, database, sealer, outbox)
        await add_identity_loops(loops, database, outbox, config.mail, COUNTED)
        try:
            yield Panel(
                config=config,
                database=database,
                events=events,
                actors=actors,
                sealer=sealer,
                passwords=passwords or Passwords(),
                outbox=outbox,
                dkim_keys=dkim_keys,
                jobs=jobs,
                files=files,
                uploads=uploads,
                imports=imports,
                foreign_sites=foreign_sites,
                downloads=Downloads(),
                receivers=receivers,
                authority=authority,
                delegations=delegations,
                txt_records=RememberedTexts(host.txt_records),
                public_names=PublicNames(host.name_addresses, host.clock, nursery),
                php=host.php,
                php_extensions=host.php_extensions,
                certificates=served.certificates,
                clock=host.clock,
                sftp=served.sftp,
                manifests=manifests,
                databases=data.databases,
                transfers=data.transfers,
                apps=host.apps,
                diagnosis=Diagnosis({**parts, Repair.PERMISSIONS: Permissions(host.accounts, NICENESS_OF_A_LOOK)}),
                wordpress=host.wordpress,
                staging=data.staging,
                packages=host.packages,
                own_release=host.own_release,
                loops=loops,
            )
        finally:
            with trio.CancelScope(shield=True, relative_deadline=4 * DRAIN_SECONDS + 5):
                await webhooks.drain(DRAIN_SECONDS)
                await jobs.drain(DRAIN_SECONDS)
                await actors.drain(DRAIN_SECONDS)
                await host_work.drain(DRAIN_SECONDS)
            nursery.cancel_scope.cancel()


def start_accounting(
    loops: PanelLoops, database: Database, folders: HostFolders, measure: Measure, servers: DatabaseServers
) -> None:
    sizes = partial(bytes_of_databases, database, servers)
    loops.repeat("disk use of sites", DISK_USE_SECONDS, DiskUse(database, folders, measure, sizes).round)
    loops.repeat("traffic of sites", TRAFFIC_SECONDS, TrafficCount(database, folders).round)


async def start_site_mail(
    loops: PanelLoops, config: PanelConfig, database: Database, sealer: Sealer, outbox: Outbox
) -> None:
    spool = Spool(config.folders.mail_spool)
    await trio.to_thread.run_sync(spool.prepare)
    intake = Intake(
        database,
        socket_of(config.folders),
        spool,
        signatures=Signatures(sealer),
        relay=config.mail is not None,
        tell_owner=telling_owners(outbox),
    )
    loops.keep("mail of sites", intake.run)
    loops.repeat("holds of sites' mail", HOLDS_SECONDS, partial(release_ended_holds, database))
    queue = QueuedSiteMails(database, spool)
    loops.repeat("removal of sites' messages", SWEEP_SECONDS, queue.sweep)
    if config.mail is None:
        # Without deliveries nothing would close this alert, so it is closed here.
        await database.transact(partial(close_alert, key=SITE_MAIL))
    else:
        alert = DeliveryAlert.of_site_mail(database)
        delivery = Delivery(database, queue, config.mail, alert)
        loops.keep("delivery of sites' mail", delivery.run, step=delivery.round)


def start_retention(
    loops: PanelLoops, config: PanelConfig, database: Database, events: EventLog, uploads: Uploads
) -> None:
    loops.repeat("retention", RECORDS_SECONDS, partial(_remove_old_records, config, database, events))
    loops.repeat("removal of old jobs", REMOVAL_PERIOD, partial(forget_old_jobs, database))
    loops.repeat("removal of abandoned uploads", UPLOADS_SECONDS, uploads.remove_abandoned)


async def _remove_old_records(config: PanelConfig, database: Database, events: EventLog) -> None:
    settings = await read_settings(database)
    await remove_old_records(database, events, config.data_dir, settings)
    await remove_ended_site_mails(database, timedelta(days=settings.keep_mail_days))
