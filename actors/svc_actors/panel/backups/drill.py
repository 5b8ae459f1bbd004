"""The work of a restore drill: a backup is restored out of everybody's reach, compared, and removed.

Its files go to a folder of root's and are compared with the manifest, byte for byte. Its databases are loaded into
databases that are named with a number of no site, and dumped again; tables and rows in both dumps are compared. However
a drill ends, its folder is removed when the core starts, and its databases in the next round (`remove_scratch`).
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import trio

from svc_actors.panel.backups.databases import FOLDER, DatabaseDump, translate_errors
from svc_actors.panel.backups.drill_records import end_drill, leftover_scratch, write_compared, write_scratch
from svc_actors.panel.backups.records import BackupRow, read_backup
from svc_actors.panel.backups.repositories import RepositoryRow, read_repository
from svc_actors.panel.backups.tools import DUMPED, Tools
from svc_actors.panel.jobs import Job, JobRun
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.store import Transaction
from svc_common.errors import not_found, unavailable
from svc_webhost.databases import DatabaseName, EngineKind
from svc_webhost.restic import Repository
from svc_webhost.restic.driver import CONTENT, MANIFEST_PATH, TREE
from svc_webhost.restic.manifest import size_below

SCRATCH_NUMBER: Final = 1
"""A site number that no site has: real ones start at 1001 (`site_numbers`)."""
_NOT_COMPARED: Final = (b"--", b"/*", b"SET ", b"\\", b"SELECT pg_catalog.", b"CREATE DEFINER")
"""Lines of dumps that contain the time, the database's name or its owner. These are not compared; all other lines are
tables and rows."""


class DrillWork:
    """The work of `backup.drill`."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._places = tools.places

    async def plan(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            _, backup, repository = await self._of(run)
            await self._tools.open_for_restore(run, repository, backup.id)
            await trio.to_thread.run_sync(self._places.make_staging, run.id)
            await run.log(f"Testing the backup of {backup.created_at:%Y-%m-%d %H:%M} UTC; the site is not touched.")

    async def reserve_disk(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            await self._tools.fetch_said(run, await self._local(run), MANIFEST_PATH, DUMPED)
            needed = await trio.to_thread.run_sync(size_below, str(self._tools.listed(run)), "")
            # For each database: the dump, its size once loaded, and the dump that is made for the comparison.
            needed += sum(2 * dump.size + dump.loaded for dump in await self._tools.dumped(run))
            await self._tools.require_room(
                needed,
                what="The drill",
                left="nothing was restored",
                hint="Free some space, or choose a smaller site.",
            )

    async def fetch(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            await self._tools.fetch(run, await self._local(run), self._tools.snapshot_ids(run).tree, self._new(run))

    async def verify(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            site, _, _ = await self._of(run)
            uid = site.account.uid
            tree = self._new(run) / TREE
            verified = await self._tools.restic.verify(run.program, tree, self._tools.listed(run), "", uid, uid)
            if verified.wrong:
                await run.log(*(f"differs: {how}" for how in verified.named[:20]))
                raise unavailable(f"{verified.wrong:,} entries differ from what was backed up ({verified.named[0]}).")
            await self._tools.databases.verify_fetched(self._new(run) / CONTENT, await self._tools.dumped(run))
            await run.transact(partial(write_compared, job_id=run.id, entries=verified.entries))
            await run.log(f"{verified.entries:,} entries match the backup, byte for byte.")

    async def try_databases(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            site, _, _ = await self._of(run)
            dumps = await self._tools.dumped(run)
            names = {dump: scratch_name(run.id, place) for place, dump in enumerate(dumps)}
            await run.transact(
                partial(write_scratch, job_id=run.id, names=[f"{dump.engine} {names[dump]}" for dump in dumps])
            )
            try:
                for dump, name in names.items():
                    await self._try(run, site, dump, name)
            finally:
                with trio.CancelScope(shield=True):
                    await _drop(self._tools, run.id, [f"{dump.engine} {names[dump]}" for dump in dumps])
            await run.transact(partial(write_compared, job_id=run.id, databases=len(dumps)))

    async def remove(self, run: JobRun) -> None:
        await self._tools.clean(run.id)
        await run.log("The test copy was removed.")

    async def ended(self, tx: Transaction, job: Job) -> None:
        await end_drill(tx, job)

    async def _try(self, run: JobRun, site: SiteRow, dump: DatabaseDump, name: DatabaseName) -> None:
        server = self._tools.databases.server(dump.engine)
        file = self._new(run) / CONTENT / FOLDER / dump.file
        again = self._places.work(run.id) / f"again-{name}.sql.gz"
        with translate_errors():
            await server.ensure()
            await server.create_database(name)
            await server.load(name, file, site.account, run.program)
            await server.dump(name, again, run.program)
        wanted = await trio.to_thread.run_sync(content_of, file)
        if await trio.to_thread.run_sync(content_of, again) != wanted:
            raise unavailable(f"{dump.name} differs from what was backed up after loading.")
        await run.log(f"{dump.name} has the tables and rows of the backup.")

    async def _local(self, run: JobRun) -> Repository:
        _, _, repository = await self._of(run)
        return await self._tools.local(run, repository)

    def _new(self, run: JobRun) -> Path:
        return self._places.staging(run.id) / "new"

    async def _of(self, run: JobRun) -> tuple[SiteRow, BackupRow, RepositoryRow]:
        backup = await read_backup(self._tools.database, UUID(run.parameters["backup"]))
        site = await read_site(self._tools.database, run.site_id)
        if backup is None or site is None:
            raise not_found("The site or the backup no longer exists.")
        return site, backup, await read_repository(self._tools.database, backup.repository_id)


async def remove_scratch(tools: Tools) -> None:
    """Remove the databases of drills that a kill cut short."""
    for row in await leftover_scratch(tools.database):
        await _drop(tools, row["job_id"], row["scratch"])


def scratch_name(job_id: int, place: int) -> DatabaseName:
    return DatabaseName(f"s{SCRATCH_NUMBER}_drill{job_id}x{place}")


async def _drop(tools: Tools, job_id: int, scratch: Sequence[str]) -> None:
    for each in scratch:
        engine, _, name = each.partition(" ")
        server = tools.databases.server(EngineKind(engine))
        with translate_errors():
            await server.ensure()
            await server.drop_database(DatabaseName(name))
    await tools.database.transact(partial(write_scratch, job_id=job_id, names=[]))


def content_of(dump: Path) -> str:
    """A digest of the tables and rows of a dump, in the dump's order."""
    digest = hashlib.sha256()
    for line in _lines(dump):
        if line.strip() and not line.startswith(_NOT_COMPARED):
            digest.update(line)
    return digest.hexdigest()


def _lines(dump: Path) -> Iterator[bytes]:
    with gzip.open(dump) as opened:
        yield from opened
