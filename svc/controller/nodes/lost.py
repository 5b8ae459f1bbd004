"""Marking a node as lost: an administrator declares that the node will not come back. The controller cannot find that
out itself.

From then on the node's machines can be deleted without the node. Their addresses stay `releasing`, because a host that
is believed dead may still use them; `pool.force_free` releases a single address.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.services import Controller
from svc.identity.fields import Reason
from svc.registry.declare import Operations
from svc.registry.operation import Context, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.nodes.node import Node
from svc_actors.controller.nodes.records import get_node
from svc_actors.controller.reconcile.orphans import stop_awaiting_report, tell_of_orphans
from svc_actors.store import Transaction
from svc_common.errors import require_name

operations = Operations[Controller]()


class NodeLoss(Request):
    """`note`: how it is known that the node is lost; it is shown with the node and in the audit."""

    id: UUID
    confirm: Annotated[str, Field(max_length=64, description="The node's name, repeated.")]
    note: Reason


@operations.declare(
    "node.declare_lost",
    "Declare a node lost: its certificate is revoked, and its machines can be deleted without it",
    Route.post("/nodes/{id}/declare-lost", status=204),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def declare_lost(context: Context[Controller], request: NodeLoss) -> None:
    require_name((await get_node(context.services.database, request.id)).name, request.confirm, of="node")

    async def wait_no_more(tx: Transaction) -> None:
        if await stop_awaiting_report(tx, request.id):
            await tell_of_orphans(tx, request.id)

    node = context.services.actors.ref(Node, str(request.id))
    await node.ask(Node.declare_lost, context.caller, request.note, wait_no_more)
