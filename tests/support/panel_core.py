"""A panel's core that listens on its Unix socket, in this process."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from svc_actors.store import Database
from svc_http.server import serve_local
from tests.support.panel import PanelHarness, open_panel

WEB_ACCOUNT = "www-data"


@asynccontextmanager
async def listening_core(database: Database) -> AsyncIterator[PanelHarness]:
    # Open to other accounts, as pytest's own folders are not.
    with tempfile.TemporaryDirectory(prefix="svc-core-") as name:
        Path(name).chmod(0o755)
        async with (
            open_panel(database, Path(name), loops=["events", "jobs", "web server"]) as panel,
            trio.open_nursery() as nursery,
        ):
            stop = trio.Event()
            await nursery.start(partial(serve_local, panel.app, panel.services.config.socket, WEB_ACCOUNT, stop))
            yield panel
            stop.set()
