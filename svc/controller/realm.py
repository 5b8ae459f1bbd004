"""How the controller differs from other services of the kernel (vm-controller-api.md, Authentication and Errors)."""

from __future__ import annotations

from svc.registry.principal import Role
from svc.registry.realm import ErrorEnvelope, Failures, Realm
from svc.registry.scopes import ListedScopes
from svc_actors.controller.event_kinds import ControllerEvent
from svc_actors.store import EventKind
from svc_common.errors import ErrorCode


def projects_of(user: str) -> str:
    """SQL of the ids of a person's projects; `user` is an expression for the person's id."""
    return f"SELECT m.project_id FROM project_members AS m WHERE m.user_id = {user}"


REALM = Realm(
    title="Virtual Machine Controller",
    token_prefix="svcvm_",  # noqa: S106 - the public start of a token
    session_cookie="svcvm_session",
    roles=frozenset(Role),
    scopes=ListedScopes(),
    projects_of=projects_of,
    public_events=frozenset({ControllerEvent.IMAGE, EventKind.SYSTEM}),
    failures=Failures(
        statuses={
            ErrorCode.INVALID: 400,
            ErrorCode.UNAUTHENTICATED: 401,
            ErrorCode.FORBIDDEN: 403,
            ErrorCode.NOT_FOUND: 404,
            ErrorCode.CONFLICT: 409,
            ErrorCode.NOT_READY: 409,
            ErrorCode.CAPACITY: 409,
            ErrorCode.RATE_LIMITED: 429,
            ErrorCode.UNAVAILABLE: 503,
            ErrorCode.INTERNAL: 500,
        },
        envelope=ErrorEnvelope,
    ),
)
