"""Reading the data of backups: which was read, and when, and a reading now. Administrators only."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.panel.realm import Done
from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, locked_site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.paging import Page, PageRequest, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.backups.data_check_records import order_data_check
from svc_actors.panel.backups.repositories import read_repository
from svc_actors.store import Transaction, audit
from svc_common.errors import not_found

operations = Operations[Panel]()


_PLACES: Final = """backup_data_checks AS checks JOIN backup_repositories ON backup_repositories.id = repository_id
    LEFT JOIN sites ON sites.id = backup_repositories.site_id
    LEFT JOIN backup_targets ON backup_targets.id = target_id"""


class DataCheck(Model):
    """A repository on this server (`target` is null) or its copy at a target. `share`: which of four shares is read
    next. `damaged`: shares whose data was damaged when it was last read, and `report` what restic said of it. `error`:
    why the data could not be read at the last attempt."""

    id: UUID
    site_id: UUID | None
    domain: str
    target: str | None
    share: int
    damaged: Annotated[list[int], Field(description="Of 1 to 4.")]
    report: str | None
    error: str | None
    read_at: datetime | None
    next_run_at: datetime


class DataCheckListRequest(PageRequest):
    pass


@operations.declare(
    "backup.data_list",
    "When the data of backups was last read, and what of it is damaged",
    Route.get("/backups/data"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    command=("backup", "data", "list"),
    columns=("domain", "target", "share", "damaged", "read=read_at", "next=next_run_at", "error"),
)
async def list_data_checks(context: Context[Panel], request: DataCheckListRequest) -> Page[DataCheck]:
    domain = "coalesce(sites.domain, backup_repositories.domain)"
    rows, total = await paginate(
        context.services.database,
        select=f"""SELECT checks.id, backup_repositories.site_id, {domain} AS domain, backup_targets.name AS target,
                          checks.share, checks.damaged, checks.report, checks.error, checks.read_at, checks.next_run_at
                   FROM {_PLACES}""",
        source=_PLACES,
        where=[],
        sortable={"domain": domain, "next_run_at": "checks.next_run_at"},
        default_sort="domain",
        request=request,
        tie="checks.id",
    )
    return Page[DataCheck].of([DataCheck.model_validate(dict(row)) for row in rows], total, request)


@operations.declare(
    "backup.data_check",
    "Read a share of the data of a site's backups now, here and at all targets, and what was damaged",
    Route.post("/sites/{id}/backups/data-check"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("backup", "data", "check"),
    target="site",
)
async def check_data(context: Context[Panel], request: SiteChange) -> Done:

    async def work(tx: Transaction) -> None:
        site = await locked_site_of(tx, context.principal, request.id)
        repository_id = await tx.fetchval("SELECT id FROM backup_repositories WHERE site_id = $1", site.id)
        if repository_id is None:
            raise not_found("The site has no backups.", hint="Back it up first.")
        repository = await read_repository(tx, repository_id)
        places = await order_data_check(tx, repository)
        await audit.record(tx, context.caller, repository.target, {"places": places})

    await context.services.database.transact(work)
    return Done()
