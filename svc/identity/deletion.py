"""Removing a person for good. What the audit tells of them stays: it holds names, and refers to no record.

Invariant: what else refers to the person is a thing of theirs (a site, a zone), and keeps them from being removed.
"""

from __future__ import annotations

from uuid import UUID

from svc.identity import alerts, sessions
from svc_actors.store import Transaction


async def remove_person(tx: Transaction, user_id: UUID) -> None:
    """Remove them with their sessions, tokens, links, second factor and support sessions. Raises
    `ForeignKeyViolationError` where something is theirs still."""
    await sessions.end_all(tx, user_id)
    await tx.execute("DELETE FROM impersonations WHERE $1 IN (customer_id, operator_id)", user_id)
    await alerts.forget_who_acknowledged(tx, user_id)
    await tx.execute("DELETE FROM users WHERE id = $1", user_id)
