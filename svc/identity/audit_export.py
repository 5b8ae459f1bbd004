"""GET /audit/export: the audit rows that are in the database, by id, in parts."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from svc.identity.activity import AuditEntry, audit_in_order
from svc.identity.services import IdentityServices
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import Condition, equals
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import LINE, Shape
from svc_actors.store import Outcome

operations = Operations[IdentityServices]()

_Word = Annotated[str, Field(max_length=100), Shape(r"[a-z_.]+", "lowercase letters, dots and underscores")]
_Given = Annotated[str, Field(max_length=254), LINE]


class AuditFilters(Request):
    """`operation` is a name of `svc ops`; `target_kind` and `target_id` name what it was about; `until` itself is
    excluded."""

    actor: _Given | None = None
    operation: _Word | None = None
    target_kind: _Word | None = None
    target_id: _Given | None = None
    outcome: Outcome | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None

    def conditions(self) -> list[Condition]:
        return [
            equals("actor", self.actor),
            equals("operation", self.operation),
            equals("target_kind", self.target_kind),
            equals("target_id", self.target_id),
            equals("outcome", self.outcome),
            *([Condition("at >= $1", (self.since,))] if self.since is not None else []),
            *([Condition("at < $1", (self.until,))] if self.until is not None else []),
        ]


class AuditExportRequest(AuditFilters):
    after: Annotated[
        int, Field(ge=0, le=2**53, description="Continue after this entry: `next_after` of the previous part.")
    ] = 0
    limit: Annotated[int, Field(ge=1, le=500, description="Entries a part, at most 500.")] = 500


class AuditPart(Model):
    """`next_after` is null on the last part."""

    entries: list[AuditEntry]
    next_after: int | None


@operations.declare(
    "audit.export",
    "Who did what, the oldest first, part by part to the end",
    Route.get("/audit/export"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
)
async def export(context: Context[IdentityServices], request: AuditExportRequest) -> AuditPart:
    """Pages are cut by id, so that rows written between two requests move no row to another page."""
    where = [*request.conditions(), Condition("id > $1", (request.after,))]
    entries = await audit_in_order(context.services.database, context.principal, where, request.limit)
    return AuditPart(entries=entries, next_after=entries[-1].id if len(entries) == request.limit else None)
