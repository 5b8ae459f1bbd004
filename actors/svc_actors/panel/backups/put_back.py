"""Databases that a restoration was loading when the core was killed, or their server: they get back what they held.

The restoration put that aside before it emptied them, and it is kept apart (`Places.keep_aside`) until it is loaded,
however often that takes. No backup or restoration of the site begins before (`Tools.put_back`).
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from svc_actors.errors import not_found
from svc_actors.host.tree_removal import remove_tree
from svc_actors.panel.backups.tools import Tools
from svc_actors.panel.jobs import JobClass, JobRun, JobStatus, NewJob, enqueue
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.store import Transaction

PUT_BACK: Final = "backup.put_back"
AGAIN_MINUTES: Final = 10
"""After a try that failed, the database server being away, say."""


class PutBackWork:
    """The work of `backup.put_back`."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def load(self, run: JobRun) -> None:
        site = await read_site(self._tools.database, run.site_id)
        if site is None:
            raise not_found("The site is not there any more.")
        await self._tools.put_back(run, site)


async def queue_put_back(tools: Tools) -> None:
    """A job for each site whose databases wait, unless there is one, or was a moment ago."""
    kept = await trio.to_thread.run_sync(tools.places.kept_aside)
    if not kept:
        return
    found = await tools.database.fetch("SELECT id, site_id FROM jobs WHERE id = ANY($1)", kept)
    site_of = {row["id"]: row["site_id"] for row in found}
    for job_id in kept:
        site = await read_site(tools.database, site_of[job_id]) if site_of.get(job_id) is not None else None
        if site is None:
            await trio.to_thread.run_sync(remove_tree, tools.places.put_back(job_id))
        else:
            await tools.database.transact(partial(_queue, site=site))


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
