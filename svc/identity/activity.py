"""GET /activity, and audit entries about one resource, for the lists of other areas."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from svc.identity.services import IdentityServices
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.paging import EVERYTHING, Blocks, Condition, Page, PageRequest, equals, has_words, joined, paginate
from svc.registry.principal import Access, Principal, Role
from svc.registry.scopes import Scope
from svc_actors.store import Outcome, Queryable, Record, Via

operations = Operations[IdentityServices]()


class AuditEntry(Model):
    """Who did what. In a support session `actor` is the text `OPERATOR as CUSTOMER` with both email addresses,
    `actor_id` is the customer, and `impersonation_id` is the record that holds both ids."""

    id: int
    at: datetime
    actor: str
    actor_id: UUID | None
    role: str
    via: Via
    impersonation_id: UUID | None
    address: str | None
    request_id: str
    operation: str
    target_kind: str
    target_id: str | None
    target_name: str | None
    project_id: UUID | None
    outcome: Outcome
    error_code: str | None
    details: dict[str, Any] | None


_WORDS = "text_words(ARRAY[actor, operation, target_name, target_id])"
ALL_ENTRIES = Condition("SELECT coalesce(sum(number), 0) FROM list_numbers WHERE list = 'audit'")
ENTRY_BLOCKS = Blocks(
    "at", Condition("SELECT words[1]::bigint << 14 AS bound, number FROM list_numbers WHERE list = 'audit'")
)
_COLUMNS = ", ".join(AuditEntry.model_fields)


async def audit_page(
    queryable: Queryable,
    principal: Principal,
    request: PageRequest,
    where: Sequence[tuple[str, Sequence[object]]],
    *,
    known_total: Condition | None = None,
    blocks: Blocks | None = None,
) -> Page[AuditEntry]:
    """A page of the audit entries that meet all of `where`, newest first. A customer sees the client addresses of their
    own actions only, not those of other people or of the operator of a support session. `known_total` gives the number
    of entries without `q`, if a maintained count has it; `blocks` are maintained counts of parts of the list
    (`svc.registry.paging.Blocks`)."""
    rows, total = await paginate(
        queryable,
        select=f"SELECT {_COLUMNS} FROM audit",
        source="audit",
        where=[*where, has_words(request.q, "actor", "operation", "target_name", "target_id", words=_WORDS)],
        # Ids increase with time, so sorting by id sorts by time.
        sortable={"at": "id", "actor": "actor", "operation": "operation"},
        default_sort="-at",
        request=request,
        known_total=known_total if not request.q else None,
        blocks=blocks if not request.q else None,
    )
    return Page[AuditEntry].of([_entry(row, principal) for row in rows], total, request)


async def audit_in_order(
    queryable: Queryable, principal: Principal, where: Sequence[tuple[str, Sequence[object]]], limit: int
) -> list[AuditEntry]:
    """The first `limit` entries that meet all of `where`, oldest first."""
    condition = joined(where)
    rows = await queryable.fetch(
        f"SELECT {_COLUMNS} FROM audit WHERE {condition.sql} ORDER BY id LIMIT ${len(condition.args) + 1}",
        *condition.args,
        limit,
    )
    return [_entry(row, principal) for row in rows]


def _entry(row: Record, principal: Principal) -> AuditEntry:
    entry = AuditEntry(**dict(row))
    own = entry.actor_id == principal.user_id and entry.impersonation_id is None
    return entry if principal.is_operator or own else entry.model_copy(update={"address": None})


def audit_of(kind: str, target_id: UUID) -> Condition:
    """The audit entries about one resource, as a condition."""
    return Condition("target_kind = $1 AND target_id = $2", (kind, str(target_id)))


@operations.declare(
    "activity.list",
    "Who did what: an administrator sees all of it, everybody else their own",
    Route.get("/activity"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    command=("activity",),
    columns=("at", "actor", "operation", "target=target_name", "outcome"),
)
async def activity(context: Context[IdentityServices], request: PageRequest) -> Page[AuditEntry]:
    everything = context.principal.role is Role.ADMINISTRATOR
    own = EVERYTHING if everything else equals("actor_id", context.principal.user_id)
    known_total, blocks = (ALL_ENTRIES, ENTRY_BLOCKS) if everything else (None, None)
    return await audit_page(
        context.services.database, context.principal, request, [own], known_total=known_total, blocks=blocks
    )
