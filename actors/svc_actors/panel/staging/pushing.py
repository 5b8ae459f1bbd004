"""The job that pushes a staging copy into its site: the chosen files and tables replace the live ones; nothing else is
touched.

All that is new is prepared next to the site first. Then the tables are swapped by one statement and the files by one
rename each. Then the site's front page is requested, and only if it answers as before, the push is recorded
(`write_pushed`).

Invariant: a push that is not recorded is undone, by the job itself or, if the job was killed, by the next core before
it starts any job (`undoing`). So the live site is either as before or as pushed, and the record says which.

Why in this order:

- Nothing is written into live tables and files: otherwise a push that fails half-way could only be repaired from a
  backup.
- The push is recorded after the request: if the core is killed in between, the push is undone, and the site is not left
  broken.
- Visitors may order and upload meanwhile, and are not locked out. A change of the live tables after the last comparison
  is found once these tables have been moved aside, where nobody writes to them; then the push is undone. Uploads are
  merged.

Why: docs/decisions/0046-wordpress-and-staging.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from svc_actors.panel.host_work import finished
from svc_actors.panel.jobs import Job, JobClass, JobRun, NewJob, enqueue
from svc_actors.panel.sites.php import php_of
from svc_actors.panel.sites.records import SiteRow, change_record, read_site
from svc_actors.panel.sites.site import Changed, Site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.panel.staging import selection
from svc_actors.panel.staging.records import StagingRow, pair_of, read_staging, write_move, write_pushed
from svc_actors.panel.staging.selection import Choice, SiteContents
from svc_actors.panel.staging.states import StagingEnd
from svc_actors.panel.staging.tools import Tools, translate_errors
from svc_actors.panel.staging.undoing import JOURNAL, PushRollback, new_database, old_database, top_of
from svc_actors.panel.wordpress.records import wordpress_site
from svc_actors.runtime import DeliveryError
from svc_actors.store import Transaction, service_itself
from svc_actors.undelivered import why_undelivered
from svc_common.durable import sync_folder, write_whole
from svc_common.errors import ServiceError, conflict, unavailable
from svc_webhost.databases import DatabaseName
from svc_webhost.site_tasks import SiteTasks, SiteVisit
from svc_webhost.staging import trees
from svc_webhost.tree_switch import switch
from svc_webhost.wordpress import ConfiguredDatabase

PUSH: Final = "staging.push"
STEPS: Final = ("compare", "back_up", "prepare_files", "prepare_tables", "switch", "tidy")
SECONDS: Final = 6 * 3600.0
# For a request of the front page, and a second one if HTTP redirects to HTTPS.
_ASK_SECONDS: Final = 30.0
_WORST: Final = 500
"""From this HTTP status on the site counts as broken. 401 or 403 may be intended."""

BackUp = Callable[[JobRun, SiteRow], Awaitable[None]]
"""Backs up the site as a part of this job. Raises ServiceError."""


async def order_push(tx: Transaction, live: SiteRow, chosen: Choice, *, accept_drift: bool) -> Job:
    return await enqueue(
        tx,
        NewJob(
            kind=PUSH,
            title=f"Push the staging copy of {live.domain}"[:200],
            job_class=JobClass.SITES,
            site_id=live.id,
            owner_id=live.owner_id,
            steps=STEPS,
            parameters={
                "files": None if chosen.files is None else list(chosen.files),
                "tables": None if chosen.tables is None else list(chosen.tables),
                "accept_drift": accept_drift,
            },
        ),
    )


@dataclass(frozen=True)
class PushPreview:
    """What a push would do now. `at` and `copied`: database and prefix of the live site, and of the copy."""

    at: ConfiguredDatabase
    copied: ConfiguredDatabase
    seen: SiteContents
    files: list[selection.Part]
    tables: list[selection.Part]


async def preview_push(tools: Tools, live: SiteRow, copy: SiteRow, staging: StagingRow) -> PushPreview:
    """Raises `conflict` if the wp-config.php of either site makes a push impossible."""
    # Read each time: the customer may have changed either wp-config.php since.
    at, copied = await tools.configured(live), await tools.configured(copy)
    if at.prefix != copied.prefix:
        raise conflict(f"The tables of {live.domain} start with {at.prefix}, those of the copy with {copied.prefix}.")
    seen = await tools.seen(live, copy, at, copied)
    return PushPreview(at, copied, seen, selection.files(seen, staging.copied), selection.tables(seen, staging.copied))


def refuse(preview: PushPreview, chosen: Choice, *, accept_drift: bool) -> tuple[list[str], list[str]]:
    """The files and tables to push. Raises `invalid` and `conflict`."""
    files, tables = chosen.of_files(preview.files), chosen.of_tables(preview.tables)
    if not files and not tables:
        raise conflict("There is nothing that can be pushed; nothing was pushed.")
    changed = selection.drift(preview.files, files) + selection.drift(preview.tables, tables)
    if changed and not accept_drift:
        named = ", ".join(changed[:10]) + (f" and {len(changed) - 10} more" if len(changed) > 10 else "")
        raise conflict(
            f"The live site was changed since the copy was made: {named}. A push would lose that; nothing was pushed.",
            hint="Refresh the copy and do the work again, leave these out, or send accept_drift.",
        )
    return files, tables


class StagingPush:
    """The work of the job, which belongs to the live site."""

    def __init__(self, tools: Tools, undoing: PushRollback, back_up: BackUp, tasks: SiteTasks) -> None:
        self._tools = tools
        self._undoing = undoing
        self._back_up = back_up
        self._tasks = tasks

    async def compare(self, run: JobRun) -> None:
        # Compared before the backup, which may take long, so that a push that cannot be done is refused at once.
        live, copy, found = await self._pair(run)
        preview = await preview_push(self._tools, live, copy, found)
        files, tables = refuse(preview, _choice(run), accept_drift=run.parameters["accept_drift"])
        await self._tools.require_room(copy, files, preview.copied.database)
        await run.log(f"Files: {', '.join(files) or 'none'}", f"Tables: {', '.join(tables) or 'none'}")

    async def back_up(self, run: JobRun) -> None:
        live, _, _ = await self._pair(run)
        await self._back_up(run, live)

    async def prepare_files(self, run: JobRun) -> None:
        async with self._undoing.unless_done(run.id):
            live, copy, found = await self._pair(run)
            folder = await self._tools.make_folder(run.id)
            preview = await preview_push(self._tools, live, copy, found)
            files, tables = refuse(preview, _choice(run), accept_drift=run.parameters["accept_drift"])
            # The choice is stored: the later steps prepare and swap exactly these parts, whatever is added to either
            # site.
            chosen = {"files": files, "tables": tables}
            await trio.to_thread.run_sync((folder / "chosen.json").write_text, json.dumps(chosen))
            there = [entry for entry in files if entry in preview.seen.copied_files]
            await self._tools.copy_files(run, copy, live, there, folder / "new")
            if selection.UPLOADS in files:
                # Uploads that the live site has received since the copy was made stay, and so do those that were
                # changed later on the live site than on the copy. Uploads that arrive from now on are merged after the
                # folders were exchanged.
                await self._tools.copy_files(run, live, live, [selection.UPLOADS], folder / "new", newest=True)

    async def prepare_tables(self, run: JobRun) -> None:
        async with self._undoing.unless_done(run.id):
            live, copy, _ = await self._pair(run)
            _, tables = self._chosen(run)
            if not tables:
                return
            at, copied = await self._tools.configured(live), await self._tools.configured(copy)
            folder, server, new = self._tools.folder(run.id), self._tools.server, new_database(run.id)
            dump, rewritten = folder / "copy.sql.gz", folder / "live.sql.gz"
            homes = (str(self._tools.home(copy)), str(self._tools.home(live)))
            with translate_errors():
                await self._tools.tables.dump(DatabaseName(copied.database), tables, dump, run.program)
                await self._tools.rewrite(run, dump, rewritten, await self._hosts(live, copy), homes)
                for name in (new, old_database(run.id)):
                    await server.create_database(name)
                await server.load(new, rewritten, live.account, run.program)
            await run.log(f"{len(tables)} tables of the copy are ready next to {at.database}.")

    async def switch(self, run: JobRun) -> None:
        """Until the push is recorded, any error, cancellation or kill undoes it."""
        async with self._undoing.unless_done(run.id):
            live, copy, found = await self._pair(run)
            files, tables = self._chosen(run)
            preview = await preview_push(self._tools, live, copy, found)
            # Refused again, because the backup and the load of the tables may have taken long.
            refuse(preview, Choice(files or None, tables or None), accept_drift=run.parameters["accept_drift"])
            # The push is undone only if the site becomes worse: a push may be meant to repair a site that was broken
            # before.
            before = await self._status(live)
            folder, database = self._tools.folder(run.id), DatabaseName(preview.at.database)
            # If the core is killed before the journal is written, nothing of the site was moved. If it is killed
            # afterwards, `settle` reads from the database and from the journals of the exchanges how far the push had
            # come.
            await trio.to_thread.run_sync(partial(_write_journal, folder, live, database, tables))
            await self._swap_tables(run, preview, files, tables)
            for below in ("", trees.CONTENT):
                await trio.to_thread.run_sync(partial(self._exchange, folder, live, below, files))
            await self._restart(live)
            await self._undoing.keep_uploads(folder)
            await self._flush(run, live)
            after = await self._status(live)
            if after >= _WORST or after == 0:
                if before < _WORST and before != 0:
                    raise unavailable(
                        f"{live.domain} answered {before} before the push and {after or 'nothing'} after it; "
                        "the live site has its previous state again.",
                        hint="The error log of the site may say why. Fix the copy, then push it again.",
                    )
                await run.log(f"The site answers {after or 'nothing'}, as before.")
            facts = await self._tools.facts(preview.at.database, preview.at.prefix, tables)
            base = found.copied.with_pushed(facts, await self._tools.digests(live, files))
            # The record is one transaction and the last statement of the block: a push that is recorded must not be
            # undone.
            await run.transact(partial(write_pushed, site_id=live.id, job_id=run.id, copied=base))
        await run.log(f"{live.domain} has the pushed changes.")

    async def tidy(self, run: JobRun) -> None:
        await self._undoing.settle(run.id)

    async def ended(self, tx: Transaction, job: Job) -> None:
        assert job.site_id is not None
        live, found = await read_site(tx, job.site_id), await read_staging(tx, job.site_id)
        if live is None or found is None or found.job_id != job.id:
            return
        # Even if `tidy` has failed, the push counts, and a later round removes what is left.
        if found.pushed_job == job.id:
            await write_move(tx, live, StagingEnd.PUSHED)
            return
        why = job.error.message if job.error is not None else "it was cancelled"
        # Undoing removes the folder as its last act: as long as the folder exists, the live site may be half pushed.
        left = await trio.to_thread.run_sync(self._tools.folder(job.id).exists)
        end = StagingEnd.INTERRUPTED if left else StagingEnd.UNDONE
        await write_move(tx, live, end, reason=f"The last push was not done: {why}")

    async def _swap_tables(
        self, run: JobRun, preview: PushPreview, files: Sequence[str], tables: Sequence[str]
    ) -> None:
        if not tables:
            return
        live, new, old = DatabaseName(preview.at.database), new_database(run.id), old_database(run.id)
        options = f"{preview.at.prefix}{selection.OPTIONS}"
        with translate_errors():
            if options in tables:
                await self._tools.tables.keep_options(new, live, options, selection.kept_options(files))
            await self._tools.tables.swap(live, new, old, tables)
        if run.parameters["accept_drift"]:
            return
        # A row that a visitor wrote between the last comparison and the swap is in the table that was moved aside.
        moved = await self._tools.facts(old, preview.at.prefix, tables)
        changed = [name for name in moved if moved[name] != preview.seen.live_tables.get(name)]
        if changed:
            raise conflict(
                f"The live site was changed while it was pushed: {', '.join(changed)}; it was restored.",
                hint="Push again, or send accept_drift.",
            )

    def _exchange(self, folder: Path, live: SiteRow, below: str, files: Sequence[str]) -> None:
        """Exchange the chosen entries of one folder. Blocks."""
        names = {entry.removeprefix(f"{below}/") for entry in files if entry.rpartition("/")[0] == below}
        if not names:
            return
        home, uid = self._tools.home(live) / "public" / below, live.account.uid
        new = top_of(folder, below)
        kept = {*os.listdir(home), *os.listdir(new / "new")} - names
        switch(home, uid, new, new / "new", kept)

    async def _restart(self, live: SiteRow) -> None:
        """Restarts PHP, whose cache has code of the former files."""

        async def restarted(tx: Transaction, locked: SiteRow) -> Changed:
            php = php_of(locked)
            await change_record(tx, locked, {"php": php.model_copy(update={"restarts": php.restarts + 1}).record})
            return Changed(locked.target)

        try:
            site = self._tools.actors.ref(Site, str(live.id))
            await finished(site.ask(Site.change, service_itself(PUSH), restarted))
        except DeliveryError as error:
            raise unavailable(why_undelivered(error)) from error

    async def _flush(self, run: JobRun, live: SiteRow) -> None:
        """Empties the caches of WordPress. If a plugin fails here, that is no reason to undo the push: the site's
        answer decides."""
        try:
            with translate_errors():
                await self._tools.wordpress.flush(wordpress_site(live))
        except ServiceError as error:
            await run.log(f"The caches of WordPress were not emptied: {error.message}")

    async def _status(self, live: SiteRow) -> int:
        """The HTTP status of the front page; 0: no answer."""
        status = 0
        with trio.move_on_after(_ASK_SECONDS):
            for secure in (False, True):
                status = await self._tasks.visit(SiteVisit(live.domain, "/", secure), _unheard)
                if status not in (301, 302, 307, 308):
                    break
        return status

    async def _hosts(self, live: SiteRow, copy: SiteRow) -> dict[str, str]:
        return {copy.domain: live.domain}

    def _chosen(self, run: JobRun) -> tuple[list[str], list[str]]:
        told = json.loads((self._tools.folder(run.id) / "chosen.json").read_text())
        return told["files"], told["tables"]

    async def _pair(self, run: JobRun) -> tuple[SiteRow, SiteRow, StagingRow]:
        live, copy, found = await pair_of(self._tools.database, run.site_id)
        for each in (live, copy):
            if each.status is not SiteStatus.ACTIVE:
                raise conflict(f"The site {each.domain} is {each.status.value}; nothing was pushed.")
        return live, copy, found


def _choice(run: JobRun) -> Choice:
    return Choice(run.parameters["files"], run.parameters["tables"])


def _write_journal(folder: Path, live: SiteRow, database: DatabaseName, tables: Sequence[str]) -> None:
    """Places the new entries for the exchange, then writes what an interrupted push has to undo. Blocks."""
    # wp-content first: it is a folder within `public`, and `public` is then moved as a whole.
    for below in (trees.CONTENT, ""):
        new = top_of(folder, below)
        new.mkdir(mode=0o700)
        source = folder / "new" / "public" / below
        if source.exists():
            source.rename(new / "new")
        else:
            (new / "new").mkdir(mode=0o700)
    journal = {
        "site": str(live.id),
        "home": live.account.name,
        "uid": live.account.uid,
        "database": database,
        "tables": list(tables),
    }
    write_whole(folder / JOURNAL, json.dumps(journal).encode(), mode=0o600)
    sync_folder(folder)


async def _unheard(lines: list[str]) -> None:
    """Discards the content: only the status of the request is used."""
