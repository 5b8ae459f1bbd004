"""Composes the controller: the only place that knows all of its parts.

Parts open in the order of their dependencies and close in reverse order: first the HTTP listener, so that no new order
arrives; then the task runner, which stores the results that it has; then the actors, which finish what they have
started; then gateway and event log; last the database.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from svc.controller import certificate as public_certificate
from svc.controller.catalogue import controller_registry
from svc.controller.config import ControllerConfig
from svc.controller.realm import REALM
from svc.controller.services import Controller, ControllerLoop
from svc.controller.setup import ensure_setup_token
from svc.identity.authenticate import Authentication
from svc.service.controller.backup.restore import UNFINISHED, prepare_restored
from svc.service.controller.figures import LoopLag, watch_controller
from svc.service.controller.machine_consoles import MachineConsoles
from svc.service.controller.public_certificate import serve_challenges, tell_of_certificates
from svc.service.controller.services import open_services
from svc.service.disk import disk_guard, guarded
from svc.service.supervisor import KeptListener
from svc_actors.controller.reconcile.restored import Past
from svc_actors.store import (
    Database,
    DatabaseStartError,
    DatabaseUrls,
    Lane,
    background_nursery,
    database_urls,
    exclusive,
    keep_running,
    marked,
    prepare_schema,
)
from svc_actors.tracing import Tracer, TracingSettingsError
from svc_common.listening import addresses_of
from svc_console.routes import add_console_routes
from svc_http.app import App, create_app
from svc_http.certificates import Certificates, TlsFiles
from svc_http.metrics import Figure, Metrics
from svc_http.operations import database_check, operations_app
from svc_http.pages import add_pages
from svc_http.plain import add_challenges
from svc_http.server import serve_https, serve_loopback

if TYPE_CHECKING:
    from svc_actors.spans import SpanQueue


CONNECTIONS = {Lane.READING: 8, Lane.ORDERS: 16, Lane.BACKGROUND: 8}
"""Database connections of each lane (`svc_actors.store.lanes`). An order holds its connection for a dozen turns of the
event loop, in which PostgreSQL is mostly idle: so concurrent orders need more connections than PostgreSQL has cores."""

log = structlog.get_logger("svc.compose")

_RATIOS: Final = {"always_on": 1.0, "always_off": 0.0, "parentbased_always_on": 1.0, "parentbased_always_off": 0.0}


@dataclass(frozen=True)
class RunningController:
    """`setup_token` is set until the first administrator exists; it is also in `<data>/setup-token`."""

    services: Controller
    app: App
    setup_token: str | None
    fingerprint: str


@asynccontextmanager
async def open_controller(
    config: ControllerConfig, environ: Mapping[str, str], enabled_loops: Collection[ControllerLoop] | None = None
) -> AsyncIterator[RunningController]:
    """A controller that serves for the length of the block. Only the `enabled_loops` run, or all with None."""
    listener = KeptListener(environ, "api")
    config.data_dir.mkdir(parents=True, exist_ok=True, mode=0o711)
    if (config.data_dir / UNFINISHED).exists():
        raise DatabaseStartError(f"A restore to {config.data_dir} was interrupted: empty the folder and restore again.")
    async with (
        disk_guard(config.data_dir, environ, goes_on="machines run on") as disk,
        database_urls(config.data_dir, environ) as urls,
        Database.open(urls.service, lanes=CONNECTIONS) as database,
        exclusive(database, "controller"),
        _schema(urls),
        marked(database, config.data_dir, partial(_step_back, database)),
        guarded(database, disk),
        open_tracing(config, environ) as tracing,
        open_services(
            config, database, tracing.tracer if tracing is not None else None, enabled_loops=enabled_loops
        ) as services,
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
                partial(
                    serve_https,
                    app,
                    addresses_of(config.bind_host, config.api_port),
                    certificates,
                    stop,
                    listener=listener,
                )
            )
            watching.start_soon(lag.run)
            watching.start_soon(
                keep_running, "certificates", partial(certificates.watch, partial(tell_of_certificates, database))
            )
            if services.certificate is not None:
                challenges = services.certificate.challenges
                add_challenges(app, challenges)
                watching.start_soon(serve_challenges, config, database, challenges)
            await listeners.start(
                partial(serve_loopback, operations_app(app.metrics, checks), config.operations_port, stop)
            )
            try:
                yield RunningController(services, app, token, services.authority.fingerprint)
            finally:
                stop.set()


@asynccontextmanager
async def _schema(urls: DatabaseUrls) -> AsyncIterator[None]:
    """Migrate the database to the schema of this release, before anything else uses it."""
    await prepare_schema(urls)
    yield


async def _step_back(database: Database, as_of: datetime, keys: Sequence[tuple[str, str]]) -> None:
    """Prepare the database after it has lost the commits after `as_of`. As after a restore, hosts are compared with the
    records before any address or name is assigned again."""
    await prepare_restored(database, as_of, version("svc"), Past.LOST_COMMITS, keys)


def _leave_setup_token(path: Path, token: str | None) -> None:
    """Write the setup token to a file that root can read; once there is an administrator, remove the file."""
    path.unlink(missing_ok=True)
    if token is not None:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token + "\n")


@dataclass(frozen=True)
class Tracing:
    tracer: Tracer
    queue: SpanQueue

    def watch(self, metrics: Metrics) -> None:
        queue = self.queue
        metrics.watch(
            [
                Figure(
                    "svc_trace_spans_exported_total",
                    "Spans that the collector has accepted.",
                    lambda: float(queue.exported),
                ),
                Figure(
                    "svc_trace_spans_dropped_total",
                    "Spans that the collector did not get, by reason.",
                    lambda: {(reason.value,): float(number) for reason, number in queue.dropped.items()},
                    ("reason",),
                ),
            ]
        )


@asynccontextmanager
async def open_tracing(config: ControllerConfig, environ: Mapping[str, str]) -> AsyncIterator[Tracing | None]:
    """Tracing by OpenTelemetry; None without a collector. The endpoint and the ratio are in `config`; the SDK reads all
    other OTEL_ variables itself. Raises `TracingSettingsError`."""
    endpoint = _endpoint(config, environ)
    ratio = _RATIOS.get(environ.get("OTEL_TRACES_SAMPLER", ""), config.trace_ratio)
    if endpoint is None or ratio == 0:
        yield None
        return
    # These imports take a second, so they are made only if traces are exported.
    from svc_actors.spans import ExportSettings, SdkTracer, SpanQueue, open_exporter

    try:
        settings = ExportSettings.of(environ)
    except ValueError as error:
        raise TracingSettingsError(f"The OTEL_BSP_ variables of the environment are invalid: {error}") from error
    queue = SpanQueue(open_exporter(endpoint), settings)
    async with background_nursery() as nursery:
        nursery.start_soon(queue.run)
        yield Tracing(SdkTracer(queue, service="svc-controller", ratio=ratio, environ=environ), queue)


def _endpoint(config: ControllerConfig, environ: Mapping[str, str]) -> str | None:
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    if off:
        return None
    if whole := environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return whole
    return config.otlp_endpoint.rstrip("/") + "/v1/traces" if config.otlp_endpoint else None
