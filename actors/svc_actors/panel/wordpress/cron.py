"""Runs WordPress's own cron as a schedule of the site, so that due tasks run on time and no visitor's request is slowed
down.

Without this, WordPress looks for due tasks whenever a page is opened. On a site without visitors no task would run, and
on a busy site every request would be slowed down. New sites get DISABLE_WP_CRON and a schedule when they are created.
Sites that existed before get both here, once: a schedule that the site's owner has changed or deleted afterwards is not
restored.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final

import structlog

from svc_actors.panel.schedules.cron import Cron, next_time, zone_of
from svc_actors.panel.schedules.records import ScheduleKind, insert_schedule
from svc_actors.panel.sites.records import SITE_COLUMNS, SiteRow, as_site, lock_site
from svc_actors.panel.wordpress.records import write_cron_scheduled
from svc_actors.store import Database, Transaction, audit, service_itself
from svc_common.errors import ServiceError
from svc_webhost.wordpress import WordPressError, WordPressSites

ROUND_SECONDS: Final = 3600.0
NAME: Final = "wordpress-cron"
PATH: Final = "public/wp-cron.php"
_MINUTES: Final = 5
_LIMIT_SECONDS: Final = 900
_CALLER: Final = service_itself("schedule.create")

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.wordpress")


async def schedule_cron(tx: Transaction, site: SiteRow, now: datetime) -> None:
    """Create the schedule, unless it was created before."""
    if not await write_cron_scheduled(tx, site.id):
        return
    # Each site starts at another minute, so that not all sites run at once.
    cron, zone = f"{site.number % _MINUTES}-59/{_MINUTES} * * * *", "UTC"
    values = {
        "name": NAME,
        "kind": ScheduleKind.PHP.value,
        "path": PATH,
        "args": [],
        "cron": cron,
        "time_zone": zone,
        "time_limit_seconds": _LIMIT_SECONDS,
        "enabled": True,
        "next_run_at": next_time(Cron.parse(cron), zone_of(zone), now),
    }
    schedule = await insert_schedule(tx, site, values)
    told = {"site": site.domain, "kind": "php", "path": PATH, "cron": cron}
    await audit.record(tx, _CALLER, schedule.target(site), told)


class WordPressCron:
    """Creates the schedule of due WordPress tasks for sites that were created without it."""

    def __init__(self, database: Database, wordpress: WordPressSites, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._wordpress = wordpress
        self._clock = clock

    async def round(self) -> None:
        """A later round retries failures."""
        rows = await self._database.fetch(
            f"""SELECT {SITE_COLUMNS} FROM sites WHERE status = 'active' AND EXISTS (
                    SELECT FROM wordpress_sites
                    WHERE wordpress_sites.site_id = sites.id AND installed_at IS NOT NULL AND NOT cron_scheduled)
                ORDER BY number"""
        )
        for site in map(as_site, rows):
            try:
                await self._wordpress.leave_cron(site.account)
                await self._database.transact(partial(self._schedule, site))
            except (WordPressError, ServiceError) as error:
                log.warning("wordpress.cron_not_scheduled", site=site.domain, reason=str(error))

    async def _schedule(self, site: SiteRow, tx: Transaction) -> None:
        await schedule_cron(tx, await lock_site(tx, site.id), self._clock())
