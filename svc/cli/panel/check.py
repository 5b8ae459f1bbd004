"""`svc panel check`: whether this release could serve with the settings and the database of this server.

Nothing is changed. A new release is checked this way while the previous one still runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import asyncclick as click
import trio

from svc.cli.failures import Exit, Failure
from svc.cli.panel.options import CONTEXT, panel_options
from svc.cli.starting import one_line_failures
from svc.cli.terminal import write
from svc.panel.catalogue import panel_registry
from svc.panel.config import PanelConfig
from svc_actors.store import (
    PANEL_SCHEMA,
    Database,
    DatabaseUrls,
    known_migrations,
    reachable_urls,
    require_known_cluster,
    unapplied,
)

_SECONDS = 60.0


@click.command(context_settings=CONTEXT)
@panel_options
async def check(config: PanelConfig, environ: Mapping[str, str]) -> None:
    """Say whether this release of the panel could serve here. Exit code 1 or 2 if it could not; nothing is changed."""
    write(f"settings: they are understood; {len(list(panel_registry()))} operations")
    try:
        with trio.fail_after(_SECONDS):
            async with one_line_failures():
                require_known_cluster(config.data_dir)
                async with reachable_urls(config.data_dir, environ) as urls:
                    write(f"database: {await _schema(urls)}")
    except trio.TooSlowError:
        raise Failure(Exit.UNAVAILABLE, f"The database did not answer within {_SECONDS:g} seconds.") from None


async def _schema(urls: DatabaseUrls) -> str:
    async with Database.open(urls.service, size=1, application_name="svc check") as database:
        missing = await unapplied(database, known_migrations(PANEL_SCHEMA))
    if not missing:
        return "its schema is this release's"
    return f"{len(missing)} migrations would be applied: {', '.join(map(str, missing))}"
