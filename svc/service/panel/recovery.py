"""Composes recovery: writing manifests, and turning a server into another one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from svc.panel.config import PanelConfig
from svc.panel.services import PanelLoops
from svc.service.panel.host import Host
from svc.service.panel.site_data import SiteData
from svc_actors.panel.backups import Places
from svc_actors.panel.jobs import Jobs
from svc_actors.panel.recovery import sites, work, writing
from svc_actors.panel.recovery.remote import Remote
from svc_actors.panel.recovery.staged import become_staged
from svc_actors.panel.recovery.writing import Manifests, sealing_key_of
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database, DatabaseUrls, dump


@dataclass(frozen=True)
class Recovering:
    """`owner_url` signs in as the database's owner, who dumps it; `reopen` makes the core close and open again."""

    owner_url: str
    reopen: trio.Event

    async def dump(self, take: Callable[[bytes], None], without: Sequence[str]) -> None:
        await dump(self.owner_url, take, without=without)


@asynccontextmanager
async def applied_recovery(config: PanelConfig, urls: DatabaseUrls) -> AsyncIterator[None]:
    """Before anything uses the database: become the server that a recovery order has prepared."""
    await become_staged(config.data_dir, urls, config.dns.site_addresses())
    yield


def start_recovery(
    config: PanelConfig,
    database: Database,
    host: Host,
    sealer: Sealer,
    jobs: Jobs,
    actors: ActorSystem,
    data: SiteData,
    loops: PanelLoops,
    recovering: Recovering | None,
) -> Remote:
    remote = Remote(host.restic, Places(config.folders), sealer)
    backups = data.backups
    jobs.handle(
        sites.KIND, sites.SitesRecovery(backups.tools, data.databases, host.accounts, backups.restoring, actors)
    )
    if recovering is not None:
        manifests = Manifests(
            database,
            sealer,
            sealing_key_of(config.data_dir),
            remote,
            recovering.dump,
            config.dns.site_addresses,
        )
        jobs.handle(writing.KIND, manifests)
        jobs.handle(work.KIND, work.RecoveryRun(database, remote, config.data_dir, recovering.reopen))
        loops.repeat("manifests of this server", writing.ROUND_SECONDS, manifests.round)
    return remote
