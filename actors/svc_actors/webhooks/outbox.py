"""The outbox of events: written in the transaction of the change they report, so that neither exists without the other.

The body is composed here, once: all attempts of all deliveries of an event send the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID, uuid4

from svc_actors.store import Transaction
from svc_actors.webhooks.payload import Scalar, Subject, compose

CHANNEL: Final = "webhooks"
"""The channel that announces due deliveries. With an endpoint's id as its payload, it announces that what was read
about this endpoint is outdated."""


@dataclass(frozen=True)
class StoredEvent:
    """A stored event, ready to be delivered."""

    id: UUID
    at: datetime


async def write_event(
    tx: Transaction, event: str, *, server: Mapping[str, str], subject: Subject | None, data: Mapping[str, Scalar]
) -> StoredEvent:
    """Store an event without deliveries. Raises ValueError for data that are not flat scalars."""
    written = StoredEvent(uuid4(), datetime.now(UTC))
    body = compose(event, event_id=written.id, at=written.at, server=server, subject=subject, data=data)
    await tx.execute(
        "INSERT INTO webhook_events (id, event, at, body) VALUES ($1, $2, $3, $4)",
        written.id,
        event,
        written.at,
        body,
    )
    return written


async def deliver_to(tx: Transaction, endpoint_id: UUID, written: StoredEvent) -> UUID:
    """Queue a delivery of an event to one endpoint; returns the delivery's id."""
    delivery_id: UUID = await tx.fetchval(
        """
        INSERT INTO webhook_deliveries (endpoint_id, event_id, created_at, next_attempt_at) VALUES ($1, $2, $3, $3)
        RETURNING id
        """,
        endpoint_id,
        written.id,
        written.at,
    )
    tx.announce(CHANNEL)
    return delivery_id
