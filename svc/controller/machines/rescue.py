"""Rescue of a machine that does not boot: a small system from memory, with the machine's disks attached and not
mounted.

The machine's actor decides about the order to start or end a rescue; the task in the answer carries it out.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.machines import guest_access
from svc.controller.machines.fields import SshKeyText
from svc.controller.machines.guest_access import MAX_KEYS
from svc.controller.machines.models import VM, show, visible_machine
from svc.controller.machines.remaking import Key
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.registry.declare import Operations
from svc.registry.idempotency import key_owner, run_idempotent
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.rescue import NewRescue
from svc_actors.controller.machines.spec import ROOT, Seed
from svc_actors.store import Record

operations = Operations[Controller]()

Force = Annotated[
    bool, Field(description="Stop a running guest at once, as if its plug were pulled, instead of shutting it down.")
]


class VMRescueRequest(Request):
    """By default the keys with which the machine was created are used. A running guest is shut down gracefully within
    90 seconds; if it does not shut down, it is left running. With `force` it is stopped at once."""

    id: UUID
    ssh_keys: Annotated[list[SshKeyText], Field(default_factory=list, max_length=MAX_KEYS)]
    ssh_key_ids: Annotated[list[UUID], Field(default_factory=list, max_length=MAX_KEYS)]
    force: Force = False
    idempotency_key: Key | None = None


class VMRescueEndRequest(Request):
    id: UUID
    force: Force = False


class VMRescueResult(Model):
    """Once `task` has succeeded, `user` can sign in to the rescue system by `password`, which is shown only here, or by
    an SSH key. `replayed`: an earlier request with this idempotency key started it."""

    vm: VM
    task: TaskModel
    user: str
    password: str | None
    replayed: bool


@operations.declare(
    "vm.rescue",
    "Boot a rescue system from memory, with the machine's disks attached and not mounted",
    Route.post("/vms/{id}/rescue"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def rescue(context: Context[Controller], request: VMRescueRequest) -> VMRescueResult:
    row = await visible_machine(context.services.database, context.principal, request.id)
    run = partial(_rescue, context, request, row)
    answer, replayed = await run_idempotent(context, key=request.idempotency_key, request=request, run=run)
    return answer.model_copy(update={"replayed": answer.replayed or replayed})


@operations.declare(
    "vm.rescue_end",
    "End a rescue: the machine boots its own disk again",
    Route.post("/vms/{id}/rescue/end"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def end(context: Context[Controller], request: VMRescueEndRequest) -> TaskModel:
    await visible_machine(context.services.database, context.principal, request.id)
    machine = context.services.actors.ref(Machine, str(request.id))
    return TaskModel.of(await machine.ask(Machine.end_rescue, context.caller, force=request.force), context.principal)


async def _rescue(context: Context[Controller], request: VMRescueRequest, row: Record) -> VMRescueResult:
    services, principal = context.services, context.principal
    keys = await guest_access.ssh_keys(services.database, principal, request.ssh_keys, request.ssh_key_ids)
    password = await guest_access.password(None, ROOT, field="password")
    assert password.generated is not None
    key = request.idempotency_key
    new = NewRescue(
        password_hash=password.hash,
        generated=password.generated,
        ssh_keys=keys or tuple(row["ssh_keys"]),
        force=request.force,
        order=f"{key_owner(principal)} {key}" if key is not None else None,
    )
    machine = services.actors.ref(Machine, str(request.id))
    task, begun = await machine.ask(Machine.rescue, context.caller, new)
    generated: str | None = new.generated
    if not begun:
        # For a repeated order this is the password that was generated the first time, as long as it is still needed.
        sealed = await services.database.fetchval("SELECT sealed_seed FROM vms WHERE id = $1", request.id)
        generated = Seed.unsealed(services.sealer, sealed).generated
    return VMRescueResult(
        vm=await show(services.database, principal, request.id),
        task=TaskModel.of(task, principal),
        user=ROOT,
        password=generated,
        replayed=not begun,
    )
