"""Backup targets of machines that are not on a node: SFTP servers and S3 buckets, and which nodes use them.

A target's credentials are sealed here. For a bucket with an STS, a node gets temporary keys with each operation, and
these open one machine's copies only (`temporary_keys`). For other targets it gets the target's own key, which opens the
copies of all machines; the target shows that as `KeyMode.SHARED`. A node without a target copies to storage mounted on
it.

Why: docs/decisions/0031-machine-backup-targets.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field, TypeAdapter

from svc_actors.alerts import Severity, close_alert, raise_alert
from svc_actors.controller.backups.temporary_keys import KeyNeed, NoTemporaryKeys, Sts, temporary_keys
from svc_actors.controller.tasks.run import TaskFailed
from svc_actors.remote_targets import BucketSettings, SftpSettings, TargetOf, sealed
from svc_actors.sealing import Sealer
from svc_actors.store import (
    Database,
    ForeignKeyViolationError,
    Queryable,
    Transaction,
    UniqueViolationError,
)
from svc_common.errors import ErrorCode, ServiceError, conflict, not_found
from svc_nodeagent.aws_signing import Keys
from svc_nodeagent.protocol import BackupPlace, BucketPlace, SftpPlace


class MachineBucketSettings(BucketSettings):
    """`sts`: the address of the bucket's security token service; without one, nodes get the bucket's own key. `role`:
    as in `temporary_keys.Sts`."""

    sts: str | None = None
    role: str | None = None


class KeyMode(StrEnum):
    """`temporary`: a node gets keys for one machine's copies, for one operation. `shared`: each node gets the one key
    of the target."""

    TEMPORARY = "temporary"
    SHARED = "shared"


RemoteSettings = Annotated[SftpSettings | MachineBucketSettings, Field(discriminator="kind")]
_SETTINGS: Final[TypeAdapter[RemoteSettings]] = TypeAdapter(RemoteSettings)


class TargetRow(TargetOf[RemoteSettings]):
    table = "machine_backup_targets"
    parser = _SETTINGS

    @property
    def keys(self) -> KeyMode:
        temporary = isinstance(self.settings, MachineBucketSettings) and self.settings.sts is not None
        return KeyMode.TEMPORARY if temporary else KeyMode.SHARED

    async def place(self, sealer: Sealer, need: KeyNeed) -> BackupPlace:
        """Where a node stores or reads the copies that `need` names, with the credentials for it. Raises
        `NoTemporaryKeys`."""
        secret = self.secret(sealer) or ""
        match self.settings:
            case SftpSettings() as sftp:
                told = sftp.model_dump(exclude={"kind", "public_key"})
                return SftpPlace(name=self.name, private_key=secret, **told)
            case MachineBucketSettings(sts=sts, role=role) as s3:
                keys = Keys(s3.access_key, secret)
                if sts is not None:
                    keys = await temporary_keys(Sts(sts, s3.region, role), keys, s3.bucket, s3.prefix, need)
                told = s3.model_dump(include={"endpoint", "bucket", "prefix", "region"})
                return BucketPlace(
                    name=self.name,
                    access_key=keys.access_key,
                    secret_key=keys.secret_key,
                    session_token=keys.session_token,
                    **told,
                )


@dataclass(frozen=True)
class TargetUsers:
    """The users of a target: one node, the nodes of a location, or, if both are None, every node for which no other
    target is set."""

    node_id: UUID | None = None
    location_id: UUID | None = None


async def add_target(tx: Transaction, sealer: Sealer, name: str, settings: RemoteSettings, secret: str) -> TargetRow:
    """Record a target; its secret is stored sealed. Raises conflict if the name is taken."""
    try:
        row = await tx.fetchone(
            "INSERT INTO machine_backup_targets (name, settings, sealed_secret) VALUES ($1, $2, $3) RETURNING *",
            name,
            settings.model_dump(mode="json", exclude_none=True),
            sealed(sealer, secret),
        )
    except UniqueViolationError:
        raise conflict(f"There is a backup target with the name {name} already.") from None
    return TargetRow.of(row)


async def remove_target(tx: Transaction, target: TargetRow) -> None:
    """Remove the target and its assignments; the caller has removed the records of the copies there
    (`deleted.forget_target`). Raises conflict while a task uses it."""
    if await tx.fetchval(
        """SELECT EXISTS (SELECT FROM tasks WHERE status IN ('queued', 'running') AND resource_kind = 'vm'
               AND parameters->>'target_id' = $1)""",
        str(target.id),
    ):
        raise conflict(f"A task is using the backup target {target.name}.", hint="Wait for that task.")
    await tx.execute("DELETE FROM machine_backup_target_uses WHERE target_id = $1", target.id)
    await tx.execute("DELETE FROM machine_backup_targets WHERE id = $1", target.id)
    await close_alert(tx, target_alert(target.id))


async def use_target(tx: Transaction, use: TargetUsers, target_id: UUID | None) -> None:
    """Assign a target from the next backups on; None: the storage mounted on the node. Raises not_found."""
    try:
        await tx.execute(
            """INSERT INTO machine_backup_target_uses (node_id, location_id, target_id) VALUES ($1, $2, $3)
               ON CONFLICT (node_id, location_id) DO UPDATE SET target_id = excluded.target_id""",
            use.node_id,
            use.location_id,
            target_id,
        )
    except ForeignKeyViolationError:
        raise not_found("There is no such node or location.") from None


async def unuse_target(tx: Transaction, use: TargetUsers) -> None:
    """Remove the assignment: these nodes use the default again."""
    await tx.execute(
        """DELETE FROM machine_backup_target_uses
           WHERE node_id IS NOT DISTINCT FROM $1 AND location_id IS NOT DISTINCT FROM $2""",
        use.node_id,
        use.location_id,
    )


async def target_of_node(queryable: Queryable, node_id: UUID | None) -> UUID | None:
    """The target of the node; None if it copies to the storage mounted on it."""
    target_id: UUID | None = await queryable.fetchval(
        """SELECT target_id FROM machine_backup_target_uses uses
           WHERE node_id = $1 OR location_id = (SELECT location_id FROM nodes WHERE id = $1)
              OR node_id IS NULL AND location_id IS NULL
           ORDER BY node_id IS NULL, location_id IS NULL LIMIT 1""",
        node_id,
    )
    return target_id


async def place_at(database: Database, sealer: Sealer, target_id: UUID | None, need: KeyNeed) -> BackupPlace | None:
    """The target's location and credentials for one operation of a node. Raises not_found. If the target's STS issues
    no keys, an alert says so and this raises `TaskFailed`, or unavailable if the failure may pass: a resumed task asks
    again, while its node may go on with the operation."""
    if target_id is None:
        return None
    target = await TargetRow.read(database, target_id)
    try:
        return await target.place(sealer, need)
    except NoTemporaryKeys as error:
        why = f"Its STS gave no keys for this operation: {error}."
        await database.transact(partial(tell_failed, target_id=target.id, why=why))
        failure = ServiceError if error.passing else TaskFailed
        raise failure(
            ErrorCode.UNAVAILABLE,
            f"The backup target {target.name} cannot be used. {why}",
            hint="Check the STS, and that the target's key may request keys; the target was not changed.",
        ) from error


async def tell_failed(tx: Transaction, target_id: UUID, why: str) -> None:
    name = await tx.fetchval("SELECT name FROM machine_backup_targets WHERE id = $1", target_id)
    if name is not None:
        await raise_alert(
            tx,
            target_alert(target_id),
            f"The backup target {name} fails; its backups stay, and new ones are retried every hour. {why}",
            severity=Severity.WARNING,
        )


async def tell_works(tx: Transaction, target_id: UUID) -> None:
    await close_alert(tx, target_alert(target_id))


def target_alert(target_id: UUID) -> str:
    return f"backup-target:{target_id}"
