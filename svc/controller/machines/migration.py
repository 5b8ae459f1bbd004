"""Moving a machine to another node: which nodes could take it, and how."""

from __future__ import annotations

from uuid import UUID

from svc.controller.machines.machines import VMRequest
from svc.controller.services import Controller
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.machines.migration_targets import MigrationMode, migration_targets

operations = Operations[Controller]()


class MigrationTarget(Model):
    """Another node judged for a machine, by what is recorded at this moment. `mode` is how the machine could go there:
    `offline` while it is off, `live` while it runs, `restart` where it would have to be started anew; null where the
    node could not take it. `reasons` name each thing that is in the way: with null of going there at all, with
    `restart` of going live."""

    node_id: UUID
    node_name: str
    mode: MigrationMode | None
    reasons: list[str]


@operations.declare(
    "vm.migration_targets",
    "Judge every other node for a machine",
    Route.get("/vms/{id}/migration-targets"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("node=node_name", "mode", "reasons"),
)
async def targets(context: Context[Controller], request: VMRequest) -> list[MigrationTarget]:
    return [
        MigrationTarget(node_id=each.node_id, node_name=each.node_name, mode=each.mode, reasons=list(each.reasons))
        for each in await migration_targets(context.services.database, request.id)
    ]
