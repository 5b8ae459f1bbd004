"""Backup targets: where machines' backups go instead of a mount on their node. Administrators only.

`backup.target.use` says which nodes use a target: one node, those of a location, or all without another target.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.controller.machines.fields import Confirmation
from svc.controller.services import Controller
from svc.identity.backup_targets import BackupTargetModel, BucketTargetRequest, Endpoint, SftpTargetRequest
from svc.registry.declare import Operations
from svc.registry.operation import Context, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.controller.backups.deleted import forget_target
from svc_actors.controller.backups.targets import (
    KeyMode,
    MachineBucketSettings,
    RemoteSettings,
    TargetRow,
    TargetUsers,
    add_target,
    remove_target,
    unuse_target,
    use_target,
)
from svc_actors.remote_targets import TargetKind, new_key_pair
from svc_actors.store import Queryable, Record, Target, Transaction, audit
from svc_common.errors import conflict, require_name, wrong_field

operations = Operations[Controller]()

_SELECT: Final = """
SELECT targets.*, alerts.message AS problem,
       (SELECT count(*) FROM machine_backups WHERE target_id = targets.id AND removed_at IS NULL) AS copies,
       EXISTS (SELECT FROM machine_backup_target_uses
               WHERE target_id = targets.id AND node_id IS NULL AND location_id IS NULL) AS of_all_others,
       ARRAY(SELECT node_id FROM machine_backup_target_uses WHERE target_id = targets.id AND node_id IS NOT NULL
             ORDER BY node_id) AS node_ids,
       ARRAY(SELECT location_id FROM machine_backup_target_uses
             WHERE target_id = targets.id AND location_id IS NOT NULL ORDER BY location_id) AS location_ids
