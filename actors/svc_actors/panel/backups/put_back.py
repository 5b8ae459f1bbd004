"""Puts databases back after a restoration was interrupted by a kill of the core or of their server.

The restoration saved the databases' content before it emptied them. The saved content is kept (`Places.keep_aside`)
until it is loaded, however many attempts that takes. No backup or restoration of the site starts before that
(`Tools.put_back`).
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.panel.backups.tools import Tools
from svc_actors.panel.jobs import JobClass, JobRun, JobStatus, NewJob, enqueue
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.store import Transaction
from svc_common.errors import not_found
from svc_webhost.tree_removal import remove_tree

PUT_BACK: Final = "backup.put_back"
UNKNOWN_DAYS: Final = 30
"""For as long as the backups of a deleted site are kept."""
AGAIN_MINUTES: Final = 10
"""The pause after a failed attempt, for example because the database server was down."""


class PutBackWork:
    """The work of `backup.put_back`."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def load(self, run: JobRun) -> None:
        site = await read_site(self._tools.database, run.site_id)
        if site is None:
            raise not_found("The site no longer exists.")
        await self._tools.put_back(run, site)


async def queue_put_back(tools: Tools) -> None:
    """Queue a job for each site with databases to put back, unless the site has such a job or had one minutes ago. The
    saved databases of a site without a record may be the last copy: they stay for `UNKNOWN_DAYS`, and an alert reports
    them."""
    places = tools.places
    for job_id in await trio.to_thread.run_sync(places.kept_aside):
        number = await trio.to_thread.run_sync(places.number_kept_aside, job_id)
        site = None if number is None else await _site_of(tools, number)
        if site is not None:
            await tools.database.transact(partial(_queue, site=site))
        elif number is None or await trio.to_thread.run_sync(places.days_kept_aside, job_id) > UNKNOWN_DAYS:
            await trio.to_thread.run_sync(remove_tree, places.put_back(job_id))
            await tools.database.transact(partial(close_alert, key=_alert(job_id)))
        else:
            message = (
                f"The databases of a site s{number}, which has no record, are in {places.put_back(job_id)}: they were "
                "set aside for a restore or an import that failed. They are removed after "
                f"{UNKNOWN_DAYS} days; move the folder elsewhere to keep them."
            )
            await tools.database.transact(partial(raise_alert, key=_alert(job_id), message=message))


async def _site_of(tools: Tools, number: int) -> SiteRow | None:
    site_id = await tools.database.fetchval("SELECT id FROM sites WHERE number = $1", number)
    return None if site_id is None else await read_site(tools.database, site_id)


def _alert(job_id: int) -> str:
    return f"databases-aside:{job_id}"


async def _queue(tx: Transaction, site: SiteRow) -> None:
    there = await tx.fetchval(
        """SELECT 1 FROM jobs WHERE kind = $1 AND site_id = $2
           AND (status = ANY($3) OR ended_at > now() - make_interval(mins => $4))""",
        PUT_BACK,
        site.id,
        [status.value for status in JobStatus if status.open],
        AGAIN_MINUTES,
    )
    if there is None:
        title = f"Put back the databases of {site.domain}"
        await enqueue(tx, NewJob(PUT_BACK, title, JobClass.BACKUPS, ("load",), site.id, site.owner_id))
