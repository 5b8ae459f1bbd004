"""Restoring a backup of the controller on an empty machine.

Invariants: nothing is written before the whole archive has been read and verified; a data folder or a database in use
is refused; an interrupted restore is not mistaken for a controller (`UNFINISHED`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import trio

from svc.controller.config import ControllerConfig
from svc.identity.password_links import revoke_everybodys_links
from svc.identity.sessions import end_everybodys
from svc.registry.idempotency import refuse_lost
from svc.service.controller.backup.archive import CONFIGURATION, ArchiveReader, Manifest, NotAnArchive
from svc_actors.controller.reconcile.restored import Past, record_restoration
from svc_actors.mail.queue import end_all as end_mails
from svc_actors.store import (
    URL_VARIABLE,
    Database,
    Transaction,
    database_urls,
    is_empty,
    known_migrations,
    load,
    newest_numbers,
    prepare_schema,
)
from svc_actors.store.marks import settle_losses
from svc_common.durable import sync_folder

UNFINISHED: Final = "restore-unfinished"
"""A file in the data folder while a restore runs."""
SETTINGS: Final = "controller.toml.restored"


class CannotRestore(Exception):  # noqa: N818 - named for what it says
    """The backup was not restored; the message says why, and what was left as it was."""


@dataclass(frozen=True)
class RestoreResult:
    """What a restore has done. `orders`: how many orders that were in progress at the time of the backup were ended;
    `sessions`: how many sessions were ended. `settings`: the restored settings file; None if the backup has none."""

    manifest: Manifest
    orders: int
    sessions: int
    settings: Path | None


async def restore(
    config: ControllerConfig, environ: Mapping[str, str], archive: Path, passphrase: str
) -> RestoreResult:
    """Restore the controller of `archive` into an empty data folder. Raises `CannotRestore`, `CannotDecrypt`,
    `NotAnArchive`, `DumpError`, `OSError` and what the database raises."""
    folder = config.data_dir
    await trio.to_thread.run_sync(_require_empty, folder)
    manifest = await trio.to_thread.run_sync(_verify, archive, passphrase)
    _require_known(manifest)
    if environ.get(URL_VARIABLE):
        await _require_empty_database(environ[URL_VARIABLE])
    marker = folder / UNFINISHED
    await trio.to_thread.run_sync(_mark, marker)
    with archive.open("rb") as file:
        reader = await trio.to_thread.run_sync(ArchiveReader, file, passphrase)
        members = _Members(reader)
        async with database_urls(folder, environ) as urls:
            await load(urls.owner, members.of_database())
            await prepare_schema(urls)
            async with Database.open(urls.service, size=1, application_name="svc restore") as database:
                orders, sessions = await prepare_restored(database, manifest.taken_at, manifest.release, Past.BACKUP)
                # The restore has dealt with every commit that the restored database lacks. This records it, so that
                # neither a pending notice in the backup nor marks in an older data folder report these commits again.
                await database.transact(settle_losses)
        await trio.to_thread.run_sync(members.write_files, folder)
    await trio.to_thread.run_sync(_unmark, marker)
    settings = folder / SETTINGS
    return RestoreResult(manifest, orders, sessions, settings if manifest.configuration is not None else None)


async def prepare_restored(
    database: Database, taken_at: datetime, release: str, past: Past = Past.BACKUP, keys: Sequence[tuple[str, str]] = ()
) -> tuple[int, int]:
    """Adapt restored records to the time that has passed, before the service accepts requests. Returns how many orders
    and how many sessions were ended. `keys` are idempotency keys, with their owners, that may have been used since the
    backup."""

    async def work(tx: Transaction) -> tuple[int, int]:
        # Links may have been used since the backup, so they are revoked. Mails that waited then have been sent since,
        # or are outdated, so they are ended. But if only the last commits were lost, waiting mails may not have been
        # sent: they stay, since a mail that arrives twice is better than a missing one.
        await revoke_everybodys_links(tx)
        await end_mails(tx, past.value, perishable=past is Past.LOST_COMMITS)
        await refuse_lost(tx, keys)
        return await record_restoration(tx, taken_at=taken_at, release=release, past=past), await end_everybodys(tx)

    return await database.transact(work)


class _Members:
    """An archive's members: first the pieces of the dump, then the files."""

    def __init__(self, reader: ArchiveReader) -> None:
        self._members = reader.read()
        self._ahead: tuple[str | None, int, Iterator[bytes]] | None = None

    def of_database(self) -> Iterator[bytes]:
        for member in self._members:
            if member[0] is not None:
                self._ahead = member
                return
            yield from member[2]

    def write_files(self, folder: Path) -> None:
        while self._ahead is not None:
            name, mode, pieces = self._ahead
            assert name is not None
            path = folder / (SETTINGS if name == CONFIGURATION else name)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            sync_folder(path.parent)
            self._ahead = next(self._members, None)


def _require_empty(folder: Path) -> None:
    if (folder / UNFINISHED).exists():
        raise CannotRestore(
            f"A restore to {folder} was interrupted. Empty the folder, and the database if it is yours."
        )
    if folder.exists() and any(folder.iterdir()):
        raise CannotRestore(f"{folder} is not empty: it has, or had, the data of a controller. Nothing was changed.")


async def _require_empty_database(url: str) -> None:
    async with Database.open(url, size=1, application_name="svc restore") as database:
        if not await is_empty(database):
            raise CannotRestore(f"The database that {URL_VARIABLE} names has tables. Nothing was changed.")


def _verify(archive: Path, passphrase: str) -> Manifest:
    with archive.open("rb") as file:
        return ArchiveReader(file, passphrase).verify()


def _require_known(manifest: Manifest) -> None:
    known = newest_numbers(known_migrations())
    newer = [name for name, number in manifest.migrations.items() if number > known.get(name, 0)]
    if newer:
        raise NotAnArchive(
            f"The archive was made by release {manifest.release}, which is newer than this one: restore with that."
        )


def _mark(marker: Path) -> None:
    marker.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
    marker.touch(mode=0o600)
    sync_folder(marker.parent)


def _unmark(marker: Path) -> None:
    marker.unlink()
    sync_folder(marker.parent)