FROM machine_backup_targets targets
LEFT JOIN alerts ON alerts.key = 'backup-target:' || targets.id::text AND alerts.closed_at IS NULL"""


_SHARED: Final = (
    "Every node that uses this target gets its one key, so root of any of these nodes can remove or overwrite the"
    " backups of all machines that are there, and list their ids; it cannot read them."
)
_BOUNDS: Final = {
    TargetKind.S3: "Add the bucket with sts_endpoint, where its server has an STS; else give it object lock or versions"
    " that this key cannot remove, or each node or location a target of its own (use with node_id or location_id).",
    TargetKind.SFTP: "Have the server keep snapshots that this account cannot remove, or give each node or location a"
    " target, and an account, of its own (use with node_id or location_id).",
}


class MachineBackupTarget(BackupTargetModel):
    """`location` says where it is, without secrets. `public_key`: of a target by SFTP, for its authorized_keys. It is
    used by the nodes `node_ids`, by those of `location_ids`, and, if `of_all_others`, by every node that has no other
    target. `copies`: how many complete backups it holds. `problem`: why the last use failed; null if it works. `keys`:
    `temporary` if a node gets keys for one machine's copies and one operation, `shared` if every node gets the target's
    own; then `warning` says what a node could do with it, and what limits that."""

    keys: KeyMode
    warning: str | None
    of_all_others: bool
    node_ids: list[UUID]
    location_ids: list[UUID]
    copies: int
    problem: str | None
    created_at: datetime


class MachineBucketRequest(BucketTargetRequest):
    """A bucket that exists already. `sts_endpoint`: the security token service of its server, which issues keys for the
    copies of a single machine, for each operation; without it, each node gets the key itself. `sts_role`: the ARN of
    the role to assume (AssumeRole; its sessions must be allowed to last 7 hours); without it, GetFederationToken is
    used."""

    sts_endpoint: Endpoint | None = None
    sts_role: Annotated[str, Field(max_length=256), Shape(r"[A-Za-z0-9:/_.+=,@-]+", "the ARN of a role")] | None = None

    @property
    def machine_settings(self) -> MachineBucketSettings:
        if self.sts_role is not None and self.sts_endpoint is None:
            raise wrong_field("sts_role", "needs sts_endpoint as well")
        plain = self.settings.model_dump()
        return MachineBucketSettings(**plain, sts=self.sts_endpoint, role=self.sts_role)


class TargetListRequest(Request):
    """Lists all of them."""


class TargetUseRequest(Request):
    """Without a node and a location, the target is used by every node that has no other target."""

    id: UUID
    node_id: UUID | None = None
    location_id: UUID | None = None


class TargetUnuseRequest(Request):
    """Without a node and a location, the target of every node that has no other target is meant. `mounted`: these nodes
    copy to the file system that is mounted on them, even if there is a target for all others."""

    node_id: UUID | None = None
    location_id: UUID | None = None
    mounted: bool = False


class TargetRemoveRequest(Request):
    """`confirm` is the target's name. `forget_copies`: remove the target even if there are backups at it, which are
    then not listed."""

    id: UUID
    confirm: Confirmation
    forget_copies: bool = False


@operations.declare(
    "backup.target.list",
    "List the targets of machines' backups, besides those mounted on nodes",
    Route.get("/backups/targets"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("name", "kind", "location", "keys", "all_others=of_all_others", "copies", "problem", "id"),
)
async def list_targets(context: Context[Controller], request: TargetListRequest) -> list[MachineBackupTarget]:
    rows = await context.services.database.fetch(f"{_SELECT} ORDER BY targets.name")
    return [_model(row) for row in rows]


@operations.declare(
    "backup.target.add_sftp",
    "Add a backup target by SFTP; the answer has the public key to authorize there",
    Route.post("/backups/targets/sftp", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("name", "host", "path"),
)
async def add_sftp(context: Context[Controller], request: SftpTargetRequest) -> MachineBackupTarget:
    private, public = new_key_pair("svc-machine-backups")
    return await _add(context, request.name, request.settings(public), private)


@operations.declare(
    "backup.target.add_bucket",
    "Add an S3 bucket as a backup target",
    Route.post("/backups/targets/s3", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("name", "endpoint", "bucket"),
)
async def add_bucket(context: Context[Controller], request: MachineBucketRequest) -> MachineBackupTarget:
    return await _add(context, request.name, request.machine_settings, request.secret_key.get_secret_value())


@operations.declare(
    "backup.target.use",
    "Back up the machines of nodes to a target, from their next backups on",
    Route.put("/backups/targets/{id}/use"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def use(context: Context[Controller], request: TargetUseRequest) -> MachineBackupTarget:
    wanted = _use(request.node_id, request.location_id)

    async def work(tx: Transaction) -> MachineBackupTarget:
        target = await TargetRow.read(tx, request.id)
        await use_target(tx, wanted, target.id)
        await audit.record(tx, context.caller, target.target, _plain(wanted))
        return await _shown(tx, target.id)

    return await context.services.database.transact(work)


@operations.declare(
    "backup.target.unuse",
    "Make nodes use the default target again, or the one mounted on them; existing backups stay where they are",
    Route.post("/backups/targets/unuse"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def unuse(context: Context[Controller], request: TargetUnuseRequest) -> None:
    wanted = _use(request.node_id, request.location_id)

    async def work(tx: Transaction) -> None:
        if request.mounted:
            await use_target(tx, wanted, None)
        else:
            await unuse_target(tx, wanted)
        await audit.record(
            tx, context.caller, Target("backup_target", None, None), _plain(wanted) | {"mounted": request.mounted}
        )

    await context.services.database.transact(work)


@operations.declare(
    "backup.target.remove",
    "Remove a target; its backups stay there, but the service can no longer open them",
    Route.delete("/backups/targets/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def remove(context: Context[Controller], request: TargetRemoveRequest) -> None:
    async def work(tx: Transaction) -> None:
        target = await TargetRow.read(tx, request.id)
        require_name(target.name, request.confirm, of="target")
        shown = await _shown(tx, target.id)
        if shown.copies and not request.forget_copies:
            raise conflict(
                f"Backups of machines are kept at {target.name}: {shown.copies}. It was not changed.",
                hint="Move its nodes to another target until no backup is left there, or set forget_copies.",
                details={"copies": shown.copies},
            )
        given_up = await forget_target(tx, target.id)
        await remove_target(tx, target)
        await audit.record(tx, context.caller, target.target, {"copies_given_up": given_up})

    await context.services.database.transact(work)


async def _add(context: Context[Controller], name: str, settings: RemoteSettings, secret: str) -> MachineBackupTarget:
    async def work(tx: Transaction) -> MachineBackupTarget:
        target = await add_target(tx, context.services.sealer, name, settings, secret)
        await audit.record(tx, context.caller, target.target, {"kind": settings.kind.value})
        return await _shown(tx, target.id)

    return await context.services.database.transact(work)


def _use(node_id: UUID | None, location_id: UUID | None) -> TargetUsers:
    if node_id is not None and location_id is not None:
        raise wrong_field("location_id", "give this or a node, not both")
    return TargetUsers(node_id, location_id)


def _plain(use: TargetUsers) -> dict[str, object]:
    return {name: str(value) for name, value in (("node_id", use.node_id), ("location_id", use.location_id)) if value}


async def _shown(queryable: Queryable, target_id: UUID) -> MachineBackupTarget:
    return _model(await queryable.fetchone(f"{_SELECT} WHERE targets.id = $1", target_id))


def _model(row: Record) -> MachineBackupTarget:
    target = TargetRow.of(row)
    further = {
        name: row[name] for name in ("of_all_others", "node_ids", "location_ids", "copies", "problem", "created_at")
    }
    return MachineBackupTarget(
        **target.shown,
        keys=target.keys,
        warning=f"{_SHARED} {_BOUNDS[target.settings.kind]}" if target.keys is KeyMode.SHARED else None,
        **further,
    )
