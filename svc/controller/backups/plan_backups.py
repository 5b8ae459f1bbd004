"""The backup policy of a plan. Saving one removes no copies: each machine's next backup does."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.services import Controller
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.backups.records import PolicySet, set_policy
from svc_actors.controller.backups.schedule import BackupPolicy, BackupSchedule
from svc_actors.controller.traffic.periods import utc_now
from svc_common.errors import wrong_field

operations = Operations[Controller]()

Keep = Annotated[
    int, Field(ge=0, le=1000, description="Complete backups to keep; 0 keeps every one, and 1 is refused.")
]
Hour = Annotated[int, Field(ge=0, le=23, description="Hour (UTC) in which the backup of each machine starts.")]
Weekday = Annotated[int, Field(ge=0, le=6, description="Day of weekly backups; 0 is Sunday.")]


class PlanBackupsRequest(Request):
    """The whole policy: what is left out is its default, not what was there."""

    id: UUID
    backup_schedule: Annotated[BackupSchedule, Field(description="Whether and how often machines are backed up.")]
    backup_hour: Hour = 0
    backup_weekday: Weekday = 0
    backup_keep: Keep = 0


class PlanBackupsResult(Model):
    """`effective_from`: when the policy is in force. `deferred`: something of it happens only later, which is the
    removal of `deletes` backups. `machines`: how many have the plan. `note`: what happens when, in words."""

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
