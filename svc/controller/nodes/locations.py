"""Locations: where nodes and pools are."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from svc.controller.services import Controller
from svc.identity.fields import Name
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Page, PageRequest, contains, paginate
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.store import Target, UniqueViolationError, audit
from svc_common.errors import conflict

operations = Operations[Controller]()


class Location(Model):
    id: UUID
    name: str
    created_at: datetime


class LocationCreateRequest(Request):
    name: Name


@operations.declare(
    "location.list",
    "List locations",
    Route.get("/locations"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("name", "id", "created=created_at"),
)
async def list_locations(context: Context[Controller], request: PageRequest) -> Page[Location]:
    rows, total = await paginate(
        context.services.database,
        select="SELECT id, name, created_at FROM locations",
        source="locations",
        where=[contains(request.q, "name")],
        sortable={"name": "name", "created_at": "created_at"},
        default_sort="name",
        request=request,
    )
    return Page[Location].of([Location(**dict(row)) for row in rows], total, request)


@operations.declare(
    "location.create",
    "Add a location",
    Route.post("/locations", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("name",),
)
async def create_location(context: Context[Controller], request: LocationCreateRequest) -> Location:
    try:
        async with context.services.database.transaction() as tx:
            row = await tx.fetchone(
                "INSERT INTO locations (name) VALUES ($1) RETURNING id, name, created_at", request.name
            )
            await audit.record(tx, context.caller, Target("location", row["id"], request.name))
    except UniqueViolationError:
        raise conflict(f"There is a location named {request.name} already.") from None
    return Location(**dict(row))
