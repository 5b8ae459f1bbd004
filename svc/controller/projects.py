"""Projects and their members; machines belong to projects. Administrators create projects and choose members; a member
sees the project and its machines."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.controller.access import visible_projects
from svc.controller.services import Controller
from svc.identity.fields import Name
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Condition, Page, PageRequest, contains, joined, paginate
from svc.registry.principal import Access, Principal, Role
from svc.registry.scopes import Scope
from svc_actors.store import ForeignKeyViolationError, Queryable, Target, Transaction, UniqueViolationError, audit
from svc_common.errors import ServiceError, conflict, not_found

operations = Operations[Controller]()

_SELECT = """
SELECT p.id, p.name, p.created_at,
       (SELECT count(*) FROM project_members AS m WHERE m.project_id = p.id) AS member_count,
       (SELECT count(*) FROM vms AS v WHERE v.project_id = p.id AND v.deleted_at IS NULL) AS vm_count
FROM projects AS p"""


class Project(Model):
    id: UUID
    name: str
    member_count: int
    vm_count: int
    created_at: datetime


class Member(Model):
    id: UUID
    email: str
    name: str
    role: Role


class ProjectRequest(Request):
    id: UUID


class ProjectCreateRequest(Request):
    name: Name
    user_ids: Annotated[list[UUID], Field(default_factory=list, max_length=100, description="Initial members.")]


class ProjectUpdateRequest(Request):
    id: UUID
    name: Name


class MemberList(PageRequest):
    id: UUID


class MemberRequest(Request):
    id: UUID
    user_id: UUID


@operations.declare(
    "project.list",
    "The projects of the caller; administrators and staff see all",
    Route.get("/projects"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("name", "id", "created=created_at"),
)
async def list_projects(context: Context[Controller], request: PageRequest) -> Page[Project]:
    rows, total = await paginate(
        context.services.database,
        select=_SELECT,
        source="projects AS p",
        where=[
            visible_projects(context.principal, "p.id"),
            contains(request.q, "p.name", pieces="text_pieces(ARRAY[p.name])"),
        ],
        sortable={"name": "p.name", "created_at": "p.created_at"},
        default_sort="name",
        request=request,
        tie="p.id",
    )
    return Page[Project].of([Project(**dict(row)) for row in rows], total, request)


@operations.declare(
    "project.show", "One project", Route.get("/projects/{id}"), access=Access.SIGNED_IN, scope=Scope.READ
)
async def show_project(context: Context[Controller], request: ProjectRequest) -> Project:
    return await _project(context.services.database, context.principal, request.id)


@operations.declare(
    "project.create",
    "Create a project",
    Route.post("/projects", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("name",),
)
async def create_project(context: Context[Controller], request: ProjectCreateRequest) -> Project:

    async def work(tx: Transaction) -> Project:
        try:
            project_id: UUID = await tx.fetchval("INSERT INTO projects (name) VALUES ($1) RETURNING id", request.name)
        except UniqueViolationError:
            raise _taken(request.name) from None
        try:
            await tx.execute(
                "INSERT INTO project_members (project_id, user_id) SELECT $1, unnest($2::uuid[])",
                project_id,
                sorted(set(request.user_ids)),
            )
        except ForeignKeyViolationError:
            raise not_found("One of user_ids is not a person of this service.") from None
        await audit.record(tx, context.caller, _target(project_id, request.name))
        return await _project(tx, context.principal, project_id)

    return await context.services.database.transact(work)


@operations.declare(
    "project.update", "Rename a project", Route.patch("/projects/{id}"), access=Access.ADMINISTRATOR, scope=Scope.ADMIN
)
async def update_project(context: Context[Controller], request: ProjectUpdateRequest) -> Project:
    async with context.services.database.transaction() as tx:
        try:
            await tx.execute("UPDATE projects SET name = $2 WHERE id = $1", request.id, request.name)
        except UniqueViolationError:
            raise _taken(request.name) from None
        project = await _project(tx, context.principal, request.id)
        await audit.record(tx, context.caller, _target(project.id, project.name))
    return project


@operations.declare(
    "project.members",
    "The members of a project",
    Route.get("/projects/{id}/members"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("name", "email", "role", "id"),
)
async def list_members(context: Context[Controller], request: MemberList) -> Page[Member]:
    await _project(context.services.database, context.principal, request.id)
    rows, total = await paginate(
        context.services.database,
        select="""SELECT u.id, u.email, u.name, u.role
                  FROM project_members AS m JOIN users AS u ON u.id = m.user_id""",
        source="project_members AS m JOIN users AS u ON u.id = m.user_id",
        where=[Condition("m.project_id = $1", (request.id,)), contains(request.q, "u.email", "u.name")],
        sortable={"email": "u.email", "name": "u.name"},
        default_sort="email",
        request=request,
        # A person may be in several projects; each row of members is one membership.
        tie="m.ctid",
    )
    return Page[Member].of([Member(**dict(row)) for row in rows], total, request)


@operations.declare(
    "project.add_member",
    "Add a person to a project",
    Route.post("/projects/{id}/members"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    positional=("id", "user_id"),
)
async def add_member(context: Context[Controller], request: MemberRequest) -> Project:

    async def work(tx: Transaction) -> Project:
        project = await _project(tx, context.principal, request.id)
        email = await tx.fetchval("SELECT email FROM users WHERE id = $1", request.user_id)
        if email is None:
            raise not_found("There is no such person.")
        await tx.execute(
            "INSERT INTO project_members (project_id, user_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            request.id,
            request.user_id,
        )
        await audit.record(tx, context.caller, _target(project.id, project.name), {"member": email})
        return await _project(tx, context.principal, request.id)

    return await context.services.database.transact(work)


@operations.declare(
    "project.remove_member",
    "Remove a person from a project",
    Route.delete("/projects/{id}/members/{user_id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def remove_member(context: Context[Controller], request: MemberRequest) -> None:

    async def work(tx: Transaction) -> None:
        project = await _project(tx, context.principal, request.id)
        email = await tx.fetchval(
            """
            DELETE FROM project_members AS m USING users AS u
            WHERE m.project_id = $1 AND m.user_id = $2 AND u.id = m.user_id RETURNING u.email
            """,
            request.id,
            request.user_id,
        )
        if email is None:
            raise not_found("There is no such member of this project.")
        await audit.record(tx, context.caller, _target(project.id, project.name), {"member": email})

    await context.services.database.transact(work)


def _taken(name: str) -> ServiceError:
    return conflict(f"There is a project named {name} already; nothing was changed.")


async def _project(queryable: Queryable, principal: Principal, project_id: UUID) -> Project:
    where = joined([Condition("p.id = $1", (project_id,)), visible_projects(principal, "p.id")])
    row = await queryable.fetchrow(f"{_SELECT} WHERE {where.sql}", *where.args)
    if row is None:
        raise not_found("There is no such project.")
    return Project(**dict(row))


def _target(project_id: UUID, name: str) -> Target:
    return Target("project", project_id, name, project_id)
