"""Creating a machine. The request is resolved and checked here; then the machine is placed and recorded in one
transaction (`svc_actors.controller.machines.creation`). A repeated request with the same idempotency key creates no
second machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.controller.access import require_visible, visible_projects
from svc.controller.machines import guest_access
from svc.controller.machines.arrivals import retry_when_nodes_arrive
from svc.controller.machines.fields import (
    DiskGib,
    GivenPassword,
    Hostname,
    Labels,
    MachineName,
    MemoryMib,
    SshKeyText,
    UserData,
    Vcpus,
    is_address_or_localhost,
)
from svc.controller.machines.from_backup import BackupSource, backup_source
from svc.controller.machines.guest_access import MAX_KEYS, GuestPassword, WindowsPassword
from svc.controller.machines.models import (
    AccessMode,
    VMCreateResult,
    show,
)
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.registry.declare import Operations
from svc.registry.idempotency import key_owner, run_idempotent
from svc.registry.operation import Context, Request, Route
from svc.registry.principal import Access, Principal, Role
from svc.registry.scopes import Scope
from svc.registry.shapes import LINE
from svc_actors.controller.machines.creation import Created, IdempotencyKey, NewMachine, create_machine, find_by_key
from svc_actors.controller.machines.records import MachineSettings
from svc_actors.controller.machines.spec import Seed, account_name
from svc_actors.controller.machines.states import RestartPolicy
from svc_actors.controller.machines.windows import ACCOUNT, FirstBoot
from svc_actors.controller.networking.security_groups import MAX_GROUPS_OF_A_MACHINE
from svc_actors.controller.tasks.runner import get_task
from svc_actors.store import Queryable, Record
from svc_common.errors import ErrorCode, ServiceError, forbidden, not_found, wrong_field

operations = Operations[Controller]()

_IMAGE: Final = "SELECT id, login_user, os_family, kind FROM images WHERE (id = $1 OR slug = $2) AND enabled"


class VMCreateRequest(Request):
    """`image_id` or `image` (its slug), or an ISO to install from: `iso_id` or `iso` (its slug); `plan_id` or `plan`
    (its slug), or for staff explicit sizes. `project_id` may be left out if the caller has exactly one project.
    `node_id` is for administrators. The default `access_mode` is the image's own user with sudo. `backup_id`: a backup
    to create the disk from, instead of an image; project, plan, access mode and SSH keys default to those of the
    machine that was backed up. `password`: true asks for a generated one, returned once; `set_password` chooses it. For
    a machine that is installed from an ISO, access mode, keys and passwords do not apply, since its installer creates
    the accounts. A machine without security groups is not filtered; the given groups apply from its first packet.
    `restart_policy`: whether it is restarted after it went off without an order; `on_failure`: unless its guest has
    shut itself down."""

    name: MachineName
    hostname: Hostname | None = None
    project_id: UUID | None = None
    image_id: UUID | None = None
    image: Annotated[str, Field(max_length=100), LINE] | None = None
    iso_id: Annotated[
        UUID | None,
        Field(
            description="ISO to install from, instead of an image: it is inserted in the drive, and the disk is empty."
        ),
    ] = None
    iso: Annotated[str, Field(max_length=100), LINE] | None = None
    backup_id: Annotated[
        UUID | None, Field(description="Backup of a machine to create the disk from, instead of an image.")
    ] = None
    plan_id: UUID | None = None
    plan: Annotated[str, Field(max_length=100), LINE] | None = None
    vcpus: Vcpus | None = None
    memory_mib: MemoryMib | None = None
    disk_gib: DiskGib | None = None
    node_id: UUID | None = None
    location_id: UUID | None = None
    security_group_ids: Annotated[list[UUID], Field(default_factory=list, max_length=MAX_GROUPS_OF_A_MACHINE)]
    ssh_key_ids: Annotated[list[UUID], Field(default_factory=list, max_length=MAX_KEYS)]
    ssh_keys: Annotated[list[SshKeyText], Field(default_factory=list, max_length=MAX_KEYS)]
    access_mode: Annotated[
        AccessMode | None, Field(description="Account to sign in with; the image's own user with sudo by default.")
    ] = None
    set_password: Annotated[GivenPassword | None, Field(repr=False)] = None
    password: Annotated[bool, Field(description="Generate a password, shown once.")] = False
    user_data: Annotated[UserData | None, Field(repr=False)] = None
    start: Annotated[bool, Field(description="Start it once it is created.")] = True
    restart_policy: Annotated[
        RestartPolicy,
        Field(description="When to restart it after it stopped without an order: always, on_failure or never."),
    ] = RestartPolicy.ON_FAILURE
    labels: Annotated[Labels, Field(default_factory=dict)]
    protected: Annotated[bool, Field(description="Protect it from deletion and reinstallation.")] = False
    idempotency_key: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=200,
                description="A repeated call with the same key has no further effect; the command generates one.",
            ),
        ]
        | None
    ) = None


@operations.declare(
    "vm.create",
    "Create a machine",
    Route.post("/vms", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("name",),
    statuses=(200,),
)
async def create(context: Context[Controller], request: VMCreateRequest) -> VMCreateResult:
    answer, replayed = await run_idempotent(
        context, key=request.idempotency_key, request=request, run=lambda: _create(context, request)
    )
    if replayed:
        # The answer may contain a password, so a caller who has lost access to the project since does not get the
        # answer again.
        await require_visible(context.services.database, context.principal, answer.vm.project_id, what="machine")
    if replayed or answer.replayed:
        context.effects.status = 200
        return answer.model_copy(update={"replayed": True})
    return answer


async def _create(context: Context[Controller], request: VMCreateRequest) -> VMCreateResult:
    services, principal, database = context.services, context.principal, context.services.database
    given = request.idempotency_key
    key = IdempotencyKey(key_owner(principal), given) if given is not None else None
    if key is not None and (made := await find_by_key(database, key)) is not None:
        return await answer_repeated(context, request, made)
    new, way_in = await resolve(database, principal, request, key)
    try:
        created = await retry_when_nodes_arrive(
            services,
            lambda: create_machine(database, services.sealer, context.caller, new),
            node_id=new.node_id,
            location_id=new.location_id,
        )
    except ServiceError as refused:
        if key is None or refused.code is not ErrorCode.CONFLICT:
            raise
        # This process was delayed so long that its claim of the key expired, and another caller with the same key has
        # created the machine.
        made = await find_by_key(database, key)
        if made is None:
            raise
        return await answer_repeated(context, request, made)
    start_creation(services, new, created)
    return VMCreateResult(
        vm=await show(database, principal, created.vm_id),
        task=TaskModel.of(created.task, principal),
        user=way_in.account,
        password_chosen=request.set_password is not None,
        password=way_in.password.generated if way_in.password else None,
        replayed=False,
    )


@dataclass(frozen=True)
class GuestSignIn:
    """How the owner signs in to the machine. `password` None: only with a key, or with the password that a Windows
    guest generates in its `first_boot`."""

    mode: AccessMode
    account: str
    keys: tuple[str, ...]
    password: GuestPassword | WindowsPassword | None
    first_boot: FirstBoot | None = None


async def _way_in(
    queryable: Queryable, principal: Principal, request: VMCreateRequest, image: Record, source: BackupSource | None
) -> GuestSignIn:
    mode = request.access_mode or (source.access_mode if source else AccessMode.USER_SUDO)
    account = account_name(mode.value, image["login_user"])
    wants_password = request.set_password is not None or request.password
    keys = await guest_access.ssh_keys(queryable, principal, request.ssh_keys, request.ssh_key_ids)
    if image["kind"] == "iso":
        ways = ("access_mode", "set_password", "password", "ssh_keys", "ssh_key_ids", "user_data")
        guest_access.require_none({name: getattr(request, name) for name in ways})
        return GuestSignIn(mode, ACCOUNT if image["os_family"] == "windows" else account, (), None)
    if image["os_family"] == "windows":
        guest_access.require_windows(request.access_mode, request.user_data)
        given = guest_access.windows_password(request.set_password, field="set_password") if wants_password else None
        return GuestSignIn(mode, ACCOUNT, keys, given, FirstBoot(given.itself if given else None))
    if source is not None and not keys:
        keys = source.ssh_keys
    guest_access.require_way_in(mode, password=wants_password, keys=keys)
    password = None
    if wants_password:
        password = await guest_access.password(request.set_password, account, field="set_password")
    return GuestSignIn(mode, account, keys, password)


async def resolve(
    queryable: Queryable, principal: Principal, request: VMCreateRequest, key: IdempotencyKey | None
) -> tuple[NewMachine, GuestSignIn]:
    """Look up every name in the request and determine every size. The password is hashed last, so that no hash is
    computed for a request that is refused here."""
    if request.node_id is not None and principal.role is not Role.ADMINISTRATOR:
        raise forbidden("Only administrators name the node of a machine.")
    source = await _source(queryable, principal, request)
    project_id = await _project(queryable, principal, request.project_id or (source.project_id if source else None))
    image = source.image if source else await _image(queryable, request)
    plan = await _plan(queryable, request, source)
    vcpus, memory_mib, disk_gib = _sizes(request, plan, principal)
    if source is not None:
        source.require_room(disk_gib)
    way_in = await _way_in(queryable, principal, request, image, source)
    new = NewMachine(
        name=request.name,
        hostname=request.hostname or _as_hostname(request.name),
        project_id=project_id,
        image_id=image["id"],
        plan_id=plan["id"] if plan else None,
        vcpus=vcpus,
        memory_mib=memory_mib,
        disk_gib=disk_gib,
        access_mode=way_in.mode.value,
        ssh_keys=way_in.keys,
        password_hash=way_in.password.hash if isinstance(way_in.password, GuestPassword) else None,
        generated=way_in.password.generated if way_in.password else None,
        start=request.start,
        bounded=not principal.is_operator,
        node_id=request.node_id or (source.node_id if source else None),
        location_id=request.location_id,
        group_ids=tuple(request.security_group_ids),
        settings=MachineSettings.of(request),
        idempotency=key,
        first_boot=way_in.first_boot,
        held=source.held if source else None,
        user_data=request.user_data,
        iso_id=image["id"] if image["kind"] == "iso" and source is None else None,
    )
    return new, way_in


def start_creation(services: Controller, new: NewMachine, created: Created) -> None:
    """Start the task that creates the machine."""
    if new.first_boot is not None and new.first_boot.password is not None:
        services.windows_passwords.keep(created.vm_id, new.first_boot.password)
    services.tasks.start(created.task)


async def answer_repeated(context: Context[Controller], request: VMCreateRequest, row: Record) -> VMCreateResult:
    """The answer to a repeated order if the machine was created, but the process died before it stored the first
    answer."""
    database, principal = context.services.database, context.principal
    task = await get_task(database, row["task_id"])
    if task is None:
        raise not_found("The task of this machine no longer exists.")
    machine = await show(database, principal, row["id"])
    return VMCreateResult(
        vm=machine,
        task=TaskModel.of(task, principal),
        user=machine.user,
        password_chosen=request.set_password is not None,
        password=Seed.unsealed(context.services.sealer, row["sealed_seed"]).generated,
        replayed=True,
    )


async def _project(queryable: Queryable, principal: Principal, project_id: UUID | None) -> UUID:
    if project_id is not None:
        await require_visible(queryable, principal, project_id, what="project")
        return project_id
    condition = visible_projects(principal, "projects.id")
    rows = await queryable.fetch(f"SELECT id FROM projects WHERE {condition.sql} LIMIT 2", *condition.args)
    if len(rows) != 1:
        raise wrong_field("project_id", "name the project of the machine")
    only: UUID = rows[0]["id"]
    return only


async def _source(queryable: Queryable, principal: Principal, request: VMCreateRequest) -> BackupSource | None:
    if request.backup_id is None:
        return None
    if any(each is not None for each in (request.image_id, request.image, request.iso_id, request.iso)):
        raise wrong_field("backup_id", "give this, an image or an ISO, and only one of them")
    return await backup_source(queryable, principal, request.backup_id)


async def _plan(queryable: Queryable, request: VMCreateRequest, source: BackupSource | None) -> Record | None:
    """The plan that the request names. If it names neither a plan nor sizes, the plan of the machine that was backed
    up."""
    sizes = (request.vcpus, request.memory_mib, request.disk_gib)
    if source is not None and request.plan is None and all(size is None for size in sizes):
        return await enabled_plan(queryable, request.plan_id or source.plan_id, None)
    return await enabled_plan(queryable, request.plan_id, request.plan)


async def _image(queryable: Queryable, request: VMCreateRequest) -> Record:
    if request.iso_id is None and request.iso is None:
        return await enabled_image(queryable, request.image_id, request.image)
    if request.image_id is not None or request.image is not None:
        raise wrong_field("iso_id", "give this or an image, not both")
    return await enabled_iso(queryable, request.iso_id, request.iso)


async def enabled_image(queryable: Queryable, image_id: UUID | None, slug: str | None) -> Record:
    """`id`, `login_user`, `os_family` and `kind` of the image given by id or slug. Raises invalid, not_found."""
    if (image_id is None) == (slug is None):
        raise wrong_field("image_id", "give this, or image (its slug)")
    row = await queryable.fetchrow(f"{_IMAGE} AND kind = 'disk'", image_id, slug)
    if row is None:
        raise not_found("There is no such image.")
    return row


async def enabled_iso(queryable: Queryable, iso_id: UUID | None, slug: str | None) -> Record:
    """The same columns as `enabled_image` returns, for an ISO."""
    if iso_id is not None and slug is not None:
        raise wrong_field("iso_id", "give this or iso, not both")
    row = await queryable.fetchrow(f"{_IMAGE} AND kind = 'iso'", iso_id, slug)
    if row is None:
        raise not_found("There is no such ISO image.")
    return row


async def enabled_plan(queryable: Queryable, plan_id: UUID | None, slug: str | None) -> Record | None:
    """The plan given by id or slug; None if neither is given. Raises invalid, not_found."""
    if plan_id is None and slug is None:
        return None
    if plan_id is not None and slug is not None:
        raise wrong_field("plan_id", "give this or plan, not both")
    row = await queryable.fetchrow("SELECT * FROM plans WHERE (id = $1 OR slug = $2) AND enabled", plan_id, slug)
    if row is None:
        raise not_found("There is no such plan.")
    return row


def _sizes(request: VMCreateRequest, plan: Record | None, principal: Principal) -> tuple[int, int, int]:
    explicit = (request.vcpus, request.memory_mib, request.disk_gib)
    if plan is not None:
        if any(size is not None for size in explicit):
            raise wrong_field("plan_id", "give a plan or explicit sizes, not both")
        return plan["vcpus"], plan["memory_mib"], plan["disk_gib"]
    if not principal.is_operator:
        raise wrong_field("plan_id", "choose a plan")
    vcpus, memory_mib, disk_gib = explicit
    if vcpus is None or memory_mib is None or disk_gib is None:
        raise wrong_field("plan_id", "give a plan, or all of vcpus, memory_mib and disk_gib")
    return vcpus, memory_mib, disk_gib


_LONGEST_LABEL: Final = 63


def _as_hostname(name: str) -> str:
    """A machine's name as a host name (RFC 1123): in lower case, with hyphens for characters that are not allowed, and
    for dots if the name is an address."""
    labels = [re.sub(r"[^a-z0-9-]", "-", label).strip("-") for label in name.lower().split(".")]
    hostname = ".".join(label for label in labels if label) or "machine"
    if is_address_or_localhost(hostname):
        hostname = f"machine-{hostname.replace('.', '-')}"[:_LONGEST_LABEL].rstrip("-")
    return hostname
