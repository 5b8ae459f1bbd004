"""What tells one service of this kernel from another: how its callers identify themselves, what they may be, and how
it answers when it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from svc.registry.failures import Failures
from svc.registry.operation import Model
from svc.registry.principal import Role
from svc.registry.scopes import Scoped, ScopePolicy


@dataclass(frozen=True)
class Realm:
    """`title` heads the API's document. `token_prefix` begins every API token, `session_cookie` names the cookie of a
    browser session; two services on one host differ in both. `roles` are those that its people can have.
    `public_events` are kinds of event that everybody sees where they are of no project. `projects_of` gives the SQL of
    the ids of a person's projects, from an expression for the person's id: events, alerts and audit rows are of a
    project, and only the service knows who is in one. `member_roles` gives the roles with which a member of a
    customer's account may call an operation there; without members there are none. `whole_accounts_only` says of which
    operations a membership of less than the account opens nothing. `nothing` is what is answered where
    there is nothing to say, a model without members; None is no body, with status 204."""

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
