"""Exports of databases: listed, downloaded page by page, deleted."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.panel.databases.models import DatabaseChange, DatabaseRequest, locked_database
from svc.panel.files.models import MAX_PAGE_BYTES
from svc.panel.services import Panel
from svc.panel.sites.access import visible_row, visible_sites
from svc.registry.declare import Operations
from svc.registry.downloads import FilePart
from svc.registry.operation import Context, Model, Route
from svc.registry.paging import Condition, Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.databases.transfers import EXPORT_COLUMNS, as_export, delete_export, read_page
from svc_actors.panel.databases.transfers import Export as StoredExport
from svc_actors.store import Record, Transaction, audit
from svc_common.errors import conflict, not_found

operations = Operations[Panel]()

_SOURCE = """database_exports JOIN databases ON databases.id = database_exports.database_id
    JOIN sites ON sites.id = databases.site_id"""
_SELECT = f"""
SELECT {EXPORT_COLUMNS}, databases.name AS database, sites.domain, sites.id AS site_id
FROM {_SOURCE}"""


class Export(Model):
    """SQL compressed by gzip. `size` and `sha256` are of the whole file, and None until it is `ready`."""

    id: UUID
    database_id: UUID
    database: str
    domain: str
    ready: bool
    size: int | None
    sha256: str | None
    created_at: datetime
    expires_at: datetime


class ExportPage(FilePart):
    """A part of an export's file."""


class ExportListRequest(PageRequest):
    database: UUID | None = None


class ExportDownloadRequest(DatabaseRequest):
    offset: Annotated[int, Field(ge=0, le=1 << 50)] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE_BYTES)] = MAX_PAGE_BYTES


@operations.declare(
    "export.list",
    "Exports of databases that can be downloaded, or are being made",
    Route.get("/databases/exports"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("database", "ready", "size", "expires_at", "id"),
)
async def list_exports(context: Context[Panel], request: ExportListRequest) -> Page[Export]:
    rows, total = await paginate(
        context.services.database,
        select=_SELECT,
        source=_SOURCE,
        where=[
            visible_sites(context.principal),
            equals("database_exports.database_id", request.database),
            contains(request.q, "databases.name", "sites.domain"),
        ],
        sortable={"created_at": "database_exports.created_at", "database": "databases.name"},
        default_sort="-created_at",
        request=request,
        tie="database_exports.id",
    )
    return Page[Export].of([_model(row) for row in rows], total, request)


@operations.declare(
    "export.get", "One export", Route.get("/databases/exports/{id}"), access=Access.SIGNED_IN, scope=Scope.READ
)
async def get_export(context: Context[Panel], request: DatabaseRequest) -> Export:
    return _model(await _row(context, request.id))


@operations.declare(
    "export.download",
    "Download an export, page by page",
    Route.get("/databases/exports/{id}/download"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    secret=True,
    target="database",
)
async def download(context: Context[Panel], request: ExportDownloadRequest) -> ExportPage:
    services = context.services
    row = await _row(context, request.id)
    export = as_export(row)
    if export.size is None or export.sha256 is None:
        raise conflict("The export is not finished.", hint="Wait for its job.")
    page = await read_page(services.config.folders, export, request.offset, request.limit)
    # The first part requested writes an audit row, whichever it is: a download need not start at 0.
    part = (context.principal.user_id, row["site_id"], f"export {export.id}", export.sha256)
    if services.downloads.needs_audit(part, anew=request.offset == 0):

        async def work(tx: Transaction) -> None:
            database = await locked_database(tx, context, export.database_id)
            await audit.record(tx, context.caller, database.target, {"export": str(export.id), "size": export.size})

        await services.database.transact(work)
    return ExportPage(
        offset=request.offset,
        data_base64=base64.b64encode(page).decode(),
        size=export.size,
        sha256=hashlib.sha256(page).hexdigest(),
        version=export.sha256,
        name=f"{row['database']}-{export.created_at:%Y%m%d-%H%M%S}.sql.gz",
        whole_sha256=export.sha256,
    )


@operations.declare(
    "export.delete",
    "Delete an export before it expires",
    Route.delete("/databases/exports/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete(context: Context[Panel], request: DatabaseChange) -> None:
    export: StoredExport = as_export(await _row(context, request.id))

    async def work(tx: Transaction) -> None:
        await delete_export(tx, context.caller, await locked_database(tx, context, export.database_id), export)

    await context.services.database.transact(work)
    await context.services.transfers.sweep()


async def _row(context: Context[Panel], export_id: UUID) -> Record:
    where = Condition("database_exports.id = $1", (export_id,))
    absent = not_found("There is no such export.", hint="Exports are kept for a week.")
    return await visible_row(context.services.database, context.principal, _SELECT, where, absent)


def _model(row: Record) -> Export:
    return Export(**vars(as_export(row)), database=row["database"], domain=row["domain"])
