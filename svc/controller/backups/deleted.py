"""Backups of deleted machines: which are still kept, until when, and how to remove them earlier."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

from svc.controller.machines.fields import Confirmation
from svc.controller.services import Controller
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Condition, Page, PageRequest, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.backups.deleted import end_now

operations = Operations[Controller]()

_SELECT: Final = """
SELECT vms.id AS vm_id, vms.name AS vm_name, vms.project_id, vms.deleted_at, vms.copies_until AS removed_after,
       ARRAY(SELECT name FROM nodes WHERE id IN (SELECT node_id FROM machine_backup_stores WHERE vm_id = vms.id)
             ORDER BY name) AS node_names, kept.*
FROM vms
LEFT JOIN LATERAL (
    SELECT count(*) AS copies, coalesce(sum(stored_bytes), 0)::bigint AS stored_bytes,
           max(completed_at) AS last_completed_at
    FROM machine_backups WHERE vm_id = vms.id AND removed_at IS NULL
) kept ON true"""


class DeletedMachineBackups(Model):
    """The backups of a deleted machine. After `removed_after` each node that has copied it (`node_names`) removes the
    copies at its target, as soon as it can. `stored_bytes`: by how much the copies enlarged the targets when they were
    made."""

    vm_id: UUID
    vm_name: str
    project_id: UUID
    node_names: list[str]
    deleted_at: datetime
    copies: int
    stored_bytes: int
    last_completed_at: datetime | None
    removed_after: datetime


class DeletedList(PageRequest):
    """`q`: a part of the machine's name."""


class DiscardRequest(Request):
    """`id` and `confirm` are the deleted machine's id and name."""

    id: UUID
    confirm: Confirmation


@operations.declare(
    "backup.deleted",
    "List deleted machines with backups, and how long these are kept",
    Route.get("/backups/deleted"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=(
        "id=vm_id",
        "vm=vm_name",
        "deleted=deleted_at",
        "copies",
        "stored=stored_bytes",
        "last=last_completed_at",
        "until=removed_after",
    ),
)
async def list_deleted(context: Context[Controller], request: DeletedList) -> Page[DeletedMachineBackups]:
    named = [Condition("strpos(lower(vms.name), lower($1)) > 0", (request.q,))] if request.q else []
    rows, total = await paginate(
        context.services.database,
        select=_SELECT,
        source="vms",
        where=[Condition("vms.copies_until IS NOT NULL"), *named],
        sortable={"removed_after": "vms.copies_until"},
        default_sort="removed_after",
        request=request,
        tie="vms.id",
    )
    return Page[DeletedMachineBackups].of([DeletedMachineBackups(**row) for row in rows], total, request)


@operations.declare(
    "backup.discard",
    "Remove the backups of a deleted machine now, or once its node is online",
    Route.delete("/backups/deleted/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def discard(context: Context[Controller], request: DiscardRequest) -> None:
    async with context.services.database.transaction() as tx:
        await end_now(tx, context.caller, request.id, request.confirm)
