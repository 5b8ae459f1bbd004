"""Paths of a site that are refused to visitors, whatever is there."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, site_of, visible_row
from svc.panel.sites.sites import ask_change
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Condition
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.panel.sites.denied_paths import add_denied_path, remove_denied_path
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.site import Changed, ChangedTo
from svc_actors.store import Queryable, Target, Transaction
from svc_common.errors import not_found

operations = Operations[Panel](about="Paths of sites that visitors are refused.")

DeniedPattern = Annotated[
    str,
    Field(
        max_length=255,
        description="As in .gitignore: /private with what is below, debug.log wherever it lies, *.bak, backup*,"
        " /uploads/*.php in that folder, /uploads/**/*.php below as well; /img/**/!(*.jpg|logo.png) all but these.",
    ),
    Shape(
        r"(?:/(?:[\w.~!&()+,=:@-]+/)*(?:\*\*/)?)?(?:\*[\w.~!&()+,=:@-]+|[\w.~!&()+,=:@-]+\*?)/?"
        r"|/(?:[\w.~!&()+,=:@-]+/)+\*\*/!\((?:\*\.[A-Za-z0-9]+|[A-Za-z0-9_][\w.~@+-]*)"
        r"(?:\|(?:\*\.[A-Za-z0-9]+|[A-Za-z0-9_][\w.~@+-]*))*\)",
        "a path such as /private, a name such as debug.log, or one with a star at its start or end such as *.bak",
    ),
]

_SELECT = """
SELECT denied.id, denied.site_id, denied.pattern, denied.created_at
FROM site_denied_paths AS denied JOIN sites ON sites.id = denied.site_id"""


class DeniedPath(Model):
    id: UUID
    site_id: UUID
    pattern: str
    created_at: datetime


class DeniedPathCreateRequest(SiteChange):
    """Requests for it get 403. Programs of the site can still read such a file, for example to include it in a page."""

    pattern: DeniedPattern


class DeniedPathRequest(Request):
    """A change to one denied path."""

    id: UUID
    site_id: Annotated[UUID | None, Field(description="Ignored: the denied path's own site is used.")] = None


@operations.declare(
    "denied_path.list",
    "The denied paths of a site",
    Route.get("/sites/{id}/denied-paths"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("pattern", "created=created_at", "id"),
)
async def list_denied_paths(context: Context[Panel], request: SiteRequest) -> list[DeniedPath]:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    rows = await database.fetch(f"{_SELECT} WHERE sites.id = $1 ORDER BY denied.pattern", site.id)
    return [DeniedPath(**dict(row)) for row in rows]


@operations.declare(
    "denied_path.create",
    "Deny visitors of a site a path, or files by name: /private, debug.log, *.bak, /uploads/**/*.php",
    Route.post("/sites/{id}/denied-paths", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "pattern"),
)
async def create_denied_path(context: Context[Panel], request: DeniedPathCreateRequest) -> DeniedPath:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)

    async def change(tx: Transaction, locked: SiteRow) -> ChangedTo[UUID]:
        denied_id = await add_denied_path(tx, locked, request.pattern)
        return ChangedTo(_target(denied_id, request.pattern, locked), {"site": locked.domain}, result=denied_id)

    changed = await ask_change(context, site.id, change)
    return await _denied_path(database, context, changed.result)


@operations.declare(
    "denied_path.delete",
    "Remove a denied path",
    Route.delete("/denied-paths/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete_denied_path(context: Context[Panel], request: DeniedPathRequest) -> None:
    denied = await _denied_path(context.services.database, context, request.id)

    async def change(tx: Transaction, locked: SiteRow) -> Changed:
        pattern = await remove_denied_path(tx, locked, denied.id)
        return Changed(_target(denied.id, pattern, locked), {"site": locked.domain})

    await ask_change(context, denied.site_id, change)


async def _denied_path(queryable: Queryable, context: Context[Panel], denied_id: UUID) -> DeniedPath:
    where, absent = Condition("denied.id = $1", (denied_id,)), not_found("There is no such denied path.")
    return DeniedPath(**dict(await visible_row(queryable, context.principal, _SELECT, where, absent)))


def _target(denied_id: UUID, pattern: str, site: SiteRow) -> Target:
    return Target("denied_path", denied_id, pattern, site.owner_id)
