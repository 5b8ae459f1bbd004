"""Machines: the list, one of them, its creation, and what is known of it."""

from __future__ import annotations

import re
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.access import require_visible, visible_projects
from svc.controller.machines import guest_access
from svc.controller.machines.arrivals import once_nodes_have_come
from svc.controller.machines.finding import named_or_addressed
from svc.controller.machines.guest_access import MAX_KEYS
from svc.controller.machines.models import (
    NOT_DELETED,
    VM,
    VM_SELECT,
    WINDOWS_ACCOUNT,
    AccessMode,
    MetricSeries,
    VMCreateResult,
    VMStatus,
    has_status,
    show,
    shown_status,
    visible_machine,
)
from svc.controller.services import Controller
from svc.controller.tasks import TASK_COLUMNS, TaskFilters, TaskModel, node_filter, page_of_tasks
from svc.identity.activity import AuditEntry, audit_of, audit_page
from svc.registry.declare import Operations
from svc.registry.idempotency import key_owner, run_idempotent
from svc.registry.operation import Context, Request, Route
from svc.registry.paging import EVERYTHING, Blocks, Condition, Groups, Page, PageRequest, equals, joined, paginate
from svc.registry.principal import Access, Principal, Role
from svc.registry.scopes import Scope
from svc.registry.shapes import LINE, Shape
from svc_actors.controller.machines.creation import IdempotencyKey, NewMachine, create_machine, find_by_key
from svc_actors.controller.machines.metrics import machine_metrics
from svc_actors.controller.machines.spec import Seed, account_name
from svc_actors.controller.networking.security_groups import MAX_GROUPS_OF_A_MACHINE
from svc_actors.controller.tasks.runner import get_task
from svc_actors.errors import ErrorCode, ServiceError, forbidden, not_found, wrong_field
from svc_actors.store import Queryable, Record

operations = Operations[Controller]()

MachineName = Annotated[
    str,
    Shape(
        r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?",
        "1 to 63 letters, digits, dots, hyphens and underscores, with a letter or digit at both ends",
    ),
]
Hostname = Annotated[
    str,
    Field(max_length=253, description="What the guest calls itself; without it, the machine's name."),
    Shape(
        r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*",
        "a host name: small letters, digits and hyphens, in parts of 63 at most with dots between them",
    ),
]
Vcpus = Annotated[int, Field(ge=1, le=256, description="Virtual processors.")]
MemoryMib = Annotated[int, Field(ge=64, le=4 * 1024 * 1024, description="Memory in MiB.")]
SshKeyText = Annotated[str, Field(max_length=16384, description="A public key, as in ~/.ssh/id_ed25519.pub.")]
GivenPassword = Annotated[str, Field(max_length=1024)]
DiskGib = Annotated[int, Field(ge=1, le=64 * 1024, description="Size of the disk in GiB.")]

_SORTABLE = {
    "created_at": "vms.created_at",
    "name": "vms.name",
    "status": shown_status("vms.status"),
    "vcpus": "vms.vcpus",
    "memory_mib": "vms.memory_mib",
}


class VMList(PageRequest):
    """`node` is for staff and administrators; a customer's list by node is empty."""

    status: VMStatus | None = None
    node: UUID | None = None
    project: UUID | None = None


class VMRequest(Request):
    id: UUID


class VMCreateRequest(Request):
    """`image_id` or `image` (its slug); `plan_id` or `plan` (its slug), or for staff explicit sizes. `project_id` may
    be left out where the caller has exactly one. `node_id` is for administrators. Without `access_mode` the image's own
    user with sudo. `password`: true asks for a generated one, returned once; `set_password` chooses it. In no security
    group the machine is not filtered; in those given it is from its first packet."""

    name: MachineName
    hostname: Hostname | None = None
    project_id: UUID | None = None
    image_id: UUID | None = None
    image: Annotated[str, Field(max_length=100), LINE] | None = None
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
        AccessMode | None, Field(description="Which account is offered; without it, the image's own user with sudo.")
    ] = None
    set_password: Annotated[GivenPassword | None, Field(repr=False)] = None
    password: Annotated[bool, Field(description="Have a password made up, shown once.")] = False
    start: Annotated[bool, Field(description="Start it once it is there.")] = True
    idempotency_key: (
        Annotated[
            str,
            Field(
                min_length=1,
                max_length=200,
                description="Repeating a call with the same key repeats nothing; the command makes one up.",
            ),
        ]
        | None
    ) = None


