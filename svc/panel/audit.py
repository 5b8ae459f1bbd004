"""The audit log: who did what, from where, with which result (the panel's specification, What the service does, 6)."""

from __future__ import annotations

from svc.identity.activity import ALL_ENTRIES, ENTRY_BLOCKS, AuditEntry, audit_page
from svc.identity.audit_export import AuditFilters
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Route
from svc.registry.paging import Page, PageRequest
from svc.registry.principal import Access
from svc.registry.scopes import Scope

operations = Operations[Panel]()


class AuditRequest(AuditFilters, PageRequest):
    pass


@operations.declare(
    "audit.list",
    "Who did what, the newest first",
    Route.get("/audit"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    columns=("at", "actor", "operation", "target=target_name", "outcome", "address"),
)
async def list_entries(context: Context[Panel], request: AuditRequest) -> Page[AuditEntry]:
    filtered = request.model_dump(exclude=set(PageRequest.model_fields), exclude_none=True)
    known_total, blocks = (None, None) if filtered else (ALL_ENTRIES, ENTRY_BLOCKS)
    return await audit_page(
        context.services.database,
        context.principal,
        request,
        request.conditions(),
        known_total=known_total,
        blocks=blocks,
    )
