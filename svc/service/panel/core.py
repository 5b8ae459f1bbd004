"""The panel's core over its database, before it listens: recovery as another server, lost commits, and what it serves.

The sites keep running without it: a launcher that outlives the core starts their programs, and a restarted core finds
them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial

import trio

from svc.identity.authenticate import Authentication
from svc.identity.password_links import revoke_everybodys_links
from svc.identity.sessions import end_everybodys
from svc.panel.catalogue import panel_registry
from svc.panel.config import PanelConfig
from svc.panel.realm import REALM
from svc.registry.idempotency import refuse_lost
from svc.service.disk import disk_guard, guarded
from svc.service.panel.compose import open_services
from svc.service.panel.host import Host
from svc.service.panel.recovery import Recovering, applied_recovery
from svc_actors.mail.queue import end_all as end_mails
from svc_actors.panel.stepped_back import UsedNumbers, recover_stepped_back
from svc_actors.sealing import Sealer
from svc_actors.store import PANEL_SCHEMA, Database, Lane, Transaction, database_urls, exclusive, marked, prepare_schema
from svc_http.app import App, create_app
from svc_webhost.folders import HostFolders

CONNECTIONS = {Lane.READING: 6, Lane.ORDERS: 8, Lane.BACKGROUND: 6}
"""Connections of each lane (`svc_actors.store.lanes`)."""


@asynccontextmanager
async def open_core(
    config: PanelConfig, environ: Mapping[str, str], host: Host, reopen: trio.Event | None = None
) -> AsyncIterator[App]:
    """The core's application over its database, for the length of the block. `reopen` is set when the core must close
    and open again: at the next opening it becomes another server before it serves requests."""
    async with (
        disk_guard(config.data_dir, environ, goes_on="sites are served on") as disk,
        database_urls(config.data_dir, environ) as urls,
        applied_recovery(config, urls),
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
    """Adapt the database after it has lost the commits after `as_of`, so that what these commits had assigned or done
    is not assigned or done again. `keys`: the idempotency keys of lost orders, each with its owner, which are refused
    from now on."""
    numbers = await trio.to_thread.run_sync(UsedNumbers.on, folders)

    async def work(tx: Transaction) -> None:
        # Links may have been used in the lost commits, and sessions may have ended. Waiting mails with a link are
        # useless now. Other waiting mails may have been sent already, but a mail that arrives twice is better than a
        # missing one.
        await revoke_everybodys_links(tx)
        await end_mails(tx, "the panel's database has lost its last commits", perishable=True)
        await end_everybodys(tx)
        await refuse_lost(tx, keys)
        await recover_stepped_back(tx, as_of=as_of, now=datetime.now(UTC), numbers=numbers)

    await database.transact(work)
