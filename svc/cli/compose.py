"""The controller put together: the only place that knows all of its parts.

Order of opening is order of dependence, and closing goes the other way: the HTTP listener first, so that no new order
comes in; then the task runner stores the ends that it knows; then the actors finish what they have begun; then gateway
and event log; the database last.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
import trio

from svc.cli.backup import told as backups_told
from svc.cli.backup.restore import UNFINISHED
from svc.cli.figures import LoopLag, watch_controller
from svc.cli.identity_loops import start_identity_loops
from svc.cli.machine_consoles import MachineConsoles
from svc.cli.retention import keep_retention
from svc.cli.service_alerts import ActorAlerts, LoopAlerts
from svc.cli.traces import open_tracing
from svc.controller import certificate as public_certificate
from svc.controller.catalogue import controller_registry
from svc.controller.config import ControllerConfig
from svc.controller.defaults import seed_defaults
from svc.controller.nodes.package import agent_release
from svc.controller.realm import REALM
from svc.controller.services import Controller
from svc.controller.setup import ensure_setup_token
from svc.identity.authenticate import Authentication
from svc.identity.passwords import Passwords
from svc_actors.acme import Http01
from svc_actors.alerts import Severity, set_alert
from svc_actors.certificates import Issued, IssuedCertificate, Issuing, Keeper, alert_of
from svc_actors.controller.gateway.authority import Authority
from svc_actors.controller.gateway.gateway import Gateway
from svc_actors.controller.images.files import ImageFiles, ImageSources
from svc_actors.controller.machines.work import install_machines
from svc_actors.controller.nodes.node import NODE_IDLE_AFTER, Node, NodeServices
from svc_actors.controller.nodes.upgrades import Upgrades
from svc_actors.controller.reconcile.machine_watch import MachineWatch
from svc_actors.controller.reconcile.network_probe import NetworkProbe
from svc_actors.controller.reconcile.network_watch import NetworkWatch
from svc_actors.controller.reconcile.node_watch import NodeWatch, machine_deliverer
from svc_actors.controller.reconcile.power_watch import PowerWatch
from svc_actors.controller.tasks.runner import TaskRunner
from svc_actors.controller.traffic.watch import TrafficWatch
from svc_actors.disk_guard import DiskGuard
from svc_actors.mail import Outbox
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import (
    LANE,
    URL_VARIABLE,
    Database,
    DatabaseStartError,
    DatabaseUrls,
    EventLog,
    Lane,
    background_nursery,
    database_urls,
    exclusive,
    keep_repeating,
    keep_running,
    prepare_schema,
)
from svc_actors.tracing import ORIGIN, Tracer
from svc_console.routes import add_console_routes
from svc_http.app import App, create_app
from svc_http.certificates import Certificates, TlsFiles
from svc_http.operations import database_check, operations_app
from svc_http.pages import add_pages
from svc_http.plain import add_challenges, challenge_app, serve_plain
from svc_http.server import serve_https, serve_loopback

CONNECTIONS = {Lane.READING: 8, Lane.ORDERS: 16, Lane.BACKGROUND: 8}
"""Each lane's own (`svc_actors.store.lanes`). An order keeps its connection for a dozen turns of the event loop, so
that a crowd of them needs more than PostgreSQL has cores for."""
COUNTED = ("audit_numbers", "vm_numbers", "task_numbers", "address_numbers", "day_numbers")
"""The views that count the lists whose numbers are kept."""
_PORT_ALERT = "certificate-port"
DRAIN_SECONDS = 10.0

log = structlog.get_logger("svc.compose")


@dataclass(frozen=True)
class RunningController:
    """`setup_token` is there until the first administrator is; it also lies in `<data>/setup-token`."""

    services: Controller
    app: App
    setup_token: str | None
    fingerprint: str


@asynccontextmanager
async def open_controller(config: ControllerConfig, environ: Mapping[str, str]) -> AsyncIterator[RunningController]:
    """A controller that serves for the length of the block."""
    config.data_dir.mkdir(parents=True, exist_ok=True, mode=0o711)
    if (config.data_dir / UNFINISHED).exists():
        raise DatabaseStartError(f"A restore to {config.data_dir} was interrupted: empty the folder and restore again.")
    async with (
        _disk_guard(config.data_dir, environ) as disk,
        database_urls(config.data_dir, environ) as urls,
        Database.open(urls.service, lanes=CONNECTIONS) as database,
        exclusive(database, "controller"),
        _schema(urls),
        _guarded(database, disk),
        open_tracing(config, environ) as tracing,
        open_services(config, database, tracing.tracer if tracing is not None else None) as services,
    ):
        certificate = services.authority.server_certificate(config.data_dir, config.public_host)
        app = create_app(
            controller_registry(),
            services,
            authenticator=Authentication(database, REALM),
            origins=config.origins,
            tracer=tracing.tracer if tracing is not None else None,
        )
        stop = trio.Event()
        add_console_routes(
            app,
            MachineConsoles(database, services.gateway),
            session_cookie=REALM.session_cookie,
            origins=config.origins,
            shutdown=stop,
        )
        add_pages(app)
        token = await ensure_setup_token(database)
        _leave_setup_token(config.data_dir / "setup-token", token)
        own = TlsFiles(certificate.chain, certificate.key)
        shown = own if config.certificate is None else TlsFiles(*config.certificate)
        issued = public_certificate.issued_file(config.data_dir)
        preferred = TlsFiles(issued, issued) if config.acme is not None else None
        certificates = Certificates(shown, {certificate.node_name: own}, preferred=preferred)
        lag = LoopLag()
        watch_controller(app, services, certificates, lag, disk)
        if tracing is not None:
            tracing.watch(app.metrics)
        checks = {"database": database_check(database)}
        if disk is not None:
            checks["disk"] = disk.check
        async with background_nursery() as watching, trio.open_nursery() as listeners:
            await listeners.start(
                partial(serve_https, app, f"{config.bind_host}:{config.api_port}", certificates, stop)
            )
            watching.start_soon(lag.run)
            watching.start_soon(
                keep_running, "certificates", partial(certificates.watch, partial(_tell_of_certificates, database))
            )
            if services.certificate is not None:
                challenges = services.certificate.challenges
                add_challenges(app, challenges)
                watching.start_soon(_serve_challenges, config, database, challenges)
            await listeners.start(
                partial(serve_loopback, operations_app(app.metrics, checks), config.operations_port, stop)
            )
            try:
                yield RunningController(services, app, token, services.authority.fingerprint)
            finally:
                stop.set()


@asynccontextmanager
async def _disk_guard(data_dir: Path, environ: Mapping[str, str]) -> AsyncIterator[DiskGuard | None]:
    """What watches the disk of the embedded server. An external one's is watched where that runs."""
    if environ.get(URL_VARIABLE):
        yield None
        return
    guard = DiskGuard(data_dir / "postgresql")
    async with background_nursery() as nursery:
        await nursery.start(guard.watch)
        yield guard


