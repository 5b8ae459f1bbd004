"""The running services that the controller's operations use: actors, gateway, tasks, events. Only the gateway
listens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from svc.controller.config import ControllerConfig
from svc.controller.defaults import seed_defaults
from svc.controller.nodes.package import agent_release
from svc.controller.services import Controller, ControllerLoop, ControllerLoops
from svc.controller.settings import ControllerSettings
from svc.identity.passwords import Passwords
from svc.identity.retention import remove_old_records
from svc.identity.settings import read_as
from svc.service.alerts import ActorAlerts, LoopAlerts
from svc.service.controller.backup import results as backup_results
from svc.service.controller.public_certificate import certificate_keeper
from svc.service.identity_loops import add_identity_loops
from svc_actors.controller.alert_webhooks import LOOK_SECONDS as TELL_SECONDS
from svc_actors.controller.alert_webhooks import after_round, tell_receivers
from svc_actors.controller.backups.watch import LOOK_SECONDS as BACKUPS_SECONDS
from svc_actors.controller.backups.watch import run_due
from svc_actors.controller.gateway.authority import Authority
from svc_actors.controller.gateway.gateway import Gateway
from svc_actors.controller.images.files import ImageFiles, ImageSources
from svc_actors.controller.images.own_images import keep_empty_disk, keep_rescue_system
from svc_actors.controller.machines.windows import WindowsPasswords
from svc_actors.controller.machines.work import install_machines
from svc_actors.controller.nodes.node import Node, NodeServices
from svc_actors.controller.nodes.records import lost_nodes
from svc_actors.controller.nodes.upgrades import Upgrades
from svc_actors.controller.provisioning.settling import SETTLE_SECONDS, settle_due
from svc_actors.controller.reconcile.machine_watch import MachineWatch
from svc_actors.controller.reconcile.network_probe import NetworkProbe
from svc_actors.controller.reconcile.network_watch import NetworkWatch
from svc_actors.controller.reconcile.node_watch import NodeWatch, machine_deliverer
from svc_actors.controller.reconcile.power_watch import PowerWatch
from svc_actors.controller.reconcile.remains_watch import RemainsWatch
from svc_actors.controller.reconcile.windows_watch import WindowsWatch
from svc_actors.controller.retention import (
    remove_deleted_machines,
    remove_old_samples,
    remove_old_tasks,
    remove_old_traffic,
)
from svc_actors.controller.tasks.runner import TaskRunner
from svc_actors.controller.traffic.watch import TrafficWatch
from svc_actors.mail import Outbox
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import LANE, Database, EventLog, Loops, ServiceLoop
from svc_actors.tracing import ORIGIN, Tracer
from svc_actors.webhooks.dispatch import Dispatcher, add_webhook_loops
from svc_actors.webhooks.endpoint import DeliveryServices
from svc_actors.webhooks.receivers import Receivers
from svc_common.outbound import Outbound

COUNTED = ("audit_numbers", "vm_numbers", "task_numbers", "address_numbers", "day_numbers")
"""The views that count the lists with maintained counts."""
DRAIN_SECONDS = 10.0

PERIOD: Final = 3600.0
_FIRST: Final = 60.0
"""Seconds after the start before these loops first run, so that tasks resume and nodes connect before."""

log = structlog.get_logger("svc.retention")


@asynccontextmanager
async def open_services(
    config: ControllerConfig,
    database: Database,
    tracer: Tracer | None = None,
    *,
    passwords: Passwords | None = None,
    enabled_loops: Collection[ControllerLoop] | None = None,
) -> AsyncIterator[Controller]:
    """The running services that operations use: actors, gateway, tasks. Only the gateway listens. Only the
    `enabled_loops` run, or all with None."""
    sealer = Sealer.from_file(config.data_dir / "secret.key")
    authority = await Authority.open(database, sealer)
    await seed_defaults(database)
    alerts, loop_alerts = ActorAlerts(database), LoopAlerts(database)
    outbox = Outbox(sealer, config.mail, config.public_url)
    receivers = Receivers(Outbound(config.webhooks.networks), config.webhooks.ca_file)
    delivering = DeliveryServices(database, sealer, receivers, after_round)
    events = EventLog(database, alert=loop_alerts.notice)
    async with (
        ActorSystem.open(on_crash=alerts.notice, carried=(LANE, ORIGIN)) as actors,
        trio.open_nursery() as nursery,
    ):
        loops = ControllerLoops(nursery, loop_alerts.notice, enabled_loops)
        watch = NodeWatch(
            actors,
            database,
            machine_deliverer(actors),
            forgettable=lambda ids: tasks.forgettable(ids),
            connected=lambda node_id: networks.connected(node_id),
            probe=lambda node_id: probe.probe(node_id),
            alert=loop_alerts.notice,
        )
        files = ImageFiles(config.data_dir)
        await keep_empty_disk(files)
        if config.rescue_system is not None:
            await keep_rescue_system(database, files, config.rescue_system)
        agent = await trio.to_thread.run_sync(agent_release, config.data_dir)
        gateway = Gateway(
            authority,
            lambda: authority.server_certificate(config.data_dir, config.public_host),
            bind_host=config.bind_host,
            port=config.gateway_port,
            heartbeat_seconds=config.heartbeat_seconds,
            hooks=watch.hooks,
            find_file=lambda key: agent.find(key) or files.find(key),
        )
        for node_id in await lost_nodes(database):
            gateway.mark_lost(node_id)
        watch.watch(gateway)
        networks = NetworkWatch(database, gateway, alert=loop_alerts.notice)
        probe = NetworkProbe(database, gateway, actors, watch.recheck)
        tasks = TaskRunner(database, gateway, alert=loop_alerts.notice, tracer=tracer)
        windows_passwords, sources = WindowsPasswords(), ImageSources(database, gateway.offer_file)
        install_machines(database, sealer, windows_passwords, tasks, actors, sources, watch.recheck)
        node_services = NodeServices(database, gateway, authority)
        actors.register(Node, lambda _: Node(node_services))
        watch.handle_tasks(tasks)
        Upgrades(database, authority, agent, gateway.offer_file).handle_tasks(tasks)
        await loops.start("events", events.run)
        loops.keep("alerts of actors", alerts.run)
        loops.keep_untold("alerts of loops", loop_alerts.run)
        await nursery.start(gateway.run)
        await loops.start("node watch", watch.run)
        await nursery.start(tasks.run)
        await loops.start("machine watch", MachineWatch(database, alert=loops.alert).run)
        await loops.start("network watch", networks.run)
        await loops.start("remains of moves", RemainsWatch(database, gateway, alert=loops.alert).run)
        windows = WindowsWatch(database, gateway, actors, windows_passwords, alert=loops.alert)
        await loops.start("first boots of Windows", windows.run)
        await loops.start("power watch", PowerWatch(database, actors, alert=loops.alert).run)
        loops.repeat("service watch", SETTLE_SECONDS, partial(settle_due, database, actors))
        report = watch.hooks.unauthorised_report
        traffic = TrafficWatch(database, gateway, unauthorised_report=report, alert=loops.alert)
        await loops.start("traffic watch", traffic.run)
        loops.repeat("backups of machines", BACKUPS_SECONDS, partial(run_due, database, actors))
        add_retention(loops, database, events, config.data_dir)
        await add_identity_loops(loops, database, outbox, config.mail, COUNTED)
        webhooks = Dispatcher(delivering, nursery, alerts.notice)
        add_webhook_loops(loops, webhooks, delivering)
        loops.repeat("alert webhooks", TELL_SECONDS, partial(tell_receivers, database))
        loops.repeat("backups", backup_results.LOOK_SECONDS, partial(backup_results.look, database))
        keeper = await certificate_keeper(config, database, sealer, actors)
        if keeper is not None:
            loops.keep("certificate by ACME", keeper.run)
        try:
            yield Controller(
                config,
                database,
                events,
                actors,
                authority,
                gateway,
                networks,
                tasks,
                sealer,
                passwords or Passwords(),
                windows_passwords,
                outbox,
                receivers,
                agent,
                loops,
                keeper,
            )
        finally:
            with trio.CancelScope(shield=True, relative_deadline=3 * DRAIN_SECONDS + 5):
                await webhooks.drain(DRAIN_SECONDS)
                await tasks.drain(DRAIN_SECONDS)
                await actors.drain(DRAIN_SECONDS)
            nursery.cancel_scope.cancel()


def add_retention(loops: Loops[ServiceLoop], database: Database, events: EventLog, data_dir: Path) -> None:
    """Start the loops that remove records older than the settings say."""
    work = partial(remove_expired, database, events, data_dir)
    loops.repeat("retention", PERIOD, work, first_after=_FIRST)


async def remove_expired(database: Database, events: EventLog, data_dir: Path) -> None:
    settings = await read_as(ControllerSettings, database)
    removed = {
        "tasks": await remove_old_tasks(database, timedelta(days=settings.keep_task_days)),
        "samples": await remove_old_samples(database, timedelta(days=settings.keep_sample_days)),
        "traffic": await remove_old_traffic(database, settings.keep_traffic_months),
        "machines": await remove_deleted_machines(database, timedelta(days=settings.keep_deleted_days)),
        **await remove_old_records(database, events, data_dir, settings),
    }
    if any(removed.values()):
        log.info("retention.removed", **removed)
