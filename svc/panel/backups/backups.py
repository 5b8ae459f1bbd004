"""Backups of sites: created, listed, restored and deleted, and their schedules."""

from __future__ import annotations

from datetime import UTC, datetime

from svc.panel.backups.access import OF_SITE, locked_backup, site_to_restore, visible_backup
from svc.panel.backups.models import (
    SELECT_BACKUPS,
    Backup,
    BackupCreateRequest,
    BackupList,
    BackupRequest,
    BackupRestoreRequest,
    BackupScheduleUpdateRequest,
    Schedule,
    backup_model,
)
from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.panel.sites.access import SiteRequest, locked_site_of, site_of, visible_sites
from svc.registry.declare import Operations
from svc.registry.operation import Context, Route
from svc.registry.paging import Page, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.accounts.disk_use import require_disk_room
from svc_actors.panel.backups.records import (
    BACKUP_SOURCE,
    RESTORE,
    RESTORE_STEPS,
    USUAL_PARTS,
    BackupPart,
    BackupStatus,
    Cause,
    create_backup,
    start_deletion,
)
from svc_actors.panel.backups.schedules import (
    Frequency,
    RetentionPolicy,
    next_run,
    overdue,
    remove_schedule,
    write_schedule,
)
from svc_actors.panel.files import site_folder
from svc_actors.panel.jobs import JobClass, NewJob, enqueue, require_turn
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Queryable, Transaction, audit
from svc_common.errors import conflict, not_found, wrong_field

operations = Operations[Panel]()


