"""The jobs that create a staging copy and refresh it: the live site's files and database, under another name.

The copy is a site of its own, with an account, a database and a database user of its own: nothing that happens in it
reaches the live site. Every step may be repeated. A copy that was interrupted is `failed`, and a refresh completes it.

The files are not copied into the copy's home directly: a visitor could run them with the live site's wp-config.php, and
so with its database. They are collected in a folder that only root can read, wp-config.php is written there, with a
database and salts of its own, and only then everything is switched into the home.

Rejected: a plugin that holds back the copy's mail. PHP's own configuration does this, so no file of the copy has to
differ for it, and no such file can be pushed by mistake.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import trio

from svc_actors.panel.accounts.disk_use import require_disk_room
from svc_actors.panel.host_work import finished
from svc_actors.panel.jobs import Job, JobClass, JobRun, JobStatus, NewJob, enqueue
from svc_actors.panel.sites.php import php_of
from svc_actors.panel.sites.records import SiteRow, change_record, lock_site, read_site, write_status
from svc_actors.panel.sites.site import Changed, Site
from svc_actors.panel.sites.states import SiteEnd, SiteStatus
from svc_actors.panel.sites.states import move as site_move
from svc_actors.panel.staging.records import Baseline, pair_of, read_staging, write_copied, write_move
from svc_actors.panel.staging.selection import is_copied
from svc_actors.panel.staging.states import StagingEnd
from svc_actors.panel.staging.tools import Tools, translate_errors
from svc_actors.panel.wordpress.database import LABEL
from svc_actors.panel.wordpress.records import write_installed
from svc_actors.runtime import DeliveryError
from svc_actors.store import Transaction, service_itself
from svc_actors.undelivered import why_undelivered
from svc_common.durable import write_whole
from svc_common.errors import conflict, unavailable
from svc_webhost.accounts import AccountError, Accounts
from svc_webhost.databases import DatabaseName, database_name
from svc_webhost.tree_switch import switch
from svc_webhost.wordpress import SiteDatabase

CREATE: Final = "staging.create"
REFRESH: Final = "staging.refresh"
STEPS: Final = ("make_account", "copy_files", "copy_database", "switch", "serve")
SECONDS: Final = 4 * 3600.0

MakeDatabase = Callable[[SiteRow], Awaitable[SiteDatabase]]


async def order_copy(tx: Transaction, live: SiteRow, kind: str, title: str) -> Job:
    return await enqueue(
        tx,
        NewJob(
            kind=kind,
            title=title[:200],
            job_class=JobClass.SITES,
            site_id=live.id,
            owner_id=live.owner_id,
            steps=STEPS,
        ),
    )


class StagingCopy:
    """The work of both jobs. Both belong to the live site, so that no other job of that site runs meanwhile."""

    def __init__(self, tools: Tools, accounts: Accounts, make_database: MakeDatabase) -> None:
        self._tools = tools
        self._accounts = accounts
        self._make_database = make_database

    async def make_account(self, run: JobRun) -> None:
        live, copy = await self._pair(run)
        at = await self._tools.configured(live)
        await self._tools.require_room(live, await self._entries(live), at.database)
        try:
            await self._accounts.make(copy.account, None)
        except AccountError as error:
            raise unavailable(str(error), hint="Refresh the copy to retry.") from error
        await self._make_database(copy)

    async def copy_files(self, run: JobRun) -> None:
        """Reads the baseline before the files are copied, so that a change of the live site meanwhile counts as
        drift."""
        async with _Removed(self._tools, run):
            live, copy = await self._pair(run)
            at = await self._tools.configured(live)
            entries = await self._entries(live)
            base = Baseline(
                at.database,
                at.prefix,
                await self._tools.facts(at.database, at.prefix),
                await self._tools.digests(live, entries),
            )
            # The baseline takes effect once the copy is complete: until then the copy's status forbids a push.
            await run.transact(partial(write_copied, site_id=live.id, copied=base))
            folder = await self._tools.make_folder(run.id)
            # A new copy adds to the disk use that the plan limits, so the limit is enforced. A refresh replaces files
            # that are counted already.
            new = run.job.kind == CREATE
            most = await require_disk_room(self._tools.database, copy.id, 0) if new else None
            await self._tools.copy_files(run, live, copy, entries, folder / "new", most=most)

    async def copy_database(self, run: JobRun) -> None:
        async with _Removed(self._tools, run):
            live, copy = await self._pair(run)
            at = await self._tools.configured(live)
            folder, server = self._tools.folder(run.id), self._tools.server
            dump, rewritten = folder / "live.sql.gz", folder / "copy.sql.gz"
            with translate_errors():
                await server.dump(DatabaseName(at.database), dump, run.program)
            # Every name of the live site is replaced: pages may contain links with one of its aliases.
            hosts = dict.fromkeys(await self._names(live), copy.domain)
            homes = (str(self._tools.home(live)), str(self._tools.home(copy)))
            await self._tools.rewrite(run, dump, rewritten, hosts, homes)
            name = database_name(copy.number, LABEL)
            row = await self._tools.database.fetchrow(
                "SELECT id FROM databases WHERE engine = 'mariadb' AND name = $1", name
            )
            if row is None:
                raise conflict(f"The database {name} of the copy no longer exists.", hint="Refresh the copy.")
            await self._tools.databases.empty(row["id"])
            with translate_errors():
                await server.load(name, rewritten, copy.account, run.program)
            await run.log(f"{name} has what {at.database} has, with addresses of {copy.domain}.")

    async def switch(self, run: JobRun) -> None:
        async with _Removed(self._tools, run):
            live, copy = await self._pair(run)
            folder = self._tools.folder(run.id)
            # The database user gets a new password: the former one is stored only in the copy's old wp-config.php,
            # which is replaced.
            database = await self._make_database(copy)
            with translate_errors():
                text = await self._tools.wordpress.configuration_of_copy(live.account, copy.domain, database)
            await trio.to_thread.run_sync(_place, folder, text, copy.account.uid)
            home = self._tools.home(copy)
            # Everything in the copy's home except `public` is the copy's own, and stays.
            kept = set(await trio.to_thread.run_sync(os.listdir, home)) - {"public"}
            try:
                move = partial(switch, home, copy.account.uid, folder, folder / "new", kept)
                await trio.to_thread.run_sync(move)
            except OSError as error:
                raise unavailable(f"The files could not be put into place: {error}.") from error
        await self._tools.remove_folder(run.id)

    async def serve(self, run: JobRun) -> None:
        _, copy = await self._pair(run)

        # PHP is restarted, because its cache may still contain code of the former files.
        async def restarted(tx: Transaction, locked: SiteRow) -> Changed:
            php = php_of(locked)
            await change_record(tx, locked, {"php": php.model_copy(update={"restarts": php.restarts + 1}).record})
            return Changed(locked.target)

        site = self._tools.actors.ref(Site, str(copy.id))
        try:
            if copy.status is SiteStatus.CREATING:
                await run.transact(partial(write_installed, site_id=copy.id))
                await finished(site.ask(Site.build))
            else:
                await finished(site.ask(Site.change, service_itself(REFRESH), restarted))
        except DeliveryError as error:
            raise unavailable(why_undelivered(error), hint="Refresh the copy to retry.") from error
        await run.log(f"{copy.domain} is served, behind its password.")

    async def ended(self, tx: Transaction, job: Job) -> None:
        assert job.site_id is not None
        live, found = await read_site(tx, job.site_id), await read_staging(tx, job.site_id)
        # The site or its copy was deleted meanwhile, or a later job has taken over the copy.
        if live is None or found is None or found.job_id != job.id:
            return
        if job.status is JobStatus.SUCCEEDED:
            await write_move(tx, live, StagingEnd.COPIED)
            return
        why = job.error.message if job.error is not None else "it was cancelled"
        await write_move(tx, live, StagingEnd.BROKEN, reason=why)
        copy = await lock_site(tx, found.copy_id)
        if copy.status is SiteStatus.CREATING:
            await write_status(tx, copy, site_move(copy.status, SiteEnd.BROKEN), f"The copy was not finished: {why}")

    async def _entries(self, live: SiteRow) -> list[str]:
        return [entry for entry in await self._tools.entries(live) if is_copied(entry)]

    async def _names(self, live: SiteRow) -> list[str]:
        """All names of the site, which its pages may use in links."""
        rows = await self._tools.database.fetch("SELECT name FROM site_domains WHERE site_id = $1", live.id)
        return [row["name"] for row in rows]

    async def _pair(self, run: JobRun) -> tuple[SiteRow, SiteRow]:
        live, copy, _ = await pair_of(self._tools.database, run.site_id)
        if live.status is not SiteStatus.ACTIVE or copy.status not in (SiteStatus.CREATING, SiteStatus.ACTIVE):
            which = live if live.status is not SiteStatus.ACTIVE else copy
            raise conflict(f"The site {which.domain} is {which.status.value}; the copy was not created.")
        return live, copy


class _Removed:
    """Removes the folder of the job if a step fails. Between successful steps the folder stays."""

    def __init__(self, tools: Tools, run: JobRun) -> None:
        self._tools = tools
        self._run = run

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        # Shielded, so that even a cancelled job removes the folder: it would leave as many files on the disk as the
        # site has.
        with trio.CancelScope(shield=True):
            await self._tools.remove_folder(self._run.id)
        if isinstance(error, OSError):
            raise unavailable(f"The copy could not be created: {error}.") from error


def _place(folder: Path, text: str, uid: int) -> None:
    """Write the copy's wp-config.php, readable only for the copy's account. Blocks."""
    file = folder / "new" / "public" / "wp-config.php"
    write_whole(file, text.encode(), mode=0o600)
    os.chown(file, uid, uid)
