"""`svc controller backup`, `backups` and `restore` (docs/backup.md)."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import asyncclick as click

from svc.cli.configuration import file_read
from svc.cli.controller_options import CONTEXT, controller_options
from svc.cli.failures import Exit, Failure
from svc.cli.output import size
from svc.cli.terminal import say, write
from svc.controller.config import ControllerConfig
from svc.service.controller.backup import results
from svc.service.controller.backup.archive import CannotDecrypt, NotAnArchive
from svc.service.controller.backup.places import PlaceError, parse_place
from svc.service.controller.backup.take import BackupResult, take, verify
from svc_actors.store import (
    AnotherServiceError,
    CommitMarks,
    Database,
    DatabaseStartError,
    DumpError,
    MigrationError,
    exclusive,
    forget_marks,
    prepare_schema,
    reachable_urls,
)
from svc_actors.store.marks import settle_losses
from svc_common.errors import ServiceError

_PASSPHRASE: Final = "SVC_BACKUP_PASSPHRASE"  # noqa: S105 - the name of a variable
_SHORTEST: Final = 12

_TO = click.option("--to", envvar="SVC_BACKUP_TO", help="A folder, or sftp://USER@HOST/FOLDER.")
_PASSPHRASE_FILE = click.option(
    "--passphrase-file",
    envvar="SVC_BACKUP_PASSPHRASE_FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"A file with the passphrase in its first line. Without it {_PASSPHRASE} holds the passphrase.",
)


@click.command(context_settings=CONTEXT)
@_TO
@_PASSPHRASE_FILE
@click.option("--keep", envvar="SVC_BACKUP_KEEP", type=click.IntRange(min=0), default=14, show_default=True,
              help="Archives to keep there; 0 keeps all.")  # fmt: skip
@click.option("--every", envvar="SVC_BACKUP_EVERY", type=click.FloatRange(min=0, min_open=True), default=24.0,
              show_default=True, help="Hours between backups; an alert is raised after twice as long.")  # fmt: skip
@controller_options
async def backup(
    config: ControllerConfig,
    environ: Mapping[str, str],
    *,
    to: str | None,
    passphrase_file: Path | None,
    keep: int,
    every: float,
) -> None:
    """Write an encrypted backup of the controller: database, keys, settings.

    Run it on the controller's host as the account that the service runs as. The service goes on meanwhile."""
    passphrase = _passphrase(passphrase_file)
    where = _named(to)
    try:
        ended: BackupResult | Exception = await take(
            config, environ, file_read(), parse_place(where), passphrase, keep=keep
        )
    except (PlaceError, DumpError, DatabaseStartError, ServiceError, OSError) as error:
        ended = error
    try:
        async with (
            reachable_urls(config.data_dir, environ) as urls,
            Database.open(urls.service, size=1, application_name="svc backup") as database,
        ):
            await results.record(database, where, every, ended)
    except (ServiceError, DatabaseStartError, OSError) as error:
        say(f"svc: the result of this backup could not be recorded: {error}")
    if isinstance(ended, Exception):
        raise Failure(Exit.FAILED, f"The backup failed, and there is no archive of it: {ended}") from ended
    write(f"{ended.name}  {size(ended.size)}")
    for name in ended.removed:
        write(f"{name}  removed: {keep} are kept")


@click.command(context_settings=CONTEXT)
@_TO
@_PASSPHRASE_FILE
@click.option("--verify", "verified", is_flag=True, help="Decrypt each archive, and compare every hash.")
@controller_options
async def backups(
    config: ControllerConfig,
    environ: Mapping[str, str],
    *,
    to: str | None,
    passphrase_file: Path | None,
    verified: bool,
) -> None:
    """List the backups of the controller, the oldest first."""
    passphrase = _passphrase(passphrase_file) if verified else ""
    bad = 0
    try:
        place = parse_place(_named(to))
        for name in await place.names():
            words = ""
            if verified:
                try:
                    manifest = await verify(place, name, passphrase)
                    words = f"  ok  {manifest.host}, release {manifest.release}, {manifest.taken_at:%F %T} UTC"
                except (CannotDecrypt, NotAnArchive) as error:
                    words, bad = f"  bad  {error}", bad + 1
            write(f"{name}{words}")
    except (PlaceError, OSError) as error:
        raise Failure(Exit.FAILED, str(error)) from error
    if bad:
        raise Failure(Exit.FAILED, f"{bad} of the archives cannot be restored.")


