"""How the panel differs from other services of the kernel (the panel's specification, Authentication and Errors)."""

from __future__ import annotations

from typing import Literal

from svc.panel.accounts.member_roles import LISTS_OF_A_SITE, roles_for, whole_accounts_only
from svc.registry.operation import Model
from svc.registry.principal import Role
from svc.registry.realm import Failures, Realm
from svc.registry.scopes import Area, PrefixScopes
from svc_actors.store import EventKind
from svc_common.errors import ErrorCode, ServiceError


class PanelErrorBody(Model):
    """`hint` says what to do about it; empty if there is nothing to say."""

    code: Literal["invalid", "unauthenticated", "forbidden", "not_found", "conflict", "rate_limited", "unavailable"]
    message: str
    hint: str


class PanelErrorEnvelope(Model):
    """Every failure, whatever its status."""

    error: PanelErrorBody


class Done(Model):
    """The answer of operations that return nothing: an empty object, since every answer of the panel is JSON."""


class PanelFailures(Failures):
    """The envelope has exactly `code`, `message` and `hint`."""

    def members(self, error: ServiceError, request_id: str | None) -> dict[str, object]:
        return {"code": self.code(error.code).value, "message": error.message, "hint": error.hint or ""}


REALM = Realm(
    title="Hosting Panel",
    token_prefix="svc_",  # noqa: S106 - the public start of a token
    session_cookie="svc_session",
    # The panel has no projects, since sites belong to people: each owner is the only member of a "project" with their
    # own id.
    projects_of=lambda user: f"SELECT {user}::uuid",
    nothing=Done,
    public_events=frozenset({EventKind.SYSTEM}),
    roles=frozenset({Role.ADMINISTRATOR, Role.CUSTOMER, Role.MEMBER}),
    member_roles=roles_for,
    whole_accounts_only=whole_accounts_only,
    scopes=PrefixScopes(
        {
            "read": Area(reads_only=True),
            "sites": Area(("site", *LISTS_OF_A_SITE, "domain", "dns", "certificate", "schedule", "wordpress")),
            "files": Area(("file",)),
            "databases": Area(("database", "database_user", "export")),
            "backups": Area(("backup", "recovery")),
            "deploy": Area(("app", "deploy", "staging")),
            "migrate": Area(("import", "htaccess", "migration")),
            "jobs": Area(("job", "health"), reads_only=True),
            "admin": Area(),
        }
    ),
    failures=PanelFailures(
        statuses={
            ErrorCode.INVALID: 400,
            ErrorCode.UNAUTHENTICATED: 401,
            ErrorCode.FORBIDDEN: 403,
            ErrorCode.NOT_FOUND: 404,
            ErrorCode.CONFLICT: 409,
            ErrorCode.RATE_LIMITED: 429,
            ErrorCode.UNAVAILABLE: 503,
        },
        envelope=PanelErrorEnvelope,
        spoken_as={
            ErrorCode.NOT_READY: ErrorCode.CONFLICT,
            ErrorCode.CAPACITY: ErrorCode.CONFLICT,
            ErrorCode.INTERNAL: ErrorCode.UNAVAILABLE,
        },
    ),
)
