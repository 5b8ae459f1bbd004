"""GET /events: what changes, as it changes, for what the caller may see.

An administrator sees every event and staff those that are not for administrators alone; a customer sees the events
of their own projects and, of those of no project, images and the service itself.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.identity.services import IdentityServices
from svc.registry.declare import Operations
from svc.registry.operation import Context, Presentation, Request, Route
from svc.registry.principal import Access, Principal, Role
from svc.registry.scopes import Scope
from svc.registry.streaming import EventStream, Visibility
from svc_actors.errors import unauthenticated
from svc_actors.store import Database, Event, EventKind

operations = Operations[IdentityServices]()

_EVERYBODYS = frozenset({EventKind.IMAGE, EventKind.SYSTEM})

_STANDING_SQL = """
SELECT u.role,
       ($2::uuid IS NULL OR EXISTS (
           SELECT FROM sessions AS s
           LEFT JOIN impersonations AS i ON i.id = s.impersonation_id
           LEFT JOIN users AS o ON o.id = i.operator_id
           WHERE s.id = $2 AND s.expires_at > now()
             -- A support session: not ended, of one who still is an administrator, in the account of one who still is
             -- a customer. As `authenticate` has it for each request.
             AND (i.id IS NULL OR (i.ended_at IS NULL AND i.expires_at > now() AND o.suspended_at IS NULL
                                   AND o.role = 'administrator' AND u.role = 'customer'))
       ))
       AND ($3::uuid IS NULL OR EXISTS (
           SELECT FROM api_tokens WHERE id = $3 AND (expires_at IS NULL OR expires_at > now())
       ))
       AND ($4::boolean OR u.suspended_at IS NULL) AS stands,
       ARRAY(SELECT m.project_id FROM project_members AS m WHERE m.user_id = u.id) AS projects
FROM users AS u WHERE u.id = $1
"""


class EventsRequest(Request):
    """`after`: the position behind which to start (the header Last-Event-ID says the same); without it, now."""

    after: Annotated[int, Field(ge=0, le=2**62)] | None = None


@operations.declare(
    "event.stream",
    "Server-sent events of kinds node, vm, task, task_log, image, alert, activity and system",
    Route.get("/events"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    presentation=Presentation.EVENT_STREAM,
)
async def events(context: Context[IdentityServices], request: EventsRequest) -> EventStream:
    database, principal = context.services.database, context.principal

    async def visibility() -> Visibility:
        return await visible_events(database, principal)

    return EventStream(subscribe=context.services.events.subscribe, visibility=visibility, after=request.after)


async def visible_events(database: Database, principal: Principal) -> Visibility:
    """Which events the caller may see now. Raises `unauthenticated` once their session, token or account has ended."""
    row = await database.fetchrow(
        _STANDING_SQL,
        principal.user_id,
        principal.session_id,
        principal.token_id,
        principal.impersonation_id is not None,
    )
    if row is None or not row["stands"]:
        raise unauthenticated("This session has ended: sign in again.")
    return _filter(Role(row["role"]), frozenset(row["projects"]))


def _filter(role: Role, projects: frozenset[UUID]) -> Visibility:
    def everything(event: Event) -> bool:
        return True

    def of_staff(event: Event) -> bool:
        return not event.administrators_only

    def of_customer(event: Event) -> bool:
        if event.administrators_only:
            return False
        return event.kind in _EVERYBODYS if event.project_id is None else event.project_id in projects

    return {Role.ADMINISTRATOR: everything, Role.STAFF: of_staff, Role.CUSTOMER: of_customer}[role]
