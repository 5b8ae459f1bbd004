"""Deleting a person. The audit keeps its entries about them: it holds names and refers to no record.

Invariant: any other record that refers to the person is something they own (a site, a zone) and prevents the deletion.
"""

from __future__ import annotations

from uuid import UUID

from svc.identity import alerts, sessions
from svc_actors.store import Transaction


async def remove_person(tx: Transaction, user_id: UUID) -> None:
    """Delete the person with their sessions, tokens, links, second factor and support sessions. Raises
    `ForeignKeyViolationError` if the person still owns something."""
    await sessions.end_all(tx, user_id)
    await tx.execute("DELETE FROM impersonations WHERE $1 IN (customer_id, operator_id)", user_id)
    await alerts.forget_who_acknowledged(tx, user_id)
    await tx.execute("DELETE FROM users WHERE id = $1", user_id)
