"""Uploads: resumable sessions of parts in any order, and the removal of abandoned ones.

Invariants:
- a part is written before it is recorded as received: so a recorded part exists, unless this server has lost its power;
- an upload becomes a file only if its content has the caller's SHA-256, so even a part lost in this way is noticed;
- a finished upload stays known for a day, and finishing it again returns the first answer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.panel.accounts.allowances import lock_owner
from svc_actors.panel.accounts.disk_use import add_use, require_disk_room
from svc_actors.panel.files.files import site_folder
from svc_actors.panel.sites.records import SiteRow, lock_site, read_site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.store import Caller, Database, Record, Target, Transaction, audit
from svc_common.errors import ServiceError, capacity, conflict, not_found
from svc_webhost.confined.protocol import (
    FreeSpace,
    UploadDiscard,
    UploadOpen,
    UploadPlace,
    UploadVerify,
    UploadWrite,
)
from svc_webhost.confined_client import ConfinedFiles, SiteFolder
from svc_webhost.folders import HostFolders

KEPT_HOURS: Final = 24
"""Hours that an upload is kept after its last part. The helper removes older ones by itself, in case their record is
removed first."""
OPEN_AT_ONCE: Final = 20
"""The most open uploads of a site."""
MOST_RANGES: Final = 1000
"""The most separate received ranges of one upload: each part writes all of them again, and each answer lists them."""
_HASH_BYTES_PER_SECOND: Final = 50 << 20
"""The speed of the slowest disk on which computing the SHA-256 of a large upload is not given up."""
_COLUMNS: Final = """id, site_id, path, size, replace, status, sha256, created_at, touched_at,
    ARRAY(SELECT lower(part) FROM unnest(received) AS part) AS starts,
    ARRAY(SELECT upper(part) FROM unnest(received) AS part) AS ends"""

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.files")


class UploadStatus(StrEnum):
    OPEN = "open"
    FINISHED = "finished"


@dataclass(frozen=True)
class Upload:
    """`received`: byte ranges as (start, end) with an exclusive end, in order and without overlap."""

    id: UUID
    site_id: UUID
    path: str
    size: int
    replace: bool
    status: UploadStatus
    sha256: str | None
    received: tuple[tuple[int, int], ...]
    created_at: datetime
    touched_at: datetime

    @property
    def missing(self) -> tuple[int, int] | None:
        """The first range that is not received yet."""
        begin = 0
        for start, end in self.received:
            if start > begin:
                return begin, start
            begin = end
        return None if begin >= self.size else (begin, self.size)

    def adjoins(self, offset: int, end: int) -> bool:
        """Whether these bytes touch a received range, so that they add no range of their own."""
        return any(offset <= behind and start <= end for start, behind in self.received)


def _upload(row: Record) -> Upload:
    return Upload(
        id=row["id"],
        site_id=row["site_id"],
        path=row["path"],
        size=row["size"],
        replace=row["replace"],
        status=UploadStatus(row["status"]),
        sha256=row["sha256"],
        received=tuple(zip(row["starts"], row["ends"], strict=True)),
        created_at=row["created_at"],
        touched_at=row["touched_at"],
    )


class Uploads:
    """One per process."""

    def __init__(self, database: Database, files: ConfinedFiles, folders: HostFolders) -> None:
        self._database = database
        self._files = files
        self._folders = folders

    async def start(self, caller: Caller, site: SiteRow, path: str, size: int, *, replace: bool) -> Upload:
        folder = site_folder(self._folders, site)
        free = (await self._files.ask(folder, FreeSpace())).result["bytes"]
        if size > free:
            raise capacity(
                f"The file has {size:,} bytes, and {free:,} are free; nothing was written.", hint="Delete files first."
            )

        async def write(tx: Transaction) -> Upload:
            # Locked, so that concurrent uploads count each other, in whichever sites of the account they are.
            await lock_owner(tx, site.owner_id)
            await lock_site(tx, site.id)
            await require_disk_room(tx, site.id, size)
            waiting = await tx.fetchval(
                "SELECT count(*) FROM file_uploads WHERE site_id = $1 AND status = 'open'", site.id
            )
            if waiting >= OPEN_AT_ONCE:
                raise conflict(f"The site has {OPEN_AT_ONCE} unfinished uploads.", hint="Finish some, or remove them.")
            row = await tx.fetchone(
                f"INSERT INTO file_uploads (site_id, path, size, replace) VALUES ($1, $2, $3, $4) RETURNING {_COLUMNS}",
                site.id,
                path,
                size,
                replace,
            )
            await audit.record(tx, caller, _target(site, path), {"upload": str(row["id"]), "size": size})
            return _upload(row)

        upload = await self._database.transact(write)
        await self._files.ask(folder, UploadOpen(upload.id.hex))
        return upload

    async def of_site(self, site: SiteRow) -> list[Upload]:
        rows = await self._database.fetch(
            f"SELECT {_COLUMNS} FROM file_uploads WHERE site_id = $1 ORDER BY created_at, id LIMIT 200", site.id
        )
        return [_upload(row) for row in rows]

    async def get(self, site: SiteRow, upload_id: UUID) -> Upload:
        row = await self._database.fetchrow(
            f"SELECT {_COLUMNS} FROM file_uploads WHERE id = $1 AND site_id = $2", upload_id, site.id
        )
        if row is None:
            raise not_found("There is no such upload.", hint="Unfinished ones are removed after a day.")
        return _upload(row)

    async def write(self, site: SiteRow, upload_id: UUID, offset: int, encoded: str) -> Upload:
        """`encoded` is base64, which the helper decodes."""
        upload = await self._open(site, upload_id)
        end = offset + len(encoded) // 4 * 3 - encoded.count("=", -2)
        if end > upload.size:
            raise conflict(f"The upload has {upload.size:,} bytes; this part would exceed them.")
        if len(upload.received) >= MOST_RANGES and not upload.adjoins(offset, end):
            raise conflict(
                f"The upload has {MOST_RANGES:,} separate ranges already; nothing was written.",
                hint="Send parts adjacent to those received.",
            )
        folder = site_folder(self._folders, site)
        try:
            await self._files.ask(folder, UploadWrite(upload.id.hex, offset), encoded.encode())
        except ServiceError as error:
            if error.code is not not_found("").code:
                raise
            # Another user of the site has removed the upload's file, so the parts received before are lost.
            await self._files.ask(folder, UploadOpen(upload.id.hex))
            await self._database.execute("UPDATE file_uploads SET received = '{}' WHERE id = $1", upload.id)
            raise conflict("The received parts of this upload were removed; send all of it again.") from None
        row = await self._database.fetchrow(
            f"""
            UPDATE file_uploads SET received = received + int8multirange(int8range($2, $3)), touched_at = now()
            WHERE id = $1 AND status = 'open' RETURNING {_COLUMNS}
            """,
            upload.id,
            offset,
            end,
        )
        if row is None:
            raise conflict("The upload was finished or removed meanwhile.")
        return _upload(row)

    async def finish(self, caller: Caller, site: SiteRow, upload_id: UUID, sha256: str) -> Upload:
        upload = await self.get(site, upload_id)
        if upload.status is UploadStatus.FINISHED:
            if upload.sha256 != sha256:
                raise conflict("The upload was finished with another SHA-256.")
            return upload
        if upload.missing is not None:
            start, end = upload.missing
            raise conflict(f"Bytes {start:,} to {end:,} are missing; the upload stays open.")
        folder = site_folder(self._folders, site)
        verify = UploadVerify(upload.id.hex, upload.path, upload.size, sha256)
        answer = await self._files.ask(folder, verify, seconds=30 + upload.size / _HASH_BYTES_PER_SECOND)
        if not answer.result["placed"]:
            await self._files.ask(folder, UploadPlace(upload.id.hex, upload.path, upload.replace))

        async def write(tx: Transaction) -> Upload:
            row = await tx.fetchrow(
                f"""
                UPDATE file_uploads SET status = 'finished', sha256 = $2, touched_at = now()
                WHERE id = $1 AND status = 'open' RETURNING {_COLUMNS}
                """,
                upload.id,
                sha256,
            )
            if row is None:
                raise conflict("The upload was finished or removed meanwhile.")
            await add_use(tx, site.id, upload.size)
            details = {"upload": str(upload.id), "size": upload.size, "sha256": sha256}
            await audit.record(tx, caller, _target(site, upload.path), details)
            return _upload(row)

        return await self._database.transact(write)

    async def discard(self, caller: Caller, site: SiteRow, upload_id: UUID) -> None:
        upload = await self.get(site, upload_id)
        await self._files.ask(site_folder(self._folders, site), UploadDiscard(upload.id.hex))

        async def write(tx: Transaction) -> None:
            await tx.execute("DELETE FROM file_uploads WHERE id = $1", upload.id)
            await audit.record(tx, caller, _target(site, upload.path), {"upload": str(upload.id)})

        await self._database.transact(write)

    async def remove_abandoned(self) -> int:
        """Remove uploads that nobody has continued for a day, with their parts; returns how many. An upload whose parts
        cannot be removed is left for the next time."""
        rows = await self._database.fetch(
            f"SELECT {_COLUMNS} FROM file_uploads WHERE touched_at < now() - make_interval(hours => $1) LIMIT 1000",
            KEPT_HOURS,
        )
        removed = 0
        for upload in map(_upload, rows):
            try:
                if upload.status is UploadStatus.OPEN and (folder := await self._folder_of(upload)) is not None:
                    await self._files.ask(folder, UploadDiscard(upload.id.hex))
            except ServiceError as error:
                log.warning(
                    "files.upload_not_removed", upload=str(upload.id), site=str(upload.site_id), error=error.message
                )
                continue
            removed += await self._database.change("DELETE FROM file_uploads WHERE id = $1", upload.id)
        return removed

    async def _folder_of(self, upload: Upload) -> SiteFolder | None:
        """None if there is nothing to remove: the site is being deleted, or a failed deletion has already removed its
        files."""
        site = await read_site(self._database, upload.site_id)
        if site is None or site.status in (SiteStatus.CREATING, SiteStatus.DELETING):
            return None
        folder = site_folder(self._folders, site)
        there = await trio.to_thread.run_sync(os.path.lexists, folder.path)
        return None if site.status is SiteStatus.FAILED and not there else folder

    async def _open(self, site: SiteRow, upload_id: UUID) -> Upload:
        upload = await self.get(site, upload_id)
        if upload.status is not UploadStatus.OPEN:
            raise conflict("The upload is finished.")
        return upload


def _target(site: SiteRow, path: str) -> Target:
    """The audit target: the site, with the path. The site's owner may read the row."""
    return Target("site", site.id, f"{site.domain}: {path}"[:200], site.owner_id)