@asynccontextmanager
async def _guarded(database: Database, disk: DiskGuard | None) -> AsyncIterator[None]:
    """While its disk is full the database takes no changes of callers, and operators have an alert before."""
    async with background_nursery() as nursery:
        if disk is not None:
            nursery.start_soon(disk.guard, database)
            nursery.start_soon(keep_running, "alert of the disk", partial(disk.tell, database))
        yield


@asynccontextmanager
async def _schema(urls: DatabaseUrls) -> AsyncIterator[None]:
    """The schema that this release needs, there before anything reads it."""
    await prepare_schema(urls)
    yield


@asynccontextmanager
async def open_services(
    config: ControllerConfig, database: Database, tracer: Tracer | None = None
) -> AsyncIterator[Controller]:
    """What operations use, running: actors, gateway, tasks, events. No listener but the gateway's."""
    sealer = Sealer.from_file(config.data_dir / "secret.key")
    authority = await Authority.open(database, sealer)
    await seed_defaults(database)
    alerts, loop_alerts = ActorAlerts(database), LoopAlerts(database)
    outbox = Outbox(sealer, config.mail, config.public_url)
    events = EventLog(database, alert=loop_alerts.notice)
    async with (
        ActorSystem.open(on_alert=alerts.notice, carried=(LANE, ORIGIN)) as actors,
        trio.open_nursery() as nursery,
    ):
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
        watch.watch(gateway)
        networks = NetworkWatch(database, gateway, alert=loop_alerts.notice)
        probe = NetworkProbe(database, gateway, actors, watch.recheck)
        tasks = TaskRunner(database, gateway, alert=loop_alerts.notice, tracer=tracer)
        install_machines(database, sealer, tasks, actors, ImageSources(database, gateway.offer_file), watch.recheck)
        node_services = NodeServices(database, gateway, authority)
        actors.register(Node, lambda _: Node(node_services), idle_after=NODE_IDLE_AFTER)
        watch.handle_tasks(tasks)
        Upgrades(database, authority, agent, gateway.offer_file).handle_tasks(tasks)
        await nursery.start(events.run)
        nursery.start_soon(keep_running, "alerts of actors", alerts.run, loop_alerts.notice)
        nursery.start_soon(keep_running, "alerts of loops", loop_alerts.run)
        await nursery.start(gateway.run)
        await nursery.start(watch.run)
        await nursery.start(tasks.run)
        await nursery.start(MachineWatch(database, alert=loop_alerts.notice).run)
        await nursery.start(networks.run)
        await nursery.start(PowerWatch(database, actors, alert=loop_alerts.notice).run)
        report = watch.hooks.unauthorised_report
        await nursery.start(TrafficWatch(database, gateway, unauthorised_report=report, alert=loop_alerts.notice).run)
        nursery.start_soon(keep_retention, database, events, config.data_dir, loop_alerts.notice)
        await start_identity_loops(nursery, database, outbox, config.mail, COUNTED, loop_alerts.notice)
        backups = partial(backups_told.look, database)
        nursery.start_soon(keep_repeating, "backups", backups_told.LOOK_SECONDS, backups, loop_alerts.notice)
        keeper = await _certificate_keeper(config, database, sealer, actors)
        if keeper is not None:
            nursery.start_soon(keep_running, "certificate by ACME", keeper.run, loop_alerts.notice)
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
                Passwords(),
                outbox,
                agent,
                keeper,
            )
        finally:
            with trio.CancelScope(shield=True, relative_deadline=2 * DRAIN_SECONDS + 5):
                await tasks.drain(DRAIN_SECONDS)
                await actors.drain(DRAIN_SECONDS)
            nursery.cancel_scope.cancel()


