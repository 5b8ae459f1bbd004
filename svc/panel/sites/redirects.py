"""Redirects of a site: visitors of a path are sent to another URL."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
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
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.redirects import add_redirect, remove_redirect
from svc_actors.panel.sites.site import Changed, ChangedTo
from svc_actors.store import Queryable, Target, Transaction
from svc_common.errors import not_found, wrong_field

operations = Operations[Panel](about="Redirects: paths of sites that lead elsewhere.")

RedirectPath = Annotated[
    str,
    Field(max_length=512, description="As visitors ask for it, decoded and without its query."),
    Shape(r"/[\w/.~!&()*+,=:@-]*", "a path that starts with /, without spaces, quotes, % and ?"),
]

RedirectTarget = Annotated[
    str,
    Field(max_length=2048, description="An http or https URL, or a path of the same site."),
    Shape(
        r"https?://[A-Za-z0-9.\[\]:-]+(?:/[A-Za-z0-9/._~!&()*+,=:@%?#-]*)?"
        r"|/(?:[A-Za-z0-9._~!&()*+,=:@%?#-][A-Za-z0-9/._~!&()*+,=:@%?#-]*)?",
        "an http or https URL, or a path that starts with one /, encoded",
    ),
]

_SELECT = """
SELECT sent.id, sent.site_id, sent.path, sent.target, sent.status, sent.below, sent.created_at
FROM site_redirects AS sent JOIN sites ON sites.id = sent.site_id"""


class SiteRedirect(Model):
    """`below`: also for every path that starts with `path`."""

    id: UUID
    site_id: UUID
    path: str
    target: str
    status: int
    below: bool
    created_at: datetime


class RedirectCreateRequest(SiteChange):
    path: RedirectPath
    target: RedirectTarget
    status: Literal[301, 302, 307, 308] = 301
    below: Annotated[bool, Field(description="Also for every path that starts with it.")] = False


class RedirectRequest(Request):
    """A change to one redirect."""

    id: UUID
    site_id: Annotated[UUID | None, Field(description="Ignored: the redirect's own site is used.")] = None


@operations.declare(
    "redirect.list",
    "The redirects of a site",
    Route.get("/sites/{id}/redirects"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("path", "target", "status", "below", "id"),
)
async def list_redirects(context: Context[Panel], request: SiteRequest) -> list[SiteRedirect]:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    rows = await database.fetch(f"{_SELECT} WHERE sites.id = $1 ORDER BY sent.path, sent.below", site.id)
    return [SiteRedirect(**dict(row)) for row in rows]


@operations.declare(
    "redirect.create",
    "Redirect a path of a site",
    Route.post("/sites/{id}/redirects", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "path", "target"),
)
async def create_redirect(context: Context[Panel], request: RedirectCreateRequest) -> SiteRedirect:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    if request.target == request.path or (request.below and request.target.startswith(request.path)):
        raise wrong_field("target", "redirect loop: the target is itself redirected")

    async def change(tx: Transaction, locked: SiteRow) -> ChangedTo[UUID]:
        redirect_id = await add_redirect(tx, locked, request.path, request.target, request.status, below=request.below)
        target = _target(redirect_id, request.path, locked)
        return ChangedTo(target, {"site": locked.domain, "target": request.target}, result=redirect_id)

    changed = await ask_change(context, site.id, change)
    return await _redirect(database, context, changed.result)


@operations.declare(
    "redirect.delete",
    "Delete a redirect",
    Route.delete("/redirects/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete_redirect(context: Context[Panel], request: RedirectRequest) -> None:
    redirect = await _redirect(context.services.database, context, request.id)

    async def change(tx: Transaction, locked: SiteRow) -> Changed:
        path = await remove_redirect(tx, locked, redirect.id)
        return Changed(_target(redirect.id, path, locked), {"site": locked.domain})

    await ask_change(context, redirect.site_id, change)


async def _redirect(queryable: Queryable, context: Context[Panel], redirect_id: UUID) -> SiteRedirect:
    where, absent = Condition("sent.id = $1", (redirect_id,)), not_found("There is no such redirect.")
    return SiteRedirect(**dict(await visible_row(queryable, context.principal, _SELECT, where, absent)))


def _target(redirect_id: UUID, path: str, site: SiteRow) -> Target:
    return Target("redirect", redirect_id, path, site.owner_id)
