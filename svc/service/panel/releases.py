"""Composes the panel's own releases: where newer ones come from, and the supervision of trials."""

from __future__ import annotations

import ssl
from pathlib import Path

from svc.panel.config import PanelConfig
from svc.panel.loops import PanelLoops
from svc.service.panel.host import Host
from svc_actors.panel.jobs import Jobs
from svc_actors.panel.releases.sources import FolderSource, HttpsSource, Source
from svc_actors.panel.releases.watch import DAILY_SECONDS, ROUND_SECONDS, ReleaseWatch
from svc_actors.panel.releases.work import INSTALL, LOOK, ReleaseWork
from svc_actors.store import Database
from svc_webhost.releases.layout import Ports


async def start_releases(config: PanelConfig, database: Database, host: Host, jobs: Jobs, loops: PanelLoops) -> None:
    """Called before jobs start."""
    work = ReleaseWork(
        database,
        host.own_release,
        _source(config.update_source),
        config.socket,
        Ports(config.port, config.sites_http_port),
    )
    for kind in (INSTALL, LOOK):
        jobs.handle(kind, work)
    watch = ReleaseWatch(database, host.own_release, offered=config.update_source is not None)
    await watch.withdraw_stale_order()
    if host.own_release is not None:
        loops.repeat_from_now("trials of releases", ROUND_SECONDS, watch.round)
        loops.repeat("releases of the panel", DAILY_SECONDS, watch.look_daily)


def _source(named: str | None) -> Source | None:
    if named is None:
        return None
    if named.startswith("/"):
        return FolderSource(Path(named))
    return HttpsSource(named.rstrip("/"), ssl.create_default_context())