class VMTasksRequest(TaskFilters):
    id: UUID


class VMActivityRequest(PageRequest):
    id: UUID


class MetricsRequest(Request):
    """`res` is the seconds that one point covers; `hours` how far back."""

    id: UUID
    res: Annotated[int, Field(ge=10, le=86400)] = 60
    hours: Annotated[int, Field(ge=1, le=24 * 31, description="How far back.")] = 1


@operations.declare(
    "vm.list",
    "List machines",
    Route.get("/vms"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=(
        "name",
        "status",
        "project=project_name",
        "node=node_name",
        "ip=primary_ip",
        "vcpus",
        "memory=memory_mib",
        "disk=disk_gib",
        "image=image_name",
        "created=created_at",
    ),
)
async def list_machines(context: Context[Controller], request: VMList) -> Page[VM]:
    rows, total = await paginate(
        context.services.database,
        select=VM_SELECT,
        source="vms LEFT JOIN nodes ON nodes.id = vms.node_id",
        where=[
            NOT_DELETED,
            visible_projects(context.principal, "vms.project_id"),
            has_status(request.status),
            equals("vms.project_id", request.project),
            node_filter(request.node, context.principal, "vms.node_id"),
            named_or_addressed(request.q),
        ],
        sortable=_SORTABLE,
        default_sort="-created_at",
        request=request,
        tie="vms.id",
        kept=_kept(request, context.principal),
        blocks=_blocks(request, context.principal),
        groups=_groups(request, context.principal),
    )
    return Page[VM].of([VM.of(row, context.principal) for row in rows], total, request)


def _kept(request: VMList, principal: Principal) -> Condition | None:
    """How many machines the list has, where that is kept count of: by node and status, or by project."""
    if request.q:
        return None
    if principal.sees_everything and request.project is None:
        return Condition(
            f"""SELECT coalesce(sum(number), 0) FROM list_numbers LEFT JOIN nodes ON nodes.id = scope
                WHERE list = 'vms by node' AND ($1::uuid IS NULL OR scope = $1)
                  AND ($2::text IS NULL OR {shown_status("words[1]")} = $2)""",
            (request.node, request.status),
        )
    if request.node is not None or request.status is not None:
        return None
    own = joined([visible_projects(principal, "scope"), equals("scope", request.project)])
    return Condition(
        f"SELECT coalesce(sum(number), 0) FROM list_numbers WHERE list = 'vms by project' AND {own.sql}", own.args
    )


def _blocks(request: VMList, principal: Principal) -> Blocks | None:
    """All machines by the day on which they were made."""
    if not principal.sees_everything or any((request.q, request.project, request.node, request.status)):
        return None
    numbers = "SELECT utc_day_begins(words[1]) AS bound, number FROM list_numbers WHERE list = 'vms by day'"
    return Blocks("created_at", Condition(numbers))


def _groups(request: VMList, principal: Principal) -> Groups | None:
    """Machines by the status that is shown, of one node or of all."""
    if not principal.sees_everything or request.q or request.project:
        return None
    shown = shown_status("words[1]")
    numbers = Condition(
        f"""SELECT {shown} AS value, number FROM list_numbers LEFT JOIN nodes ON nodes.id = scope
            WHERE list = 'vms by node' AND ($1::uuid IS NULL OR scope = $1) AND ($2::text IS NULL OR {shown} = $2)""",
        (request.node, request.status),
    )
    return Groups("status", numbers, lambda value: has_status(VMStatus(value)))


@operations.declare("vm.show", "Show a machine", Route.get("/vms/{id}"), access=Access.SIGNED_IN, scope=Scope.READ)
async def show_machine(context: Context[Controller], request: VMRequest) -> VM:
    return await show(context.services.database, context.principal, request.id)


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
        # The answer may hold a password: who has lost the project since then is not told it again.
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
        return await _made_before(context, request, made)
    if request.node_id is not None and principal.role is not Role.ADMINISTRATOR:
        raise forbidden("Only administrators name the node of a machine.")
    project_id = await _project(database, principal, request.project_id)
    image = await _image(database, request)
    plan = await _plan(database, request)
    vcpus, memory_mib, disk_gib = _sizes(request, plan, principal)
    mode = request.access_mode or AccessMode.USER_SUDO
    account = account_name(mode.value, image["login_user"])
    wants_password = request.set_password is not None or request.password
    keys = await guest_access.ssh_keys(database, principal, request.ssh_keys, request.ssh_key_ids)
    if image["os_family"] == "windows":
        account = WINDOWS_ACCOUNT
        guest_access.require_windows(request.access_mode, password=wants_password)
    else:
        guest_access.require_way_in(mode, password=wants_password, keys=keys)
    password = None
    if request.set_password is not None:
        password = await guest_access.chosen_password(request.set_password, account, field="set_password")
    elif request.password:
        password = await guest_access.generated_password(account)
    new = NewMachine(
        name=request.name,
        hostname=request.hostname or _as_hostname(request.name),
        project_id=project_id,
        image_id=image["id"],
        plan_id=plan["id"] if plan else None,
        vcpus=vcpus,
        memory_mib=memory_mib,
        disk_gib=disk_gib,
        access_mode=mode.value,
        ssh_keys=keys,
        password_hash=password.hash if password else None,
        generated=password.generated if password else None,
        start=request.start,
        node_id=request.node_id,
        location_id=request.location_id,
        group_ids=tuple(request.security_group_ids),
        idempotency=key,
    )
    try:
        created = await once_nodes_have_come(
            services,
            lambda: create_machine(database, services.sealer, context.caller, new),
            node_id=new.node_id,
            location_id=new.location_id,
        )
    except ServiceError as refused:
        if key is None or refused.code is not ErrorCode.CONFLICT:
            raise
        # The claim of the key was lost (its process was held up), and another caller with it has been quicker.
        made = await find_by_key(database, key)
        if made is None:
            raise
        return await _made_before(context, request, made)
    services.tasks.begin(created.task)
    return VMCreateResult(
        vm=await show(database, principal, created.vm_id),
        task=TaskModel.of(created.task, principal),
        user=account,
        password_chosen=request.set_password is not None,
        password=password.generated if password else None,
        replayed=False,
    )


@operations.declare(
    "vm.tasks",
    "List a machine's tasks, newest first",
    Route.get("/vms/{id}/tasks"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=TASK_COLUMNS,
)
async def machine_tasks(context: Context[Controller], request: VMTasksRequest) -> Page[TaskModel]:
    database = context.services.database
    await visible_machine(database, context.principal, request.id)
    return await page_of_tasks(
        database, context.principal, request, equals("resource_kind", "vm"), equals("resource_id", request.id)
    )


@operations.declare(
    "vm.activity",
    "Who did what to a machine, newest first",
    Route.get("/vms/{id}/activity"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("at", "actor", "operation", "outcome"),
)
async def machine_activity(context: Context[Controller], request: VMActivityRequest) -> Page[AuditEntry]:
    """A customer reads what was done within the project and what they tried themselves: attempts of strangers, which
    were refused, are of no project, and tell nothing of the machine."""
    database, principal = context.services.database, context.principal
    machine = await visible_machine(database, principal, request.id)
    own = Condition("project_id = $1 OR actor_id = $2", (machine["project_id"], principal.user_id))
    seen = EVERYTHING if principal.sees_everything else own
    return await audit_page(database, principal, request, [audit_of("vm", request.id), seen])


@operations.declare(
    "vm.metrics",
    "Show what a machine used, from its node",
    Route.get("/vms/{id}/metrics"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def metrics(context: Context[Controller], request: MetricsRequest) -> MetricSeries:
    machine = await visible_machine(context.services.database, context.principal, request.id)
    measured = await machine_metrics(
        context.services.gateway,
        node_id=machine["node_id"],
        vm_id=request.id,
        resolution_seconds=request.res,
        hours=request.hours,
    )
    return MetricSeries(resolution_seconds=measured.resolution_seconds, points=list(measured.points))


async def _made_before(context: Context[Controller], request: VMCreateRequest, made: Record) -> VMCreateResult:
    """The answer to an order whose first answer was lost with the process that had made the machine."""
    database, principal = context.services.database, context.principal
    task = await get_task(database, made["task_id"])
    if task is None:
        raise not_found("The task of this machine is gone.")
    machine = await show(database, principal, made["id"])
    return VMCreateResult(
        vm=machine,
        task=TaskModel.of(task, principal),
        user=machine.user,
        password_chosen=request.set_password is not None,
        password=Seed.unsealed(context.services.sealer, made["sealed_seed"]).generated,
        replayed=True,
    )


async def _project(queryable: Queryable, principal: Principal, project_id: UUID | None) -> UUID:
    if project_id is not None:
        await require_visible(queryable, principal, project_id, what="project")
        return project_id
    condition = visible_projects(principal, "projects.id")
    rows = await queryable.fetch(f"SELECT id FROM projects WHERE {condition.sql} LIMIT 2", *condition.args)
    if len(rows) != 1:
        raise wrong_field("project_id", "say which project the machine belongs to")
    only: UUID = rows[0]["id"]
    return only


async def _image(queryable: Queryable, request: VMCreateRequest) -> Record:
    if (request.image_id is None) == (request.image is None):
        raise wrong_field("image_id", "give this, or image (its slug)")
    row = await queryable.fetchrow(
        "SELECT id, login_user, os_family FROM images WHERE (id = $1 OR slug = $2) AND enabled",
        request.image_id,
        request.image,
    )
    if row is None:
        raise not_found("There is no such image.")
    return row


async def _plan(queryable: Queryable, request: VMCreateRequest) -> Record | None:
    if request.plan_id is None and request.plan is None:
        return None
    if request.plan_id is not None and request.plan is not None:
        raise wrong_field("plan_id", "give this or plan, not both")
    row = await queryable.fetchrow(
        "SELECT * FROM plans WHERE (id = $1 OR slug = $2) AND enabled", request.plan_id, request.plan
    )
    if row is None:
        raise not_found("There is no such plan.")
    return row


def _sizes(request: VMCreateRequest, plan: Record | None, principal: Principal) -> tuple[int, int, int]:
    explicit = (request.vcpus, request.memory_mib, request.disk_gib)
    if plan is not None:
        if any(size is not None for size in explicit):
            raise wrong_field("plan_id", "give a plan or explicit sizes, not both")
        return plan["vcpus"], plan["memory_mib"], plan["disk_gib"]
    if not principal.sees_everything:
        raise wrong_field("plan_id", "choose a plan")
    vcpus, memory_mib, disk_gib = explicit
    if vcpus is None or memory_mib is None or disk_gib is None:
        raise wrong_field("plan_id", "give a plan, or all of vcpus, memory_mib and disk_gib")
    return vcpus, memory_mib, disk_gib


def _as_hostname(name: str) -> str:
    """A machine's name as a host name (RFC 1123): its letters small, what does not fit a hyphen."""
    labels = [re.sub(r"[^a-z0-9-]", "-", label).strip("-") for label in name.lower().split(".")]
    return ".".join(label for label in labels if label) or "machine"
