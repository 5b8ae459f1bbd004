"""Which projects a caller may see. A customer gets the same error, `not_found`, for the id of another customer's
resource and for an id that does not exist."""

from __future__ import annotations

from uuid import UUID

from svc.controller.realm import projects_of
from svc.registry.paging import EVERYTHING, Condition
from svc.registry.principal import Principal
from svc_actors.store import Queryable
from svc_common.errors import not_found


def visible_projects(principal: Principal, column: str = "project_id") -> Condition:
    """An SQL condition for the rows whose `column` is a project that the caller may see. Its argument is numbered
    `$1`."""
    if principal.is_operator:
        return EVERYTHING
    return Condition(f"{column} IN ({projects_of('$1')})", (principal.user_id,))


async def require_visible(queryable: Queryable, principal: Principal, project_id: UUID | None, *, what: str) -> None:
    """Raise `not_found` unless the caller may see the project. `what` is the noun for the resource in the message."""
    if principal.is_operator:
        return
    if project_id is None or not await queryable.fetchval(
        "SELECT true FROM project_members WHERE project_id = $1 AND user_id = $2", project_id, principal.user_id
    ):
        raise not_found(f"There is no such {what}.")
