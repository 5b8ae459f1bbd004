"""How services of this kernel differ: how their callers identify themselves, which roles exist, and how errors look.

An error is raised with one of the kernel's codes. If a service's specification lacks that code, the service answers
with the closest one it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from svc.registry.operation import Model
from svc.registry.principal import Role
from svc.registry.scopes import Scoped, ScopePolicy
from svc_common.errors import ErrorCode, ServiceError


class ErrorBody(Model):
    """`hint` says what to do about it; `details` are facts for a program, `request_id` always among them."""

    code: ErrorCode
    message: str
    hint: str | None = None
    details: dict[str, Any] | None = None


class ErrorEnvelope(Model):
    """Every failure, whatever its status."""

    error: ErrorBody


@dataclass(frozen=True)
class Failures:
    """`statuses`: the HTTP status of each code that the service answers with. `spoken_as`: the code that replaces one
    that the service lacks. `envelope` describes the answer in OpenAPI."""

    statuses: Mapping[ErrorCode, int]
    envelope: type[Model]
    spoken_as: Mapping[ErrorCode, ErrorCode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for code in ErrorCode:
            if self.code(code) not in self.statuses:
                raise ValueError(f"the code {code.value} has no status")

    def code(self, code: ErrorCode) -> ErrorCode:
        return self.spoken_as.get(code, code)

    def status(self, error: ServiceError) -> int:
        return self.statuses[self.code(error.code)]

    def members(self, error: ServiceError, request_id: str | None) -> dict[str, object]:
        """The members of `error` in the envelope; `request_id` identifies the request in the logs."""
        members: dict[str, object] = {"code": self.code(error.code).value, "message": error.message}
        if error.hint is not None:
            members["hint"] = error.hint
        details = dict(error.details or {})
        if request_id is not None:
            details["request_id"] = request_id
        if details:
            members["details"] = details
        return members


@dataclass(frozen=True)
class Realm:
    """`title` heads the API's document. Every API token starts with `token_prefix`, and `session_cookie` names the
    cookie of a browser session; two services on one host differ in both. `roles` are those that its people can have.
    `public_events` are kinds of event that everybody sees if they belong to no project. `projects_of` gives the SQL of
    the ids of a person's projects, from an expression for the person's id: events, alerts and audit rows belong to
    projects, and only the service knows their members. `member_roles` gives the roles with which a member of a
    customer's account may call an operation; a service without members has none. `whole_accounts_only` says which
    operations need a membership of the whole account. `nothing` is the answer of operations that return nothing, a
    model without members; None means no body, with status 204."""

    title: str
    token_prefix: str
    session_cookie: str
    roles: frozenset[Role]
    scopes: ScopePolicy
    failures: Failures
    public_events: frozenset[str]
    projects_of: Callable[[str], str]
    nothing: type[Model] | None = None
    member_roles: Callable[[Scoped], frozenset[str]] = lambda operation: frozenset()
    whole_accounts_only: Callable[[Scoped], bool] = lambda operation: False
