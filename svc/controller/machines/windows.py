"""The state of a Windows machine's first boot, and the password that it has set for itself."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from pydantic import Field

from svc.controller.machines.machines import VMRequest
from svc.controller.machines.models import visible_machine
from svc.controller.services import Controller
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.machines import windows
from svc_actors.controller.machines.machine import Machine
from svc_actors.store import Record
from svc_common.errors import conflict

operations = Operations[Controller]()


class WindowsSetup(Model):
    """A Windows machine's first boot. `booted_at`: when it was seen to have ended; null before. `password_set_at` or
    `password_error` then say whether the requested password was set; both are null if none was requested.
    `credential_offered`: the machine's own password may be taken, once (`credential_taken_at`)."""

    vm_id: UUID
    user: str
    booted_at: datetime | None
    password_set_at: datetime | None
    password_error: str | None
    credential_offered: bool
    credential_taken_at: datetime | None


class WindowsCredential(Model):
    """The password that the machine has set for itself. It is shown only once."""

    user: str
    password: str = Field(repr=False)


@operations.declare(
    "vm.windows",
    "Show the state of a Windows machine's first boot",
    Route.get("/vms/{id}/windows"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def show_setup(context: Context[Controller], request: VMRequest) -> WindowsSetup:
    await _windows_machine(context, request.id)
    setup = await windows.setup_of(context.services.database, request.id) or windows.UNKNOWN
    return WindowsSetup(
        vm_id=request.id,
        user=windows.ACCOUNT,
        booted_at=setup.booted_at,
        password_set_at=setup.password_set_at,
        password_error=setup.password_error,
        credential_offered=setup.offered,
        credential_taken_at=setup.credential_taken_at,
    )


@operations.declare(
    "vm.windows_credential",
    "Get the password that a Windows machine generated, once",
    Route.post("/vms/{id}/windows/credential"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    command=("vm", "windows-credential"),
)
async def take_credential(context: Context[Controller], request: VMRequest) -> WindowsCredential:
    """The password is first read from the machine and then marked as taken. So if it cannot be read now, it can still
    be taken later."""
    services = context.services
    row = await _windows_machine(context, request.id)
    windows.require_offered(await windows.setup_of(services.database, request.id))
    password = await windows.own_password(services.gateway, node_id=row["node_id"], vm_id=request.id)
    await services.actors.ref(Machine, str(request.id)).ask(Machine.take_own_password, context.caller)
    return WindowsCredential(user=windows.ACCOUNT, password=password)


async def _windows_machine(context: Context[Controller], vm_id: UUID) -> Record:
    row = await visible_machine(context.services.database, context.principal, vm_id)
    if row["os_family"] != "windows":
        raise conflict("The machine's image is not Windows.")
    return row
