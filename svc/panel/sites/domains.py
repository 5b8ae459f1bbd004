"""The names of a site: its primary name and its aliases. An alias serves the site, or redirects to the primary name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from svc.panel.dns.pointing import NamePoints, names_point
from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, site_of, visible_row
from svc.panel.sites.fields import Domain
from svc.panel.sites.sites import ask_change, require_may_free_names, usable_name
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Condition
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.sites.claims import claim, release, set_domain
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.site import Changed, ChangedTo
from svc_actors.store import Queryable, Record, Target, Transaction
from svc_common.errors import not_found

operations = Operations[Panel]()

_SELECT = """
SELECT named.id, named.site_id, named.name, named.name = sites.domain AS primary, named.redirect_to_primary,
       named.created_at, sites.owner_id
FROM site_domains AS named JOIN sites ON sites.id = named.site_id"""


class SiteDomain(Model):
    """`points`: where the name leads today."""

    id: UUID
    site_id: UUID
    name: str
    primary: bool
    redirect_to_primary: bool
    points: NamePoints
    created_at: datetime


class DomainAddRequest(SiteChange):
    name: Domain
    redirect_to_primary: bool = False


class DomainRequest(Request):
    """A change to one name of a site."""

    id: UUID
    site_id: Annotated[UUID | None, Field(description="Ignored: the domain's own site is used.")] = None


class DomainUpdateRequest(DomainRequest):
    """`primary` makes it the site's main name; the previous one stays as an alias."""

    primary: Literal[True] | None = None
    redirect_to_primary: bool | None = None


@operations.declare(
    "domain.list",
    "The names of a site",
    Route.get("/sites/{id}/domains"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("name", "primary", "redirect=redirect_to_primary", "leads=points.text", "id"),
)
async def list_domains(context: Context[Panel], request: SiteRequest) -> list[SiteDomain]:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    rows = await database.fetch(
        f"{_SELECT} WHERE sites.id = $1 ORDER BY named.name <> sites.domain, named.name", site.id
    )
    return await _models(context.services, rows)


@operations.declare(
    "domain.add",
    "Add a name to a site",
    Route.post("/sites/{id}/domains", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "name"),
)
async def add_domain(context: Context[Panel], request: DomainAddRequest) -> SiteDomain:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    name = usable_name(context, request.name)

    async def change(tx: Transaction, locked: SiteRow) -> ChangedTo[UUID]:
        [added] = await claim(tx, locked.id, locked.owner_id, [name], redirect_to_primary=request.redirect_to_primary)
        return ChangedTo(_target(added, name.name, locked), {"site": locked.domain}, result=added)

    changed = await ask_change(context, site.id, change)
    return await _domain(database, context, changed.result)


@operations.declare(
    "domain.update",
    "Make a name the primary of its site, or redirect it there",
    Route.patch("/domains/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def update_domain(context: Context[Panel], request: DomainUpdateRequest) -> SiteDomain:
    database = context.services.database
    domain = await _domain(database, context, request.id)

    async def change(tx: Transaction, locked: SiteRow) -> Changed:
        name = await set_domain(
            tx, locked, domain.id, primary=bool(request.primary), redirect_to_primary=request.redirect_to_primary
        )
        return Changed(_target(domain.id, name, locked), request.model_dump(include={"primary", "redirect_to_primary"}))

    await ask_change(context, domain.site_id, change)
    return await _domain(database, context, domain.id)


@operations.declare(
    "domain.delete",
    "Remove a name from a site",
    Route.delete("/domains/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete_domain(context: Context[Panel], request: DomainRequest) -> None:
    domain = await _domain(context.services.database, context, request.id)

    async def change(tx: Transaction, locked: SiteRow) -> Changed:
        require_may_free_names(context.principal, locked)
        name = await release(tx, locked, domain.id)
        return Changed(_target(domain.id, name, locked), {"site": locked.domain})

    await ask_change(context, domain.site_id, change)


async def _domain(queryable: Queryable, context: Context[Panel], domain_id: UUID) -> SiteDomain:
    where, absent = Condition("named.id = $1", (domain_id,)), not_found("There is no such domain.")
    row = await visible_row(queryable, context.principal, _SELECT, where, absent)
    [domain] = await _models(context.services, [row])
    return domain


async def _models(services: Panel, rows: Sequence[Record]) -> list[SiteDomain]:
    """Names of one site."""
    if not rows:
        return []
    points = await names_point(services, rows[0]["owner_id"], [row["name"] for row in rows])
    return [
        SiteDomain(
            id=row["id"],
            site_id=row["site_id"],
            name=row["name"],
            primary=row["primary"],
            redirect_to_primary=row["redirect_to_primary"],
            points=NamePoints(**each.model_dump(exclude={"name"})),
            created_at=row["created_at"],
        )
        for row, each in zip(rows, points, strict=True)
    ]


def _target(domain_id: UUID, name: str, site: SiteRow) -> Target:
    return Target("domain", domain_id, name, site.owner_id)
