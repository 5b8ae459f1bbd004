"""POST /vms/{id}/console: a ticket for one console of one machine. svc_console's websocket serves the console
itself."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from svc.controller.machines.models import visible_machine
from svc.controller.services import Controller
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access, Principal
from svc.registry.scopes import Scope
from svc_actors.controller.machines.consoles import (
    OPENABLE,
    ConsoleKind,
    Holder,
    SessionCredential,
    TokenCredential,
    issue,
)
from svc_actors.controller.machines.states import MachineStatus, start_hint
from svc_actors.store import Target, audit
from svc_common.errors import conflict, forbidden, unavailable

operations = Operations[Controller]()

CONSOLE_SOCKET_PATH = "/api/v1/console/ws/"


class ConsoleRequest(Request):
    id: UUID
    kind: ConsoleKind = ConsoleKind.VNC


class ConsoleTicket(Model):
    """`ticket` opens one console, once, until `expires_at`; `url` is the path of its websocket on this server."""

    ticket: str
    kind: ConsoleKind
    url: str
    expires_at: datetime


@operations.declare(
    "vm.console",
    "Issue a single-use ticket for a machine's screen or serial line",
    Route.post("/vms/{id}/console"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    command=("vm", "console-ticket"),
    hidden=True,
)
async def open_console(context: Context[Controller], request: ConsoleRequest) -> ConsoleTicket:
    services = context.services
    machine = await visible_machine(services.database, context.principal, request.id)
    name, status, node_id = machine["name"], machine["status"], machine["node_id"]
    if status not in OPENABLE:
        raise conflict(
            f"Machine {name} is {status}: it has no console now.",
            hint=start_hint(MachineStatus(status)),
            details={"status": status},
        )
    if node_id is None or not services.gateway.is_online(node_id):
        raise unavailable(
            f"The node of machine {name} is offline: its consoles cannot be reached.",
            hint="Try again once the node is back.",
        )
    async with services.database.transaction() as tx:
        issued = await issue(tx, vm_id=request.id, kind=request.kind, holder=_holder(context.principal))
        await audit.record(
            tx, context.caller, Target("vm", request.id, name, machine["project_id"]), {"kind": request.kind.value}
        )
    return ConsoleTicket(
        ticket=issued.ticket,
        kind=request.kind,
        url=CONSOLE_SOCKET_PATH + issued.ticket,
        expires_at=issued.expires_at,
    )


def _holder(principal: Principal) -> Holder:
    if principal.user_id is not None and principal.session_id is not None:
        return Holder(principal.user_id, SessionCredential(principal.session_id))
    if principal.user_id is not None and principal.token_id is not None:
        return Holder(principal.user_id, TokenCredential(principal.token_id))
    raise forbidden("A console belongs to a session or an API token, and this caller has neither.")