@operations.declare(
    "backup.list",
    "Backups, newest first",
    Route.get("/backups"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("id", "domain", "status", "files", "bytes", "created=created_at"),
)
async def list_backups(context: Context[Panel], request: BackupList) -> Page[Backup]:
    rows, total = await paginate(
        context.services.database,
        select=SELECT_BACKUPS,
        source=BACKUP_SOURCE,
        where=[
            visible_sites(context.principal, *OF_SITE),
            contains(request.q, "coalesce(sites.domain, backup_repositories.domain)"),
            equals("backups.status", request.status.value if request.status else None),
            equals("backup_repositories.site_id", request.site),
        ],
        sortable={"created_at": "backups.created_at", "status": ("backups.status", "backups.created_at")},
        default_sort="-created_at",
        request=request,
        tie="backups.id",
    )
    return Page[Backup].of([backup_model(row) for row in rows], total, request)


@operations.declare("backup.get", "One backup", Route.get("/backups/{id}"), access=Access.SIGNED_IN, scope=Scope.READ)
async def get_backup(context: Context[Panel], request: BackupRequest) -> Backup:
    return backup_model(await visible_backup(context.services.database, context.principal, SELECT_BACKUPS, request.id))


@operations.declare(
    "backup.create",
    "Back up a site: its files, databases and configuration",
    Route.post("/sites/{id}/backups"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def create(context: Context[Panel], request: BackupCreateRequest) -> JobModel:
    services = context.services

    async def work(tx: Transaction) -> JobModel:
        site = await locked_site_of(tx, context.principal, request.id)
        site_folder(services.config.folders, site)
        await require_disk_room(tx, site.id, 0)
        await require_turn(tx, site.id, site.owner_id)
        backup_id, job = await create_backup(tx, services.sealer, site, Cause.MANUAL)
        await audit.record(tx, context.caller, site.target, {"backup": str(backup_id), "job": job.id})
        return await job_answer(tx, job)

    return await services.database.transact(work)


@operations.declare(
    "backup.delete",
    "Delete a backup and its copies",
    Route.delete("/backups/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete(context: Context[Panel], request: BackupRequest) -> JobModel:

    async def work(tx: Transaction) -> JobModel:
        backup = await locked_backup(tx, context.principal, request.id)
        job = await start_deletion(tx, backup)
        await audit.record(tx, context.caller, backup.target, {"job": job.id})
        return await job_answer(tx, job)

    return await context.services.database.transact(work)


@operations.declare(
    "backup.restore",
    "Restore a site from a backup: files, databases or configuration, or one file, folder or database",
    Route.post("/backups/{id}/restore"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    confirm=True,
)
async def restore(context: Context[Panel], request: BackupRestoreRequest) -> JobModel:
    services = context.services

    async def work(tx: Transaction) -> JobModel:
        backup = await locked_backup(tx, context.principal, request.id)
        if backup.status is not BackupStatus.COMPLETED:
            raise conflict(f"The backup is {backup.status.value}; only a completed one is restored.")
        parts = sorted(set(request.parts or USUAL_PARTS))
        # The configuration contains domains, and records of zones that all sites of the account share: so a membership
        # of one site is not enough.
        whole_account = BackupPart.CONFIGURATION in parts
        wanted = site_to_restore(backup, request.site)
        site = await locked_site_of(tx, context.principal, wanted, whole_account=whole_account)
        site_folder(services.config.folders, site)
        if site.owner_id != backup.owner_id:
            raise conflict(
                f"{site.domain} belongs to another customer than the backup; nothing was changed.",
                hint="A backup is restored to sites of the same customer.",
            )
        if request.path is not None and request.database is not None:
            raise wrong_field("database", "cannot be combined with path")
        if request.database is not None and request.database not in backup.databases:
            raise not_found(f"The backup holds no database {request.database}; nothing was changed.")
        if request.parts is not None and (request.path is not None or request.database is not None):
            raise wrong_field("parts", "cannot be combined with path or database")
        if site.id != backup.site_id:
            await require_disk_room(tx, site.id, backup.bytes or 0)
        await require_turn(tx, site.id, site.owner_id)
        what = request.path or request.database or ", ".join(parts)
        job = await enqueue(
            tx,
            NewJob(
                kind=RESTORE,
                title=f"Restore {what} of {backup.domain} to {site.domain}"[:200],
                job_class=JobClass.BACKUPS,
                steps=RESTORE_STEPS,
                site_id=site.id,
                owner_id=site.owner_id,
                parameters={
                    "backup": str(backup.id),
                    "path": request.path,
                    "database": request.database,
                    "parts": parts,
                },
            ),
        )
        what_of_it = {"path": request.path, "database": request.database, "parts": parts}
        await audit.record(tx, context.caller, backup.target, {"site": str(site.id), "job": job.id, **what_of_it})
        return await job_answer(tx, job)

    return await services.database.transact(work)


@operations.declare(
    "backup.schedule",
    "The backup schedule and retention of a site",
    Route.get("/sites/{id}/backups/schedule"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def show_schedule(context: Context[Panel], request: SiteRequest) -> Schedule:
    site = await site_of(context.services.database, context.principal, request.id)
    return await _schedule(context.services.database, site)


@operations.declare(
    "backup.set_schedule",
    "Set the backup schedule and retention of a site",
    Route.put("/sites/{id}/backups/schedule"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def set_schedule(context: Context[Panel], request: BackupScheduleUpdateRequest) -> Schedule:

    async def work(tx: Transaction) -> Schedule:
        site = await locked_site_of(tx, context.principal, request.id)
        if request.enabled:
            keep = RetentionPolicy(request.keep_last, request.keep_daily, request.keep_weekly, request.keep_monthly)
            after = datetime.now(UTC)
            at = next_run(request.frequency, request.hour, request.weekday, site.id, after)
            await write_schedule(tx, site.id, request.frequency, request.hour, request.weekday, keep, at)
        else:
            await remove_schedule(tx, site.id)
        changed = request.model_dump(mode="json", exclude={"id", "site_id"})
        await audit.record(tx, context.caller, site.target, changed)
        return await _schedule(tx, site)

    return await context.services.database.transact(work)


async def _schedule(queryable: Queryable, site: SiteRow) -> Schedule:
    row = await queryable.fetchrow(
        """
        SELECT backup_schedules.*, sites.created_at, now() AS now,
               (SELECT max(completed_at)
                FROM site_backups JOIN backup_repositories ON backup_repositories.id = repository_id
                WHERE backup_repositories.site_id = sites.id) AS last_completed_at
        FROM sites LEFT JOIN backup_schedules ON backup_schedules.site_id = sites.id WHERE sites.id = $1
        """,
        site.id,
    )
    assert row is not None
    last = row["last_completed_at"]
    if row["frequency"] is None:
        usual = BackupScheduleUpdateRequest(id=site.id).model_dump(exclude={"id", "site_id", "enabled"})
        return Schedule(enabled=False, **usual, next_run_at=None, last_completed_at=last, overdue=False)
    names = ("frequency", "hour", "weekday", "keep_last", "keep_daily", "keep_weekly", "keep_monthly", "next_run_at")
    late = overdue(Frequency(row["frequency"]), last, row["created_at"], row["now"])
    return Schedule(enabled=True, last_completed_at=last, overdue=late, **{name: row[name] for name in names})
