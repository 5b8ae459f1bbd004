"""How services of this kernel differ: how their callers identify themselves, which roles exist, and how errors look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from svc.registry.failures import Failures
from svc.registry.operation import Model
from svc.registry.principal import Role
from svc.registry.scopes import Scoped, ScopePolicy


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
