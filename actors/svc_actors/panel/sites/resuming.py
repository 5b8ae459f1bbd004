"""Sites that are not yet served as their records want it: taken up again at the start of the core, and regularly.

A creation that a killed core has left goes on here; so does a change that the web server did not take. Deletions are
jobs, and go on by `SiteDeletion.ended`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

import trio

from svc_actors.panel.sites.site import Site
from svc_actors.runtime import ActorSystem, DeliveryError
from svc_actors.store import Database

RESUME_SECONDS: Final = 30.0
_AT_ONCE: Final = 20
"""The web server merges what comes together."""


async def resume_sites(database: Database, actors: ActorSystem) -> None:
    """One round."""
    # A WordPress that is not installed yet is a job's, which does not end with a core either.
    rows = await database.fetch(
        """SELECT id FROM sites WHERE (status = 'creating' OR served < wanted) AND status <> 'deleting'
               AND NOT (status = 'creating' AND EXISTS (
                   SELECT FROM wordpress_sites
                   WHERE wordpress_sites.site_id = sites.id AND wordpress_sites.installed_at IS NULL))
           ORDER BY number"""
    )
    await follow(actors, [row["id"] for row in rows])


async def follow(actors: ActorSystem, site_ids: Iterable[UUID]) -> None:
    """Have the server follow the records of these sites. What it does not take now, a later round hands over."""
    limit = trio.CapacityLimiter(_AT_ONCE)

    async def resume(site_id: str) -> None:
        async with limit:
            try:
                await actors.ref(Site, site_id).ask(Site.resume)
            except DeliveryError:
                return  # An actor that crashed has raised its alert; the next round asks again.

    async with trio.open_nursery() as nursery:
        for site_id in site_ids:
            nursery.start_soon(resume, str(site_id))
