"""`svc panel core`: holds the panel's state and drives the server, as root, on a Unix socket alone.

SIGTERM and SIGINT stop the core. When a recovery turns this server into another one, the core closes and opens again by
itself (`svc.service.panel.core`).
"""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import AsyncIterator, Mapping
from functools import partial

import asyncclick as click
import structlog
import trio

from svc.cli.failures import Exit, Failure
from svc.cli.panel.options import CONTEXT, panel_options
from svc.cli.starting import one_line_failures
from svc.panel.config import PanelConfig
from svc.service.garbage import GarbageCollection
from svc.service.panel.core import open_core
from svc.service.panel.host import this_server
from svc.service.supervisor import tell_supervisor
from svc_actors.admission import raise_descriptor_limit
from svc_http.server import serve_local
from svc_webhost.self_signed import keep_self_signed

log = structlog.get_logger("svc.panel.core")


@click.command(context_settings=CONTEXT)
@panel_options
async def core(config: PanelConfig, environ: Mapping[str, str]) -> None:
    """Run the core of the hosting panel.

    An option that is not given is taken from the environment (SVC_PANEL_PUBLIC_HOST), then from the configuration
    file. SVC_DATABASE_URL names a PostgreSQL server; without it one runs in the data folder."""
    from svc_http.logs import configure

    configure()
    if os.geteuid() != 0:
        raise Failure(Exit.FORBIDDEN, "The core drives the server's accounts and services, so it runs as root.")
    try:
        web = pwd.getpwnam(config.web_user)
    except KeyError:
        hint = f"make it: useradd --system --no-create-home --shell /usr/sbin/nologin {config.web_user}"
        raise Failure(Exit.INVALID, f"There is no account {config.web_user} for the web tier.", hint) from None
    raise_descriptor_limit()
    config.socket.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    config.data_dir.mkdir(parents=True, exist_ok=True, mode=0o711)
    shown = keep_self_signed(config.folders.web, config.own_names, web.pw_gid)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        ended = False
        while not ended:
            reopen = trio.Event()
            async with (
                one_line_failures(),
                open_core(config, environ, this_server(config), reopen) as app,
                GarbageCollection.open(),
                trio.open_nursery() as nursery,
            ):
                stop = trio.Event()
                await nursery.start(partial(serve_local, app, config.socket, config.web_user, stop))
                tell_supervisor(os.environ, "READY=1")
                log.info("core.started", socket=str(config.socket), certificate_sha256=shown)
                ended = await _ended(signals, reopen)
                stop.set()
    log.info("core.stopped")


async def _ended(signals: AsyncIterator[int], reopen: trio.Event) -> bool:
    """Serve until the core ends. Returns True if it was stopped, False if it must open again as another server."""
    ended = False

    async def wait_for_signal(scope: trio.CancelScope) -> None:
        nonlocal ended
        async for received in signals:
            tell_supervisor(os.environ, "STOPPING=1")
            log.info("core.stopping", signal=signal.Signals(received).name)
            ended = True
            scope.cancel()
            break

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_signal, nursery.cancel_scope)
        await reopen.wait()
        log.info("core.reopening")
        nursery.cancel_scope.cancel()
    return ended
