"""Sites: a list, one of them, and what changes them."""

from __future__ import annotations

from svc.panel.access import SiteRequest, visible_sites
from svc.panel.services import Panel
from svc.panel.site_models import SELECT_SITES, Site, shown_site, site_model
from svc.registry.declare import Operations
from svc.registry.operation import Context, Route
from svc.registry.paging import Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.sites.states import SiteStatus

operations = Operations[Panel]()


class SiteListRequest(PageRequest):
    status: SiteStatus | None = None


@operations.declare(
    "site.list",
    "The caller's sites; administrators see all",
    Route.get("/sites"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("domain", "type", "status", "owner=owner_email", "id"),
)
async def list_sites(context: Context[Panel], request: SiteListRequest) -> Page[Site]:
    rows, total = await paginate(
        context.services.database,
        select=SELECT_SITES,
        source="sites JOIN users ON users.id = sites.owner_id",
        where=[
            visible_sites(context.principal),
            equals("sites.status", request.status),
            contains(request.q, "sites.domain", "users.email"),
        ],
        sortable={"domain": "sites.domain", "created_at": "sites.created_at", "status": "sites.status"},
        default_sort="domain",
        request=request,
        tie="sites.id",
    )
    return Page[Site].of([site_model(row) for row in rows], total, request)


@operations.declare("site.get", "One site", Route.get("/sites/{id}"), access=Access.SIGNED_IN, scope=Scope.READ)
async def get_site(context: Context[Panel], request: SiteRequest) -> Site:
    return await shown_site(context.services.database, context.principal, request.id)
