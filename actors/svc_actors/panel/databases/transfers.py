"""Exports and imports of databases: the work of their jobs, and the files of exports.

    exports/<id>.sql.gz   0600 root, removed with its record after a week

An import checks its file first (`check_dump`). An import that replaces the content saves the old content before it
empties the database: after a failure of any kind, the job itself or a later one (`backups.put_back`) loads the saved
content again. An import that adds to the content restores nothing: that would undo what visitors have written
meanwhile.

Invariant: `sweep` removes a file that has no record, or whose export is neither ready nor being made by a job.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import trio

from svc_actors.panel.accounts.disk_use import add_use, require_disk_room
from svc_actors.panel.backups.databases import translate_errors as translated
from svc_actors.panel.backups.tools import Tools
from svc_actors.panel.databases.agreeing import SiteDatabases
from svc_actors.panel.databases.looking import check_dump
from svc_actors.panel.databases.records import DatabaseRow, read_database
from svc_actors.panel.databases.states import DatabaseStatus
from svc_actors.panel.jobs import Job, JobClass, JobRun, JobStatus, NewJob, ProgramFailed, enqueue, require_turn
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.store import Caller, Database, Record, Transaction, audit
from svc_common.errors import ServiceError, capacity, conflict, not_found, unavailable
from svc_webhost.databases import DatabaseServer, EngineKind, SiteFile
from svc_webhost.folders import HostFolders

EXPORT: Final = "database.export"
IMPORT: Final = "database.import"
KEPT_DAYS: Final = 7
MOST_EXPORTS: Final = 10
"""The most exports of a database."""
SWEEP_SECONDS: Final = 3600.0
EXPORT_COLUMNS: Final = """database_exports.id, database_exports.database_id, database_exports.status,
    database_exports.size, database_exports.sha256, database_exports.created_at, database_exports.expires_at"""
_BLOCK: Final = 1 << 20
_LEFT: Final = {EngineKind.MARIADB: "a part", EngineKind.POSTGRESQL: "nothing"}
"""What remains of a dump whose loading was cut short. With MariaDB a part remains, because MariaDB commits after each
statement that defines something."""


@dataclass(frozen=True)
class Export:
    """`size` and `sha256` are those of the complete file, once it is ready."""

    id: UUID
    database_id: UUID
    ready: bool
    size: int | None
    sha256: str | None
    created_at: datetime
    expires_at: datetime


def as_export(row: Record) -> Export:
    """Converts a row of `EXPORT_COLUMNS`."""
    return Export(
        id=row["id"],
        database_id=row["database_id"],
        ready=row["status"] == "ready",
        size=row["size"],
        sha256=row["sha256"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )


async def start_export(tx: Transaction, caller: Caller, database: DatabaseRow) -> Job:
    """The database's row is locked."""
    _require_active(database)
    await require_disk_room(tx, database.site_id, 0)
    held = await tx.fetchval("SELECT count(*) FROM database_exports WHERE database_id = $1", database.id)
    if held >= MOST_EXPORTS:
        raise conflict(
            f"The database already has {MOST_EXPORTS} exports, which is the limit; no export was started.",
            hint="Delete an export first (`svc database-export delete`).",
        )
    export_id = await tx.fetchval(
        """INSERT INTO database_exports (database_id, expires_at) VALUES ($1, now() + make_interval(days => $2))
           RETURNING id""",
        database.id,
        KEPT_DAYS,
    )
    parameters = {"database": str(database.id), "export": str(export_id)}
    job = await _enqueue(tx, EXPORT, f"Export {database.name}", database, ("dump",), parameters)
    await audit.record(tx, caller, database.target, {"export": str(export_id), "job": job.id})
    return job


async def start_import(
    tx: Transaction, caller: Caller, database: DatabaseRow, source: Mapping[str, str], *, replace: bool
) -> Job:
    """`source` is either `path`, a file of the site, or `export`, the id of an export. The database's row is locked."""
    _require_active(database)
    await require_disk_room(tx, database.site_id, 0)
    steps = ("look", "set_aside", "replace") if replace else ("look", "load")
    parameters = {"database": str(database.id), **source}
    job = await _enqueue(tx, IMPORT, f"Import into {database.name}", database, steps, parameters)
    await audit.record(tx, caller, database.target, {**source, "replace": replace, "job": job.id})
    return job


async def require_export(tx: Transaction, export_id: UUID, into: DatabaseRow) -> None:
    """Raises not_found unless this is a finished export of a database of the same site and engine."""
    found = await tx.fetchval(
        """SELECT 1 FROM database_exports JOIN databases ON databases.id = database_exports.database_id
           WHERE database_exports.id = $1 AND database_exports.status = 'ready'
           AND databases.site_id = $2 AND databases.engine = $3""",
        export_id,
        into.site_id,
        into.engine.value,
    )
    if found is None:
        raise not_found("There is no such export of this site.")


