"""Which sites a caller may see. A foreign id and an absent one are the same to a customer: `not_found`."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.registry.operation import Request
from svc.registry.paging import EVERYTHING, Condition, joined
from svc.registry.principal import Principal
from svc_actors.errors import not_found
from svc_actors.panel.sites.records import SITE_COLUMNS, SiteRow, as_site
from svc_actors.store import Queryable


class SiteRequest(Request):
    """A read of one site: `id` is the path's."""

    id: UUID


class SiteChange(SiteRequest):
    """A change to one site. The body may name a site as well; the path's wins (hosting-panel-api.md, Endpoints)."""

    site_id: Annotated[UUID | None, Field(description="Not looked at: the site of the path is meant.")] = None


def visible_sites(principal: Principal, owner: str = "sites.owner_id") -> Condition:
    """The rows whose `owner` is a person whose sites the caller may see, as a condition of SQL with its own `$1`."""
    if principal.sees_everything:
        return EVERYTHING
    return Condition(f"{owner} = $1", (principal.user_id,))


async def site_of(queryable: Queryable, principal: Principal, site_id: UUID) -> SiteRow:
    """The site, if the caller may see it. Raises not_found."""
    where = joined([Condition("sites.id = $1", (site_id,)), visible_sites(principal)])
    row = await queryable.fetchrow(f"SELECT {SITE_COLUMNS} FROM sites WHERE {where.sql}", *where.args)
    if row is None:
        raise not_found("There is no such site.")
    return as_site(row)
