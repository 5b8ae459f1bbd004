"""`svc panel core`: what holds the panel's state and drives the server, as root, on a Unix socket alone.

What serves the sites goes on without it: programs are started by a launcher that outlives it, and a core that was
killed finds them when it starts again.
"""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial

import asyncclick as click
import structlog
import trio

from svc.cli.failures import Exit, Failure
from svc.cli.panel.compose import open_services
from svc.cli.panel.host import Host
from svc.cli.panel.options import CONTEXT, panel_options
from svc.cli.panel.recovery import Recovering, becoming
from svc.cli.panel.server import this_server
from svc.cli.starting import told_plainly
from svc.identity.authenticate import Authentication
from svc.identity.password_links import revoke_everybodys_links
from svc.identity.sessions import end_everybodys
from svc.panel.catalogue import panel_registry
from svc.panel.config import PanelConfig
from svc.panel.realm import REALM
from svc.registry.idempotency import refuse_lost
from svc.service.disk import disk_guard, guarded
from svc.service.garbage import GarbageCollection
from svc.service.supervisor import tell_supervisor
from svc_actors.admission import raise_descriptor_limit
from svc_actors.host.folders import HostFolders
from svc_actors.host.self_signed import keep_self_signed
from svc_actors.mail.queue import end_all as end_mails
from svc_actors.panel.stepped_back import Numbers, begin_stepped_back
from svc_actors.sealing import Sealer
from svc_actors.store import PANEL_SCHEMA, Database, Lane, Transaction, database_urls, exclusive, marked, prepare_schema
from svc_http.app import App, create_app
from svc_http.server import serve_local

CONNECTIONS = {Lane.READING: 6, Lane.ORDERS: 8, Lane.BACKGROUND: 6}
"""Each lane's own (`svc_actors.store.lanes`)."""

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
                told_plainly(),
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
    """Whether the core is to end, once it is; False where it is to close and open again, as another server."""
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


@asynccontextmanager
async def open_core(
    config: PanelConfig, environ: Mapping[str, str], host: Host, reopen: trio.Event | None = None
) -> AsyncIterator[App]:
    """The core's application over its database, for the length of the block. `reopen` is set where it is to be closed,
    and opened again: it becomes another server then, before it serves anybody."""
    async with (
        disk_guard(config.data_dir, environ, goes_on="sites are served on") as disk,
        database_urls(config.data_dir, environ) as urls,
        becoming(config, urls),
        Database.open(urls.service, lanes=CONNECTIONS) as database,
        exclusive(database, "panel"),
    ):
        own = host.own_release
        returned = own is not None and own.releases.returned_to(own.name)
        await prepare_schema(urls, PANEL_SCHEMA, returned=returned)
        sealer = Sealer.from_file(config.data_dir / "secret.key")
        recovering = Recovering(urls.owner, trio.Event() if reopen is None else reopen)
        async with (
            marked(database, config.data_dir, partial(step_back, database, config.folders)),
            guarded(database, disk),
            open_services(config, database, host, sealer=sealer, recovering=recovering) as services,
        ):
            yield create_app(
                panel_registry(), services, authenticator=Authentication(database, REALM), origins=config.origins
            )


async def step_back(database: Database, folders: HostFolders, as_of: datetime, keys: Sequence[tuple[str, str]]) -> None:
    """The database has lost what was committed after `as_of`: nothing of it is given out or done a second time."""
    numbers = await trio.to_thread.run_sync(Numbers.on, folders)

    async def work(tx: Transaction) -> None:
        # Links may have been used since, and sessions ended. Of the mails that wait, those with a link are of no use;
        # the others may have been sent, and one that comes twice is better than none.
        await revoke_everybodys_links(tx)
        await end_mails(tx, "the panel's database has lost its last commits", perishable=True)
        await end_everybodys(tx)
        await refuse_lost(tx, keys)
        await begin_stepped_back(tx, as_of=as_of, now=datetime.now(UTC), numbers=numbers)

    await database.transact(work)
