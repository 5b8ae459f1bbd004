"""Archives uploaded in parts, like files of sites (`svc_actors.panel.files.uploads`), but into a folder and account of
their own, since no site exists yet.

    imports/i<number>/archive

Invariant: `sweep` removes folders without a record, and abandoned records with their folders. A record is removed
after everything that the import has staged in its sites.
"""

from __future__ import annotations

import os
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.panel.accounts.allowances import MIB, lock_owner
from svc_actors.panel.imports.analysing import start_analysis
from svc_actors.panel.imports.records import (
    ImportRow,
    insert_import,
    lock_import,
    read_import,
    remove_import,
    write_lost,
    write_received,
)
from svc_actors.panel.imports.staged import remove_all_staged, try_remove_all_staged
from svc_actors.panel.imports.states import ImportStatus
from svc_actors.store import Caller, Database, Transaction, audit
from svc_common.errors import ErrorCode, ServiceError, capacity, conflict
from svc_webhost.confined.protocol import UploadOpen, UploadPlace, UploadVerify, UploadWrite
from svc_webhost.confined_client import ConfinedFiles, SiteFolder
from svc_webhost.folders import HostFolders
from svc_webhost.tree_removal import remove_tree

ARCHIVE: Final = "archive"
MOST_OF_AN_OWNER: Final = 5
SWEEP_SECONDS: Final = 3600.0
KEPT_HOURS: Final = 24
"""Hours that an upload is kept that nobody continues."""
KEPT_DAYS: Final = 7
"""Days that all other imports are kept after their last change."""
_MOST_RANGES: Final = 1000
_HASH_BYTES_PER_SECOND: Final = 50 << 20

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.imports")


class Imports:
    """One per process."""

    def __init__(self, database: Database, files: ConfinedFiles, folders: HostFolders) -> None:
        self._database = database
        self._files = files
        self._folders = folders

    async def start(self, caller: Caller, owner_id: UUID, name: str, size: int) -> ImportRow:
        await trio.to_thread.run_sync(lambda: self._folders.imports.mkdir(mode=0o711, parents=True, exist_ok=True))
        free = await trio.to_thread.run_sync(free_bytes, self._folders.imports)
        if size > free:
            raise capacity(f"The archive has {size:,} bytes, and {free:,} are free; nothing was started.")

        async def write(tx: Transaction) -> ImportRow:
            await require_room(tx, owner_id, size)
            row = await insert_import(tx, owner_id, "upload", name, size, ImportStatus.UPLOADING)
            await audit.record(tx, caller, row.target, {"size": size})
            return row

        row = await self._database.transact(write)
        await self._files.ask(await self.create_folder(row), UploadOpen(row.id.hex))
        return row

    async def write(self, row: ImportRow, offset: int, encoded: str) -> ImportRow:
        """`encoded` is base64, which the helper decodes."""
        _require_uploading(row)
        end = offset + len(encoded) // 4 * 3 - encoded.count("=", -2)
        if end > row.size:
            raise conflict(f"The archive has {row.size:,} bytes; this part would exceed them.")
        if len(row.received) >= _MOST_RANGES and not any(offset <= b and a <= end for a, b in row.received):
            raise conflict(f"The upload has {_MOST_RANGES:,} separate ranges already; send parts adjacent to them.")
        folder = await self.create_folder(row)
        try:
            await self._files.ask(folder, UploadWrite(row.id.hex, offset), encoded.encode())
        except ServiceError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            await self._files.ask(folder, UploadOpen(row.id.hex))
            await write_lost(self._database, row.id)
            raise conflict("The received parts of this upload were removed; send all of it again.") from None
        written = await write_received(self._database, row.id, offset, end)
        if written is None:
            raise conflict("The upload was finished or removed meanwhile.")
        return written

    async def finish(self, caller: Caller, row: ImportRow, sha256: str) -> ImportRow:
        """The archive is complete: queue the job that reads it. May be repeated if the answer was lost."""
        if row.sha256 is not None:
            if row.sha256 != sha256:
                raise conflict("The upload was finished with another SHA-256.")
            return row
        _require_uploading(row)
        if row.missing is not None:
            start, end = row.missing
            raise conflict(f"Bytes {start:,} to {end:,} are missing; the upload stays open.")
        folder = await self.create_folder(row)
        verify = UploadVerify(row.id.hex, ARCHIVE, row.size, sha256)
        answer = await self._files.ask(folder, verify, seconds=30 + row.size / _HASH_BYTES_PER_SECOND)
        if not answer.result["placed"]:
            await self._files.ask(folder, UploadPlace(row.id.hex, ARCHIVE, replace=True))

        async def write(tx: Transaction) -> ImportRow:
            locked = await lock_import(tx, row.id)
            job = await start_analysis(tx, locked, sha256=sha256)
            await audit.record(tx, caller, locked.target, {"size": row.size, "sha256": sha256, "job": job.id})
            return await read_import(tx, row.id)

        return await self._database.transact(write)

    async def delete(self, caller: Caller, row: ImportRow) -> None:
        """Delete an import with its archive and everything that it has staged in sites; the sites that it has created
        stay."""
        _require_idle(row)
        # Removed before the record, because only the record says which sites have staged files.
        await remove_all_staged(self._database, self._files, self._folders, row.id)

        async def write(tx: Transaction) -> None:
            locked = await lock_import(tx, row.id)
            _require_idle(locked)
            await remove_import(tx, row.id)
            await audit.record(tx, caller, row.target)

        await self._database.transact(write)
        await self._remove(row.folder(self._folders))

    async def sweep(self) -> None:
        """Remove abandoned imports, and folders without a record."""
        rows = await self._database.fetch(
            """SELECT id, touched_at FROM imports
               WHERE status = 'uploading' AND touched_at < now() - make_interval(hours => $1)
               OR status IN ('ready', 'applied', 'failed') AND touched_at < now() - make_interval(days => $2)""",
            KEPT_HOURS,
            KEPT_DAYS,
        )
        for found in rows:
            # An import of which something is left keeps its record, and the next round tries again.
            if await try_remove_all_staged(self._database, self._files, self._folders, found["id"]):
                await self._database.transact(partial(_removed, found["id"], found["touched_at"]))
        # The folders are listed before the records are read, so that a folder created in between is not taken for one
        # without a record.
        folders = await trio.to_thread.run_sync(_folders_in, self._folders.imports)
        known = {f"i{row['number']}" for row in await self._database.fetch("SELECT number FROM imports")}
        for folder in folders:
            if folder.name not in known:
                await trio.to_thread.run_sync(partial(remove_tree, folder, ignore_errors=True))

    async def create_folder(self, row: ImportRow) -> SiteFolder:
        folder = row.folder(self._folders)
        await trio.to_thread.run_sync(_make, folder)
        return folder

    async def _remove(self, folder: SiteFolder) -> None:
        await self._files.forget(folder)
        await trio.to_thread.run_sync(lambda: remove_tree(folder.path, ignore_errors=True))


