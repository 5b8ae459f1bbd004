"""Changing a machine's processor. The machine's actor decides about the order; the task in the answer carries it
out."""

from __future__ import annotations

from functools import partial
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.machines.models import visible_machine
from svc.controller.machines.remaking import Key
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.registry.declare import Operations
from svc.registry.idempotency import key_owner, run_idempotent
from svc.registry.operation import Context, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.processors import CpuMode, NewProcessor

operations = Operations[Controller]()


class VMCpuRequest(Request):
    """Only the processor of the stored definition is rewritten: a guest that runs keeps its present processor until it
    is stopped and started; until then `facts.cpu.next_mode` names the new one."""

    id: UUID
    cpu_mode: Annotated[
        CpuMode,
        Field(description="`default` is a model near the host's under KVM, and `baseline` where guests are emulated."),
    ]
    restart: Annotated[
        bool,
        Field(
            description="Shut a running guest down gracefully and start it again; one that has not shut down within"
            " three minutes keeps running, unchanged."
        ),
    ] = False
    idempotency_key: Key | None = None


@operations.declare(
    "vm.cpu",
    "Change the processor model of a machine, from its next start on or with a restart",
    Route.post("/vms/{id}/cpu"),
    access=Access.ADMINISTRATOR,
    scope=Scope.WRITE,
)
async def cpu(context: Context[Controller], request: VMCpuRequest) -> TaskModel:
    answer, _ = await run_idempotent(
        context, key=request.idempotency_key, request=request, run=partial(_change, context, request)
    )
    return answer


async def _change(context: Context[Controller], request: VMCpuRequest) -> TaskModel:
    principal, key = context.principal, request.idempotency_key
    await visible_machine(context.services.database, principal, request.id)
    new = NewProcessor(
        mode=request.cpu_mode,
        restart=request.restart,
        order=f"{key_owner(principal)} {key}" if key is not None else None,
    )
    machine = context.services.actors.ref(Machine, str(request.id))
    return TaskModel.of(await machine.ask(Machine.set_processor, context.caller, new), principal)
