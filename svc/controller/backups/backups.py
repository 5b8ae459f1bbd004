"""Backups of machines: schedules, the list, a backup on demand, and restoring a machine from a backup.

A customer sees their own machines.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.controller.access import visible_projects
from svc.controller.machines.fields import Confirmation
from svc.controller.machines.finding import named
from svc.controller.machines.machines import VMRequest
from svc.controller.machines.models import visible_machine
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Condition, Page, PageRequest, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.backups.records import COPIES, PolicySet, as_policy, set_policy
from svc_actors.controller.backups.schedule import LATE_AFTER, BackupPolicy, BackupSchedule
from svc_actors.controller.backups.watch import SCHEDULED, due_of
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.traffic.periods import utc_now
from svc_actors.store import Record
from svc_common.errors import require_name, wrong_field

operations = Operations[Controller]()

_SELECT: Final = f"""
SELECT vms.id, vms.name, vms.project_id, vms.plan_id, plan_backups.schedule, plan_backups.hour, plan_backups.weekday,
       plan_backups.keep, kept.copies, kept.begun_at, kept.completed_at,
       greatest(plan_backups.since, coalesce(vms.built_at, vms.created_at)) AS asked_since
FROM {SCHEDULED}"""

Keep = Annotated[
    int, Field(ge=0, le=1000, description="Complete backups to keep; 0 keeps every one, and 1 is refused.")
]
Hour = Annotated[int, Field(ge=0, le=23, description="Hour (UTC) in which the backup of each machine starts.")]
Weekday = Annotated[int, Field(ge=0, le=6, description="Day of weekly backups; 0 is Sunday.")]


class ScheduledBackup(Model):
    """A machine whose plan asks for backups. If `next_due` is in the past, the run has been overdue since then, and
    starts as soon as it can. `late`: it has been overdue for twelve hours."""

    vm_id: UUID
    vm_name: str
    project_id: UUID
    backup_schedule: BackupSchedule
    backup_hour: int
    backup_weekday: int
    backup_keep: int
    last_completed_at: datetime | None
    copies: int
    next_due: datetime
    late: bool


class Backup(Model):
    """A complete copy of a machine's disks at the target. `frozen`: the guest's file systems were frozen while the copy
    was taken. `stored_bytes` is the space that it added at the target. `elsewhere`: the copy is at the target of a node
    that the machine has left, and can be restored only if the machine's present node has the same target mounted.
    `node_name` and `target_name` are those of the copy, for staff; a target without a name is mounted on the node."""

    id: UUID
    vm_id: UUID
    begun_at: datetime
    completed_at: datetime
    size_bytes: int
    stored_bytes: int
    frozen: bool
    elsewhere: bool
    node_name: str | None
    target_name: str | None


class BackupList(PageRequest):
    project: UUID | None = None


class RestoreRequest(Request):
    """The current content of the machine's disks is lost, and so are its snapshots. `confirm` repeats the machine's
    name."""

    id: UUID
    backup_id: UUID
    confirm: Confirmation


@operations.declare(
    "backup.schedule",
    "List the machines that are backed up by their plan, with the last backup and the next",
    Route.get("/backups/schedule"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=(
        "vm=vm_name",
        "schedule=backup_schedule",
        "keep=backup_keep",
        "copies",
        "last=last_completed_at",
        "next=next_due",
        "late",
    ),
)
async def list_schedule(context: Context[Controller], request: BackupList) -> Page[ScheduledBackup]:
    now = utc_now()
    rows, total = await paginate(
        context.services.database,
        select=_SELECT,
        source=SCHEDULED,
        where=[
            Condition("vms.deleted_at IS NULL"),
            visible_projects(context.principal, "vms.project_id"),
            equals("vms.project_id", request.project),
            named(request.q),
        ],
        # Backups are counted only for the machines on this page.
        sortable={"vm_name": "vms.name", "created_at": "vms.created_at"},
        default_sort="vm_name",
        request=request,
        tie="vms.id",
    )
    return Page[ScheduledBackup].of([_scheduled(row, now) for row in rows], total, request)


@operations.declare(
    "vm.backups",
    "List a machine's complete backups, newest first",
    Route.get("/vms/{id}/backups"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("id", "completed=completed_at", "size=size_bytes", "stored=stored_bytes", "frozen", "elsewhere"),
)
async def list_backups(context: Context[Controller], request: VMRequest) -> list[Backup]:
    await visible_machine(context.services.database, context.principal, request.id)
    rows = await context.services.database.fetch(
        f"""SELECT copies.*, nodes.name AS node_name, targets.name AS target_name,
                   copies.target_id IS NULL AND copies.node_id IS DISTINCT FROM vms.node_id AS elsewhere
            FROM (SELECT * FROM {COPIES}) copies LEFT JOIN machine_backup_targets targets ON targets.id = target_id
            JOIN vms ON vms.id = copies.vm_id JOIN nodes ON nodes.id = copies.node_id
            WHERE copies.vm_id = $1 ORDER BY completed_at DESC, copies.id""",
        request.id,
    )
    return [
        Backup(
            id=row["id"],
            vm_id=row["vm_id"],
            begun_at=row["begun_at"],
            completed_at=row["completed_at"],
            size_bytes=sum(disk["size_bytes"] for disk in row["disks"]),
            stored_bytes=row["stored_bytes"],
            frozen=row["frozen"],
            elsewhere=row["elsewhere"],
            node_name=row["node_name"] if context.principal.is_operator else None,
            target_name=row["target_name"] if context.principal.is_operator else None,
        )
        for row in rows
    ]


@operations.declare(
    "vm.backup",
    "Back up a machine now, running or stopped",
    Route.post("/vms/{id}/backups"),
    access=Access.STAFF,
    scope=Scope.WRITE,
)
async def back_up(context: Context[Controller], request: VMRequest) -> TaskModel:
    await visible_machine(context.services.database, context.principal, request.id)
    machine = context.services.actors.ref(Machine, str(request.id))
    return TaskModel.of(await machine.ask(Machine.back_up, context.caller), context.principal)


@operations.declare(
    "vm.restore",
    "Restore the disks of a stopped machine from a backup; their current contents are lost",
    Route.post("/vms/{id}/backups/{backup_id}/restore"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def restore(context: Context[Controller], request: RestoreRequest) -> TaskModel:
    row = await visible_machine(context.services.database, context.principal, request.id)
    require_name(row["name"], request.confirm, of="machine")
    machine = context.services.actors.ref(Machine, str(request.id))
    task = await machine.ask(Machine.restore_copy, context.caller, request.backup_id)
    return TaskModel.of(task, context.principal)


def _scheduled(row: Record, now: datetime) -> ScheduledBackup:
    policy, due = as_policy(row), due_of(row, now)
    return ScheduledBackup(
        vm_id=row["id"],
        vm_name=row["name"],
        project_id=row["project_id"],
        backup_schedule=policy.schedule,
        backup_hour=policy.hour,
        backup_weekday=policy.weekday,
        backup_keep=policy.keep,
        last_completed_at=row["completed_at"],
        copies=row["copies"],
        next_due=due,
        late=now - due > LATE_AFTER,
    )


# The backup policy of a plan. Saving one removes no copies: each machine's next backup does.
class PlanBackupsRequest(Request):
    """The whole policy: a field left out gets its default, not its previous value."""

    id: UUID
    backup_schedule: Annotated[BackupSchedule, Field(description="Whether and how often machines are backed up.")]
    backup_hour: Hour = 0
    backup_weekday: Weekday = 0
    backup_keep: Keep = 0


class PlanBackupsResult(Model):
    """`effective_from`: when the policy is in force. `deferred`: a part of it happens later, namely the removal of
    `deletes` backups. `machines`: how many have the plan. `note` says in words what happens when."""

    plan_id: UUID
    backup_schedule: BackupSchedule
    backup_hour: int
    backup_weekday: int
    backup_keep: int
    effective_from: datetime
    machines: int
    deferred: bool
    deletes: int
    note: str


@operations.declare(
    "plan.backups",
    "Set when a plan's machines are backed up, and how many backups are kept; deletes nothing",
    Route.put("/plans/{id}/backups"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def set_plan_backups(context: Context[Controller], request: PlanBackupsRequest) -> PlanBackupsResult:
    if request.backup_keep == 1:
        raise wrong_field(
            "backup_keep",
            "with 1 there would be no other backup while the next is made; nothing was changed",
            hint="Keep 2 or more, or 0 for all.",
        )
    wanted = BackupPolicy(request.backup_schedule, request.backup_hour, request.backup_weekday, request.backup_keep)
    now = utc_now()
    async with context.services.database.transaction() as tx:
        done = await set_policy(tx, context.caller, request.id, wanted, now=now)
    return PlanBackupsResult(
        plan_id=request.id,
        backup_schedule=wanted.schedule,
        backup_hour=wanted.hour,
        backup_weekday=wanted.weekday,
        backup_keep=wanted.keep,
        effective_from=now,
        machines=done.machines,
        deferred=done.deletes > 0,
        deletes=done.deletes,
        note=_note(wanted, done),
    )


def _note(wanted: BackupPolicy, done: PolicySet) -> str:
    match wanted.schedule:
        case BackupSchedule.OFF:
            return "This plan makes no backups from now on. Existing backups stay."
        case BackupSchedule.DAILY:
            when = "every day"
        case BackupSchedule.WEEKLY:
            when = f"every {_WEEKDAYS[wanted.weekday]}"
    kept = "all backups are kept" if wanted.keep == 0 else f"the last {wanted.keep} complete backups are kept"
    said = f"Each machine is backed up {when} between {wanted.hour}:00 and {wanted.hour}:59 UTC; {kept}."
    if done.deletes:
        more = "1 backup more than that is" if done.deletes == 1 else f"{done.deletes} backups more than that are"
        said += f" Nothing was deleted now: {more} removed when the next backup of each machine has completed."
    return said


_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
