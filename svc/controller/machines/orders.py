"""Orders for a machine: power, changes, a password, removal. The actor `Machine` of the machine decides about each
order. The answer is sent as soon as the decision is stored, and names the task that carries the order out."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.machines import guest_access
from svc.controller.machines.fields import Confirmation, GivenPassword, Labels, MachineName, MemoryMib, Vcpus
from svc.controller.machines.machines import VMRequest
from svc.controller.machines.models import VM, AccessMode, show, visible_machine
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.machines.changes import Changes
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.records import SOLD, MachineSettings
from svc_actors.controller.machines.spec import account_name
from svc_actors.controller.machines.states import Order, RestartPolicy
from svc_actors.controller.machines.windows import ACCOUNT
from svc_actors.runtime.actor import Ref
from svc_common.errors import conflict, forbidden, invalid, require_name

operations = Operations[Controller]()


class VMUpdateRequest(Request):
    """Fields left out stay as they are. Sizes are for staff and administrators, and change while the machine is
    stopped. `restart_policy` applies from the next time that the machine goes off. `labels` replace all earlier labels.
    `protected`: the machine can be neither deleted nor reinstalled until the protection is removed."""

    id: UUID
    name: MachineName | None = None
    vcpus: Vcpus | None = None
    memory_mib: MemoryMib | None = None
    restart_policy: RestartPolicy | None = None
    labels: Labels | None = None
    protected: bool | None = None


class VMUpdateResult(VM):
    """The machine as it is recorded now. The task `task_id` makes the change on the host; if the task fails, the record
    is restored. `task_id` is null if the host has nothing to change."""

    task_id: UUID | None


class VMDeleteRequest(Request):
    """Without `destroy_disks` the machine's disk is kept on the node, as a volume of its project. The machine's volumes
    stay as well, except for those that are to be deleted with it; `destroy_volumes` destroys all of them."""

    id: UUID
    confirm: Confirmation
    destroy_disks: Annotated[bool, Field(description="Destroy its disk too; otherwise it is kept as a volume.")] = False
    destroy_volumes: Annotated[bool, Field(description="Destroy its volumes too.")] = False


class VMPowerRequest(Request):
    id: UUID
    confirm: Confirmation


class ResetPasswordRequest(Request):
    id: UUID
    password: Annotated[GivenPassword | None, Field(repr=False)] = None


class ResetPasswordResult(Model):
    """`password` is the generated password, which is shown only once; `chosen` is true if the caller chose the
    password. The password is set once the task has succeeded."""

    user: str
    task_id: UUID
    chosen: bool
    password: str | None


@operations.declare(
    "vm.start",
    "Start a machine",
    Route.post("/vms/{id}/start"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    in_support_session=True,
)
async def start(context: Context[Controller], request: VMRequest) -> TaskModel:
    return await _order(context, request.id, Order.START)


@operations.declare(
    "vm.shutdown",
    "Shut a machine down gracefully, within 90 seconds",
    Route.post("/vms/{id}/shutdown"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def shutdown(context: Context[Controller], request: VMRequest) -> TaskModel:
    return await _order(context, request.id, Order.SHUTDOWN)


@operations.declare(
    "vm.reboot",
    "Restart a machine: shut it down gracefully and start it again",
    Route.post("/vms/{id}/reboot"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def reboot(context: Context[Controller], request: VMRequest) -> TaskModel:
    return await _order(context, request.id, Order.REBOOT)


@operations.declare(
    "vm.force_stop",
    "Stop a machine at once, as if its plug were pulled",
    Route.post("/vms/{id}/force-stop"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def force_stop(context: Context[Controller], request: VMPowerRequest) -> TaskModel:
    return await _order(context, request.id, Order.FORCE_STOP, confirm=request.confirm)


@operations.declare(
    "vm.reset",
    "Reset a machine at once, as if its button were pressed",
    Route.post("/vms/{id}/reset"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def reset(context: Context[Controller], request: VMPowerRequest) -> TaskModel:
    return await _order(context, request.id, Order.RESET, confirm=request.confirm)


@operations.declare(
    "vm.delete",
    "Delete a machine and release its addresses",
    Route.delete("/vms/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete(context: Context[Controller], request: VMDeleteRequest) -> TaskModel:
    database, principal = context.services.database, context.principal
    row = await visible_machine(database, principal, request.id)
    require_name(row["name"], request.confirm, of="machine")
    sold = await database.fetchval(f"SELECT {SOLD} FROM vms WHERE id = $1", request.id)
    if sold and not principal.is_operator:
        raise conflict(
            "The machine belongs to a service that was ordered; it was not deleted.",
            hint="Cancel the service where you ordered it.",
        )
    machine = _machine(context, request.id)
    task = await machine.ask(
        Machine.delete,
        context.caller,
        destroy_disks=request.destroy_disks,
        destroy_volumes=request.destroy_volumes,
    )
    return TaskModel.of(task, context.principal)


@operations.declare(
    "vm.update",
    "Rename a machine, label or protect it, change its restart policy, or its size while it is stopped",
    Route.patch("/vms/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def update(context: Context[Controller], request: VMUpdateRequest) -> VMUpdateResult:
    services, principal = context.services, context.principal
    await visible_machine(services.database, principal, request.id)
    if (request.vcpus is not None or request.memory_mib is not None) and not principal.is_operator:
        raise forbidden("The size of a machine is its plan's; ask for another plan.")
    wanted = Changes(
        name=request.name,
        vcpus=request.vcpus,
        memory_mib=request.memory_mib,
        settings=MachineSettings.of(request),
    )
    if wanted == Changes():
        *others, last = (name for name in VMUpdateRequest.model_fields if name != "id")
        raise invalid("Nothing would change.", hint=f"Give a {', '.join(others)} or {last}.")
    task = await _machine(context, request.id).ask(Machine.update, context.caller, wanted)
    changed = await show(services.database, principal, request.id)
    return VMUpdateResult(**changed.model_dump(), task_id=task.id if task is not None else None)


@operations.declare(
    "vm.reset_password",
    "Set the password of a running machine's account through its guest agent",
    Route.post("/vms/{id}/reset-password"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def reset_password(context: Context[Controller], request: ResetPasswordRequest) -> ResetPasswordResult:
    row = await visible_machine(context.services.database, context.principal, request.id)
    machine, chosen = _machine(context, request.id), request.password is not None
    if row["os_family"] == "windows":
        own = guest_access.windows_password(request.password, field="password")
        task = await machine.ask(Machine.set_windows_password, context.caller, own.itself)
        return ResetPasswordResult(user=ACCOUNT, task_id=task.id, chosen=chosen, password=own.generated)
    if row["access_mode"] == AccessMode.ROOT_KEY.value:
        raise conflict("This machine's access mode is root_key: its account has no password.")
    user = account_name(row["access_mode"], row["login_user"])
    password = await guest_access.password(request.password, user, field="password")
    task = await machine.ask(Machine.set_password, context.caller, password.hash)
    return ResetPasswordResult(user=user, task_id=task.id, chosen=chosen, password=password.generated)


async def _order(context: Context[Controller], vm_id: UUID, order: Order, *, confirm: str | None = None) -> TaskModel:
    row = await visible_machine(context.services.database, context.principal, vm_id)
    if confirm is not None:
        require_name(row["name"], confirm, of="machine")
    task = await _machine(context, vm_id).ask(Machine.order, context.caller, order)
    return TaskModel.of(task, context.principal)


def _machine(context: Context[Controller], vm_id: UUID) -> Ref[Machine]:
    return context.services.actors.ref(Machine, str(vm_id))
