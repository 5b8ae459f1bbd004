"""GET /events: changes as they happen, of what the caller may see.

An administrator sees every event; staff see those that are not for administrators alone; a customer sees the events of
their own projects (of activity, their own actions) and, of events without a project, the kinds that the realm names
public. A customer never sees on which node something happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.identity.services import IdentityServices
from svc.registry.declare import Operations
from svc.registry.operation import Context, Presentation, Request, Route
from svc.registry.principal import Access, Principal, Role
from svc.registry.realm import Realm
from svc.registry.scopes import Scope
from svc.registry.streaming import EventStream, View
from svc_actors.store import Database, Event, EventKind

operations = Operations[IdentityServices]()

_VIEWS = """
SELECT u.id, u.role,
       u.id IS NOT NULL AND (asked.session_id IS NULL OR EXISTS (
           SELECT FROM sessions AS s
           LEFT JOIN impersonations AS i ON i.id = s.impersonation_id
           LEFT JOIN users AS o ON o.id = i.operator_id
           WHERE s.id = asked.session_id AND s.expires_at > now()
             -- A support session: not ended, of one who still is an administrator, in the account of one who still is
             -- a customer. As `authenticate` has it for each request.
             AND (i.id IS NULL OR (i.ended_at IS NULL AND i.expires_at > now() AND o.suspended_at IS NULL
                                   AND o.role = 'administrator' AND u.role = 'customer'))
       ))
       AND (asked.token_id IS NULL OR EXISTS (
           SELECT FROM api_tokens WHERE id = asked.token_id AND (expires_at IS NULL OR expires_at > now())
       ))
       AND (asked.impersonated OR u.suspended_at IS NULL) AS stands,
       ARRAY({projects}) AS projects
FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::boolean[])
    WITH ORDINALITY AS asked (user_id, session_id, token_id, impersonated, place)
LEFT JOIN users AS u ON u.id = asked.user_id ORDER BY asked.place
"""


class EventsRequest(Request):
    """`after`: send only events after this position; the header Last-Event-ID means the same. Without it, only new
    ones."""

    after: Annotated[int, Field(ge=0, le=2**62, description="Only events after this position.")] | None = None


@operations.declare(
    "event.stream",
    "Server-sent events of what changes, for what the caller may see",
    Route.get("/events"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    presentation=Presentation.EVENT_STREAM,
)
async def events(context: Context[IdentityServices], request: EventsRequest) -> EventStream:
    services = context.services
    views = partial(views_of, services.database, services.realm)
    return EventStream(services.events.subscribe, context.principal, views, request.after)


async def views_of(database: Database, realm: Realm, principals: Sequence[Principal]) -> list[View | None]:
    """What each of these readers may see now, by a single query; None for a reader whose session, token or account has
    ended."""
    rows = await database.fetch(
        _VIEWS.format(projects=realm.projects_of("u.id")),
        [principal.user_id for principal in principals],
        [principal.session_id for principal in principals],
        [principal.token_id for principal in principals],
        [principal.impersonation_id is not None for principal in principals],
    )
    return [
        _view(Role(row["role"]), frozenset(row["projects"]), row["id"], realm.public_events) if row["stands"] else None
        for row in rows
    ]


def _view(role: Role, projects: frozenset[UUID], user_id: UUID, public_kinds: frozenset[str]) -> View:
    def everything(event: Event) -> bool:
        return True

    def of_staff(event: Event) -> bool:
        return not event.administrators_only

    def of_customer(event: Event) -> bool:
        if event.administrators_only:
            return False
        if event.project_id is None:
            return event.kind in public_kinds
        # As in GET /activity, customers see only their own activity, and neither the names nor the refused attempts of
        # others.
        own = event.kind != EventKind.ACTIVITY or event.payload.get("actor_id") == str(user_id)
        return own and event.project_id in projects

    sees = {Role.ADMINISTRATOR: everything, Role.STAFF: of_staff}.get(role, of_customer)
    return View(sees, operator=role in (Role.ADMINISTRATOR, Role.STAFF), everything=role is Role.ADMINISTRATOR)
