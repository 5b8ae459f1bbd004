"""Scheduled tasks of sites: created, changed, run now, and the results of their runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from svc.panel.files.models import SITE_PATH
from svc.panel.schedules.models import (
    URL_PATH,
    ScheduleCreateRequest,
    ScheduleDeleteRequest,
    ScheduleListRequest,
    ScheduleModel,
    ScheduleRequest,
    ScheduleRun,
    ScheduleRunLog,
    ScheduleRunRequest,
    ScheduleRunsRequest,
    ScheduleStartRequest,
    ScheduleUpdateRequest,
)
from svc.panel.services import Panel
from svc.panel.sites.access import locked_site_of, site_of, visible_row
from svc.panel.sites.rights import rights_in
from svc.registry.declare import Operations
from svc.registry.operation import Context, Route
from svc.registry.paging import Condition
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.schedules.cron import BadCronError, Cron, next_time, zone_of
from svc_actors.panel.schedules.records import (
    SCHEDULE_COLUMNS,
    Schedule,
    ScheduleKind,
    as_schedule,
    insert_run,
    insert_schedule,
    lock_schedule,
    read_run,
    read_runs,
    remove_schedule,
    update_schedule,
)
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.store import Transaction, audit
from svc_common.errors import conflict, not_found, wrong_field

operations = Operations[Panel]()

_OF_A_REQUEST: Final = ("name", "path", "args", "cron", "time_zone", "time_limit_seconds", "enabled")


@operations.declare(
    "schedule.list",
    "The scheduled tasks of a site",
    Route.get("/sites/{id}/schedules"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("name", "kind", "path", "cron", "enabled", "next=next_run_at", "id"),
)
async def list_schedules(context: Context[Panel], request: ScheduleListRequest) -> list[ScheduleModel]:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    rows = await database.fetch(
        f"SELECT {SCHEDULE_COLUMNS} FROM schedules WHERE site_id = $1 ORDER BY name, id", site.id
    )
    return await _shown(context, site, [as_schedule(row) for row in rows])


@operations.declare(
    "schedule.create",
    "Create a scheduled task",
    Route.post("/sites/{id}/schedules", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "name", "kind", "path", "cron"),
)
async def create_schedule(context: Context[Panel], request: ScheduleCreateRequest) -> ScheduleModel:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    values = {"kind": request.kind.value} | {name: getattr(request, name) for name in _OF_A_REQUEST}
    _require_task(request.kind, request.path, request.args)
    values["next_run_at"] = _next(request.cron, request.time_zone, services.clock()) if request.enabled else None

    async def work(tx: Transaction) -> Schedule:
        locked = await locked_site_of(tx, context.principal, site.id)
        if locked.status is SiteStatus.DELETING:
            raise conflict(f"The site {locked.domain} is being deleted; nothing was created.")
        schedule = await insert_schedule(tx, locked, values)
        await audit.record(tx, context.caller, schedule.target(locked), {"site": locked.domain, **_told(values)})
        return schedule

    return ScheduleModel.of(await services.database.transact(work))


@operations.declare(
    "schedule.get",
    "A scheduled task",
    Route.get("/schedules/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def get_schedule(context: Context[Panel], request: ScheduleRequest) -> ScheduleModel:
    schedule, site = await _visible(context, request.id)
    [shown] = await _shown(context, site, [schedule])
    return shown


@operations.declare(
    "schedule.update",
    "Change, enable or disable a scheduled task",
    Route.patch("/schedules/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def update(context: Context[Panel], request: ScheduleUpdateRequest) -> ScheduleModel:
    services = context.services
    schedule, _ = await _visible(context, request.id)
    given = {name: getattr(request, name) for name in _OF_A_REQUEST if getattr(request, name) is not None}

    async def work(tx: Transaction) -> Schedule:
        site = await locked_site_of(tx, context.principal, schedule.site_id)
        locked = await lock_schedule(tx, schedule.id)
        _require_task(locked.kind, given.get("path", locked.path), given.get("args", locked.args))
        values = dict(given)
        if {"cron", "time_zone", "enabled"} & given.keys():
            # The next run is computed from now on: a schedule that is enabled again does not catch up on missed runs.
            cron, zone = given.get("cron", locked.cron), given.get("time_zone", locked.time_zone)
            following = _next(cron, zone, services.clock())
            values["next_run_at"] = following if given.get("enabled", locked.enabled) else None
        changed = await update_schedule(tx, site, locked, values) if values else locked
        await audit.record(tx, context.caller, changed.target(site), {"site": site.domain, **_told(given)})
        return changed

    return ScheduleModel.of(await services.database.transact(work))


@operations.declare(
    "schedule.delete",
    "Delete a scheduled task and its runs",
    Route.delete("/schedules/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete_schedule(context: Context[Panel], request: ScheduleDeleteRequest) -> None:
    schedule, _ = await _visible(context, request.id)

    async def work(tx: Transaction) -> None:
        site = await locked_site_of(tx, context.principal, schedule.site_id)
        locked = await lock_schedule(tx, schedule.id)
        await remove_schedule(tx, locked)
        await audit.record(tx, context.caller, locked.target(site), {"site": site.domain})

    await context.services.database.transact(work)


@operations.declare(
    "schedule.run",
    "Run a scheduled task now",
    Route.post("/schedules/{id}/run"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def run_now(context: Context[Panel], request: ScheduleStartRequest) -> ScheduleRun:
    schedule, _ = await _visible(context, request.id)

    async def work(tx: Transaction) -> ScheduleRun:
        # The site is locked, so that it is not suspended between this check and the run.
        site = await locked_site_of(tx, context.principal, schedule.site_id)
        if site.status is not SiteStatus.ACTIVE:
            raise conflict(f"The site {site.domain} is {site.status.value}; nothing is run for it.")
        locked = await lock_schedule(tx, schedule.id)
        run = await insert_run(tx, locked, None)
        await audit.record(tx, context.caller, locked.target(site), {"site": site.domain, "run": run.id})
        return ScheduleRun.of(run)

    return await context.services.database.transact(work)


@operations.declare(
    "schedule.runs",
    "The last runs of a scheduled task",
    Route.get("/schedules/{id}/runs"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("id", "status", "due=due_at", "started=started_at", "ended=ended_at", "exit=exit_status"),
)
async def list_runs(context: Context[Panel], request: ScheduleRunsRequest) -> list[ScheduleRun]:
    schedule, _ = await _visible(context, request.id)
    return [ScheduleRun.of(run) for run in await read_runs(context.services.database, schedule.id)]


@operations.declare(
    "schedule.log",
    "The output of a run of a scheduled task",
    Route.get("/schedules/{id}/runs/{run}"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    secret=True,
)
async def show_run(context: Context[Panel], request: ScheduleRunRequest) -> ScheduleRunLog:
    schedule, site = await _visible(context, request.id)
    run = await read_run(context.services.database, schedule.id, request.run)

    async def work(tx: Transaction) -> None:
        await audit.record(tx, context.caller, schedule.target(site), {"site": site.domain, "run": run.id})

    await context.services.database.transact(work)
    return ScheduleRunLog.of(run)


async def _shown(context: Context[Panel], site: SiteRow, schedules: Sequence[Schedule]) -> list[ScheduleModel]:
    """The schedules with the fields that the caller may see. Arguments are hidden from callers who may not see the
    output of runs, since the output often repeats them."""
    shown = [ScheduleModel.of(schedule) for schedule in schedules]
    rights = await rights_in(context.services.database, context.principal, site)
    if rights.allow(operations["schedule.log"]):
        return shown
    return [schedule.without_secrets() for schedule in shown]


async def _visible(context: Context[Panel], schedule_id: UUID) -> tuple[Schedule, SiteRow]:
    """The schedule and its site, if the caller may see it. Raises not_found."""
    database = context.services.database
    row = await visible_row(
        database,
        context.principal,
        f"SELECT {SCHEDULE_COLUMNS} FROM schedules JOIN sites ON sites.id = schedules.site_id",
        Condition("schedules.id = $1", (schedule_id,)),
        not_found("There is no such scheduled task."),
    )
    schedule = as_schedule(row)
    return schedule, await site_of(database, context.principal, schedule.site_id)


def _require_task(kind: ScheduleKind, path: str, args: Sequence[str]) -> None:
    """Raise `invalid` if the path or the arguments are not valid for this kind of task."""
    if kind is ScheduleKind.URL:
        if re.fullmatch(URL_PATH, path) is None:
            raise wrong_field("path", "for the kind url it must be a path of the site such as /tasks?now=1")
        if args:
            raise wrong_field("args", "must be left out for the kind url")
    elif re.fullmatch(SITE_PATH, path) is None:
        raise wrong_field("path", "must be a file beneath the site's folder, such as private/tasks.py")


def _next(cron: str, zone: str, now: datetime) -> datetime:
    """The next run after `now`. Raises `invalid` for an invalid expression or time zone."""
    try:
        times = Cron.parse(cron)
    except BadCronError as error:
        raise wrong_field("cron", str(error)) from None
    try:
        found = next_time(times, zone_of(zone), now)
    except BadCronError as error:
        raise wrong_field("time_zone", str(error)) from None
    if found is None:
        raise wrong_field("cron", "these times do not occur within eight years")
    return found


def _told(values: Mapping[str, Any]) -> dict[str, Any]:
    """The changed values for the audit, without arguments and query strings, since these may contain secrets."""
    told = {name: value for name, value in values.items() if name not in ("args", "next_run_at")}
    if "path" in told:
        told["path"] = told["path"].partition("?")[0]
    return told
