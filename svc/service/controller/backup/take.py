"""Taking one backup of the controller while the service runs, and removing old ones.

The sealing key never changes, so the database's snapshot stays readable; audit rows are removed from the database only
once their file is written. So reading the database first and the files second gives a consistent backup.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import trio

from svc.controller.config import ControllerConfig
from svc.service.controller.backup.archive import ArchiveReader, ArchiveWriter, Manifest
from svc.service.controller.backup.places import PARTIAL, PREFIX, SUFFIX, Place
from svc_actors.store import Database, dump, reachable_urls


@dataclass(frozen=True)
class BackupResult:
    """`removed`: the archives beyond the number to keep."""

    name: str
    size: int
    removed: tuple[str, ...]


async def take(
    config: ControllerConfig,
    environ: Mapping[str, str],
    settings: Path | None,
    place: Place,
    passphrase: str,
    *,
    keep: int,
) -> BackupResult:
    """Write one archive to `place`, and keep the newest `keep`, or all for 0. Raises `PlaceError`, `OSError`,
    `DumpError`, `DatabaseStartError` and the database's errors. If writing fails, no archive is left under this
    name."""
    await place.clear()
    name = f"{PREFIX}{datetime.now(UTC):%Y%m%dT%H%M%SZ}{SUFFIX}"
    with tempfile.TemporaryDirectory(prefix="svc-backup-") as own:
        path = (place.spool or Path(own)) / f"{name}{PARTIAL}"
        try:
            await _write(config, environ, settings, path, passphrase)
            size = path.stat().st_size
            await place.store(name, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    removed = (await place.names())[:-keep] if keep else []
    for each in removed:
        await place.remove(each)
    return BackupResult(name, size, tuple(removed))


async def _write(
    config: ControllerConfig, environ: Mapping[str, str], settings: Path | None, path: Path, passphrase: str
) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        writer = await trio.to_thread.run_sync(ArchiveWriter, file, passphrase)
        async with reachable_urls(config.data_dir, environ) as urls:
            async with Database.open(urls.owner, size=1, application_name="svc backup") as database:
                taken_at = await database.fetchval("SELECT now()")
                rows = await database.fetch("SELECT component, max(number) AS number FROM schema_migration GROUP BY 1")
            await dump(urls.owner, writer.add_database)
        for each in files_of(config.data_dir):
            await trio.to_thread.run_sync(writer.add_file, config.data_dir, each)
        if settings is not None:
            await trio.to_thread.run_sync(writer.add_configuration, settings)
        finish = partial(
            writer.finish,
            release=version("svc"),
            host=f"{config.public_host} ({socket.gethostname()})",
            taken_at=taken_at,
            migrations={row["component"]: row["number"] for row in rows},
        )
        await trio.to_thread.run_sync(finish)
        file.flush()
        await trio.to_thread.run_sync(os.fsync, file.fileno())


def files_of(data_dir: Path) -> Iterator[Path]:
    """The files of the data folder that a backup contains. Image files are left out: they are large, the person who
    uploaded them has them, and nodes have copies."""
    yield data_dir / "secret.key"
    for folder in ("tls", "audit"):
        yield from sorted(path for path in (data_dir / folder).glob("*") if path.is_file() and not path.is_symlink())


async def verify(place: Place, name: str, passphrase: str) -> Manifest:
    """Read a whole archive, comparing every hash. Raises `CannotDecrypt`, `NotAnArchive`, `PlaceError`, `OSError`."""

    def read(path: Path) -> Manifest:
        with path.open("rb") as file:
            return ArchiveReader(file, passphrase).verify()

    async with place.fetched(name) as path:
        return await trio.to_thread.run_sync(read, path)
