"""The audit log: who did what, from where, and what came of it (hosting-panel-api.md, What the service does, 6)."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from svc.identity.activity import ALL_ENTRIES, ENTRY_BLOCKS, AuditEntry, audit_page
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Route
from svc.registry.paging import Condition, Page, PageRequest, equals
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import LINE, Shape
from svc_actors.store import Outcome

operations = Operations[Panel]()

_Word = Annotated[str, Field(max_length=100), Shape(r"[a-z_.]+", "small letters, dots and underscores")]
_Given = Annotated[str, Field(max_length=254), LINE]


class AuditRequest(PageRequest):
    """`operation` is a name of `svc ops`; `target_kind` and `target_id` what it was about; `until` itself is
    excluded."""

    actor: _Given | None = None
    operation: _Word | None = None
    target_kind: _Word | None = None
    target_id: _Given | None = None
    outcome: Outcome | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None


@operations.declare(
    "audit.list",
    "Who did what, the newest first",
    Route.get("/audit"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("at", "actor", "operation", "target=target_name", "outcome", "address"),
)
async def list_entries(context: Context[Panel], request: AuditRequest) -> Page[AuditEntry]:
    where = [
        equals("actor", request.actor),
        equals("operation", request.operation),
        equals("target_kind", request.target_kind),
        equals("target_id", request.target_id),
        equals("outcome", request.outcome),
        *([Condition("at >= $1", (request.since,))] if request.since is not None else []),
        *([Condition("at < $1", (request.until,))] if request.until is not None else []),
    ]
    filtered = request.model_dump(exclude=set(PageRequest.model_fields), exclude_none=True)
    kept, blocks = (None, None) if filtered else (ALL_ENTRIES, ENTRY_BLOCKS)
    return await audit_page(context.services.database, context.principal, request, where, kept=kept, blocks=blocks)
