"""Programs of a site that answer for the paths without a file, instead of /index.php."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field, ValidationError

from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, site_of, visible_row
from svc.panel.sites.sites import ask_change
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Condition
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.panel.sites.front_controllers import add_front_controller, remove_front_controller
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.site import Changed, ChangedTo
from svc_actors.store import Queryable, Target, Transaction
from svc_common.errors import not_found, wrong_field
from svc_webhost.nginx import FrontController as Controller

operations = Operations[Panel](about="Programs of sites that answer for paths without a file.")

FrontPath = Annotated[
    str,
    Field(
        max_length=255,
        description="/blog with what is below, /blog/ only what is below, / the whole site. The innermost applies.",
    ),
    Shape(r"/(?:[\w.~!&()+,=:@-]+(?:/[\w.~!&()+,=:@-]+)*/?)?", "a path such as /blog or /blog/"),
]
PhpProgram = Annotated[
    str,
    Field(max_length=255, description="A PHP file of the site, such as /blog/index.php."),
    Shape(r"(?:/[\w~@+-][\w.~@+-]*)+\.php", "the path of a PHP file, such as /blog/index.php"),
]
QueryParameter = Annotated[
    str,
    Field(max_length=64, description="The query parameter with the rest of the path: /doku.php?id=REST."),
    Shape(r"[A-Za-z_][A-Za-z0-9_]*", "a name of letters, digits and underscores"),
]

_SELECT = """
SELECT front.id, front.site_id, front.path, front.php_file, front.path_info, front.parameter, front.serves_files,
       front.created_at
FROM site_front_controllers AS front JOIN sites ON sites.id = front.site_id"""


class FrontController(Model):
    """`path_info`: the program gets the rest of the path as PATH_INFO; `parameter`: as this query parameter.
    `serves_files`: existing files are served themselves."""

    id: UUID
    site_id: UUID
    path: str
    php_file: str
    path_info: bool
    parameter: str | None
    serves_files: bool
    created_at: datetime


class FrontControllerCreateRequest(SiteChange):
    """Without `path_info` and `parameter`, the program reads the requested address (REQUEST_URI)."""

    path: FrontPath
    php_file: PhpProgram
    path_info: Annotated[bool, Field(description="Hand the rest of the path to the program as PATH_INFO.")] = False
    parameter: QueryParameter | None = None
    serves_files: Annotated[
        bool, Field(description="Serve existing files themselves. If false, the program answers for them as well.")
    ] = True


class FrontControllerRequest(Request):
    """A change to one front controller."""

    id: UUID
    site_id: Annotated[UUID | None, Field(description="Ignored: the front controller's own site is used.")] = None


@operations.declare(
    "front_controller.list",
    "The front controllers of a site",
    Route.get("/sites/{id}/front-controllers"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("path", "php_file", "path_info", "parameter", "id"),
)
async def list_front_controllers(context: Context[Panel], request: SiteRequest) -> list[FrontController]:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    rows = await database.fetch(f"{_SELECT} WHERE sites.id = $1 ORDER BY front.path", site.id)
    return [FrontController(**dict(row)) for row in rows]


@operations.declare(
    "front_controller.create",
    "Lead the paths of a site that no file has to a program: /blog/ to /blog/index.php",
    Route.post("/sites/{id}/front-controllers", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "path", "php_file"),
)
async def create_front_controller(context: Context[Panel], request: FrontControllerCreateRequest) -> FrontController:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    try:
        controller = Controller.model_validate(request.model_dump(include=set(Controller.model_fields)))
    except ValidationError as error:
        raise wrong_field("path", error.errors()[0]["msg"].removeprefix("Value error, ")) from None

    async def change(tx: Transaction, locked: SiteRow) -> ChangedTo[UUID]:
        controller_id = await add_front_controller(tx, locked, controller)
        details = {"site": locked.domain, "php_file": controller.php_file}
        return ChangedTo(_target(controller_id, controller.path, locked), details, result=controller_id)

    changed = await ask_change(context, site.id, change)
    return await _front_controller(database, context, changed.result)


@operations.declare(
    "front_controller.delete",
    "Remove a front controller: /index.php answers again",
    Route.delete("/front-controllers/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete_front_controller(context: Context[Panel], request: FrontControllerRequest) -> None:
    controller = await _front_controller(context.services.database, context, request.id)

    async def change(tx: Transaction, locked: SiteRow) -> Changed:
        path = await remove_front_controller(tx, locked, controller.id)
        return Changed(_target(controller.id, path, locked), {"site": locked.domain})

    await ask_change(context, controller.site_id, change)


async def _front_controller(queryable: Queryable, context: Context[Panel], controller_id: UUID) -> FrontController:
    where, absent = Condition("front.id = $1", (controller_id,)), not_found("There is no such front controller.")
    return FrontController(**dict(await visible_row(queryable, context.principal, _SELECT, where, absent)))


def _target(controller_id: UUID, path: str, site: SiteRow) -> Target:
    return Target("front_controller", controller_id, path, site.owner_id)