@click.command(context_settings=CONTEXT)
@click.argument("archive", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@_PASSPHRASE_FILE
@controller_options
async def restore(
    config: ControllerConfig, environ: Mapping[str, str], *, archive: Path, passphrase_file: Path | None
) -> None:
    """Put a backup of the controller into an empty data folder.

    Run it as the account that the service runs as, before that is started. All of ARCHIVE is verified first."""
    from svc.service.controller.backup.restore import CannotRestore
    from svc.service.controller.backup.restore import restore as put_back

    try:
        done = await put_back(config, environ, archive, _passphrase(passphrase_file))
    except CannotRestore as error:
        raise Failure(Exit.CONFLICT, str(error)) from error
    except (CannotDecrypt, NotAnArchive) as error:
        raise Failure(Exit.INVALID, f"{archive} is not restored: {error}") from error
    except (DumpError, DatabaseStartError, MigrationError, ServiceError, OSError) as error:
        raise Failure(Exit.FAILED, f"The restore failed: {error}", f"Empty {config.data_dir} and try again.") from error
    write(f"Restored the controller of {done.manifest.host}, as of {done.manifest.taken_at:%F %T} UTC.")
    write(f"Orders that were in progress at that time and are ended: {done.orders}")
    write(f"Sessions ended; people sign in again, with their passwords of that time: {done.sessions}")
    write("API tokens are as they were at that time. Revoke again those that were revoked since.")
    if done.settings is not None:
        write(f"The settings of that time: {done.settings}")
    write("Start the service, and decide about what `svc node orphans` shows once the nodes are back.")


@click.command(context_settings=CONTEXT)
@click.option("--as-of", type=click.DateTime(["%Y-%m-%dT%H:%M:%S"]), required=True, help="The time, in UTC.")
@controller_options
async def rewound(config: ControllerConfig, environ: Mapping[str, str], *, as_of: datetime) -> None:
    """Declare that PostgreSQL was restored to an earlier time while the service was stopped.

    As after `restore`, the next start compares hosts with the records before it changes anything on them."""
    from svc.service.controller.backup.restore import prepare_restored
    from svc_actors.controller.reconcile.restored import Past

    try:
        async with (
            reachable_urls(config.data_dir, environ) as urls,
            Database.open(urls.service, size=2, application_name="svc rewound") as database,
            exclusive(database, "controller"),
        ):
            await prepare_schema(urls)
            marks = CommitMarks.load(config.data_dir)
            when = as_of.replace(tzinfo=UTC)
            orders, sessions = await prepare_restored(database, when, version("svc"), Past.PUT_BACK, marks.keys)
            await database.transact(settle_losses)
            forget_marks(config.data_dir)
    except (DatabaseStartError, MigrationError, ServiceError, AnotherServiceError, OSError) as error:
        raise Failure(Exit.FAILED, f"Nothing was changed: {error}") from error
    write(f"Orders that were in progress at that time and are ended: {orders}")
    write(f"Sessions ended: {sessions}")


def _named(to: str | None) -> str:
    if not to:
        raise Failure(
            Exit.INVALID, "Where are the backups?", "Give --to, or `to` in the table [backup] of the settings."
        )
    return to


def _passphrase(path: Path | None) -> str:
    """The passphrase, from a file or the environment. It is no argument, since every account of the machine can read
    the arguments of programs."""
    if path is None:
        text = os.environ.get(_PASSPHRASE, "")
    else:
        try:
            if path.stat().st_mode & stat.S_IROTH:
                raise Failure(Exit.INVALID, f"Everybody on this machine may read {path}: chmod o-r {path}")
            text = path.read_text().partition("\n")[0]
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(Exit.INVALID, f"The passphrase file {path} cannot be read: {error}") from error
    if len(text) < _SHORTEST:
        raise Failure(
            Exit.INVALID,
            f"The passphrase is missing or has fewer than {_SHORTEST} characters.",
            f"Put one into a file and name it with --passphrase-file, or set {_PASSPHRASE}.",
        )
    return text
