"""Administrators' operations on people that only the panel has: what a person owns, and tokens in their name."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from svc.identity import person_records
from svc.identity.fields import Name
from svc.identity.people import PersonRequest
from svc.identity.person_records import Person
from svc.identity.tokens import ApiTokenCreated, Days, Scopes, add_token
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.store import Transaction

operations = Operations[Panel]()


class UserTokenRequest(Request):
    id: UUID
    name: Name
    scopes: Scopes | None = None
    days: Days = 365


class PersonDetail(Person):
    """A person with the number of their sites, tokens and sessions, and when a session was last used."""

    site_count: int
    token_count: int
    session_count: int
    last_seen_at: datetime | None


@operations.declare(
    "person.show",
    "One person with what they have",
    Route.get("/admin/users/{id}"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
)
async def show_person(context: Context[Panel], request: PersonRequest) -> PersonDetail:
    database = context.services.database
    whole = await person_records.person(database, request.id)
    counts = await database.fetchone(
        """
        SELECT (SELECT count(*) FROM sites WHERE owner_id = $1) AS site_count,
               (SELECT count(*) FROM api_tokens WHERE user_id = $1) AS token_count,
               (SELECT count(*) FROM sessions WHERE user_id = $1) AS session_count,
               (SELECT max(seen_at) FROM sessions WHERE user_id = $1) AS last_seen_at
        """,
        request.id,
    )
    return PersonDetail(**whole.model_dump(), **dict(counts))


@operations.declare(
    "user.token",
    "Create an API token that acts as another person; it is shown once",
    Route.post("/users/{id}/tokens", status=201),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    secret=True,
    target="token",
)
async def create_token(context: Context[Panel], request: UserTokenRequest) -> ApiTokenCreated:

    async def work(tx: Transaction) -> ApiTokenCreated:
        owner = await person_records.person(tx, request.id)
        return await add_token(context, tx, owner.id, request.name, request.scopes, request.days)

    return await context.services.database.transact(work)
