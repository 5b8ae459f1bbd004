"""Targets for copies of backups, and the keys of repositories. Administrators only."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import trio

from svc.identity.backup_targets import BucketTargetRequest, SftpTargetRequest
from svc.panel.backups.models import (
    BackupKey,
    BackupKeyRequest,
    BackupKeySecret,
    BackupTarget,
    LocalTargetRequest,
    TargetRequest,
    target_model,
)
from svc.panel.realm import Done
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.backups.local_target import marker_of
from svc_actors.panel.backups.places import Places
from svc_actors.panel.backups.repositories import read_repository
from svc_actors.panel.backups.targets import (
    AnySettings,
    LocalSettings,
    TargetRow,
    add_target,
    remove_target,
)
from svc_actors.remote_targets import new_key_pair
from svc_actors.store import Queryable, Transaction, audit
from svc_common.errors import unavailable, wrong_field

operations = Operations[Panel]()

_MARK_SECONDS: Final = 10.0
"""How long the creation of the empty marker file may take."""
_marking: Final = trio.CapacityLimiter(8)
"""A limiter of its own: threads that wait for dead mounts take no slots from other work."""

_SELECT = """
SELECT backup_targets.*, copy.at AS last_copy_at, copy.error AS last_error
FROM backup_targets LEFT JOIN LATERAL
    (SELECT at, error FROM backup_copies WHERE target_id = backup_targets.id ORDER BY at DESC LIMIT 1) AS copy
    ON true"""


class TargetListRequest(Request):
    """Lists all of them."""


class KeyListRequest(Request):
    """Lists all of them."""


@operations.declare(
    "backup.targets",
    "Where copies of backups go",
    Route.get("/backups/targets"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("name", "kind", "location", "last_copy_at", "last_error", "id"),
)
async def list_targets(context: Context[Panel], request: TargetListRequest) -> list[BackupTarget]:
    rows = await context.services.database.fetch(f"{_SELECT} ORDER BY name")
    return [target_model(row) for row in rows]


@operations.declare(
    "backup.add_local_target",
    "Copy every backup to another folder of this server",
    Route.post("/backups/targets/local", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("name", "path"),
    target="backup_target",
)
async def add_local(context: Context[Panel], request: LocalTargetRequest) -> BackupTarget:
    path = await trio.to_thread.run_sync(lambda: Path(request.path).resolve())
    if path.is_relative_to(context.services.config.data_dir.resolve()):
        raise wrong_field("path", "is in the panel's own folder, which already holds the backups")
    if not await trio.to_thread.run_sync(path.is_dir):
        raise wrong_field("path", "is not a folder of this server")
    return await _add(context, request.name, LocalSettings(path=str(path), marked=True), None)


@operations.declare(
    "backup.add_sftp_target",
    "Copy every backup to a server by SFTP; the answer has the public key to authorize there",
    Route.post("/backups/targets/sftp", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("name", "host", "path"),
    target="backup_target",
)
async def add_sftp(context: Context[Panel], request: SftpTargetRequest) -> BackupTarget:
    private, public = new_key_pair("svc-backups")
    return await _add(context, request.name, request.settings(public), private)


@operations.declare(
    "backup.add_bucket_target",
    "Copy every backup to an S3 bucket",
    Route.post("/backups/targets/s3", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("name", "endpoint", "bucket"),
    target="backup_target",
)
async def add_s3(context: Context[Panel], request: BucketTargetRequest) -> BackupTarget:
    return await _add(context, request.name, request.settings, request.secret_key.get_secret_value())


@operations.declare(
    "backup.remove_target",
    "Remove a backup target; the copies there stay",
    Route.delete("/backups/targets/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    target="backup_target",
)
async def remove(context: Context[Panel], request: TargetRequest) -> Done:

    async def work(tx: Transaction) -> None:
        target = await TargetRow.read(tx, request.id)
        await remove_target(tx, target.id)
        await audit.record(tx, context.caller, target.target)

    await context.services.database.transact(work)
    return Done()


@operations.declare(
    "backup.keys",
    "Backup repositories with a key",
    Route.get("/backups/keys"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("domain", "backups", "id"),
)
async def list_keys(context: Context[Panel], request: KeyListRequest) -> list[BackupKey]:
    rows = await context.services.database.fetch(
        """
        SELECT backup_repositories.id, site_id, coalesce(sites.domain, backup_repositories.domain) AS domain,
               (SELECT count(*) FROM site_backups WHERE repository_id = backup_repositories.id AND status = 'completed')
               AS backups, backup_repositories.created_at, kept_until
        FROM backup_repositories LEFT JOIN sites ON sites.id = site_id ORDER BY domain, backup_repositories.id
        """
    )
    return [BackupKey.model_validate(dict(row)) for row in rows]


@operations.declare(
    "backup.export_key",
    "Show the key of a site's backup repository, to keep it elsewhere",
    Route.post("/backups/keys/{id}/export"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    secret=True,
    target="backup_key",
)
async def export_key(context: Context[Panel], request: BackupKeyRequest) -> BackupKeySecret:
    services = context.services

    async def work(tx: Transaction) -> BackupKeySecret:
        repository = await read_repository(tx, request.id)
        await audit.record(tx, context.caller, repository.target)
        return BackupKeySecret(
            id=repository.id,
            domain=repository.domain,
            repository=str(Places(services.config.folders).repository(repository.id)),
            key=repository.key(services.sealer),
        )

    return await services.database.transact(work)


async def _add(context: Context[Panel], name: str, settings: AnySettings, secret: str | None) -> BackupTarget:
    target_id = uuid4()
    if isinstance(settings, LocalSettings):
        await _mark(marker_of(target_id, settings.path))

    async def work(tx: Transaction) -> BackupTarget:
        target = await add_target(tx, context.services.sealer, target_id, name, settings, secret)
        await audit.record(tx, context.caller, target.target, {"kind": settings.kind.value})
        return await _shown(tx, target.id)

    return await context.services.database.transact(work)


async def _mark(marker: Path) -> None:
    """Create the marker file in the folder of a target, before the target is recorded: without the marker no backups
    are written there. If the target is refused afterwards, an empty file remains, which nothing reads."""
    try:
        with trio.fail_after(_MARK_SECONDS):
            # If the mount hangs, this thread hangs with it, but the caller does not wait for the thread.
            await trio.to_thread.run_sync(marker.touch, abandon_on_cancel=True, limiter=_marking)
    except OSError as error:
        raise wrong_field("path", f"cannot be written to ({error.strerror})") from error
    except trio.TooSlowError:
        raise unavailable(
            f"The mount at {marker.parent} did not respond within {_MARK_SECONDS:g} s; no target was added.",
            hint="Check the mount on the server, then add the target again.",
        ) from None


async def _shown(queryable: Queryable, target_id: UUID) -> BackupTarget:
    row = await queryable.fetchrow(f"{_SELECT} WHERE backup_targets.id = $1", target_id)
    assert row is not None
    return target_model(row)
