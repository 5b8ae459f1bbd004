"""What a person owns in this service: projects with their machines, keys, tokens, sessions."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from svc.controller.services import Controller
from svc.identity.people import PersonRequest
from svc.identity.person_records import Person, person
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope

operations = Operations[Controller]()


class OwnedProject(Model):
    id: UUID
    name: str
    vm_count: int


class PersonDetail(Person):
    """A person with what they own."""

    projects: list[OwnedProject]
    vm_count: int
    token_count: int
    ssh_key_count: int
    session_count: int
    last_seen_at: datetime | None


@operations.declare(
    "person.show",
    "A person, with what they own",
    Route.get("/admin/users/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
)
async def show_person(context: Context[Controller], request: PersonRequest) -> PersonDetail:
    database = context.services.database
    whole = await person(database, request.id)
    projects = await database.fetch(
        """
        SELECT p.id, p.name, count(v.id) AS vm_count
        FROM project_members AS m JOIN projects AS p ON p.id = m.project_id
        LEFT JOIN vms AS v ON v.project_id = p.id AND v.deleted_at IS NULL
        WHERE m.user_id = $1 GROUP BY p.id ORDER BY p.name
        """,
        request.id,
    )
    counts = await database.fetchone(
        """
        SELECT (SELECT count(*) FROM api_tokens WHERE user_id = $1) AS token_count,
               (SELECT count(*) FROM ssh_keys WHERE user_id = $1) AS ssh_key_count,
               (SELECT count(*) FROM sessions WHERE user_id = $1) AS session_count,
               (SELECT max(seen_at) FROM sessions WHERE user_id = $1) AS last_seen_at
        """,
        request.id,
    )
    owned = [OwnedProject(**dict(row)) for row in projects]
    return PersonDetail(
        **whole.model_dump(), projects=owned, vm_count=sum(project.vm_count for project in owned), **dict(counts)
    )