async def require_room(tx: Transaction, owner_id: UUID, size: int, *, more: bool = True) -> int | None:
    """Returns how many more bytes the owner's plan allows, None without a limit. `more`: the room is for another
    import. Raises `conflict`."""
    owner = await lock_owner(tx, owner_id)
    held = await tx.fetchrow(
        """SELECT count(*) AS number, coalesce(sum(size), 0)::bigint AS bytes FROM imports
           WHERE owner_id = $1 AND status <> 'applied'""",
        owner_id,
    )
    assert held is not None
    if more and held["number"] >= MOST_OF_AN_OWNER and not owner.unbounded:
        raise conflict(
            f"The owner already has {MOST_OF_AN_OWNER} unapplied imports, which is the limit; no import was started.",
            hint="Apply or delete one of them first (`svc import list`).",
        )
    allowed = owner.allowed.disk_mib
    if allowed is None:
        return None
    if held["bytes"] + size > allowed * MIB:
        raise conflict(
            f"The plan {owner.plan} allows {allowed} MiB of disk, and the imports would exceed that; nothing was "
            "started."
        )
    return allowed * MIB - int(held["bytes"]) - size


async def _removed(import_id: UUID, touched_at: datetime, tx: Transaction) -> None:
    """Remove the record, unless the import was used again meanwhile."""
    row = await tx.fetchrow("SELECT touched_at FROM imports WHERE id = $1 FOR NO KEY UPDATE", import_id)
    if row is not None and row["touched_at"] == touched_at:
        await remove_import(tx, import_id)


def _make(folder: SiteFolder) -> None:
    folder.path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    folder.path.mkdir(mode=0o700, exist_ok=True)
    if os.stat(folder.path).st_uid != folder.uid:
        os.chown(folder.path, folder.uid, folder.gid)


def free_bytes(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _folders_in(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.exists() else []


def _require_idle(row: ImportRow) -> None:
    if row.status in (ImportStatus.FETCHING, ImportStatus.ANALYSING, ImportStatus.APPLYING):
        raise conflict(f"The import is {row.status.value}; nothing was deleted.", hint="Cancel its job.")


def _require_uploading(row: ImportRow) -> None:
    if row.status is not ImportStatus.UPLOADING:
        raise conflict(f"The import is {row.status.value}; its archive is uploaded.")
