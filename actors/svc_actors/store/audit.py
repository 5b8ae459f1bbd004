"""The audit trail: who did what to what, written in the transaction that does it, and never changed afterwards.

The table refuses UPDATE, DELETE and TRUNCATE, from the service's own role too. Each row is announced by an `activity`
event.

Why: docs/decisions/0010-audit-log-and-its-chain.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

from svc_actors.store.events import EventKind, NewEvent, append
from svc_actors.store.transactions import Transaction


class Via(StrEnum):
    """How the caller reached the service."""

    SESSION = "session"
    TOKEN = "token"  # noqa: S105
    IMPERSONATION = "impersonation"
    SYSTEM = "system"
    NODE = "node"
    SETUP = "setup"
    PROVISION = "provision"
    LOCAL = "local"
    """Root of the server, over the service's socket."""


class Outcome(StrEnum):
    OK = "ok"
    DENIED = "denied"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The author of a request.

    `actor` is for people to read: an email, "system", "node:<name>". In a support session `actor_id` is the customer,
    so that the row shows in the customer's own activity, and `impersonator_id` is the operator (specification, support
    sessions).
    """

    actor: str
    role: str
    via: Via
    request_id: str
    operation: str
    actor_id: UUID | None = None
    impersonation_id: UUID | None = None
    impersonator_id: UUID | None = None
    token_id: UUID | None = None
    address: str | None = None


@dataclass(frozen=True)
class Target:
    """The resource acted on. Members of its project may read the row; without a project, only administrators."""

    kind: str
    id: UUID | str | None
    name: str | None
    project_id: UUID | None = None


def service_itself(operation: str) -> Caller:
    """The caller for actions of the service itself."""
    return Caller(
        actor="system",
        role="system",
        via=Via.SYSTEM,
        request_id=f"system-{uuid4()}",
        operation=operation,
    )


async def record(
    transaction: Transaction,
    caller: Caller,
    target: Target,
    details: Mapping[str, Any] | None = None,
    *,
    outcome: Outcome = Outcome.OK,
    error_code: str | None = None,
) -> None:
    """Record what `caller` did to `target`. `details` must contain no secret: they are stored and shown."""
    target_id = str(target.id) if target.id is not None else None
    row = await transaction.fetchrow(
        """
        INSERT INTO audit (
            actor_id, actor, role, via, impersonation_id, impersonator_id, token_id, address, request_id, operation,
            target_kind, target_id, target_name, project_id, outcome, error_code, details
        )
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)
        RETURNING id
        """,
        caller.actor_id,
        caller.actor,
        caller.role,
        caller.via.value,
        caller.impersonation_id,
        caller.impersonator_id,
        caller.token_id,
        caller.address,
        caller.request_id,
        caller.operation,
        target.kind,
        target_id,
        target.name,
        target.project_id,
        outcome.value,
        error_code,
        details,
    )
    await append(
        transaction,
        NewEvent(
            kind=EventKind.ACTIVITY,
            subject=target_id,
            project_id=target.project_id,
            administrators_only=target.project_id is None,
            payload={
                "id": row["id"] if row is not None else None,
                "actor": caller.actor,
                "actor_id": str(caller.actor_id) if caller.actor_id else None,
                "via": caller.via.value,
                "operation": caller.operation,
                "target_kind": target.kind,
                "target_id": target_id,
                "target_name": target.name,
                "outcome": outcome.value,
                "error_code": error_code,
            },
        ),
    )
