"""`svc serve controller`: the controller as a program, until it is stopped.

SIGTERM and SIGINT stop it in order: it accepts no new requests, ends streams and consoles, lets actors finish what they
have started, then closes the gateway and the database. A second signal changes nothing: every step has its own
deadline.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

import asyncclick as click
import structlog
import trio

from svc.cli.controller_options import CONTEXT, controller_options
from svc.cli.starting import one_line_failures
from svc.cli.terminal import say
from svc.controller.config import ControllerConfig
from svc.service.controller.compose import open_controller
from svc.service.garbage import GarbageCollection
from svc.service.supervisor import tell_supervisor
from svc_actors.admission import raise_descriptor_limit
from svc_http.metrics import Figure

log = structlog.get_logger("svc.serve")


@click.group()
def serve() -> None:
    """Run a service."""


@serve.command(context_settings=CONTEXT)
@controller_options
async def controller(config: ControllerConfig, environ: Mapping[str, str]) -> None:
    """Run the controller.

    An option that is not given is taken from the environment (SVC_CONTROLLER_PUBLIC_HOST), then from the configuration
    file. SVC_DATABASE_URL names a PostgreSQL server; without it one runs in the data folder."""
    from svc_http.logs import configure

    configure()
    raise_descriptor_limit()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with (
            one_line_failures(),
            open_controller(config, environ) as running,
            GarbageCollection.open() as garbage,
        ):
            running.app.metrics.watch(
                [
                    Figure(
                        "svc_garbage_longest_pause_seconds",
                        "The longest search for cyclic garbage since the start.",
                        lambda: garbage.longest_pause,
                    )
                ]
            )
            if running.setup_token is not None:
                # The token is shown only on a terminal: any other output may be a log file, which must not contain it.
                token = running.setup_token if sys.stderr.isatty() else f"in {config.data_dir}/setup-token"
                say(f"First run: set the service up at {config.public_url}/ with the one-time token\n  {token}")
                say("or from a shell: svc setup run --help", style="dim")
            say(f"SHA-256 of the certificate authority: {running.fingerprint}", style="dim")
            tell_supervisor(os.environ, "READY=1")
            log.info("service.started", url=config.public_url, gateway_port=config.gateway_port)
            async for received in signals:
                tell_supervisor(os.environ, "STOPPING=1")
                log.info("service.stopping", signal=signal.Signals(received).name)
                break
    log.info("service.stopped")
