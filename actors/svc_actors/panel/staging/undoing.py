"""Undoes pushes that were not recorded, and removes what any job on a copy has left behind.

A push that was killed at any point is undone before the next core starts any job, or, if the database server does not
answer then, as soon as it does.

The journal names the parts that are pushed, but not which steps are done: a kill between a step and its journal entry
would make the journal wrong. How far a push had come is read from the parts themselves: for tables from the database in
which they are, for files from the journals of their exchange. So undoing may be repeated, and may itself be killed.

Uploads that arrive during a push are stored in the folder that is the site's at that moment. Before the other folder is
removed, those of its files that the site's folder does not have, or has only older, are merged into the site's folder:
after a push that counts, all such files of the old folder; after a push that was undone, those written into the new
folder since the journal. A folder is never removed before this.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import structlog
import trio

from svc_actors.panel.backups.drill import SCRATCH_NUMBER
from svc_actors.panel.host_work import finished
from svc_actors.panel.jobs import wake_queues
from svc_actors.panel.sites.php import php_of
from svc_actors.panel.sites.records import SiteRow, change_record, read_site
from svc_actors.panel.sites.site import Changed, Site
from svc_actors.panel.staging.records import (
    StagingRow,
    pending_undos,
    read_staging,
    was_pushed,
    write_move,
)
from svc_actors.panel.staging.selection import UPLOADS
from svc_actors.panel.staging.states import StagingEnd, StagingStatus
from svc_actors.panel.staging.tools import FOLDER, Tools, translate_errors
from svc_actors.store import Transaction, service_itself
from svc_common.errors import ServiceError, unavailable
from svc_webhost.databases import DatabaseName
from svc_webhost.staging import trees
from svc_webhost.tree_switch import revert_switch

JOURNAL: Final = "push.json"
MERGED: Final = "merged"
"""The file that marks uploads as merged. If the core is killed after it is written, uploads are not merged again: a
file that the site has removed in the meantime would come back."""
# Seconds: half a minute after a database server was restarted, a push that waits for it is undone.
ROUND_SECONDS: Final = 30.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.staging")


def new_database(job_id: int) -> DatabaseName:
    """The name of a database that belongs to no site, since no site has its number."""
    return DatabaseName(f"s{SCRATCH_NUMBER}_push{job_id}new")


def old_database(job_id: int) -> DatabaseName:
    return DatabaseName(f"s{SCRATCH_NUMBER}_push{job_id}old")


def top_of(folder: Path, below: str) -> Path:
    """The folder that contains the journal of one exchanged folder of the site."""
    return folder / (below or "top")


class PushRollback:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def recover(self) -> None:
        """Called before any job starts: otherwise a job of the site would see a mixture of the two states."""
        for job_id in await trio.to_thread.run_sync(self._left):
            await self._tried(job_id)
        await self._release()

    async def round(self) -> None:
        """Undo pushes that could not be undone before, and remove folders on which no job works."""
        left = await trio.to_thread.run_sync(self._left)
        rows = await self._tools.database.fetch(
            "SELECT id FROM jobs WHERE id = ANY($1) AND status IN ('queued', 'running')", left
        )
        for job_id in sorted(set(left) - {row["id"] for row in rows}):
            await self._tried(job_id)
        await self._release()

    @asynccontextmanager
    async def unless_done(self, job_id: int) -> AsyncIterator[None]:
        """Undo the push if an error leaves the block before the push is recorded."""
        try:
            yield
        except BaseException as error:
            # Shielded, so that the push is undone even after a cancellation: by the caller, by the deadline, or because
            # the core ends.
            with trio.CancelScope(shield=True):
                await self._tried(job_id)
            if isinstance(error, OSError):
                raise unavailable(
                    f"The files could not be put into place: {error}; the live site has its previous state again."
                ) from error
            raise

    async def settle(self, job_id: int) -> None:
        """Undo the push unless it is recorded, and remove all that is left of the job. Raises ServiceError, OSError."""
        folder, tools = self._tools.folder(job_id), self._tools
        if not folder.exists():
            return
        # Without a journal nothing of the site was moved: the folder is of a copy, or of a push that was only prepared.
        journal = await trio.to_thread.run_sync(_read, folder / JOURNAL)
        if journal is not None:
            new, old = new_database(job_id), old_database(job_id)
            undone, since = False, None
            # The record of the push decides, not the end of the job: a commit counts even if its answer was lost.
            if not await was_pushed(tools.database, job_id):
                if journal["tables"]:
                    with translate_errors():
                        await tools.server.ensure()
                        live = DatabaseName(journal["database"])
                        undone = await tools.tables.swap_back(live, new, old, journal["tables"])
                for below in (trees.CONTENT, ""):
                    undone |= await trio.to_thread.run_sync(revert_switch, top_of(folder, below))
                # Only uploads that were written after the journal are merged back: the others in the new folder are the
                # copy's.
                since = os.stat(folder / JOURNAL).st_mtime_ns
            if not (folder / MERGED).exists():
                await self._merge(folder, journal, since)
                await trio.to_thread.run_sync((folder / MERGED).touch)
            if undone:
                log.warning("staging.push_undone", job_id=job_id)
                await self._restart(UUID(journal["site"]))
        # The folder is removed last: while it exists, a later round comes back here until the databases are gone.
        await self._drop(job_id)
        await tools.remove_folder(job_id)

    async def _release(self) -> None:
        """Let other jobs start on sites whose pushes have been undone."""
        for staging in await pending_undos(self._tools.database):
            if not self._tools.folder(staging.job_id).exists():
                await self._tools.database.transact(partial(_undone, staging=staging))

    async def keep_uploads(self, folder: Path) -> None:
        """Merge uploads that arrived after the files were prepared, from the folder that was the site's until now.
        Raises OSError."""
        journal = await trio.to_thread.run_sync(_read, folder / JOURNAL)
        if journal is not None:
            await self._merge(folder, journal, None)

    async def _merge(self, folder: Path, journal: dict[str, Any], since: int | None) -> None:
        other = top_of(folder, trees.CONTENT) / "new"
        home = self._tools.folders.sites / journal["home"]
        merge = partial(
            trees.merge, other, home, ("public", trees.CONTENT), journal["uid"], Path(UPLOADS).name, since=since
        )
        try:
            merged = await trio.to_thread.run_sync(merge)
        except FileNotFoundError:
            return  # No uploads were pushed, or the site no longer exists.
        if merged.files or merged.left_out:
            log.info("staging.uploads_kept", folder=folder.name, files=merged.files, left_out=merged.left_out)

    async def _tried(self, job_id: int) -> None:
        try:
            await self.settle(job_id)
        except (ServiceError, OSError) as error:
            # The folder stays. So the end of the job records `undoing`, and the next round tries again.
            log.warning("staging.not_settled", job_id=job_id, error=str(error))

    async def _drop(self, job_id: int) -> None:
        server = self._tools.server
        if not server.exists:
            return
        with translate_errors():
            await server.ensure()
            there = await server.databases()
            for name in {new_database(job_id), old_database(job_id)} & there:
                await server.drop_database(name)

    async def _restart(self, site_id: UUID) -> None:
        """Restart PHP, whose cache may have code of the pushed files. If that fails, PHP checks the files soon
        anyway."""

        async def restarted(tx: Transaction, locked: SiteRow) -> Changed:
            php = php_of(locked)
            await change_record(tx, locked, {"php": php.model_copy(update={"restarts": php.restarts + 1}).record})
            return Changed(locked.target)

        with suppress(ServiceError):
            site = self._tools.actors.ref(Site, str(site_id))
            await finished(site.ask(Site.change, service_itself("staging.push"), restarted))

    def _left(self) -> list[int]:
        """The ids of the jobs whose folders exist. Blocks."""
        try:
            names = os.listdir(self._tools.folders.sites)
        except FileNotFoundError:
            return []
        numbers = [name.removeprefix(FOLDER) for name in names if name.startswith(FOLDER)]
        return sorted(int(number) for number in numbers if number.isdigit())


async def _undone(tx: Transaction, staging: StagingRow) -> None:
    live, found = await read_site(tx, staging.site_id), await read_staging(tx, staging.site_id)
    # Read again in this transaction: the site may have been deleted since.
    if live is not None and found is not None and found.status is StagingStatus.UNDOING:
        await write_move(tx, live, StagingEnd.UNDONE, reason=found.reason)
        wake_queues(tx)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    return found
