"""Retries sites that are not served yet as their records want it, at the start of the core and regularly.

It continues creations that a killed core has left, and hands over changes that the web server did not take. Deletions
are jobs, which `SiteDeletion.ended` continues.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.panel.host_work import soon
from svc_actors.panel.sites.site import Site
from svc_actors.runtime import ActorSystem, DeliveryError
from svc_actors.store import Database
from svc_common.errors import ServiceError

RESUME_SECONDS: Final = 30.0
_AT_ONCE: Final = 20
"""How many sites are resumed at once: the web server merges concurrent changes."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.sites")


async def resume_sites(database: Database, actors: ActorSystem) -> None:
    """One round."""
    # A site whose WordPress is not installed yet is left out: its creation job continues by itself after a restart of
    # the core.
    rows = await database.fetch(
        """SELECT id FROM sites WHERE (status = 'creating' OR served < wanted) AND status <> 'deleting'
               AND NOT (status = 'creating' AND EXISTS (
                   SELECT FROM wordpress_sites
                   WHERE wordpress_sites.site_id = sites.id AND wordpress_sites.installed_at IS NULL))
           ORDER BY number"""
    )
    await follow(actors, [row["id"] for row in rows])


async def follow(actors: ActorSystem, site_ids: Iterable[UUID]) -> None:
    """Make the server follow the records of these sites. A later round repeats what fails."""
    limit = trio.CapacityLimiter(_AT_ONCE)

    async def resume(site_id: str) -> None:
        async with limit:
            site = actors.ref(Site, site_id)
            try:
                await soon(site.ask(Site.build))
                await soon(site.ask(Site.follow))
            except DeliveryError:
                return  # The actor has crashed and raised its alert; the next round asks it again.
            except ServiceError as error:
                log.warning("site.not_resumed", site=site_id, error=error.message)

    async with trio.open_nursery() as nursery:
        for site_id in site_ids:
            nursery.start_soon(resume, str(site_id))