async def _certificate_keeper(
    config: ControllerConfig, database: Database, sealer: Sealer, actors: ActorSystem
) -> Keeper | None:
    """What gets and renews the certificate by ACME; what it got before is there for the listener."""
    acme, alert = config.acme, alert_of(public_certificate.NAME)
    if acme is None or not acme.terms_agreed:
        message = None
        if acme is not None:
            message = (
                f"Nothing is asked of {acme.directory} before its terms are agreed to: `svc controller check` says "
                "where they are, and `terms-agreed = true` in the table [acme] of the settings agrees to them."
            )
        await database.transact(partial(set_alert, key=alert, message=message))
        await _tell(database, _PORT_ALERT, None)
        return None
    issuing = Issuing(database, sealer)
    actors.register(IssuedCertificate, lambda _: IssuedCertificate(issuing))

    async def install(issued: Issued) -> None:
        await trio.to_thread.run_sync(public_certificate.install, config.data_dir, issued)

    keeper = Keeper(actors, public_certificate.NAME, acme.names, acme, Http01(), install)
    await keeper.begin()
    return keeper


async def _serve_challenges(config: ControllerConfig, database: Database, challenges: Http01) -> None:
    """Answer the authority's questions on a port of their own, as long as the settings name one."""
    assert config.acme is not None
    tell = partial(_tell, database, _PORT_ALERT)
    if config.acme.port == 0:
        await tell(None)
        return
    app = challenge_app(challenges, config.public_url)
    serving = partial(serve_plain, app, f"{config.bind_host}:{config.acme.port}", tell)
    await keep_running("answers to challenges", serving)


async def _tell_of_certificates(database: Database, problem: str | None) -> None:
    """The alert of the certificates that browsers are shown, opened and closed."""
    await _tell(database, "certificate", problem, Severity.CRITICAL)


async def _tell(database: Database, key: str, problem: str | None, severity: Severity = Severity.WARNING) -> None:
    message = None if problem is None else problem + "."
    await database.transact(partial(set_alert, key=key, message=message, severity=severity))


def _leave_setup_token(path: Path, token: str | None) -> None:
    """Keep the token where root finds it while it is of use, and nowhere afterwards."""
    path.unlink(missing_ok=True)
    if token is not None:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token + "\n")
