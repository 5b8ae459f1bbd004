"""Resizing a machine or reinstalling it. It stays the same machine: name, addresses and history remain.

The machine's actor decides about the order; the task in the answer carries it out. Orders of billing systems use the
same functions (`svc.controller.provisioning.changes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.machines import guest_access
from svc.controller.machines.creation import enabled_image, enabled_iso, enabled_plan
from svc.controller.machines.fields import Confirmation, DiskGib, GivenPassword, MemoryMib, SshKeyText, UserData, Vcpus
from svc.controller.machines.guest_access import MAX_KEYS
from svc.controller.machines.models import VM, AccessMode, show, visible_machine
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.registry.declare import Operations
from svc.registry.idempotency import key_owner, run_idempotent
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access, Principal
from svc.registry.scopes import Scope
from svc.registry.shapes import LINE
from svc_actors.controller.machines.machine import Decide, Machine
from svc_actors.controller.machines.records import SOLD
from svc_actors.controller.machines.remaking import NewSize, NewSystem
from svc_actors.controller.machines.spec import Seed, account_name
from svc_actors.controller.machines.windows import ACCOUNT, FirstBoot
from svc_actors.controller.tasks.runner import Task
from svc_actors.store import Queryable, Record
from svc_common.errors import conflict, require_name, wrong_field

operations = Operations[Controller]()

Iso = tuple[UUID | None, str | None]
"""The id and the slug of an ISO; at most one of them is given."""
Slug = Annotated[str, Field(max_length=100), LINE]
Key = Annotated[
    str,
    Field(min_length=1, max_length=200, description="A repeated call with the same key has no further effect."),
    LINE,
]
Reboot = Annotated[
    bool, Field(description="A running guest may be shut down gracefully and started again, for processors and memory.")
]


class SizeFields(Request):
    """Fields left out stay as they are. The disk only grows."""

    vcpus: Vcpus | None = None
    memory_mib: MemoryMib | None = None
    disk_gib: DiskGib | None = None


class VMResizeRequest(SizeFields):
    """`plan_id` or `plan` (its slug); or, for staff and administrators, explicit sizes: those left out stay as they
    are, and the machine keeps its plan. A disk only grows, also while the guest runs. New processors and memory of a
    running machine need `reboot`: its guest is shut down gracefully within 90 seconds; if it does not shut down, it is
    left running and unchanged."""

    id: UUID
    plan_id: UUID | None = None
    plan: Slug | None = None
    reboot: Reboot = False


class SystemFields(Request):
    """By default the machine's own image in its current version, its own `access_mode` and, without keys and a
    password, its current keys are used. `password`: generate a password and show it once."""

    image_id: UUID | None = None
    ssh_keys: Annotated[list[SshKeyText], Field(default_factory=list, max_length=MAX_KEYS)]
    access_mode: Annotated[
        AccessMode | None, Field(description="Account to sign in with; the current one by default.")
    ] = None
    set_password: Annotated[GivenPassword | None, Field(repr=False)] = None
    password: Annotated[bool, Field(description="Generate a password, shown once.")] = False


class VMReinstallRequest(SystemFields):
    """Everything on the machine's disk is lost, its snapshots too; its name, addresses, size and groups stay.
    `image_id` or `image` (its slug), or neither for the machine's own image. With an ISO (`iso_id`, `iso`, or the
    machine's own) its disk is empty, the ISO is in its drive, and the installer creates the accounts. `user_data` is
    for the new system: the user data of the old system is dropped."""

    id: UUID
    confirm: Confirmation
    image: Slug | None = None
    iso_id: Annotated[UUID | None, Field(description="An ISO to install it from, instead of an image.")] = None
    iso: Slug | None = None
    ssh_key_ids: Annotated[list[UUID], Field(default_factory=list, max_length=MAX_KEYS)]
    user_data: Annotated[UserData | None, Field(repr=False)] = None
    idempotency_key: Key | None = None


class VMReinstallResult(Model):
    """`vm`: the machine as it is recorded now; its image is the new one once `task` has succeeded. `password` is shown
    only here, if the service generated one. `replayed`: an earlier request with this idempotency key started it."""

    vm: VM
    task: TaskModel
    user: str
    password_chosen: bool
    password: str | None
    replayed: bool


@dataclass(frozen=True)
class Reinstallation:
    """The task of a reinstallation, and the way into the new system. `started`: this call started it, rather than
    an earlier call with the same key."""

    task: Task
    account: str
    generated: str | None
    started: bool


@operations.declare(
    "vm.resize",
    "Change the plan or size of a machine; its disk only grows",
    Route.post("/vms/{id}/resize"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def resize(context: Context[Controller], request: VMResizeRequest) -> TaskModel:
    database, principal = context.services.database, context.principal
    row = await visible_machine(database, principal, request.id)
    explicit = any(given is not None for given in (request.vcpus, request.memory_mib, request.disk_gib))
    plan = await enabled_plan(database, request.plan_id, request.plan)
    if not principal.is_operator:
        if await database.fetchval(f"SELECT {SOLD} FROM vms WHERE id = $1", request.id):
            raise conflict(
                "The machine belongs to a service that was ordered; it was not changed.",
                hint="Change the service where you ordered it.",
            )
        if explicit or plan is None:
            raise wrong_field("plan_id", "choose a plan, by this or plan")
    if plan is not None:
        if explicit:
            raise wrong_field("plan_id", "give a plan or explicit sizes, not both")
        size = of_plan(plan, reboot=request.reboot, bounded=not principal.is_operator)
    else:
        size = of_sizes(request, reboot=request.reboot)
    return TaskModel.of(await resize_machine(context, row, size), principal)


@operations.declare(
    "vm.reinstall",
    "Reinstall a machine; everything on its disk is lost",
    Route.post("/vms/{id}/reinstall"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def reinstall(context: Context[Controller], request: VMReinstallRequest) -> VMReinstallResult:
    row = await visible_machine(context.services.database, context.principal, request.id)
    require_name(row["name"], request.confirm, of="machine")
    run = partial(_reinstall, context, request, row)
    answer, replayed = await run_idempotent(context, key=request.idempotency_key, request=request, run=run)
    return answer.model_copy(update={"replayed": answer.replayed or replayed})


async def _reinstall(context: Context[Controller], request: VMReinstallRequest, row: Record) -> VMReinstallResult:
    done = await reinstall_machine(
        context,
        row,
        request,
        image=request.image,
        iso=(request.iso_id, request.iso),
        ssh_key_ids=request.ssh_key_ids,
        user_data=request.user_data,
        key=request.idempotency_key,
    )
    return VMReinstallResult(
        vm=await show(context.services.database, context.principal, request.id),
        task=TaskModel.of(done.task, context.principal),
        user=done.account,
        password_chosen=request.set_password is not None,
        password=done.generated,
        replayed=not done.started,
    )


def of_plan(plan: Record, *, reboot: bool, bounded: bool) -> NewSize:
    return NewSize(plan["id"], plan["vcpus"], plan["memory_mib"], plan["disk_gib"], reboot, bounded)


def of_sizes(sizes: SizeFields, *, reboot: bool) -> NewSize:
    """Explicit sizes. The machine keeps its plan, whose limits on traffic and addresses continue to apply."""
    return NewSize(None, sizes.vcpus, sizes.memory_mib, sizes.disk_gib, reboot, bounded=False)


async def resize_machine(
    context: Context[Controller], row: Record, size: NewSize, *, decide: Decide | None = None
) -> Task:
    machine = context.services.actors.ref(Machine, str(row["id"]))
    return await machine.ask(Machine.resize, context.caller, size, decide)


async def reinstall_machine(
    context: Context[Controller],
    row: Record,
    system: SystemFields,
    *,
    image: str | None,
    iso: Iso = (None, None),
    ssh_key_ids: Sequence[UUID] = (),
    user_data: str | None = None,
    key: str | None,
    decide: Decide | None = None,
) -> Reinstallation:
    """Order a reinstallation. `row` is the result of `visible_machine`. `key` is the caller's idempotency key: an order
    whose answer was lost in a crash is not carried out twice."""
    services, principal = context.services, context.principal
    wanted = await _image(services.database, row, system.image_id, image, iso)
    if wanted["kind"] == "iso":
        return await _install(
            context, row, system, wanted, ssh_key_ids=ssh_key_ids, user_data=user_data, key=key, decide=decide
        )
    keys = await guest_access.ssh_keys(services.database, principal, system.ssh_keys, ssh_key_ids)
    wants_password = system.set_password is not None or system.password
    if not keys and not wants_password:
        keys = tuple(row["ssh_keys"])
    mode = system.access_mode or AccessMode(row["access_mode"])
    password_hash = generated = first_boot = None
    if wanted["os_family"] == "windows":
        account = ACCOUNT
        guest_access.require_windows(system.access_mode, user_data)
        first_boot = FirstBoot()
        if wants_password:
            own = guest_access.windows_password(system.set_password, field="set_password")
            first_boot, generated = FirstBoot(own.itself), own.generated
    else:
        account = account_name(mode.value, wanted["login_user"])
        guest_access.require_way_in(mode, password=wants_password, keys=keys)
        if wants_password:
            password = await guest_access.password(system.set_password, account, field="set_password")
            password_hash, generated = password.hash, password.generated
    new = NewSystem(
        image_id=wanted["id"],
        access_mode=mode.value,
        ssh_keys=keys,
        password_hash=password_hash,
        generated=generated,
        order=_order(principal, key),
        first_boot=first_boot,
        user_data=user_data,
    )
    task, started = await _begin(context, row, new, decide)
    if started:
        return Reinstallation(task, account, new.generated, started=True)
    # For a repeated order this is the password that was generated the first time, as long as it is still needed.
    sealed = await services.database.fetchval("SELECT sealed_seed FROM vms WHERE id = $1", row["id"])
    return Reinstallation(task, account, Seed.unsealed(services.sealer, sealed).generated, started=False)


async def _install(
    context: Context[Controller],
    row: Record,
    system: SystemFields,
    iso: Record,
    *,
    ssh_key_ids: Sequence[UUID],
    user_data: str | None,
    key: str | None,
    decide: Decide | None,
) -> Reinstallation:
    """Install from an ISO, on an empty disk."""
    given = {name: getattr(system, name) for name in ("access_mode", "set_password", "password", "ssh_keys")}
    guest_access.require_none(given | {"ssh_key_ids": ssh_key_ids, "user_data": user_data})
    new = NewSystem(
        image_id=iso["id"],
        access_mode=AccessMode.USER_SUDO.value,
        ssh_keys=(),
        password_hash=None,
        generated=None,
        order=_order(context.principal, key),
        iso_id=iso["id"],
    )
    task, started = await _begin(context, row, new, decide)
    account = ACCOUNT if iso["os_family"] == "windows" else account_name(new.access_mode, iso["login_user"])
    return Reinstallation(task, account, None, started)


async def _begin(context: Context[Controller], row: Record, new: NewSystem, decide: Decide | None) -> tuple[Task, bool]:
    machine = context.services.actors.ref(Machine, str(row["id"]))
    return await machine.ask(Machine.reinstall, context.caller, new, decide)


def _order(principal: Principal, key: str | None) -> str | None:
    return f"{key_owner(principal)} {key}" if key is not None else None


async def offers_password(queryable: Queryable, row: Record, system: SystemFields, image: str | None) -> bool:
    """Whether the new system has an account with a password. This depends on the access mode and the image: those of
    the request, or else those of the machine."""
    wanted = await _image(queryable, row, system.image_id, image)
    if wanted["kind"] == "iso":
        return False
    mode = system.access_mode or AccessMode(row["access_mode"])
    return wanted["os_family"] == "windows" or mode is not AccessMode.ROOT_KEY


async def _image(
    queryable: Queryable, row: Record, image_id: UUID | None, slug: str | None, iso: Iso = (None, None)
) -> Record:
    if iso != (None, None):
        if image_id is not None or slug is not None:
            raise wrong_field("iso_id", "give this or an image, not both")
        return await enabled_iso(queryable, *iso)
    if image_id is None and slug is None:
        of_own = enabled_iso if row["image_kind"] == "iso" else enabled_image
        return await of_own(queryable, row["image_id"], None)
    return await enabled_image(queryable, image_id, slug)
