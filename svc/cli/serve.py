"""`svc serve controller`: the controller as a program, until it is told to stop.

SIGTERM and SIGINT stop it in order: no new requests, streams and consoles ended, what actors have begun finished, then
the gateway, the database. A second signal changes nothing: every step has its own deadline.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncclick as click
import structlog
import trio

from svc.cli.compose import open_controller
from svc.cli.configuration import environment, fill_in
from svc.cli.failures import Exit, Failure, first_cause
from svc.cli.garbage import GarbageCollection
from svc.cli.output import say
from svc.cli.supervisor import tell_supervisor
from svc.controller.config import ControllerConfig
from svc_actors.admission import raise_descriptor_limit
from svc_actors.store import AnotherServiceError, DatabaseInUseError, DatabaseStartError, MigrationError

_FOLDER = click.Path(path_type=Path, resolve_path=True, file_okay=False)
# Not resolved: what renews certificates may replace the link.
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False, readable=True)

log = structlog.get_logger("svc.serve")


@asynccontextmanager
async def _told_plainly() -> AsyncIterator[None]:
    """Tell why the service cannot start, or had to stop, in a line: who starts it can mend that, and needs no trace."""
    try:
        yield
    except Exception as error:
        cause = first_cause(error)
        if isinstance(cause, AnotherServiceError | DatabaseInUseError):
            raise Failure(Exit.CONFLICT, str(cause)) from error
        if isinstance(cause, DatabaseStartError | MigrationError):
            raise Failure(Exit.FAILED, str(cause)) from error
        raise


@click.group()
def serve() -> None:
    """Run a service."""


@serve.command(context_settings={"auto_envvar_prefix": "SVC_CONTROLLER"})
@click.option(
    "--config",
    type=click.Path(path_type=Path, resolve_path=True),
    default=Path("/etc/svc/controller.toml"),
    show_default=True,
    is_eager=True,
    expose_value=False,
    callback=fill_in,
    help="The configuration file (docs/configuration.md).",
)
@click.option("--data", type=_FOLDER, default=Path("/var/lib/svc/controller"), show_default=True)
@click.option("--public-host", default="127.0.0.1", show_default=True, help="How browsers and nodes reach it.")
@click.option("--bind", default="0.0.0.0", show_default=True, help="The address to listen on.")  # noqa: S104
@click.option(
    "--origin", "origins", multiple=True, help="Where browsers see the pages besides: https://name. May be repeated."
)
@click.option(
    "--certificate",
    type=_FILE,
    help="A certificate of your own for browsers, with its chain: PEM, read again when it changes.",
)
@click.option("--certificate-key", type=_FILE, help="Its private key.")
@click.option("--api-port", default=8443, show_default=True)
@click.option("--gateway-port", default=8444, show_default=True)
@click.option("--operations-port", default=8445, show_default=True, help="Loopback: /metrics and /healthz.")
@click.option("--heartbeat", default=5.0, show_default=True, help="Seconds between the heartbeats of nodes.")
@click.pass_context
async def controller(
    context: click.Context,
    /,
    data: Path,
    public_host: str,
    bind: str,
    origins: tuple[str, ...],
    certificate: Path | None,
    certificate_key: Path | None,
    api_port: int,
    gateway_port: int,
    operations_port: int,
    heartbeat: float,
) -> None:
    """Run the controller.

    An option that is not given is taken from the environment (SVC_CONTROLLER_PUBLIC_HOST), then from the configuration
    file. SVC_DATABASE_URL names a PostgreSQL server; without it one runs in the data folder."""
    from svc_http.logs import configure

    if (certificate is None) is not (certificate_key is None):
        raise Failure(Exit.INVALID, "A certificate needs its key, and a key its certificate: give both, or none.")
    configure()
    raise_descriptor_limit()
    config = ControllerConfig(
        data_dir=data,
        public_host=public_host,
        bind_host=bind,
        api_port=api_port,
        gateway_port=gateway_port,
        operations_port=operations_port,
        heartbeat_seconds=heartbeat,
        certificate=(certificate, certificate_key) if certificate and certificate_key else None,
        further_origins=tuple(origin.rstrip("/") for origin in origins),
    )
    garbage = GarbageCollection()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with (
            _told_plainly(),
            open_controller(config, environment(context)) as running,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(garbage.run)
            running.app.metrics.watch({"svc_garbage_longest_pause_seconds": lambda: garbage.longest_pause})
            if running.setup_token is not None:
                # Shown to a person only: what is not a terminal is a log file, and the token is no matter for one.
                token = running.setup_token if sys.stderr.isatty() else f"in {config.data_dir}/setup-token"
                say(f"First run: set the service up at {config.public_url}/ with the one-time token\n  {token}")
            say(f"SHA-256 of the certificate authority: {running.fingerprint}", style="dim")
            tell_supervisor(os.environ, "READY=1")
            log.info("service.started", url=config.public_url, gateway_port=config.gateway_port)
            async for received in signals:
                tell_supervisor(os.environ, "STOPPING=1")
                log.info("service.stopping", signal=signal.Signals(received).name)
                break
            nursery.cancel_scope.cancel()
    log.info("service.stopped")