async def delete_export(tx: Transaction, caller: Caller, database: DatabaseRow, export: Export) -> None:
    """The next `sweep` removes its file."""
    if not export.ready:
        raise conflict("The export is not finished.", hint="Cancel its job.")
    await tx.execute("DELETE FROM database_exports WHERE id = $1", export.id)
    await audit.record(tx, caller, database.target, {"export": str(export.id)})


async def read_page(folders: HostFolders, export: Export, offset: int, limit: int) -> bytes:
    """Up to `limit` bytes of the export's file from `offset` on. Raises not_found if the export has expired
    meanwhile."""

    def read() -> bytes:
        with open(export_file(folders, export.id), "rb") as file:
            return os.pread(file.fileno(), limit, offset)

    try:
        return await trio.to_thread.run_sync(read)
    except FileNotFoundError:
        raise not_found("The export has expired.") from None


def export_file(folders: HostFolders, export_id: UUID) -> Path:
    return folders.exports / f"{export_id}.sql.gz"


class DatabaseTransfers:
    """The work of both kinds of jobs. Everything is read again when a job runs, because it may have changed since the
    job was queued."""

    def __init__(self, database: Database, databases: SiteDatabases, folders: HostFolders, tools: Tools) -> None:
        self._database = database
        self._databases = databases
        self._folders = folders
        self._tools = tools

    async def dump(self, run: JobRun) -> None:
        row, server = await self._of(run)
        export_id = UUID(run.parameters["export"])
        file = export_file(self._folders, export_id)
        await trio.to_thread.run_sync(lambda: self._folders.exports.mkdir(mode=0o700, parents=True, exist_ok=True))
        await self._require_space(row, server)
        with translated():
            await server.dump(row.name, file, run.program)
        size, sha256 = await trio.to_thread.run_sync(_measured, file)

        async def ready(tx: Transaction) -> None:
            await tx.execute(
                "UPDATE database_exports SET status = 'ready', size = $2, sha256 = $3 WHERE id = $1",
                export_id,
                size,
                sha256,
            )
            await add_use(tx, row.site_id, size, exported=True)

        await run.transact(ready)
        await run.log(f"{row.name} was exported: {size:,} bytes, compressed.")

    async def look(self, run: JobRun) -> None:
        row, server = await self._of(run)
        site, source = await self._source(run, row)
        await self._tools.put_back(run, site)
        size = await check_dump(run, server, source, site)
        with translated():
            held = (await server.sizes([row.name])).get(row.name, 0) if self._replaces(run) else 0
        await self._tools.require_room(
            size + held,
            what="The import",
            left=f"{row.name} is as it was",
            hint="Free some space, or import a smaller dump.",
        )
        await run.log(f"The dump has {size:,} bytes of SQL.")

    async def set_aside(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            row, _ = await self._of(run)
            ready = await trio.to_thread.run_sync(self._tools.places.make_ready, run.id)
            try:
                await self._tools.databases.set_aside(run, row, ready)
            except ProgramFailed as error:
                # Without a dump the old content could not be put back if the import fails, so nothing is changed. The
                # hint is for a customer whose database is broken, and who wants above all to replace it.
                raise conflict(
                    f"{row.name} cannot be dumped, so a failed import could not be undone; "
                    f"nothing was changed: {error.last or error.message}",
                    hint="Fix the cause; or delete the database, create it again and import without replace.",
                ) from error
            await run.log(f"The contents of {row.name} are kept until the dump is loaded.")

    async def empty(self, run: JobRun) -> None:
        """The step before `load` of a replacing import in releases up to 2026-11: such a job may still be queued when
        this release starts. As in `replace`, the dump is checked before anything is removed."""
        await self.look(run)
        await self.set_aside(run)

    async def replace(self, run: JobRun) -> None:
        async with self._tools.cleaned_on_failure(run):
            row, server = await self._of(run)
            site, source = await self._source(run, row)
            await run.log(f"Loading; if this is interrupted, {row.name} gets its contents back.")
            await trio.to_thread.run_sync(self._tools.places.put_aside, run.id)
            try:
                await self._databases.empty(row.id)
                await self._load(run, row, server, site, source)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._put_back(run, row, site)
                raise
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._tools.places.drop_aside, run.id)
        await self._tools.clean(run.id)
        await run.log(f"All of it is in {row.name}.")

    async def load(self, run: JobRun) -> None:
        if self._replaces(run):
            await self.replace(run)
            return
        row, server = await self._of(run)
        site, source = await self._source(run, row)
        # Logged before loading, because a core that is killed logs nothing afterwards, and people look into the job's
        # log for the reason.
        again = ": import it again with replace" if row.engine is EngineKind.MARIADB else ""
        await run.log(f"Loading; if this is interrupted, {_LEFT[row.engine]} of the dump is in {row.name}{again}.")
        await self._load(run, row, server, site, source)
        await run.log(f"All of it is in {row.name}.")

    async def _load(
        self, run: JobRun, row: DatabaseRow, server: DatabaseServer, site: SiteRow, source: Path | SiteFile
    ) -> None:
        try:
            with translated():
                await server.load(row.name, source, site.account, run.program)
        except ProgramFailed as error:
            raise _not_loaded(row, error, replaced=self._replaces(run)) from error

    async def _put_back(self, run: JobRun, row: DatabaseRow, site: SiteRow) -> None:
        try:
            await self._tools.databases.put_back(run, site, self._tools.places.aside(run.id))
        except ServiceError as error:
            raise unavailable(
                f"The import failed, and the old contents of {row.name} could not be restored yet: {error.message}",
                hint="They are kept on this server; restoring them is retried every ten minutes.",
            ) from error

    async def _source(self, run: JobRun, row: DatabaseRow) -> tuple[SiteRow, Path | SiteFile]:
        site = await read_site(self._database, row.site_id)
        if site is None:
            raise not_found("The site no longer exists.")
        if "export" not in run.parameters:
            return site, SiteFile(self._folders.sites / site.account.name, run.parameters["path"])
        source = export_file(self._folders, UUID(run.parameters["export"]))
        if not await trio.Path(source).exists():
            raise not_found("The export no longer exists.")
        return site, source

    def _replaces(self, run: JobRun) -> bool:
        return not {"replace", "empty"}.isdisjoint(run.steps)

    async def ended(self, tx: Transaction, job: Job) -> None:
        """An export that failed, was cancelled or interrupted leaves no record."""
        if job.kind == EXPORT and job.status is not JobStatus.SUCCEEDED:
            await tx.execute("DELETE FROM database_exports WHERE id = $1", UUID(job.parameters["export"]))

    async def remove_all(self, site: SiteRow) -> None:
        """Remove every database and user of a site that is being deleted, and the files of its exports. Raises
        `unavailable`."""
        await self._databases.remove_all(site)
        await self.sweep()

    async def sweep(self) -> None:
        """Remove expired exports, and files without a record."""
        await self._database.execute("DELETE FROM database_exports WHERE expires_at < now() AND status = 'ready'")
        # The files are listed before the records are read, so that a file created in between is not taken for one
        # without a record.
        found = await trio.to_thread.run_sync(self._files)
        rows = await self._database.fetch("SELECT id FROM database_exports")
        known = {str(row["id"]) for row in rows}
        orphans = [file for file in found if file.name.partition(".")[0] not in known]
        await trio.to_thread.run_sync(_remove, orphans)

    def _files(self) -> list[Path]:
        return list(self._folders.exports.iterdir()) if self._folders.exports.exists() else []

    async def _of(self, run: JobRun) -> tuple[DatabaseRow, DatabaseServer]:
        row = await read_database(self._database, UUID(run.parameters["database"]))
        return row, self._databases.server(row.engine)

    async def _require_space(self, row: DatabaseRow, server: DatabaseServer) -> None:
        """Raises an error if the disk has no room: a full disk would stop the panel and its sites. A compressed dump is
        smaller than its database."""
        with translated():
            size = (await server.sizes([row.name])).get(row.name, 0)
        disk = os.statvfs(self._folders.exports)
        free = disk.f_bavail * disk.f_frsize
        if free < size:
            raise capacity(f"The database has {size:,} bytes, and {free:,} are free; nothing was exported.")


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _measured(file: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with file.open("rb") as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _require_active(database: DatabaseRow) -> None:
    if database.status is not DatabaseStatus.ACTIVE:
        raise conflict(f"The database {database.name} is {database.status.value}.", hint="Wait until it is active.")


def _not_loaded(row: DatabaseRow, error: ProgramFailed, *, replaced: bool) -> ServiceError:
    why = error.last or error.message
    if replaced:
        message = f"Nothing was imported; {row.name} has its previous contents: {why}"
        return conflict(message, hint="Fix the dump, then import it again.")
    if row.engine is EngineKind.POSTGRESQL:
        return conflict(f"Nothing was imported: {why}", hint="Fix the dump, then import it again.")
    return conflict(
        f"The import has stopped: {why}",
        hint="The statements before that are in the database. Fix the dump, then import it again with replace.",
    )


async def _enqueue(
    tx: Transaction, kind: str, title: str, database: DatabaseRow, steps: tuple[str, ...], parameters: Mapping[str, Any]
) -> Job:
    await require_turn(tx, database.site_id, database.owner_id)
    return await enqueue(
        tx,
        NewJob(
            kind=kind,
            title=title,
            job_class=JobClass.SITES,
            site_id=database.site_id,
            owner_id=database.owner_id,
            steps=steps,
            parameters=parameters,
        ),
    )
